"""Every packaged world passes the checks, and the checks catch worlds that break a promise."""

from collections.abc import Callable

import numpy as np
import pytest
from native import maker, native_worlds

from slipstream.worlds.check import check_world
from slipstream.worlds.foreign.config import GymnasiumConfig
from slipstream.worlds.probe.config import ProbeConfig
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions, NativeVecEnv, VecEnv

WORLDS = native_worlds()


# time_trial_hard is time_trial_random on finer cells, which take their time to draw at every reset.
@pytest.mark.parametrize("name", [name for name in WORLDS if name != "time_trial_hard"])
def test_every_packaged_native_world_keeps_the_contract(name: str):
    assert check_world(maker(WORLDS[name])) == []


def test_a_foreign_environment_keeps_the_contract():
    assert check_world(maker(GymnasiumConfig(id="CartPole-v1")), steps=60) == []


Fault = Callable[[NativeVecEnv], None]


def broken(task: str, after_step: Fault | None = None, after_make: Fault | None = None):
    """A make function of probe worlds that misbehave after every step."""

    def make(num_worlds: int, options: EnvOptions) -> VecEnv:
        env = make_worlds(ProbeConfig(task=task), num_worlds, options)
        assert isinstance(env, NativeVecEnv)
        if after_make is not None:
            after_make(env)
        step = env.step

        def broken_step(active=None) -> None:
            step(active)
            if after_step is not None:
                after_step(env)

        env.step = broken_step
        return env

    return make


def findings(task: str, after_step: Fault | None = None, after_make: Fault | None = None) -> str:
    return "\n".join(map(str, check_world(broken(task, after_step, after_make), steps=60)))


def fill(name: str, value: float) -> Fault:
    def fault(env: NativeVecEnv) -> None:
        array = getattr(env, name)
        if array is not None:
            array[...] = value

    return fault


def leave_obs_bounds(env: NativeVecEnv) -> None:
    env.obs["obs"][:, 0] = 2


def leave_final_obs_bounds(env: NativeVecEnv) -> None:
    env.final_obs["obs"][...] = -2


def cut_off_without_a_choice(env: NativeVecEnv) -> None:
    env.truncated[...] = env.terminated
    fill("terminated", 0)(env)
    fill("final_mask", 0)(env)


def act_for_the_departed(env: NativeVecEnv) -> None:
    env.acting[...] = 1


def show_the_departed(env: NativeVecEnv) -> None:
    env.obs["obs"][:, 2] = 1


def end_both_ways(env: NativeVecEnv) -> None:
    env.truncated[...] = env.terminated


def halve(name: str) -> Fault:
    def fault(env: NativeVecEnv) -> None:
        getattr(env, name)[...] //= 2

    return fault


@pytest.mark.parametrize(
    ("task", "fault", "finding"),
    [
        ("constant", leave_obs_bounds, "obs 'obs' leaves its bounds [-1.0, 1.0]"),
        ("constant", leave_final_obs_bounds, "final_obs 'obs' leaves its bounds"),
        ("constant", fill("rewards", np.nan), "a reward is not finite"),
        ("constant", fill("rewards", 3), "episode_return is not the sum of rewards"),
        ("constant", fill("duration", 2), "duration is not the ticks since the agent's last decision"),
        ("constant", fill("episode_done", 0), "episode_done is not set exactly when the last agent ends"),
        ("constant", halve("episode_length"), "episode_length is not the number of ticks"),
        ("constant", halve("episode_index"), "episode_index does not count episodes"),
        ("constant", fill("acting", 0), "does not act, but the spec has no durations"),
        ("coordination", fill("state", np.inf), "state is not finite"),
        ("coordination", end_both_ways, "an end is both terminated and truncated"),
        ("corridor", fill("potential", 1), "the potential of an agent that left is not 0"),
        ("bandit", fill("action_mask", 0), "action_mask allows an acting agent nothing"),
        ("bandit", fill("final_mask", 2), "final_mask has values other than 0 and 1"),
        ("bandit", cut_off_without_a_choice, "final_mask allows nothing where an episode was cut off"),
        ("leaver", act_for_the_departed, "alive is not who was in the episode before the step"),
        ("leaver", show_the_departed, "obs 'obs' of an agent that left is not 0"),
        ("leaver", fill("reward_parts", 0), "reward_parts do not add up to the reward"),
        ("leaver", fill("alive", 1), "alive is not who was in the episode before the step"),
    ],
)
def test_a_broken_contract_is_found(task: str, fault: Fault, finding: str):
    found = findings(task, after_step=fault)
    assert any(line.startswith("contract: ") and finding in line for line in found.splitlines()), found


def test_an_array_of_the_wrong_dtype_is_found():
    def widen(env: NativeVecEnv) -> None:
        env.rewards = env.rewards.astype(np.float64)

    assert "rewards is float64[7, 1], expected float32[7, 1]" in findings("constant", after_make=widen)


def test_worlds_that_depend_on_their_batch_are_found():
    def look_at_the_neighbours(env: NativeVecEnv) -> None:
        env.obs["obs"][...] = (env.obs["obs"] + np.roll(env.obs["obs"], 1, axis=0)) / 2

    found = findings("constant", look_at_the_neighbours)
    assert "a batch of 1 differs from a batch of 64" in found
    assert "a batch of 7 differs from a batch of 64" in found
    assert "depend on their row instead of their global index" in found


def test_worlds_that_draw_from_elsewhere_are_found():
    rng = np.random.default_rng()

    def shake(env: NativeVecEnv) -> None:
        env.obs["obs"][...] = rng.random(env.obs["obs"].shape)

    assert "determinism: the same seed gives another trajectory" in findings("constant", shake)


def test_worlds_that_ignore_their_seed_are_found():
    def make(num_worlds: int, options: EnvOptions) -> VecEnv:
        same = EnvOptions(
            first_world=options.first_world, autoreset=options.autoreset, reward_parts=options.reward_parts
        )
        return make_worlds(ProbeConfig(task="target"), num_worlds, same)

    found = "\n".join(map(str, check_world(make, steps=30)))
    assert "another seed starts the same episodes" in found
    assert "evaluation starts the same episodes as training" in found


def test_a_snapshot_that_forgets_something_is_found():
    def forget(env: NativeVecEnv) -> None:
        env.restore = lambda data: env.reset()

    assert "a restored snapshot continues differently" in findings("delayed", after_make=forget)


def test_inactive_worlds_that_move_are_found():
    def make(num_worlds: int, options: EnvOptions) -> VecEnv:
        env = make_worlds(ProbeConfig(task="corridor"), num_worlds, options)
        step = env.step
        env.step = lambda active=None: step(None)
        return env

    assert "worlds that stand still at times" in "\n".join(map(str, check_world(make, steps=30)))
