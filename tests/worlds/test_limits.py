"""Worlds that pay for a cut are found, and those that end or pay nothing are not."""

import pytest
from native import maker, native_worlds

from slipstream.config.load import load
from slipstream.worlds.limits import check_limits
from slipstream.worlds.probe.config import ProbeConfig
from slipstream.worlds.registry import make_worlds

WORLDS = native_worlds()


def found(config):
    return [finding.what for finding in check_limits(maker(config))]


@pytest.mark.parametrize("name", [name for name, world in WORLDS.items() if world.kind in ("airspace", "drmario")])
def test_no_scene_pays_for_a_cut(name):
    assert found(WORLDS[name]) == []


def test_a_saved_world_that_pays_for_a_cut_is_found():
    of_both = found(load("head_on", {"world.time_left": False}).world)
    assert [what.split(":")[0] for what in of_both] == [
        f"{name} is paid 'terminal' where an episode is cut off (-10 on average)" for name in ("A1", "A2")
    ]
    assert found(load("head_on", {"world.time_left": False, "world.terminal_not_reached_penalty": 0}).world) == []


def test_an_attacker_that_is_paid_for_a_timeout_is_found():
    assert found(WORLDS["convoy_lock_td3"]) == []
    (what,) = found(WORLDS["convoy_lock_td3_published"])
    assert what.startswith("attacker is paid 'timeout' where an episode is cut off (-")


def test_without_parts_a_reward_unlike_all_before_is_found():
    def make(paid):
        def worlds(num_worlds, options):
            env = make_worlds(ProbeConfig(task="constant"), num_worlds, options)
            step = env.step

            def cut_off(active=None):
                step(active)
                env.rewards[...] += paid * env.truncated

            env.step = cut_off
            return env

        return worlds

    (finding,) = check_limits(make(-3.0))
    assert "is paid -2 where an episode is cut off, and 1 to 1 in steps before" in finding.what
    assert list(check_limits(make(0.0))) == []
