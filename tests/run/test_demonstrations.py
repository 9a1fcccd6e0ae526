"""Demonstrations: a share of every batch is recorded, counted row by row; nothing else of a run changes."""

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from learning import build, digest, scenario_of, tiny

from slipstream.collect.episodes import play
from slipstream.config.load import override
from slipstream.data import checkpoint
from slipstream.data.dataset_file import Dataset, merge, save_dataset
from slipstream.data.spans import join
from slipstream.data.transitions import TERMINATED, TRUNCATED, WENT_ON, Chain, from_fields, to_fields
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.run import setup
from slipstream.run.metrics import metrics_hash
from slipstream.run.progress import Display
from slipstream.run.record import record
from slipstream.run.session import resume, train

LOCK = 16  # ticks: one random episode in 65,536 is paid
SHOWN = 640  # 40 whole episodes


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> Path:
    """What the script of the lock does."""
    path = tmp_path_factory.mktemp("data") / "lock"
    save_dataset(path, record(scenario_of("probe_lock"), SHOWN, policy="best", num_worlds=4))
    return path


def from_demonstrations(kind: str, path: Path | str, share: Any = 0.5, **algo: Any) -> dict[str, Any]:
    changes = tiny(kind, **{"batch_size": 32, **algo, "replay.demonstrations": {"path": str(path), "share": share}})
    return changes | ({"algo.discrete_actions": True} if kind == "dqn" else {})


# --- what they are for ---


def opened(kind: str, changes: dict[str, Any]) -> float:
    """The share of locks that a trained policy opens."""
    parts = build(scenario_of("probe_lock", {"seed": 1, "algo.kind": kind, **changes}))
    while parts.updates * parts.scenario.rollout_steps < parts.scenario.timesteps:
        parts.advance()
    worlds = setup.make_evaluation_worlds(parts.scenario, 64)
    return float(play(worlds, parts.cast.teams, 64, seed=5).stat("opened").mean())


@pytest.mark.parametrize("kind", ["td3", "sac"])
def test_what_is_too_rarely_paid_to_be_found_is_learned_where_it_is_shown(kind, shown):
    settings = {"algo.replay.n_step": 4}  # over single decisions SAC opens it unshown: its bonus pays for staying
    assert opened(kind, settings) == 0.0
    assert opened(kind, {**settings, "algo.replay.demonstrations.path": str(shown)}) == 1.0


def test_dqn_learns_from_its_own_table_played_by_another(tmp_path):
    scenario = scenario_of("probe_bandit", {"seed": 1, **tiny("dqn")})
    save_dataset(tmp_path / "d", record(scenario, 500, policy="best"))
    never_explores = {"algo.epsilon": 0.0, "algo.learning_starts": 0, "timesteps": 1024, "algo.kind": "dqn"}
    taught = {**never_explores, "algo.replay.demonstrations.path": str(tmp_path / "d")}
    returns = []
    for changes in (never_explores, taught):
        parts = build(scenario_of("probe_bandit", {"seed": 1, **changes}))
        while parts.updates * parts.scenario.rollout_steps < parts.scenario.timesteps:
            parts.advance()
        worlds = setup.make_evaluation_worlds(parts.scenario, 64)
        returns.append(play(worlds, parts.cast.teams, 64, seed=5).team_returns.mean())
    assert returns[1] > returns[0]


# --- the share of a batch ---


@pytest.mark.parametrize(("kind", "share"), [("td3", 0.5), ("sac", 0.25), ("td3", 0.0), ("sac", 1.0), ("td3", 0.49)])
def test_every_batch_has_exactly_its_share_of_recorded_rows(kind, share, shown, monkeypatch):
    batches = learned_batches(from_demonstrations(kind, shown, share), monkeypatch)
    assert len(batches) == 8 * 7
    for _, sample in batches:
        recorded = sample.index == -1
        assert recorded.sum() == round(share * 32)
        assert not recorded[: 32 - recorded.sum()].any()  # the run's own come first
        assert (sample.weight == 1).all()


def test_the_share_follows_its_schedule(shown, monkeypatch):
    batches = learned_batches(from_demonstrations("td3", shown, [[0, 0.5], [0.5, 0]]), monkeypatch)
    counts = [(progress.fraction, int((sample.index == -1).sum())) for progress, sample in batches]
    assert sorted({count for _, count in counts}, reverse=True) == [12, 8, 4, 0]  # from the second of eight updates on
    assert all(count == round(32 * max(0.0, 0.5 - fraction)) for fraction, count in counts)


def learned_batches(changes: dict[str, Any], monkeypatch) -> list[tuple[Any, Any]]:
    """Progress and draw of every gradient step, the arrays copied."""
    parts, seen = build(scenario_of("probe_lock", {**changes, "algo.training_intensity": 0.25})), []
    update = parts.learner.update

    def spy(sample, progress):
        rows = {name: array.copy() for name, array in to_fields(sample.rows).items()}
        seen.append((progress, Drawn(sample.index.copy(), sample.weight.copy(), rows)))
        return update(sample, progress)

    monkeypatch.setattr(parts.learner, "update", spy)
    while parts.updates < 8:
        parts.advance()
    return seen


class Drawn:
    def __init__(self, index: Any, weight: Any, rows: dict[str, Any]) -> None:
        self.index, self.weight, self.rows = index, weight, rows


def test_recorded_rows_are_those_of_the_dataset_and_all_others_the_runs_own(shown, monkeypatch):
    recorded = rows_as_bytes(to_fields(record(scenario_of("probe_lock"), SHOWN, policy="best", num_worlds=4).rows))
    found: set[bytes] = set()
    for _, sample in learned_batches(from_demonstrations("td3", shown), monkeypatch):
        drawn = rows_as_bytes(sample.rows)
        assert all((row in recorded) == (index == -1) for row, index in zip(drawn, sample.index, strict=True))
        found |= {row for row, index in zip(drawn, sample.index, strict=True) if index == -1}
    assert len(found) > len(set(recorded)) / 2


def rows_as_bytes(fields: dict[str, Any]) -> list[bytes]:
    return [b"".join(array[row].tobytes() for array in fields.values()) for row in range(len(fields["reward"]))]


def test_recorded_rows_have_no_priority_and_priorities_are_of_the_rows_they_belong_to(shown, monkeypatch):
    changes = from_demonstrations("td3", shown, **{"replay.prioritised": {"alpha": 1.0, "eps": 1e-6}})
    parts = build(scenario_of("probe_lock", changes))
    said: dict[int, float] = {}
    update = parts.learner.update

    def spy(sample, progress):
        result = update(sample, progress)
        said.update({int(i): float(e) for i, e in zip(sample.index, result.td_error, strict=True) if i >= 0})
        return result

    monkeypatch.setattr(parts.learner, "update", spy)
    while parts.updates < 4:
        parts.advance()
    (feed,) = parts.feeds.values()
    places = np.array(sorted(said))
    np.testing.assert_allclose(feed.replay.priorities(places), [said[i] + 1e-6 for i in places], rtol=1e-6)


def test_the_statistics_of_inputs_see_recorded_rows_once(shown):
    parts = build(scenario_of("probe_lock", from_demonstrations("td3", shown, normalize_observation=True)))
    assert int(parts.learner.actor.norm.count) == SHOWN
    parts.advance()
    assert int(parts.learner.actor.norm.count) == SHOWN + parts.feeds["main"].replay.total_added


# --- spans of several decisions ---


def chained(name: str, n_step: int, changes: dict[str, Any]) -> Dataset:
    """What a collector makes of random driving, as spans, with how each ended."""
    parts = build(scenario_of(name, {**tiny("td3"), **changes}))
    parts.learner.explore(setup.progress_at(parts.scenario, 0))
    rollout = parts.collector.recorders["main"].rollout
    chain, found, ends = Chain(rollout, 0.9, n_step), [], []
    for update in range(12):
        rollouts, _ = parts.collector.collect(update)
        found.append({name: array.copy() for name, array in to_fields(chain.extend(rollouts["main"])).items()})
        ends.append(chain.ended)
    fields = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
    one = record(scenario_of(name, changes), 10)
    return Dataset(one.record, from_fields(fields), np.concatenate(ends))


@pytest.mark.parametrize("n_step", [1, 2, 5])
def test_joined_rows_are_the_spans_that_a_run_makes_of_the_same_decisions(n_step):
    single, spans = (chained("probe_target", n, {"world.horizon": 6}) for n in (1, n_step))
    (part,) = single.record.parts
    part = msgspec.structs.replace(part, rows=len(single.rows))
    joined = join(Dataset(msgspec.structs.replace(single.record, parts=(part,)), single.rows, single.end), n_step)
    by_start = {row.tobytes(): at for at, row in enumerate(joined.obs["obs"])}
    assert len(by_start) == len(joined)
    at = np.array([by_start[row.tobytes()] for row in spans.rows.obs["obs"]])
    assert len(at) > 300
    np.testing.assert_allclose(joined.reward[at], spans.rows.reward, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(joined.discount[at], spans.rows.discount, rtol=1e-6)
    for theirs, mine in ((spans.rows.next_obs, joined.next_obs), (spans.rows.obs, joined.obs)):
        np.testing.assert_array_equal(mine["obs"][at], theirs["obs"])
    np.testing.assert_array_equal(joined.action[at], spans.rows.action)


def test_spans_end_with_an_episode_with_a_recording_and_where_rows_were_left_out():
    three = record(scenario_of("probe_target", {"world.horizon": 4}), 8, num_worlds=1, policy="best")
    assert [int(end) for end in three.end] == [WENT_ON] * 3 + [TERMINATED] + [WENT_ON] * 3 + [TERMINATED]
    np.testing.assert_allclose(join(three, 3).reward, [1 + 0.9 + 0.81, 1 + 0.9 + 0.81, 1.9, 1] * 2, rtol=1e-6)
    np.testing.assert_allclose(join(three, 3).discount, [0.729, 0, 0, 0] * 2, rtol=1e-6)
    some = merge([three], [3])
    np.testing.assert_allclose(join(some, 3).discount, [0.729, 0.81, 0.9], rtol=1e-6)
    twice = merge([some, three], [2, 1])  # the same rows 0 and 1, then row 0 again: of another part, so it follows none
    np.testing.assert_allclose(join(twice, 3).discount, [0.81, 0.9, 0.9], rtol=1e-6)
    cut = record(scenario_of("probe_corridor", {"world.horizon": 3}), 200, num_worlds=1, policy="best")
    ends = np.flatnonzero(cut.end == TRUNCATED)
    assert len(ends) > 10
    np.testing.assert_allclose(join(cut, 4).discount[ends], 0.9, rtol=1e-6)  # nothing after a truncation is joined


# --- resuming ---


class Stop(Display):
    def advance(self, done: int, text: str) -> None:
        if done == 96:
            os.kill(os.getpid(), signal.SIGINT)


def run(scenario, tmp_path: Path, name: str = "run", display: Display | None = None):
    return train(scenario, out=tmp_path / name, models=tmp_path / "models", display=display)


def test_a_run_resumed_from_a_script_is_one_from_its_recording_never_stopped(tmp_path):
    more = {"replay.n_step": 3, "replay.prioritised": {}, "normalize_observation": True}
    changes = from_demonstrations("td3", tmp_path / "d", [[0, 0.5], [1, 0.1]], **more)
    scenario = scenario_of("probe_lock", changes)
    save_dataset(tmp_path / "d", record(scenario, 300, policy="best"))
    own = {
        **changes,
        "algo.replay.demonstrations": {"script": "best", "transitions": 300, "share": [[0, 0.5], [1, 0.1]]},
    }
    whole, half = run(scenario, tmp_path, "whole"), run(scenario_of("probe_lock", own), tmp_path, "half", Stop())
    assert half.counters.updates == 3
    again = resume(half.run, models=tmp_path / "models")
    assert digest(checkpoint.load(again.checkpoint).arrays) == digest(checkpoint.load(whole.checkpoint).arrays)
    assert metrics_hash(again.run / "metrics.jsonl") == metrics_hash(whole.run / "metrics.jsonl")


def test_resuming_with_other_recorded_rows_is_refused(tmp_path):
    here = tmp_path / "data"
    first, second = (record(scenario_of("probe_lock"), 320, policy="best", seed=seed) for seed in (1, 2))
    save_dataset(here, first)
    half = run(scenario_of("probe_lock", from_demonstrations("td3", here)), tmp_path, "half", Stop())
    here.rename(tmp_path / "elsewhere")
    save_dataset(here, second)
    with pytest.raises(CheckpointError, match=r"data: this dataset is [0-9a-f]{12}, .*from [0-9a-f]{12}"):
        resume(half.run)


# --- what is refused ---


def refused(changes: dict[str, Any], tmp_path: Path, name: str = "probe_lock") -> str:
    """The one sentence; nothing has been written."""
    with pytest.raises(ScenarioError) as caught:
        run(scenario_of(name, changes), tmp_path)
    assert not (tmp_path / "run").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rewards_of_another_task_are_refused_by_the_place_where_the_worlds_differ(shown, tmp_path):
    said = refused({**from_demonstrations("td3", shown), "world.horizon": 12}, tmp_path)
    assert said.startswith("algo.replay.demonstrations: ")
    assert f"{shown} was recorded with world.horizon 16, which is 12 here" in said


def test_rewards_with_other_shaping_are_refused(tmp_path):
    save_dataset(tmp_path / "d", record("probe_corridor", 100, policy="best"))
    more = {"shaping.use_potential_shaping": True, "shaping.kappa": 0.5}
    said = refused({**from_demonstrations("dqn", tmp_path / "d"), **more}, tmp_path, "probe_corridor")
    assert said.startswith("algo.replay.demonstrations: ")
    assert "shaping 0 and this run has 0.5" in said


def test_another_world_or_none_is_refused(tmp_path):
    save_dataset(tmp_path / "d", record("probe_target", 100, policy="best"))
    assert "world.task target" in refused(from_demonstrations("td3", tmp_path / "d"), tmp_path)
    with pytest.raises(CheckpointError, match="nowhere"):
        run(scenario_of("probe_lock", from_demonstrations("td3", tmp_path / "nowhere")), tmp_path)


def test_a_script_that_the_world_does_not_have_is_refused(tmp_path):
    said = refused({**tiny("td3"), "algo.replay.demonstrations.script": "bset"}, tmp_path)
    assert said.startswith("algo.replay.demonstrations.script: ")
    assert "'best'" in said


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"algo.replay.demonstrations.script": "best"}, "give one of the two"),
        ({"algo.replay.demonstrations.path": None}, "give one of the two"),
        ({"algo.replay.kind": "service"}, "kind local"),
        ({"algo.replay.dataset": "d"}, "dataset merge"),
        ({"algo.network": {"kind": "gru"}}, "replay.demonstrations does not go with it"),
        ({"algo.replay.demonstrations.share": 1.5}, "1.5"),
        ({"algo.replay.demonstrations.share": [[0, 0.5], [1, 2]]}, "more than a whole batch"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(changes, fact, shown):
    with pytest.raises(ScenarioError) as caught:
        override(scenario_of("probe_lock", from_demonstrations("td3", shown)), changes)
    assert fact in str(caught.value)
    assert "\n" not in str(caught.value)
