"""Looking one pill ahead: what is foretold from an observation is what the native world then shows."""

import numpy as np
import pytest

from slipstream.errors import ScenarioError
from slipstream.worlds.drmario.config import DrMarioConfig
from slipstream.worlds.drmario.lookahead import look_ahead
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

WORLDS = 8


@pytest.mark.parametrize(
    ("level", "speed", "script", "pills", "seconds"),
    [
        (0, "high", "greedy", 40, None),
        (12, "low", "random", 15, None),
        (20, "medium", "random", 9, None),
        (0, "high", "fastest", 12, None),
        (0, "high", "greedy", 40, 9.0),
        (20, "medium", "random", 30, 40.0),
    ],
)
def test_what_is_foretold_is_what_comes(level, speed, script, pills, seconds):
    """Time, bottle, numbers and costs, for all but the pill nobody can know; and how games end."""
    phases = () if seconds is None else ({"name": "in time", "levels": (level,), "max_seconds": seconds},)
    config = DrMarioConfig.model_validate({"levels": (level,), "phases": phases, "speed": speed, "max_pills": pills})
    env = make_worlds(config, WORLDS, EnvOptions(seed=level + 1, autoreset=False))
    look = look_ahead(config, env.spec)
    env.reset()
    ends = 0
    while (acting := np.flatnonzero(env.acting[:, 0])).size:
        env.act_scripted(script, [0])
        foretold = {
            i: look({name: block[i, 0] for name, block in env.obs.items()}, [int(env.actions[i, 0])])[0] for i in acting
        }
        env.step()
        for i, (ticks, success, obs) in foretold.items():
            assert ticks == env.ticks[i]
            if env.episode_done[i]:
                ends += 1
                assert success == bool(env.episode_stats[i, env.spec.stats.index("success")])
                assert not obs
                continue
            assert success is None
            preview = int(env.obs["pills"][i, 0, 9:].argmax())
            for name, block in env.obs.items():
                np.testing.assert_array_equal(obs[name][preview], block[i, 0], err_msg=name)
    assert ends == WORLDS


def test_games_that_are_cleared_are_foretold_too():
    """One virus left and one script that gets it: some of these games end well."""
    config = DrMarioConfig.model_validate({"phases": ({"name": "one", "viruses": 1},), "max_pills": 40})
    env = make_worlds(config, 16, EnvOptions(seed=3, autoreset=False))
    look = look_ahead(config, env.spec)
    env.reset()
    cleared = 0
    while (acting := np.flatnonzero(env.acting[:, 0])).size:
        env.act_scripted("greedy", [0])
        rows = {i: {name: block[i, 0].copy() for name, block in env.obs.items()} for i in acting}
        env.step()
        for i, row in rows.items():
            if env.episode_done[i] and env.episode_stats[i, 0]:
                assert look(row, [int(env.actions[i, 0])])[0] == (env.ticks[i], True, {})
                cleared += 1
    assert cleared > 3


def test_a_bottle_that_is_cleared_too_late_is_foretold_as_no_success():
    phases = ({"name": "one", "viruses": 1, "max_seconds": 3.0},)
    config = DrMarioConfig.model_validate({"phases": phases, "max_pills": 40})
    env = make_worlds(config, 64, EnvOptions(seed=3, autoreset=False))
    look = look_ahead(config, env.spec)
    env.reset()
    late = 0
    while (acting := np.flatnonzero(env.acting[:, 0])).size:
        env.act_scripted("greedy", [0])
        rows = {i: {name: block[i, 0].copy() for name, block in env.obs.items()} for i in acting}
        env.step()
        for i, row in rows.items():
            end = dict(zip(env.spec.stats, env.episode_stats[i].tolist(), strict=True))
            if env.episode_done[i] and end["viruses_left"] == 0 and not end["success"]:
                assert look(row, [int(env.actions[i, 0])])[0] == (env.ticks[i], False, {})
                late += 1
    assert late


def test_of_the_pill_nobody_knows_there_is_one_row_for_each():
    config = DrMarioConfig(show_costs=False)
    env = make_worlds(config, 1, EnvOptions(autoreset=False))
    env.reset()
    row = {name: block[0, 0] for name, block in env.obs.items()}
    allowed = np.flatnonzero(env.action_mask[0, 0])
    outcomes = look_ahead(config, env.spec)(row, allowed.tolist())
    assert len(outcomes) == len(allowed)
    for outcome in outcomes:
        assert {name: block.shape for name, block in outcome.obs.items()} == {
            block.name: (9, *block.shape) for block in env.spec.obs
        }
        np.testing.assert_array_equal(outcome.obs["pills"][:, 9:], np.eye(9))
        np.testing.assert_array_equal(outcome.obs["pills"][:, :9], np.tile(row["pills"][9:], (9, 1)))
    assert len({outcome.obs["planes"].tobytes() for outcome in outcomes}) > 20


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"players": 2}, "players 2,"),
        ({"actions": "controller"}, "actions 'controller'"),
        ({"observation": "bottle_mask"}, "observation 'bottle_mask'"),
    ],
)
def test_where_it_cannot_be_known_it_is_refused(changes, facts):
    config = DrMarioConfig(**changes)
    with pytest.raises(ScenarioError, match=facts):
        look_ahead(config, make_worlds(config, 1, EnvOptions()).spec)
