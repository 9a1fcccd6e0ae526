"""An emulator behind RAM is played as the native world is: the same observations, masks, rewards and ends."""

import gymnasium
import numpy as np
import pytest
from fake_console import FakeCore
from gymnasium.error import InvalidAction, ResetNeeded

from slipstream.errors import ScenarioError, WorldContractError
from slipstream.worlds import drmario
from slipstream.worlds.drmario import Engine, retro
from slipstream.worlds.drmario import config as schema
from slipstream.worlds.drmario.build import build
from slipstream.worlds.drmario.retro import RetroEnv, open_retro
from slipstream.worlds.vec_env import EnvOptions


def native(config):
    env = build(config, 1, EnvOptions(seed=4, autoreset=False))
    env.reset()
    return env


def same_game(env, speed):
    """A maker of the engine that plays what this batch of one game plays."""
    values = dict(zip(env.spec.frame_fields, env.frame(0)[0].astype(int).tolist(), strict=True))
    board, reserve = drmario.generate(values["level"], drmario.seed_at(values["seed"]))
    return lambda: Engine.from_state(
        board=board, reserve=reserve, level=values["level"], speed=speed, frame_counter=values["counter"]
    )


@pytest.mark.parametrize(
    ("level", "speed", "script", "max_pills", "seed", "end"),
    [
        (0, "high", "greedy", 400, 18, "success"),
        (18, "low", "random", 400, 7, "top_out"),
        (6, "medium", "greedy", 25, 7, "timeout"),
    ],
)
def test_every_decision_is_the_native_worlds(level, speed, script, max_pills, seed, end):
    pay = schema.DrMarioRewardConfig(virus=0.5, clear=0.5, top_out=-1.0, pill=-0.02, second=-0.1)
    config = schema.DrMarioConfig(levels=(level,), speed=speed, seeds=(seed,), max_pills=max_pills, reward=pay)
    env = native(config)
    core = FakeCore(same_game(env, speed))
    ours = RetroEnv(core, config)
    shown, info = ours.reset()
    decisions = 0
    while True:
        for name, block in shown.items():
            np.testing.assert_allclose(block, env.obs[name][0, 0], rtol=1e-6, err_msg=name)
            assert ours.observation_space[name].contains(block)
        np.testing.assert_array_equal(info["action_mask"], env.action_mask[0, 0])
        env.act_scripted(script, [0])
        shown, reward, terminated, truncated, info = ours.step(int(env.actions[0, 0]))
        env.step()
        decisions += 1
        assert info["as_planned"]
        assert info["duration"] == env.ticks[0]
        assert reward == pytest.approx(float(env.rewards[0, 0]), abs=1e-5)
        assert (terminated, truncated) == (bool(env.terminated[0, 0]), bool(env.truncated[0, 0]))
        if terminated or truncated:
            break
    for name, block in shown.items():
        np.testing.assert_allclose(block, env.final_obs[name][0, 0], rtol=1e-6, err_msg=name)
    assert env.episode_stats[0, env.spec.stats.index(end)] == 1
    assert decisions >= 8
    with pytest.raises(ResetNeeded):
        ours.step(0)


def between_pills():
    """A game whose first pill has just come to rest."""
    engine = Engine(level=2)
    while engine.controllable:
        engine.step(4)
    return engine


@pytest.mark.parametrize("menu", ["title", "demo", None])
@pytest.mark.parametrize("begin", [lambda: Engine(level=2), between_pills])
def test_a_game_is_begun_from_anywhere_and_more_ram_than_a_console_has_is_ignored(menu, begin):
    core = FakeCore(begin, menu, extra=8192)
    env = RetroEnv(core)
    first, info = env.reset()
    assert core.menu is None
    assert core.engine.controllable
    assert 16 not in core.actions, "START would pause a game that has begun"
    again, _ = env.reset()
    np.testing.assert_array_equal(first["planes"], again["planes"])
    assert info["action_mask"].any()


def test_a_core_with_other_timing_costs_placements_and_no_more():
    """One frame of a script is lost: the pill lands elsewhere, that is said, and the next one lands as planned."""
    core = FakeCore(lambda: Engine(level=0, seed=drmario.seed_at(9)), late=1)
    env = RetroEnv(core)
    shown, info = env.reset()
    landed = []
    for _ in range(6):
        in_left_column = np.where(np.arange(512) % 8 == 0, shown["costs"].reshape(-1), 2.0)
        planned = round(128 * in_left_column.min())
        shown, _, over, _, info = env.step(int(in_left_column.argmin()))
        landed.append(info["as_planned"])
        assert not over
        if len(landed) == 1:
            assert set(core.actions[planned - 1 :]) == {0}, "what is left of the fall goes without buttons"
    assert landed == [False, True, True, True, True, True]


def test_what_cannot_be_done_is_refused_in_words(monkeypatch):
    core = FakeCore(Engine)
    with pytest.raises(ScenarioError, match="stable-retro"):
        open_retro("DrMario-Nes")
    with pytest.raises(ScenarioError, match=r"actions .*'controller'"):
        RetroEnv(core, schema.DrMarioConfig(actions="controller"))
    with pytest.raises(ScenarioError, match=r"reward\.match"):
        RetroEnv(core, schema.DrMarioConfig(reward=schema.DrMarioRewardConfig(match=1.0)))
    core.buttons = ("A", "B", "FIRE")
    with pytest.raises(ScenarioError, match="DOWN, LEFT"):
        RetroEnv(core)
    env = RetroEnv(FakeCore(Engine))
    with pytest.raises(ResetNeeded):
        env.step(0)
    _, info = env.reset()
    with pytest.raises(InvalidAction):
        env.step(int(np.flatnonzero(info["action_mask"] == 0)[0]))
    monkeypatch.setattr(retro, "LONGEST_WAIT", 200)
    stuck = FakeCore(Engine, "title")
    monkeypatch.setattr(stuck, "step", lambda action: None)
    with pytest.raises(WorldContractError, match=r"200 frames .*0x0046 is 0"):
        RetroEnv(stuck).reset()


def test_it_is_a_gymnasium_environment():
    env = RetroEnv(FakeCore(Engine))
    assert isinstance(env, gymnasium.Env)
    assert env.action_space == gymnasium.spaces.Discrete(512)
