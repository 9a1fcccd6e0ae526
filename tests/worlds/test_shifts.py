"""Shifts: every one is the world with one thing changed, and what cannot be played is left out with its reason."""

import pytest

from slipstream.config.load import load
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.world import tools_of

WORLDS = {
    "head_on": {"speed", "heading", "position_closer", "position_lateral", "waypoint", "aircraft_type", "wind"},
    "random_sector": {"wind"},
    "time_trial_random": {"friction", "mass", "lidar_noise", "lidar_dropout", "track"},
    "gaplock_ppo": {"friction", "mass", "lidar_noise", "lidar_dropout", "track"},
    "drmario_level_0": {"speed", "levels"},
    "drmario_curriculum": {"speed", "levels"},
}


def changed(before, after, path=""):
    """Paths of the values that differ between two configs as plain data."""
    if isinstance(before, dict) and isinstance(after, dict) and before.get("kind") == after.get("kind"):
        return [p for key in before for p in changed(before[key], after[key], f"{path}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [p for k, (a, b) in enumerate(zip(before, after, strict=True)) for p in changed(a, b, f"{path}[{k}]")]
    return [] if before == after else [path]


def shifts(world, full):
    return tools_of(world.kind).shifts(world, full)


@pytest.mark.parametrize("name", WORLDS)
def test_a_shift_is_the_world_with_one_thing_changed(name):
    world = load(name).world
    found = shifts(world, full=False).shifts
    assert {shift.kind for shift in found} == WORLDS[name]
    assert {shift.reach for shift in found} == {"micro", "macro"}
    everything = shifts(world, full=True).shifts
    assert len(everything) >= len(found)
    for several in (found, everything):
        assert len({shift.name for shift in several}) == len(several)
    plain = world.model_dump(mode="json")
    for shift in found:
        differs = changed(plain, shift.world.model_dump(mode="json"))
        assert differs, shift.name
        if shift.who != "all":  # two numbers make one place
            assert len(differs) <= 2, (shift.name, differs)
            number = [a.id for a in world.aircraft].index(shift.who)
            assert all(path.startswith(f".aircraft[{number}]") for path in differs)


@pytest.mark.parametrize("name", ["head_on", "time_trial_random", "drmario_curriculum"])
def test_policies_of_the_world_can_act_in_every_shift(name):
    world = load(name).world
    own = make_worlds(world, 1).spec
    for shift in shifts(world, full=True).shifts:
        spec = make_worlds(shift.world, 1).spec
        assert (spec.obs, spec.action, spec.agents) == (own.obs, own.action, own.agents), shift.name


def test_who_would_start_closer_than_six_miles_is_left_out_by_name():
    found, skipped = shifts(load("converging").world, full=False)
    reasons = {each.name: each.reason for each in skipped}
    assert reasons["A1 position_lateral 0.15 deg E"] == "A1 and A4 would start 3.50 NM apart, closer than 6 NM"
    assert not {shift.name for shift in found} & set(reasons)


def test_a_type_too_slow_for_the_speed_is_left_out():
    world = load("head_on").world
    fast = world.aircraft[0].model_copy(update={"cas_kt": 312.0})
    found, skipped = shifts(world.model_copy(update={"aircraft": (fast, world.aircraft[1])}), full=False)
    reasons = {each.name: each.reason for each in skipped}
    assert "a CRJ9 flies between" in reasons["A1 aircraft_type CRJ9"]
    assert "A2 aircraft_type CRJ9" in {shift.name for shift in found}


def test_levels_beyond_the_last_are_left_out():
    world = load("drmario_level_0").world.model_copy(update={"levels": (18, 20)})
    found, skipped = shifts(world, full=False)
    assert [each.name for each in skipped] == ["levels +5", "levels +10"]
    assert next(shift for shift in found if shift.name == "levels +2").world.levels == (20, 22)


def test_a_world_without_shifts_has_none():
    assert shifts(load("probe_bandit").world, full=True) == ((), ())


@pytest.mark.parametrize("name", ["head_on", "time_trial_oval", "gaplock_ppo", "drmario_level_0", "horizontal_cr"])
def test_every_episode_ends_in_exactly_one_way(name):
    scenario = load(name)
    env = make_worlds(scenario.world, 8)
    env.reset()
    for _ in range(3000):
        env.act_scripted(env.spec.scripts[0], range(env.spec.num_agents))
        env.step()
        done = env.episode_done.astype(bool)
        if done.any():
            break
    stats = env.episode_stats[done]
    ways = tools_of(scenario.world.kind).outcomes_of(
        lambda figure: stats[:, env.spec.stats.index(figure)], env.spec.stats
    )
    assert sum(flags.astype(int) for flags in ways.values()).tolist() == [1] * int(done.sum())
