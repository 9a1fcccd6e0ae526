"""Names, files, includes, overrides and the sentences that say what is wrong with them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.config import packaged
from slipstream.config.load import from_plain, load, override, to_json
from slipstream.config.packaged import PACKAGE, find, find_packaged, list_scenarios, preset_folders, scenario_folders
from slipstream.config.records import is_name
from slipstream.errors import ScenarioError

PROBE = "world: {kind: probe, task: constant}\n"


@pytest.fixture
def write(tmp_path):
    def _write(text: str, name: str = "mine.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return _write


def refusal(path, *args, **kwargs) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load(path, *args, **kwargs)
    return str(caught.value).splitlines()


def only(lines: list[str]) -> str:
    assert len(lines) == 1, lines
    return lines[0]


# Packaged scenarios


@pytest.mark.parametrize("name", [info.name for info in list_scenarios()])
def test_every_packaged_scenario_loads_under_its_own_name(name):
    scenario = load(name)
    assert scenario.name == name
    assert scenario.description, "say what happens here"


@pytest.mark.parametrize("preset", sorted(path.name for folder in preset_folders() for path in folder.glob("*.yaml")))
def test_every_preset_fits_the_schema(write, preset):
    load(write(f"includes: [presets/{preset}]\n" + PROBE))


def test_names_are_unique_and_listed_with_family_and_description():
    infos = list_scenarios()
    names = [info.name for info in infos]
    assert len(names) == len(set(names))
    cartpole = next(info for info in infos if info.name == "cartpole")
    assert (cartpole.family, cartpole.path) == ("foreign", PACKAGE / "worlds/foreign/scenarios/cartpole.yaml")
    assert "CartPole" in cartpole.description


def test_there_is_a_scenario_for_every_probe_task():
    from slipstream.worlds.probe.config import ProbeConfig

    tasks = ProbeConfig.model_fields["task"].annotation.__args__
    assert {load(f"probe_{task}").world.task for task in tasks} == set(tasks)


def test_an_unknown_name_gets_a_suggestion():
    assert "'cartpole'" in only(refusal("cartpol"))


# Path tricks

TRICKS = [
    "..",
    ".",
    ".hidden",
    "-rf",
    "",
    " ",
    "a b",
    "cartpole\n",
    "cartpole\0",
    "\0",
    "x" * 65,
    "x" * 300,
    "%2e%2e",
    "%252e%252e%252fpasswd",
    "..%2fpresets",
    "‥",
    "．．",
    "․․",
    "cart∕pole",
    "ｃartpole",
    "~root",
    "$HOME",
    "*",
    "c:cartpole",
    "a;b",
]


@pytest.mark.parametrize("name", TRICKS, ids=repr)
def test_names_outside_the_allow_list_are_refused(name):
    assert not is_name(name)
    assert "1 to 64 letters" in only(refusal(name))


@pytest.mark.parametrize("separator", ["/", "\\"])
@pytest.mark.parametrize(
    "trick", ["..{0}scenarios{0}cartpole", "scenarios{0}cartpole", "{0}etc{0}passwd", "presets{0}probe"]
)
def test_no_name_with_a_separator_reaches_a_packaged_file(trick, separator):
    with pytest.raises(ScenarioError, match="1 to 64 letters"):
        find_packaged(trick.format(separator))


@given(st.text(max_size=80))
def test_whatever_the_name_only_packaged_files_are_found(name):
    try:
        path = find_packaged(name)
    except ScenarioError:
        return
    assert path.resolve().parent in scenario_folders()


def test_a_link_that_leaves_the_package_is_not_a_scenario(tmp_path, monkeypatch, write):
    target = write(PROBE, "outside/secret.yaml")
    folder = tmp_path / "scenarios"
    folder.mkdir()
    (folder / "secret.yaml").symlink_to(target)
    monkeypatch.setattr(packaged, "scenario_folders", lambda: [folder])
    with pytest.raises(ScenarioError, match="'secret'"):
        find_packaged("secret")


def test_paths_are_told_from_names():
    assert find("cartpole") == PACKAGE / "worlds/foreign/scenarios/cartpole.yaml"
    assert find("cartpole.yaml") == Path("cartpole.yaml")
    assert find("./cartpole") == Path("cartpole")
    assert find(Path("cartpole")) == Path("cartpole")


def test_a_file_is_named_after_its_stem_unless_it_says_otherwise(write):
    assert load(write(PROBE, "my run (2).yaml")).name == "my_run_2_"
    assert load(write(PROBE + "name: other")).name == "other"


# Includes


def test_later_files_win_mappings_merge_and_lists_replace(write):
    write("seed: 1\ntimesteps: 5000\nalgo: {kind: ppo, hidden: [1, 2, 3], gamma: 0.5}\n", "base.yaml")
    write("includes: [base.yaml]\nseed: 2\n" + PROBE, "middle.yaml")
    scenario = load(write("includes: [middle.yaml]\nalgo: {hidden: [7]}\n"))
    assert (scenario.seed, scenario.timesteps) == (2, 5000)
    assert (scenario.algo.hidden, scenario.algo.gamma) == ((7,), 0.5)


def test_a_mapping_of_another_kind_replaces_instead_of_merging(write):
    write("world: {kind: gymnasium, id: CartPole-v1, kwargs: {a: 1}}\n", "base.yaml")
    assert load(write("includes: [base.yaml]\n" + PROBE)).world.kind == "probe"


def test_includes_are_relative_to_the_file_that_names_them(write):
    write("includes: [../common.yaml]\n", "parts/a.yaml")
    write(PROBE, "common.yaml")
    assert load(write("includes: [parts/a.yaml]\n")).world.task == "constant"


def test_a_packaged_preset_can_be_included_by_anyone(write):
    scenario = load(write("includes: [presets/ppo_published_gpu.yaml]\n" + PROBE))
    assert (scenario.preset, scenario.algo.minibatch_size, scenario.collect.num_worlds) == (
        "published_gpu",
        512,
        41,
    )


@pytest.mark.parametrize(
    ("include", "facts"),
    [
        ("[nowhere.yaml]", ["'nowhere.yaml'"]),
        ("[head_on.yaml]", ["'head_on.yaml'", "`slipstream scenarios head_on`"]),
        ("[bsae.yaml]", ["'bsae.yaml'", "'base.yaml'"]),
        ("[mine.yaml]", ["'mine.yaml'"]),
        ("[loop.yaml]", ["loop.yaml:1: ", "'mine.yaml'"]),
        ("[/etc/passwd]", ["'/etc/passwd'", "presets/..."]),
        ("[../../../../etc/passwd]", ["'../../../../etc/passwd'", "presets/..."]),
        ("[presets/../../config/base.py]", ["'presets/../../config/base.py'", "presets/..."]),
        ("[presets/../cartpole.yaml]", ["'presets/../cartpole.yaml'", "presets/..."]),
        ("[link.yaml]", ["'link.yaml'", "presets/..."]),
        ('["nul\\0.yaml"]', ["nul"]),
        ("base.yaml", ["'base.yaml'"]),
        ("[3]", ["[3]"]),
    ],
)
def test_bad_includes_are_refused_with_their_line(write, tmp_path, include, facts):
    write(PROBE, "base.yaml")
    write("includes: [mine.yaml]\n", "loop.yaml")
    (tmp_path / "link.yaml").symlink_to("/etc/passwd")
    sentence = only(refusal(write(f"seed: 1\nincludes: {include}\n")))
    assert not [fact for fact in facts if fact not in sentence]
    assert ".yaml:1: includes: " in sentence or ".yaml:2: includes: " in sentence


def test_includes_that_multiply_are_cut_off(write):
    for depth in range(12):
        write(f"includes: [d{depth + 1}.yaml, d{depth + 1}.yaml]\n", f"d{depth}.yaml")
    write(PROBE, "d12.yaml")
    assert "16 files" in only(refusal(write("includes: [d0.yaml]\n")))


# Presets


def test_published_preset_is_chosen_by_device_and_noted():
    cpu = load("cartpole", {"device": "cpu"}, preset="published")
    gpu = load("cartpole", {"device": "cuda"}, preset="published")
    assert (cpu.preset, gpu.preset) == ("published_cpu", "published_gpu")
    assert (cpu.algo.learning_rate, gpu.algo.learning_rate) == (3e-4, 5e-4)


def test_overrides_beat_the_preset():
    assert load("cartpole", {"algo.epochs": 3}, preset="published_cpu").algo.epochs == 3


def test_published_needs_a_device_and_a_right_name():
    assert "published_cpu or published_gpu" in only(refusal("cartpole", preset="published"))
    assert "'published_cpu'" in only(refusal("cartpole", preset="publishd_cpu"))


# Overrides


@pytest.mark.parametrize(
    "overrides",
    [
        {"algo.learning_rate": 1e-3, "seed": 7},
        {"algo__learning_rate": 1e-3, "seed": 7},
        {"algo": {"learning_rate": 1e-3}, "seed": 7},
        {"algo.learning_rate": np.float32(0.001).astype(float), "seed": np.int64(7)},
        ["algo.learning_rate=1e-3", "seed=7"],
    ],
)
def test_overrides_in_every_spelling(overrides):
    scenario = load("cartpole", overrides)
    assert scenario.seed == 7
    assert scenario.algo.learning_rate == pytest.approx(1e-3)
    assert scenario.algo.epochs == load("cartpole").algo.epochs
    assert override(load("cartpole"), overrides) == scenario


def test_an_algorithm_can_be_named_by_a_word():
    assert load("cartpole", {"algo": "PPO"}) == load("cartpole")
    assert "'ppq'" in only(refusal("cartpole", {"algo": "ppq"}))


def test_a_bad_override_says_so_instead_of_blaming_the_file():
    value, key = refusal("cartpole", {"algo.clip_coef": -1, "algo.epoch": 3})
    assert value.startswith("override: algo.clip_coef: ")
    assert "-1" in value
    assert key.startswith("override: algo.epoch: ")
    assert "'epochs'" in key


def test_what_an_override_replaces_is_no_longer_blamed_on_the_file(write):
    path = write(PROBE + "algo:\n  kind: ppo\n  learning_rate:\n  - [0, 1]\n  - [1, 0]\n  hidden: [1, 2]\n")
    assert only(refusal(path, {"algo": {"hidden": [1, "x"]}})).startswith("override: algo.hidden.1: ")


def test_an_override_without_a_value_is_refused():
    assert "key=value" in only(refusal("cartpole", ["seed"]))


# Sentences


def test_all_mistakes_are_reported_at_once_with_file_line_path_and_hint(write):
    path = write(
        "seed: -4\n"
        "timestep: 1e5\n"
        "learner_threads: many\n"
        "world:\n"
        "  kind: probe\n"
        "  task: constnt\n"
        "  horizn: 3\n"
        "algo: {kind: ppo, hidden: [64, x]}\n"
        "collect:\n"
        "  num_worlds: no\n"
        "log: {log_trajectories: 'yes'}\n"
        "learning_rate: 1\n"
        "colour: red\n"
    )
    lines = refusal(path)
    expected = [
        (1, "seed", "-4"),
        (2, "timestep", "'timesteps'"),
        (3, "learner_threads", "'many'"),
        (6, "world.task", "'constnt'"),
        (6, "world.task", "did you mean 'constant'?"),
        (7, "world.horizn", "'horizon'"),
        (8, "algo.hidden.1", "'x'"),
        (10, "collect.num_worlds", "'no'"),
        (11, "log.log_trajectories", "'yes'"),
        (12, "learning_rate", "'algo.learning_rate'"),
        (13, "colour", "world"),
    ]
    for number, key, fact in expected:
        (line,) = (line for line in lines if line.startswith(f"{path}:{number}: {key}: "))
        assert fact in line
    assert len(lines) == len({key for _, key, _ in expected})


@pytest.mark.parametrize(
    ("text", "key", "facts"),
    [
        ("seed: 1\n", "world", ["mine.yaml: "]),
        ("", "world", ["mine.yaml: "]),
        ("world: {task: constant}\n", "world", ["mine.yaml:1: ", "kind", "probe", "racing"]),
        ("world: {kind: prob}\n", "world", ["mine.yaml:1: ", "'prob'", "did you mean 'probe'?"]),
        ("world: {kind: probe}\n", "world.task", ["mine.yaml:1: "]),
        ("world: 3\n", "world", ["3"]),
        ("world: {kind: airspace}\n", "world", ["mine.yaml:1: ", "aircraft", "random_sector"]),
        (
            "world:\n  kind: airspace\n  aircraft:\n  - {id: A1, lat: 1}\n",
            "world.aircraft.0.lat",
            ["mine.yaml:4: ", "did you mean 'lat_deg'?"],
        ),
        (PROBE + "algo: {kind: ppoo}\n", "algo", ["'ppoo'", "ppo, appo, impala"]),
        (PROBE + "seed: true\n", "seed", ["true", "whole number"]),
        (PROBE + "seed: '3'\n", "seed", ["'3'", "whole number"]),
        (PROBE + "name: 3\n", "name", ["3", "text"]),
        (PROBE + "name: ../../x\n", "name", ["'../../x'", "1 to 64"]),
        (PROBE + "algo: {kind: ppo, gamma: .nan}\n", "algo.gamma", ["nan", "finite"]),
        (PROBE + "algo: {kind: ppo, gamma: null}\n", "algo.gamma", ["null", "number"]),
        (PROBE + "algo: {kind: ppo, learning_rate: fast}\n", "algo.learning_rate", ["'fast'", "number", "list"]),
        (PROBE + "algo: {kind: ppo, learning_rate: [[0, 1], [0, 2]]}\n", "algo.learning_rate", ["fractions"]),
        (PROBE + "algo: {kind: ppo, learning_rate: [[0, 1], [2, 2]]}\n", "algo.learning_rate", ["fractions"]),
        (PROBE + "algo: {kind: ppo, learning_rate: [1, 2]}\n", "algo.learning_rate", ["[1, 2]", "point"]),
        (PROBE + "algo: {kind: ppo, learning_rate: []}\n", "algo.learning_rate", ["[]", "number", "list"]),
        (PROBE + "algo: {kind: ppo, entropy_coef: -1}\n", "algo.entropy_coef", ["-1", "negative"]),
        (PROBE + "policies: {}\n", "policies", ["{}", "at least 1"]),
        (PROBE + "policies: {a b: {kind: learning}}\n", "policies.a b", ["1 to 64"]),
        (PROBE + "policies: {x: {script: noop}}\n", "policies.x", ["kind", "learning, frozen, scripted or past"]),
        (PROBE + "policies: {x: {kind: scriptd}}\n", "policies.x", ["'scriptd'", "did you mean 'scripted'?"]),
        (PROBE + "policies: {x: {kind: scripted, scrip: a}}\n", "policies.x.scrip", ["did you mean 'script'?"]),
        (PROBE + "stop: {bands: {band_step: 1}}\n", "stop.bands.band_step", ["did you mean 'band_steps'?"]),
        ("world: {kind: pettingzoo, env: 'os; rm'}\n", "world.env", ["'os; rm'"]),
    ],
)
def test_each_mistake_names_its_key_and_the_facts(write, text, key, facts):
    with pytest.raises(ScenarioError) as refused:
        load(write(text))
    assert key in refused.value.keys
    said = next(line for line in str(refused.value).splitlines() if f"{key}: " in line)
    assert not [fact for fact in facts if fact not in said]


def test_a_file_that_is_no_mapping_is_refused_with_its_line(write):
    said = only(refusal(write("- 1\n")))
    assert "mine.yaml:1: " in said
    assert "list" in said


def test_an_alias_blames_the_line_where_it_is_used(write):
    path = write("world: &w {kind: probe, task: constant}\nalgo:\n  kind: ppo\n  gamma: *w\n")
    assert only(refusal(path)).startswith(f"{path}:4: algo.gamma: ")


def test_whole_numbers_may_be_written_as_1e6(write):
    scenario = load(write(PROBE + "timesteps: 1e6\ncollect: {num_worlds: 8.0}\n"))
    assert (scenario.timesteps, scenario.collect.num_worlds) == (1_000_000, 8)
    assert isinstance(scenario.timesteps, int)


def test_loading_never_imports_a_foreign_environment(write, tmp_path):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    path = write("world: {kind: pettingzoo, env: 'trap:make'}\n")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from slipstream.config.load import load; load(sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(path)], check=True)


def test_config_imports_nothing_heavy():
    code = (
        "import sys, slipstream.config; "
        "print([m for m in ('torch', 'numpy', 'gymnasium', 'pettingzoo') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_json_gives_the_scenario_back():
    scenario = load("cartpole")
    assert from_plain(json.loads(to_json(scenario))) == scenario


def test_a_misspelt_includes_is_recognised(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("include: [presets/ppo_airspace.yaml]\n")
    with pytest.raises(ScenarioError, match=r"mine\.yaml:1: include: .*'includes'"):
        load(str(path))
