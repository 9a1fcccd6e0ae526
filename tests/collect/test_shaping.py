"""Shaping by a model's potential: what is added, that it adds up, and that it goes on exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from learning import TINY, Parts, build, digest, scenario_of
from test_serial import KAPPA, add_potential, assert_same_bits, assert_same_story, by_hand, collected, tell

from slipstream.collect.serial import Collector
from slipstream.collect.shaping import Shaping
from slipstream.run.setup import gammas, make_training_worlds


class Model:
    """What `add_potential` gives a world, from observations alone: twice the first feature plus 3."""

    digest = "00" * 32

    def __init__(self) -> None:
        self.calls = 0
        self.rows = 0

    def potential(self, obs: dict[str, np.ndarray]) -> np.ndarray:
        self.calls += 1
        self.rows += len(obs["obs"])
        return np.asarray(2 * obs["obs"][..., 0] + 3, np.float32)


def recorded(name: str, length: int, shaping: Shaping, **changes: Any) -> Parts:
    shape = {"collect.rollout_length": length, "collect.num_worlds": 3, "algo.minibatch_size": 1}
    parts = build(scenario_of(name, {**TINY, **shape, "shaping.use_potential_shaping": False, **changes}))
    env, scenario = make_training_worlds(parts.scenario), parts.scenario
    collector = Collector(env, parts.cast.teams, length, scenario.seed, gammas(scenario), shaping)
    return Parts(scenario, env, parts.cast, collector)


@pytest.mark.parametrize("name", ["probe_duration", "probe_alternating", "probe_constant", "probe_corridor"])
@pytest.mark.parametrize("length", [1, 3, 30])
def test_a_models_potential_is_paid_like_a_worlds_own(name, length):
    parts = recorded(name, length, Shaping(KAPPA, Model()))
    expected = by_hand(parts, add_potential(make_training_worlds(parts.scenario)), 30, KAPPA)
    assert_same_story(tell(collected(parts, 30 // length)), expected)


def end_by_itself(parts: Parts) -> Parts:
    """The same worlds, but episodes that would be cut off end by themselves."""
    env, step = parts.env, parts.env.step

    def ending(active: Any = None) -> None:
        step(active)
        env.terminated[...] |= env.truncated
        env.truncated[...] = 0

    env.step = ending  # type: ignore[method-assign]
    return parts


@pytest.mark.parametrize("is_cut_off", [True, False])
@pytest.mark.parametrize("name", ["probe_duration", "probe_constant"])
def test_over_an_episode_shaping_adds_up_to_its_ends_whatever_was_done(name, is_cut_off):
    """So it moves the return of every policy from a state by the same amount, and the best stays the best."""
    cut = (lambda parts: parts) if is_cut_off else end_by_itself
    shaped = tell(collected(cut(recorded(name, 60, Shaping(KAPPA, Model()))), 1))
    parts = cut(recorded(name, 60, Shaping()))
    plain, gamma = tell(collected(parts, 1)), parts.scenario.algo.gamma
    found, episodes, durations = set(), 0, set()
    for pair, told in shaped.items():
        total, discount, start = 0.0, 1.0, None
        for mine, theirs in zip(told, plain[pair], strict=True):
            assert mine.action == theirs.action
            if not mine.outcome:
                break
            start = float(np.frombuffer(mine.obs, np.float32)[0]) if start is None else start
            reward, duration, terminated, truncated = mine.outcome
            total += discount * (reward - theirs.outcome[0])
            discount *= gamma**duration
            durations.add(duration)
            if terminated or truncated:
                end = 0.0 if terminated else 2 * float(np.frombuffer(mine.final_obs, np.float32)[0]) + 3
                assert total == pytest.approx(KAPPA * (discount * end - (2 * start + 3)), abs=1e-4)
                found.add(bool(terminated))
                total, discount, start, episodes = 0.0, 1.0, None, episodes + 1
    assert found == {not is_cut_off}
    assert episodes >= 15
    assert len(durations) > 1 or name != "probe_duration"


def test_a_model_is_asked_once_per_step_and_again_where_episodes_were_cut_off():
    model = Model()
    parts = recorded("probe_constant", 20, Shaping(KAPPA, model))
    for _ in range(3):
        slab = parts.collector.collect(0)[0]["main"]
        cut_off = int((slab.truncated[1:].any(axis=(1, 2))).sum())
        assert cut_off > 0
        assert model.calls == 20 + 1 + cut_off  # the first look, and one after each step
        assert model.rows == 21 * 3 + int(slab.truncated[1:].sum())
        model.calls = model.rows = 0


@pytest.mark.parametrize("name", ["probe_alternating", "probe_duration", "probe_corridor"])
def test_what_a_decision_brought_is_told_by_where_it_came_from(name):
    shaped, plain = recorded(name, 25, Shaping(KAPPA, Model())), recorded(name, 25, Shaping())
    for _ in range(2):
        slab, bare = (parts.collector.collect(0)[0]["main"] for parts in (shaped, plain))
        means, world = slab.reward_means, bare.reward_means
        assert means["r_total"] == means["r_env"] + means["r_shape"]
        assert means["r_env"] == world["r_env"] == world["r_total"]
        assert world["r_shape"] == 0.0 != means["r_shape"]
        assert means["r_total"] == pytest.approx(np.mean(finished_rewards(slab)), abs=1e-5)
        assert world["r_total"] == pytest.approx(np.mean(finished_rewards(bare)), abs=1e-6)


def finished_rewards(slab: Any) -> list[float]:
    """Of every decision that has its outcome in this slab, found by walking down each column."""
    found = []
    rows, worlds, agents = slab.shape
    for n in range(worlds):
        for a in range(agents):
            is_open = False
            for row in range(rows):
                is_open |= bool(slab.decided[row, n, a])
                if slab.paid[row, n, a] and is_open:
                    found.append(float(slab.reward[row, n, a]))
                    is_open = False
    return found


@pytest.mark.parametrize("name", ["probe_alternating", "probe_constant"])
def test_a_shaped_collector_goes_on_exactly_from_its_saved_state(name):
    parts, twin = (recorded(name, 5, Shaping(KAPPA, Model())) for _ in range(2))
    parts.collector.collect(0)
    state = {key: array.copy() for key, array in parts.collector.state_arrays().items()}
    twin.collector.load_state(state, parts.collector.steps)
    for _ in range(3):
        mine, theirs = (p.collector.collect(0)[0]["main"] for p in (parts, twin))
        assert_same_bits(mine, theirs)
        assert mine.reward_sums.tobytes() == theirs.reward_sums.tobytes()
    assert digest(parts.collector.state_arrays()) == digest(twin.collector.state_arrays())


def test_another_model_than_the_one_a_run_was_shaped_with_is_refused():
    parts, other = recorded("probe_constant", 5, Shaping(KAPPA, Model())), Model()
    other.digest = "01" * 32
    for shaping, mine in ((Shaping(KAPPA, other), other.digest), (Shaping(), "none")):
        with pytest.raises(ValueError, match=rf"shaping\.evaluator is {mine:.12}, .* {Model.digest:.12};"):
            recorded("probe_constant", 5, shaping).collector.load_state(parts.collector.state_arrays(), 0)


def test_worlds_that_were_started_anew_between_two_slabs_are_looked_at_again():
    parts = recorded("probe_constant", 4, Shaping(1.0, Model()))
    parts.collector.collect(0)
    parts.env.reset()
    first = parts.env.obs["obs"][:, 0, 0].copy()
    slab = parts.collector.collect(0)[0]["main"]
    after = 2 * slab.obs["obs"][2, :, 0, 0] + 3
    gamma = np.float32(parts.scenario.algo.gamma)
    shaping = slab.reward[1, :, 0] - 1  # this world pays 1
    np.testing.assert_allclose(shaping, gamma * after - (2 * first + 3), atol=1e-5)
