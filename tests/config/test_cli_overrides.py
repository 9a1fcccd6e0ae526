"""Flags are the scenario's own fields, with its own values."""

import pytest

from slipstream.config.algos.learner import ConvNetwork, MlpNetwork
from slipstream.config.load import load, override
from slipstream.config.overrides import cli_overrides
from slipstream.errors import ScenarioError


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


def test_figures_of_which_less_is_better_begin_with_a_minus_sign():
    flags = ["--checkpoint.best-by", "clean", "-extra_distance_nm", "--checkpoint.best-min-improvement", "0.1", "0"]
    scenario = cli_overrides(load("head_on", {"checkpoint.best_by": ["return"]}), flags)
    assert scenario.checkpoint.best_by == ("clean", "-extra_distance_nm")
    assert scenario.checkpoint.tolerances == (0.1, 0.0)


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
    assert "--world.task" not in text
    assert "--algo.kind {ppo,appo,impala,reinforce,sac,td3,dqn,cql}" in text
    for shown in ("--policies.NAME.FIELD", "--teams.NAME", "--world.kwargs.NAME", "--federated.weights "):
        assert shown in text


def test_a_misspelled_flag_is_refused_with_a_suggestion():
    with pytest.raises(ScenarioError, match=r"^--algo\.learning-rat: .*--algo\.learning-rate\b"):
        cli_overrides(load("cartpole"), ["--algo.learning-rat", "1e-3"])


def test_values_the_schema_refuses_are_scenario_errors():
    with pytest.raises(ScenarioError, match=r"override: algo\.clip_coef: .*-1\.0.* 0"):
        cli_overrides(load("cartpole"), ["--algo.clip-coef", "-1"])


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (["--timesteps", "1.5"], r"timesteps: .*1\.5"),
        (["--timesteps", "many"], "timesteps: .*'many'"),
        (["--timesteps", "1", "2"], r"timesteps: .*\[1, 2\]"),
        (["--timesteps"], "^--timesteps: "),
        (["--algo.no-double", "1"], "--algo.no-double: "),
        (["--no-timesteps"], "^--no-timesteps: .*--timesteps"),
        (["--algo.gamma.x", "1"], r"--algo.gamma.x: .*--algo.gamma "),
        (["--evaluate", "None"], "evaluate: .*null"),
        (["32", "--timesteps", "1"], "'32'"),
        (
            ["--policies.other.algo.gamma", "1"],
            r"--policies\.other\.algo\.gamma: .*--policies\.other\.kind learning or ",
        ),
        (["--world.kwargs", "{a: "], "^--world.kwargs:2: .*YAML"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_field_and_value(flags, facts):
    with pytest.raises(ScenarioError, match=facts):
        cli_overrides(load("cartpole"), flags)


def test_entries_of_lists_are_named_by_number_and_the_next_number_adds_one():
    race = load("gaplock_team")
    changed = cli_overrides(race, ["--world.cars.1.mass-scale", "1.1", "--world.cars.1.reward.overrides.wall=-3"])
    assert [car.mass_scale for car in changed.world.cars] == [race.world.cars[0].mass_scale, 1.1]
    assert changed.world.cars[1].reward.overrides.wall == -3.0
    longer = cli_overrides(load("time_trial_oval"), ["--world.cars.1.id", "second"])
    assert [car.id for car in longer.world.cars] == [load("time_trial_oval").world.cars[0].id, "second"]
    assert cli_overrides(load("acrobot"), ["--federated.agents.0", "main"]).federated.agents == ("main",)
    hidden = load("acrobot").algo.hidden
    assert cli_overrides(load("acrobot"), ["--algo.hidden.1", "17"]).algo.hidden == (hidden[0], 17)
    with pytest.raises(ScenarioError, match=r"world\.cars\.9: .* 9 .*0 to 1.* 2 "):
        cli_overrides(race, ["--world.cars.9.mass-scale", "1"])
    with pytest.raises(ScenarioError, match=r"'first' .*--world.cars.0 to .1"):
        cli_overrides(race, ["--world.cars.first.mass-scale", "1"])


def test_entries_of_mappings_are_named_by_key():
    flags = ["--federated.aggregator", "weighted_mean", "--federated.weights.0", "2", "--federated.weights.1", "1"]
    assert cli_overrides(load("acrobot"), flags).federated.weights == {"0": 2.0, "1": 1.0}
    whole = ["--federated.aggregator", "weighted_mean", "--federated.weights", "{'0': 2, '1': 1}"]
    assert cli_overrides(load("acrobot"), whole).federated.weights == {"0": 2.0, "1": 1.0}
    by_name = ["--federated.aggregator", "weighted_mean", "--federated.weights", "samples"]
    assert cli_overrides(load("acrobot"), by_name).federated.weights == "samples"
    assert cli_overrides(load("cartpole"), ["--world.kwargs.sutton_barto_reward", "true"]).world.kwargs == {
        "sutton_barto_reward": True
    }
    own = cli_overrides(
        load("gaplock_team"), ["--policies.defender.kind", "scripted", "--policies.defender.script", "stop"]
    )
    assert own.policies["defender"].script == "stop"


@pytest.mark.parametrize("flags", [["quantiles", "32", "kind", "quantile"], ["kind", "quantile", "quantiles", "32"]])
def test_a_kind_and_the_fields_it_brings_come_in_any_order(flags):
    words = [word if i % 2 else f"--algo.values.{word}" for i, word in enumerate(flags)]
    assert cli_overrides(load("gaplock_dqn"), words).algo.values.quantiles == 32
    given = {f"algo__values__{flags[i]}": flags[i + 1] if flags[i] == "kind" else 32 for i in (0, 2)}
    assert override(load("gaplock_dqn"), given) == load("gaplock_dqn", given)
    assert load("gaplock_dqn", given).algo.values.quantiles == 32
    with pytest.raises(ScenarioError, match=r"--algo.values.quantiles .*--algo.values.kind quantile"):
        cli_overrides(load("gaplock_dqn"), ["--algo.values.quantiles", "32"])


@pytest.mark.parametrize("first", ["kind", "setting"])
@pytest.mark.parametrize("spelling", ["--algo.network", "--algo.network.kind"])
def test_a_kind_that_stands_alone_brings_its_settings_too(spelling, first):
    kind, setting = [spelling, "conv"], ["--algo.network.channels", "[4, 4]"]
    words = [*kind, *setting] if first == "kind" else [*setting, *kind]
    assert cli_overrides(load("cartpole"), words).algo.network == ConvNetwork(channels=(4, 4))
    assert cli_overrides(load("cartpole"), [*words, "--algo", "sac"]).algo.network == ConvNetwork(channels=(4, 4))
    named = cli_overrides(load("cartpole"), words)
    assert cli_overrides(named, ["--algo.network", "None"]).algo.network is None


def test_a_former_kind_that_stands_alone_is_still_understood():
    assert cli_overrides(load("cartpole"), ["--algo.network", "perceptron"]).algo.network == MlpNetwork()
    with pytest.raises(ScenarioError, match=r"algo\.network.*'convolution'"):
        cli_overrides(load("cartpole"), ["--algo.network", "convolution"])


def test_a_part_is_taken_out_by_none():
    curriculum = load("gaplock_curriculum")
    assert curriculum.curriculum is not None
    assert cli_overrides(curriculum, ["--curriculum", "None"]).curriculum is None
    banded = cli_overrides(load("head_on"), ["--stop.bands.band-steps", "200_000"])
    assert banded.stop.bands.band_steps == 200_000
    assert cli_overrides(banded, ["--stop.bands", "None"]) == load("head_on")
    assert (
        cli_overrides(load("convoy_lock_td3_published"), ["--algo.replay.prioritised", "null"]).algo.replay.prioritised
        is None
    )


def test_another_kind_of_the_same_part_keeps_its_other_values():
    convoy = load("convoy_lock_td3_published")
    served = cli_overrides(convoy, ["--algo.replay.kind", "service"])
    assert served.algo.replay.capacity == convoy.algo.replay.capacity == 200_000
    assert served.algo.replay.prioritised == convoy.algo.replay.prioritised


def test_a_world_full_of_aircraft_does_not_flood_the_help(capsys):
    plane = {"lat_deg": 1, "lon_deg": 1, "heading_deg": 0, "waypoint_lat_deg": 2, "waypoint_lon_deg": 2}
    world = {"kind": "airspace", "aircraft": [{"id": f"A{i}", **plane} for i in range(9)]}
    scenario = override(load("probe_constant"), {"world": world})
    changed = cli_overrides(scenario, ["--world.neighbor-topk", "2", "--world.preset", "legacy"])
    assert (changed.world.neighbor_topk, changed.world.preset) == (2, "legacy")
    with pytest.raises(SystemExit):
        cli_overrides(scenario, ["--help"])
    assert capsys.readouterr().out.count("--world.aircraft") == 1


def test_a_flag_of_a_part_that_is_not_there_brings_it_in_with_its_usual_values():
    scenario = load("probe_bandit")
    assert scenario.federated.privacy is None
    assert cli_overrides(scenario, []).federated.privacy is None
    privacy = cli_overrides(scenario, ["--federated.privacy.noise-multiplier", "2"]).federated.privacy
    assert (privacy.clip_norm, privacy.noise_multiplier) == (1.0, 2.0)
    with pytest.raises(ScenarioError, match=r"federated\.server\.kind: .*fedadam, fedyogi.*reptile"):
        cli_overrides(scenario, ["--federated.server.rate", "0.5"])
    with pytest.raises(ScenarioError, match=r"federated\.privacy\.clip_norm"):
        cli_overrides(scenario, ["--federated.privacy.clip-norm", "-1"])
