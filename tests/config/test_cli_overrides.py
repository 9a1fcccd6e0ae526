"""Flags are the scenario's own fields, with its own values."""

import pytest

from slipstream.config import ScenarioError, load, override
from slipstream.config.overrides import cli_overrides


def test_flags_change_fields_in_any_order():
    scenario = load("acrobot")
    flags = "--timesteps 2e4 --algo.learning-rate 1e-3 --learner-threads 2 --algo.hidden 32 16"
    expected = override(
        scenario,
        {
            "timesteps": 20_000,
            "algo.learning_rate": 1e-3,
            "learner_threads": 2,
            "algo.normalize_observation": False,
            "algo.hidden": [32, 16],
        },
    )
    assert cli_overrides(scenario, [*flags.split(), "--algo.no-normalize-observation"]) == expected


def test_no_flags_change_nothing():
    scenario = load("acrobot")
    assert cli_overrides(scenario, []) == scenario


def test_a_schedule_is_given_as_pairs():
    scenario = cli_overrides(load("cartpole"), ["--algo.entropy-coef", "0", "0.01", "0.5", "0"])
    assert scenario.algo.entropy_coef == ((0.0, 0.01), (0.5, 0.0))


def test_null_is_spelled_none():
    scenario = cli_overrides(load("cartpole"), ["--algo.max-grad-norm", "None", "--world.max-episode-steps", "7"])
    assert scenario.algo.max_grad_norm is None
    assert scenario.world.max_episode_steps == 7


def test_help_shows_this_scenarios_fields_and_values(capsys):
    with pytest.raises(SystemExit) as caught:
        cli_overrides(load("cartpole"), ["--help"], prog="slipstream train cartpole")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "usage: slipstream train cartpole" in text
    assert "--world.id STR" in text
    assert "(default: CartPole-v1)" in text
    assert "Discount per tick of the world. (default: 0.98)" in text
    for hidden in ("--world.task", "--policies", "--teams", "--world.kwargs", "--algo.kind", "--name"):
        assert hidden not in text


def test_a_misspelled_flag_is_refused_with_a_suggestion(capsys):
    with pytest.raises(SystemExit) as caught:
        cli_overrides(load("cartpole"), ["--algo.learning-rat", "1e-3"])
    assert caught.value.code == 2
    assert "--algo.learning-rate" in capsys.readouterr().err


def test_values_the_schema_refuses_are_scenario_errors():
    with pytest.raises(ScenarioError, match=r"override: algo\.clip_coef: found -1\.0, must be greater than 0"):
        cli_overrides(load("cartpole"), ["--algo.clip-coef", "-1"])


def test_a_fraction_is_not_a_whole_number(capsys):
    with pytest.raises(SystemExit):
        cli_overrides(load("cartpole"), ["--timesteps", "1.5"])
    assert "1.5 is not a whole number" in capsys.readouterr().err


def test_a_world_full_of_aircraft_does_not_flood_the_help(capsys):
    plane = {"lat_deg": 1, "lon_deg": 1, "heading_deg": 0, "waypoint_lat_deg": 2, "waypoint_lon_deg": 2}
    world = {"kind": "airspace", "aircraft": [{"id": f"A{i}", **plane} for i in range(9)]}
    scenario = override(load("probe_constant"), {"world": world})
    changed = cli_overrides(scenario, ["--world.neighbor-topk", "2", "--world.preset", "legacy"])
    assert (changed.world.neighbor_topk, changed.world.preset) == (2, "legacy")
    with pytest.raises(SystemExit):
        cli_overrides(scenario, ["--help"])
    assert "--world.aircraft" not in capsys.readouterr().out


def test_a_flag_of_a_part_that_is_not_there_brings_it_in_with_its_usual_values():
    scenario = load("probe_bandit")
    assert scenario.federated.privacy is None
    assert cli_overrides(scenario, []).federated.privacy is None
    privacy = cli_overrides(scenario, ["--federated.privacy.noise-multiplier", "2"]).federated.privacy
    assert (privacy.clip_norm, privacy.noise_multiplier) == (1.0, 2.0)
    with pytest.raises(ScenarioError, match=r"federated\.server\.kind: is required"):
        cli_overrides(scenario, ["--federated.server.rate", "0.5"])
    with pytest.raises(ScenarioError, match=r"federated\.privacy\.clip_norm"):
        cli_overrides(scenario, ["--federated.privacy.clip-norm", "-1"])
