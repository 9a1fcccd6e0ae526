"""What policies learn from where replay is prioritised: a draw of all rows alike, which the critics do not see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from learning import build, scenario_of, tiny

from slipstream.algos.protocol import Progress
from slipstream.data.transitions import Sample, from_fields, to_fields
from slipstream.run.processes.data_parallel import GroupOrder, _sample_arrays, do

NOW = Progress(0.5, 3, 100)
WORLDS = {"sac": "probe_target", "td3": "probe_target", "cql": "probe_target", "dqn": "probe_bandit"}
POLICIES = pytest.mark.parametrize("kind", ["sac", "td3", "cql"])


def learner_of(kind: str, **changes: Any) -> Any:
    """A learner whose critics stay as they are, in a world of a few numbers."""
    frozen = {} if kind == "dqn" else {"critic_learning_rate": 0.0}
    if kind == "td3":
        frozen |= {"policy_delay": 1}
    parts = build(scenario_of(WORLDS[kind], tiny(kind, **{"replay.prioritised": {}, **frozen, **changes})))
    parts.advance()
    return parts


def draw_of(parts: Any, seed: int, rows: int = 8) -> Sample:
    """A batch of rows that this world could have shown."""
    (feed,) = parts.feeds.values()
    rng = np.random.default_rng(seed)
    fields = to_fields(feed.replay.sample(rows, seed).rows)
    made = {
        name: rng.normal(size=array.shape).astype(array.dtype) if array.dtype == np.float32 else array.copy()
        for name, array in fields.items()
    }
    weight = rng.uniform(0.1, 1.0, rows).astype(np.float32)
    return Sample(from_fields(made), np.arange(rows), weight)


def weights(learner: Any, name: str) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for p in learner.modules[name].parameters()])


@POLICIES
def test_a_policy_moves_as_it_would_on_the_even_rows_alone(kind):
    moved = {}
    for case in ("both", "even", "priority"):
        parts = learner_of(kind)
        by_priority, even = draw_of(parts, 1), draw_of(parts, 2)
        sample = {"both": replace(by_priority, even=even), "even": even, "priority": by_priority}[case]
        parts.learner.update(sample, NOW)
        moved[case] = weights(parts.learner, "actor")
    np.testing.assert_array_equal(moved["both"], moved["even"])
    assert not np.array_equal(moved["both"], moved["priority"])


@POLICIES
def test_critics_and_their_errors_are_those_of_the_rows_by_priority(kind):
    found = []
    for with_even in (False, True):
        parts = learner_of(kind, critic_learning_rate=1e-2)
        sample = draw_of(parts, 1)
        result = parts.learner.update(replace(sample, even=draw_of(parts, 2)) if with_even else sample, NOW)
        found.append((weights(parts.learner, "critics"), result.td_error.numpy()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_temperature_is_moved_by_the_entropy_of_the_even_rows():
    temperatures = []
    for case in ("both", "even"):
        parts = learner_of("sac")
        sample, even = draw_of(parts, 1), draw_of(parts, 2)
        parts.learner.update(replace(sample, even=even) if case == "both" else even, NOW)
        temperatures.append(weights(parts.learner, "temperature"))
    np.testing.assert_array_equal(*temperatures)


def given(kind: str, updates: int, **changes: Any) -> Iterator[Sample]:
    """What a run hands to its learner; arrays are copied, as a draw lives until the next one."""
    parts = build(scenario_of(WORLDS[kind], tiny(kind, **{"training_intensity": 0.25, **changes})))
    seen, update = [], parts.learner.update

    def listen(sample: Sample, progress: Progress) -> Any:
        even = sample.even
        seen.append(replace(sample, index=sample.index.copy(), even=even and replace(even, index=even.index.copy())))
        return update(sample, progress)

    parts.learner.update = listen
    for _ in range(updates):
        parts.advance()
    yield from seen


@pytest.mark.parametrize(
    ("kind", "changes", "every"),
    [("sac", {}, 1), ("cql", {}, 1), ("td3", {"policy_delay": 3}, 3), ("td3", {"policy_delay": 1}, 1)],
)
def test_an_even_draw_comes_with_every_step_of_the_policy_and_no_other(kind, changes, every):
    drawn = list(given(kind, 4, **{"replay.prioritised": {}, **changes}))
    assert len(drawn) > 3
    assert [sample.even is not None for sample in drawn] == [(n + 1) % every == 0 for n in range(len(drawn))]
    for sample in drawn:
        if sample.even is not None:
            assert (sample.even.weight == 1).all()
            assert not np.array_equal(sample.even.index, sample.index)


@pytest.mark.parametrize(("kind", "prioritised"), [("sac", None), ("td3", None), ("dqn", {})])
def test_without_priorities_or_without_a_policy_there_is_one_draw(kind, prioritised):
    assert all(sample.even is None for sample in given(kind, 3, **{"replay.prioritised": prioritised}))


def test_with_a_memory_the_even_draw_has_sequences_of_its_own():
    memory = {"network": {"kind": "gru", "size": 4, "length": 4}, "replay.prioritised": {}}
    drawn = list(given("sac", 3, **memory))
    assert drawn
    for sample in drawn:
        assert sample.even is not None
        assert sample.even.past is not None
        assert sample.even.past.lengths.sum() == len(sample.even.rows) == len(sample.rows)


def test_learners_in_step_are_told_of_the_even_rows():
    parts, other = learner_of("sac"), learner_of("sac")
    sample = replace(draw_of(parts, 1), even=draw_of(parts, 2))
    parts.learner.update(sample, NOW)
    order = GroupOrder("sample", "main", progress=(NOW.fraction, NOW.update, NOW.steps))
    do(order, dict(_sample_arrays(sample)), other.learner, list(sample.rows.obs))
    for name in ("actor", "critics", "temperature"):
        np.testing.assert_array_equal(weights(parts.learner, name), weights(other.learner, name))
    assert torch.isfinite(torch.from_numpy(weights(other.learner, "actor"))).all()
