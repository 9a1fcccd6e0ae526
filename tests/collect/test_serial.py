"""What the collector records, against stepping the worlds by hand, one agent at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from learning import PROBES, TINY, Parts, build, digest, recast, scenario_of

from slipstream import _core
from slipstream.collect.serial import Collector
from slipstream.collect.shaping import Shaping
from slipstream.collect.teams import Team
from slipstream.data.rollout import Rollout
from slipstream.nets.actor import Acted
from slipstream.run.setup import gammas, make_training_worlds
from slipstream.spec import ActionSpec
from slipstream.worlds.vec_env import VecEnv

WORLDS = ("head_on", *(f"probe_{task}" for task in PROBES))
KAPPA = 0.7


@dataclass
class Told:
    """One decision and what came of it."""

    obs: bytes
    state: bytes
    action: bytes
    logp: float
    mask: bytes
    outcome: list[float] = field(default_factory=list)  # reward, duration, terminated, truncated
    final_obs: bytes = b""


def tell(rollouts: list[tuple[Rollout, dict[str, Any]]]) -> dict[tuple[int, int], list[Told]]:
    """The decisions of each (world, agent) with their outcomes, from slabs in a row."""
    story: dict[tuple[int, int], list[Told]] = {}
    for slab, _ in rollouts:
        rows, worlds, agents = slab.shape
        ends = {} if slab.ends is None else {int(i): k for k, i in enumerate(slab.ends.index)}
        for n in range(worlds):
            for a in range(agents):
                told = story.setdefault((n, a), [])
                for row in range(rows):
                    if slab.decided[row, n, a] and row > 0:
                        told.append(_decision(slab, row, n, a))
                    elif slab.decided[row, n, a]:  # carried over: the one told last, and still open
                        assert told[-1] == _decision(slab, row, n, a)
                    if slab.paid[row, n, a] and told and not told[-1].outcome:
                        columns = (slab.reward, slab.duration, slab.terminated, slab.truncated)
                        told[-1].outcome = [float(array[row, n, a]) for array in columns]
                        flat = (row * worlds + n) * agents + a
                        if flat in ends:
                            assert slab.ends is not None
                            told[-1].final_obs = slab.ends.obs["obs"][ends[flat]].tobytes()
    return story


def _decision(slab: Rollout, row: int, n: int, a: int) -> Told:
    return Told(
        obs=slab.obs["obs"][row, n, a].tobytes(),
        state=b"" if slab.state is None else slab.state[row, n, a].tobytes(),
        action=slab.action[row, n, a].tobytes(),
        logp=float(slab.logp[row, n, a]),
        mask=b"" if slab.mask is None else slab.mask[row, n, a].tobytes(),
    )


def noise_by_hand(action: ActionSpec, rows: tuple[int, int], seed: int, step: int) -> np.ndarray:
    """Uniform numbers for choices and normal ones for axes; beside choices, the axes' from later columns (by fours)."""

    def filled(fill: Any, width: int) -> np.ndarray:
        out = np.empty((*rows, width), np.float32)
        fill(out, seed=seed, step=step, first_world=0)
        return out

    choices = action.size if action.discrete else sum(action.parts)
    if not choices:
        return filled(_core.fill_normal, action.size)
    uniform, after = filled(_core.fill_uniform, choices), (choices + 3) // 4 * 4
    return np.concatenate([uniform, filled(_core.fill_normal, after + action.axes)[..., after:]], axis=-1)


def by_hand(parts: Parts, env: VecEnv, ticks: int, kappa: float) -> dict[tuple[int, int], list[Told]]:
    """The same, step by step and agent by agent."""
    spec, gamma, seed = env.spec, parts.scenario.algo.gamma, parts.scenario.seed
    pairs = [(n, a) for n in range(env.num_worlds) for a in range(spec.num_agents)]
    story: dict[tuple[int, int], list[Told]] = {pair: [] for pair in pairs}
    phi = dict.fromkeys(pairs, 0.0)
    env.reset()
    for step in range(ticks):
        noise = noise_by_hand(spec.action, env.rewards.shape, seed, step)
        for n, a in pairs:
            obs = env.obs["obs"][n, a].copy()
            mask = None if env.action_mask is None else env.action_mask[n, a].copy()
            acted = parts.learner.act({"obs": obs[None]}, None if mask is None else mask[None], noise[n, a][None])
            env.actions[n, a] = acted.action[0]
            if not env.acting[n, a]:
                continue
            state = b"" if env.state is None else env.state[n].tobytes()
            masked = b"" if mask is None else mask.tobytes()
            story[n, a].append(Told(obs.tobytes(), state, acted.action[0].tobytes(), float(acted.logp[0]), masked))
            if env.potential is not None:
                phi[n, a] = float(env.potential[n, a])
        env.step()
        for n, a in pairs:
            ended = env.terminated[n, a] or env.truncated[n, a]
            told = story[n, a]
            if not env.alive[n, a] or not (ended or env.acting[n, a]) or not told or told[-1].outcome:
                continue
            reward, duration = float(env.rewards[n, a]), int(env.duration[n, a])
            if env.potential is not None and env.final_potential is not None:
                after = 0.0 if env.terminated[n, a] else float(env.potential[n, a])
                if env.truncated[n, a] and not env.terminated[n, a]:
                    after = float(env.final_potential[n, a])
                reward += kappa * (gamma**duration * after - phi[n, a])
            told[-1].outcome = [reward, duration, float(env.terminated[n, a]), float(env.truncated[n, a])]
            if env.truncated[n, a] and not env.terminated[n, a]:
                told[-1].final_obs = env.final_obs["obs"][n, a].tobytes()
    return story


def add_potential(env: VecEnv) -> VecEnv:
    """Give a world a potential it does not have: twice the first feature plus 3."""

    def show() -> None:
        env.potential[:] = np.where(env.acting != 0, 2 * env.obs["obs"][..., 0] + 3, 0)  # type: ignore[index]
        env.final_potential[:] = 2 * env.final_obs["obs"][..., 0] + 3  # type: ignore[index]

    reset, step = env.reset, env.step
    env.potential, env.final_potential = np.zeros_like(env.rewards), np.zeros_like(env.rewards)
    env.reset = lambda mask=None: (reset(mask), show())[0]  # type: ignore[method-assign,assignment]
    env.step = lambda active=None: (step(active), show())[0]  # type: ignore[method-assign,assignment]
    return env


def assert_same_story(ours: dict[Any, list[Told]], expected: dict[Any, list[Told]]) -> None:
    assert ours.keys() == expected.keys()
    for pair, told in expected.items():
        assert len(ours[pair]) == len(told) > 0, pair
        for mine, theirs in zip(ours[pair], told, strict=True):
            np.testing.assert_allclose(mine.outcome, theirs.outcome, rtol=1e-5, atol=1e-5)
            mine.outcome = theirs.outcome = []
            assert mine == theirs


def collected(parts: Parts, slabs: int) -> list[tuple[Rollout, dict[str, Any]]]:
    """Rollouts in a row, copied, because the collector uses their memory again."""
    from copy import deepcopy

    return [(deepcopy(parts.collector.collect(0)[0]["main"]), {}) for _ in range(slabs)]


def recorded(name: str, length: int, potential: bool = False, shaped: bool = True) -> Parts:
    changes = {**TINY, "collect.rollout_length": length, "collect.num_worlds": 3}
    changes |= {"shaping.use_potential_shaping": shaped, "shaping.kappa": KAPPA}
    if name == "head_on":
        changes["world.max_episode_steps"] = 7
    parts = build(scenario_of(name, {**changes, "algo.minibatch_size": 1}))
    if potential:
        env = add_potential(make_training_worlds(parts.scenario))
        collector = Collector(
            env, parts.cast.teams, length, parts.scenario.seed, gammas(parts.scenario), Shaping(KAPPA)
        )
        parts = Parts(parts.scenario, env, parts.cast, collector)
    return parts


@pytest.mark.parametrize("name", WORLDS)
def test_a_rollout_is_what_stepping_by_hand_gives(name):
    parts = recorded(name, length=30)
    expected = by_hand(parts, make_training_worlds(parts.scenario), 30, KAPPA)
    assert_same_story(tell(collected(parts, 1)), expected)


@pytest.mark.parametrize("name", ["probe_duration", "probe_alternating"])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_short_slabs_carry_open_decisions_and_tell_what_one_long_slab_tells(name, length):
    parts = recorded(name, length, potential=True)
    expected = by_hand(parts, add_potential(make_training_worlds(parts.scenario)), 30, KAPPA)
    assert_same_story(tell(collected(parts, 30 // length)), expected)


@pytest.mark.parametrize("name", ["head_on", "probe_corridor"])
def test_slabs_of_any_length_tell_the_same(name):
    long, short = recorded(name, 24), recorded(name, 3)
    assert tell(collected(long, 1)) == tell(collected(short, 8))


def test_shaping_telescopes_over_an_episode():
    parts = recorded("probe_corridor", length=40)
    plain = recorded("probe_corridor", length=40, shaped=False)
    gamma = parts.scenario.algo.gamma
    shaped, bare = tell(collected(parts, 1)), tell(collected(plain, 1))
    episodes = 0
    for pair, told in shaped.items():
        assert [t.action for t in told] == [t.action for t in bare[pair]]
        total, discount, start = 0.0, 1.0, None
        for mine, theirs in zip(told, bare[pair], strict=True):
            position = float(np.frombuffer(mine.obs, np.float32)[0])
            start = position - 1 if start is None else start
            total += discount * (mine.outcome[0] - theirs.outcome[0])
            discount *= gamma
            _, _, terminated, truncated = mine.outcome
            if not terminated and not truncated:
                continue
            end = 0.0 if terminated else float(np.frombuffer(mine.final_obs, np.float32)[0]) - 1
            assert total == pytest.approx(KAPPA * (discount * end - start), abs=1e-5)
            total, discount, start = 0.0, 1.0, None
            episodes += 1
    assert episodes >= 10


def test_masks_of_cut_off_episodes_and_after_the_last_tick_are_recorded():
    parts = build(scenario_of("probe_bandit", {**TINY, "collect.rollout_length": 21, "algo.minibatch_size": 1}))
    env, step = parts.env, parts.env.step
    cut: list[tuple[int, int, bytes]] = []

    def cut_off() -> None:  # the bandit terminates; here it is truncated
        step()
        env.truncated[...], env.terminated[...] = env.terminated, 0
        row = parts.collector.steps % 21 + 1
        cut.extend((row, int(n), env.final_mask[n, 0].tobytes()) for n in np.flatnonzero(env.truncated[:, 0]))

    env.step = cut_off  # type: ignore[method-assign]
    for _ in range(2):
        cut.clear()
        slab = parts.collector.collect(0)[0]["main"]
        assert slab.ends is not None
        assert [(*divmod(int(i), 4), m.tobytes()) for i, m in zip(slab.ends.index, slab.ends.mask, strict=True)] == cut
        assert len({mask for _, _, mask in cut}) > 1
        np.testing.assert_array_equal(slab.last_mask, env.action_mask)
        assert not slab.last_mask.all()


def test_every_row_is_stamped_with_the_version_that_acted():
    parts = build(scenario_of("probe_constant", TINY))
    for version in (3, 4):
        rollout = parts.collector.collect(version)[0]["main"]
        assert set(rollout.version[1:].ravel().tolist()) == {version}


@pytest.mark.parametrize("name", WORLDS)
def test_a_collector_goes_on_exactly_from_its_saved_state(name):
    changes = {**TINY, "collect.rollout_length": 5, "algo.minibatch_size": 1}
    parts = build(scenario_of(name, changes))
    parts.collector.collect(0)
    state, steps = parts.collector.state_arrays(), parts.collector.steps
    twin = build(parts.scenario)
    twin.collector.load_state({k: v.copy() for k, v in state.items()}, steps)
    for _ in range(3):
        mine, theirs = (p.collector.collect(0) for p in (parts, twin))
        assert_same_bits(mine[0]["main"], theirs[0]["main"])
        assert mine[1] == theirs[1]
    assert digest(parts.collector.state_arrays()) == digest(twin.collector.state_arrays())


def test_saving_in_between_does_not_disturb_collecting():
    one, other = (build(scenario_of("probe_alternating", TINY)) for _ in range(2))
    for _ in range(4):
        one.collector.state_arrays()
        assert_same_bits(one.collector.collect(0)[0]["main"], other.collector.collect(0)[0]["main"])


def assert_same_bits(mine: Rollout, theirs: Rollout) -> None:
    """Equal wherever a learner looks."""
    for name in ("decided", "paid"):
        assert getattr(mine, name).tobytes() == getattr(theirs, name).tobytes()
    took, paid = mine.decided != 0, mine.paid != 0
    for name in ("action", "logp"):
        assert getattr(mine, name)[took].tobytes() == getattr(theirs, name)[took].tobytes()
    for name in ("reward", "duration", "terminated", "truncated"):
        assert getattr(mine, name)[paid].tobytes() == getattr(theirs, name)[paid].tobytes()
    assert mine.obs["obs"][took].tobytes() == theirs.obs["obs"][took].tobytes()


def test_world_threads_and_batch_width_do_not_change_what_is_recorded():
    def story(worlds: int, threads: int) -> dict[tuple[int, int], list[Told]]:
        changes = {**TINY, "collect.num_worlds": worlds, "collect.world_threads": threads, "algo.minibatch_size": 1}
        told = tell(collected(build(scenario_of("head_on", changes)), 2))
        return {pair: decisions for pair, decisions in told.items() if pair[0] < 2}

    assert story(2, 1) == story(7, 1) == story(7, 2)


# --- who is recorded ---


class Stubborn:
    """Always the same choice; remembers whether it was asked to explore."""

    def __init__(self) -> None:
        self.noises: list[object] = []

    def act(self, obs: Any, mask: Any, noise: Any) -> Acted:
        self.noises.append(noise)
        rows = len(obs["obs"])
        return Acted(np.ones(rows, np.int32), np.zeros(rows, np.float32))


def test_scripted_and_frozen_teams_act_but_never_enter_a_learners_batch():
    scenario = scenario_of("probe_leaver", {**TINY, "algo.minibatch_size": 1})
    roles = {"pupil": {"kind": "learning"}, "master": {"kind": "scripted", "script": "best"}}
    parts = build(recast(scenario, roles, {"stays_0": "master", "stays_1": "master", "leaves": "pupil"}))
    frozen = Stubborn()
    teams = [
        next(team for team in parts.cast.teams if team.policy == "pupil"),
        Team("master", (0,), script="best"),
        Team("frozen", (1,), player=frozen, discrete=True),
    ]
    env = make_training_worlds(parts.scenario)
    collector = Collector(env, teams, 12, 1, {"pupil": 0.9}, Shaping())
    seen: list[np.ndarray] = []
    best: list[np.ndarray] = []
    taken: list[np.ndarray] = []
    step = env.step

    def spying_step() -> None:
        seen.append(env.acting[:, 2].copy())
        best.append((env.obs["obs"][:, 0, 0] > 0).astype(np.int32))
        taken.append(env.actions.copy())
        step()

    env.step = spying_step  # type: ignore[method-assign]
    rollouts, _ = collector.collect(0)
    assert list(rollouts) == ["pupil"]
    slab = rollouts["pupil"]
    assert slab.shape == (13, 4, 1)
    np.testing.assert_array_equal(slab.decided[1:, :, 0], seen)  # only where the pupil itself acts
    assert not np.all(seen)
    np.testing.assert_array_equal(slab.action[1:, :, 0], np.array(taken)[:, :, 2])
    np.testing.assert_array_equal(np.array(taken)[:, :, 0], best)
    assert (np.array(taken)[:, :, 1] == 1).all()
    assert frozen.noises == [None] * 12  # a frozen policy does not explore


def test_noise_that_is_held_is_that_of_the_first_step_it_is_held_for_wherever_rollouts_are_cut():
    heard: dict[int, np.ndarray] = {}
    for hold in (1, 4):
        parts = build(scenario_of("head_on", {**TINY, "algo.exploration_hold": hold}))
        (team,) = parts.cast.teams
        listener = Listener(team.player)
        collector = Collector(
            make_training_worlds(parts.scenario), [replace(team, player=listener)], 6, 1, {"main": 0.9}, Shaping()
        )
        collector.collect(0)
        collector.collect(1)
        heard[hold] = np.array(listener.noises)
    assert len(np.unique(heard[1][:, 0, 0])) == 12
    np.testing.assert_array_equal(heard[4], np.repeat(heard[1][::4], 4, axis=0))


class Listener:
    """A player that remembers the noise it was given."""

    def __init__(self, player: Any) -> None:
        self.player, self.noises = player, list[np.ndarray]()

    def act(self, obs: Any, mask: Any, noise: Any) -> Acted:
        self.noises.append(noise.copy())
        return self.player.act(obs, mask, noise)


def test_two_learning_policies_are_recorded_apart_with_their_own_columns():
    scenario = scenario_of("probe_leaver", {**TINY, "algo.minibatch_size": 1})
    roles = {"a": {"kind": "learning"}, "b": {"kind": "learning"}}
    parts = build(recast(scenario, roles, {"stays": "a", "leaves": "b"}))
    whole = build(scenario)
    whole.cast.learners["main"].load_state_dict(parts.cast.learners["a"].state_dict())  # type: ignore[union-attr]
    rollouts, _ = parts.collector.collect(0)
    everyone = whole.collector.collect(0)[0]["main"]
    assert {name: r.shape[2] for name, r in rollouts.items()} == {"a": 2, "b": 1}
    # Noise is keyed by world, agent and step: who else learns does not matter.
    np.testing.assert_array_equal(rollouts["a"].action[1], everyone.action[1, :, :2])
    np.testing.assert_array_equal(rollouts["b"].obs["obs"][1, :, 0], everyone.obs["obs"][1, :, 2])
