"""Scenarios made, checked, drawn and imported from the command line."""

import json

import numpy as np
import pytest
from PIL import Image

from slipstream.cli.main import main
from slipstream.config.explain import meaning
from slipstream.config.help import commented
from slipstream.config.load import load, start_from, to_plain
from slipstream.config.packaged import list_scenarios
from slipstream.worlds.airspace.drawing import find_conflicts
from slipstream.worlds.world import tools_of, worlds

NAMES = [info.name for info in list_scenarios()]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words):
    return main(["scenarios", *words])


def refused(capsys, *words):
    assert run(*words) == 2
    return capsys.readouterr().err


# --- new ---


def test_a_new_file_from_any_packaged_scenario_makes_the_same_scenario(tmp_path):
    for name in NAMES:
        (tmp_path / f"{name}.yaml").write_text(commented(start_from(name), to_plain(load(name)), "about it"))
        # What the file leaves open would come from the scenario of that id, which `preset` notes.
        again = load(tmp_path / f"{name}.yaml").model_copy(update={"preset": None})
        assert again == load(name), name


def test_a_new_file_has_what_was_set_and_says_what_keys_mean(tmp_path):
    assert run("new", "mine", "--from", "head_on", "--set", "world.separation_nm=6") == 0
    mine = load(tmp_path / "mine.yaml")
    assert mine == load("head_on", {"world.separation_nm": 6, "name": "mine"})
    text = (tmp_path / "mine.yaml").read_text()
    assert f"separation_nm: 6  # {meaning(('world', 'separation_nm'), to_plain(mine))}" in text


def test_another_algorithm_brings_the_settings_tuned_for_it(tmp_path):
    assert run("new", "mine", "--from", "head_on", "--set", "algo.kind=sac", "--set", "algo.gamma=0.9") == 0
    assert load(tmp_path / "mine.yaml").algo == load("head_on", {"algo.kind": "sac", "algo.gamma": 0.9}).algo


def test_one_key_deep_below_others_can_be_set(tmp_path):
    asked = {"algo.kind": "sac", "algo.replay.sharing.limit.tolerance": 9.0}
    assert (
        run("new", "mine", "--from", "probe_target", *(f"--set={path}={value}" for path, value in asked.items())) == 0
    )
    assert load(tmp_path / "mine.yaml").algo == load("probe_target", asked).algo


def test_a_file_that_is_there_stays(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("# days of work")
    assert "mine.yaml: " in refused(capsys, "new", "mine", "--from", "head_on")
    assert (tmp_path / "mine.yaml").read_text() == "# days of work"


def test_a_mistake_leaves_no_file(tmp_path, capsys):
    said = refused(capsys, "new", "mine", "--from", "head_on", "--set", "world.separation_mn=6")
    assert said == "slipstream: world.separation_mn: unknown key; did you mean 'separation_nm'?\n"
    assert list(tmp_path.iterdir()) == []


# --- generators ---

PUBLISHED = ("head_on", "parallel", "t_formation", "canonical_crossing", "converging")
LAYOUTS = [(kind, layout) for kind in ("chase", "cross", "merge") for layout in ("2x2", "3p1", "4all")]


@pytest.mark.parametrize(
    ("name", "generator", "params"),
    [
        *((name, name, ()) for name in PUBLISHED),
        *((f"{kind}_{layout}", kind, ("--param", f"layout={layout}")) for kind, layout in LAYOUTS),
        ("random_sector", "random_sector", ()),
        ("time_trial_oval", "oval", ()),
        ("time_trial_random", "circuit", ()),
    ],
)
def test_a_generator_with_its_defaults_makes_the_packaged_scenario(name, generator, params, tmp_path):
    assert run("new", "made", "--generator", generator, *params) == 0
    assert load(tmp_path / "made.yaml").world == load(name).world


def test_generators_take_numbers(tmp_path):
    assert run("new", "far", "--generator", "head_on", "--param", "approach_nm=30", "--param", "cas_kt=280") == 0
    first, second = load(tmp_path / "far.yaml").world.aircraft
    assert (second.lat_deg - first.lat_deg) * 60 == pytest.approx(60.0)
    assert (first.cas_kt, second.cas_kt) == (280, 280)
    assert run("new", "trail", "--generator", "parallel", "--param", "aircraft=5", "--param", "faster_kt=10") == 0
    trail = load(tmp_path / "trail.yaml").world.aircraft
    assert [a.cas_kt for a in trail] == [290, 280, 270, 260, 250]  # the last of the trail first
    assert run("new", "low", "--generator", "levels", "--param", "last=2", "--param", "speed=low") == 0
    assert load(tmp_path / "low.yaml").world.levels == (0, 1, 2)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--generator", "head_onn"), "'head_on'"),
        (("--generator", "head_on", "--param", "approach=3"), "--param approach=3: "),
        (("--generator", "head_on", "--param", "approach_nm"), "--param approach_nm: head_on "),
        (("--generator", "parallel", "--param", "aircraft=2.5"), "'2.5'"),
        (("--generator", "head_on", "--param", "approach_nm=far"), "'far'"),
        (("--generator", "chase", "--param", "layout=2x3"), "2x2 or 3p1 or 4all"),
        (("--generator", "head_on", "--param", "center_lat_deg=100"), "world.aircraft.0.lat_deg: "),
        (("--from", "head_on", "--param", "approach_nm=3"), "--param approach_nm=3: "),
        ((), "--from head_on"),
    ],
)
def test_what_a_generator_cannot_do_is_refused(words, complaint, tmp_path, capsys):
    assert complaint in refused(capsys, "new", "mine", *words)
    assert list(tmp_path.iterdir()) == []


def test_generators_are_listed_with_their_parameters(capsys):
    assert run("new", "--generators") == 0
    said = capsys.readouterr().out
    assert all(f"{name}: " in said for kind in worlds() for name in tools_of(kind).generators)
    assert "  --param approach_nm=18.0" in said


# --- check ---

WRONG = """description: "wrong in four places"
includes: [presets/ppo_airspace.yaml]
timestep: 100
world:
  kind: airspace
  separation_nm: -1
  aircraft:
    - {id: A1, lat_deg: 51.7, lon_deg: 4.0, heading_deg: 0, waypoint_lat_deg: 52.3, waypoint_lon_deg: 4.0}
    - {id: A2, lat_deg: 151.7, lon_deg: 4.0, heading_deg: 0, waypoint_lat_deg: 52.3, waypoint_lon_deg: 4.0}
algo:
  gama: 0.9
"""


def test_check_finds_all_mistakes_at_once_with_their_lines(tmp_path, capsys):
    (tmp_path / "wrong.yaml").write_text(WRONG)
    (tmp_path / "torn.yaml").write_text("world: {kind: airspace\n")
    assert run("check", "wrong.yaml", "head_on", "torn.yaml") == 2
    said = capsys.readouterr()
    found = {line.split(": ")[0] for line in said.out.splitlines() if line.startswith("wrong.yaml")}
    assert found == {"wrong.yaml:3", "wrong.yaml:6", "wrong.yaml:9", "wrong.yaml:11"}
    assert "head_on: fine" in said.out
    assert "torn.yaml:2: " in said.out
    assert "2 of 3 scenarios" in said.err


def test_check_finds_an_algorithm_that_cannot_act_in_the_world(tmp_path, capsys):
    (tmp_path / "mixed.yaml").write_text("world: {kind: drmario}\nalgo:\n  kind: td3\n")
    assert run("check", "mixed.yaml") == 2
    said = capsys.readouterr().out
    assert said.startswith("mixed.yaml:2: policies.main: td3 ")
    assert "drmario has 512 discrete" in said


# --- draw ---


@pytest.mark.parametrize("name", ["converging", "head_to_head", "drmario_level_0", "horizontal_cr"])
def test_a_scene_of_every_family_is_drawn(name, tmp_path, capsys):
    assert run("draw", name, "--png", "scene.png") == 0
    assert capsys.readouterr().out.startswith("scene.png: ")
    image = Image.open(tmp_path / "scene.png").convert("RGB")
    assert min(image.size) > 300
    colours = image.getcolors(maxcolors=image.width * image.height)
    assert len(colours) > 20  # something is on it


def test_a_world_without_a_picture_says_so(capsys):
    assert "gymnasium" in refused(capsys, "draw", "cartpole")


def test_conflicts_of_a_drawn_scene_are_where_geometry_has_them():
    north, south = [51.7, 4.0, 0.0, 150.0], [52.3, 4.0, 180.0, 150.0]
    aside = [52.3, 5.0, 180.0, 150.0]
    (meet,) = find_conflicts(np.array([north, south, aside]), 5.0, np.full(3, 1500.0))
    assert meet.pair == (0, 1)
    assert meet.distance_nm == pytest.approx(0.0, abs=1e-6)
    assert meet.seconds == pytest.approx(36.0 * 1852.0 / 300.0, rel=0.005)  # 36 NM, closing at 300 m/s; a NM is not a
    # sixtieth of a degree everywhere on an ellipsoid
    assert find_conflicts(np.array([north, south]), 5.0, np.full(2, 100.0)) == []  # they have left by then


# --- import ---

# As the published project's files have them: id, lat, lon, heading, waypoint lat, lon.
THEIRS = {
    "head_on": [("A1", 51.7, 4.0, 0, 52.3, 4.0), ("A2", 52.3, 4.0, 180, 51.7, 4.0)],
    "parallel": [
        ("A1", 51.7, 4.0, 0, 52.2, 4.0),
        ("A2", 51.833333, 4.0, 0, 52.2, 4.0),
        ("A3", 51.966667, 4.0, 0, 52.2, 4.0),
    ],
    "t_formation": [
        ("A1", 52.0, 3.458577, 90, 52.0, 4.541423),
        ("A2", 51.733333, 3.837573, 0, 52.266667, 3.837573),
        ("A3", 51.84, 3.837573, 0, 52.213333, 3.837573),
    ],
    "canonical_crossing": [
        ("A0", 51.791667, 4.0, 0, 52.208333, 4.0),
        ("A1", 52.0, 3.661611, 90, 52.0, 4.338389),
        ("A2", 52.208333, 4.0, 180, 51.791667, 4.0),
        ("A3", 52.0, 4.338389, 270, 52.0, 3.661611),
    ],
    "converging": [
        ("A1", 51.855395, 3.948342, 20.077, 52.043333, 4.059557),
        ("A2", 52.113209, 3.859052, 140.097, 51.96, 4.067678),
        ("A3", 52.073063, 4.249808, 259.992, 52.038333, 3.929615),
        ("A4", 51.805124, 4.146354, 319.904, 51.958333, 3.937736),
    ],
}
JITTERS = ("position_jitter_nm", "heading_jitter_deg", "speed_jitter_kt")  # ours; their files know none


def theirs(name, **changes):
    agents = [
        {
            **{"id": i, "type": "A320", "lat": lat, "lon": lon, "hdg_deg": heading, "spd_kt": 250, "alt_ft": 10000},
            "waypoint": {"lat": to_lat, "lon": to_lon},
        }
        for i, lat, lon, heading, to_lat, to_lon in THEIRS[name]
    ]
    center = {"lat": 52.0, "lon": 4.0, "alt_ft": 10000}
    return {
        "scenario_name": name,
        "seed": 42,
        "notes": "",
        "center": center,
        "sim_dt_s": 1.0,
        "agents": agents,
    } | changes


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_projects_files_become_the_worlds_that_we_ship(name, tmp_path):
    (tmp_path / f"{name}.json").write_text(json.dumps(theirs(name)))
    assert run("import", f"{name}.json") == 0
    ours, packaged = load(tmp_path / f"{name}.yaml"), load(name)
    assert ours.seed == 42
    same = {key: getattr(packaged.world, key) for key in JITTERS}
    assert ours.world.model_copy(update=same) == packaged.world
    if name != "parallel":  # which we ship with smaller ones, so that it stays a control
        assert ours.world == packaged.world


def test_a_number_of_theirs_is_kept_to_the_last_digit(tmp_path):
    record = theirs("head_on", seed=7, notes="why  it\nis so")
    record["agents"][0] |= {"lat": 51.70000000000003, "spd_kt": 233.3333333333333, "type": "B738"}
    (tmp_path / "a.json").write_text(json.dumps(record))
    assert run("import", "a.json", "--name", "mine") == 0
    mine = load(tmp_path / "mine.yaml")
    assert (mine.seed, mine.description) == (7, "why it is so")
    first = mine.world.aircraft[0]
    assert (first.lat_deg, first.cas_kt, first.type) == (51.70000000000003, 233.3333333333333, "B738")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "a.json:1: "),
        ("[" * 100_000, "JSON"),
        ("[1, 2]", "found list"),
        ('{"cars": []}', "found cars"),
        ('{"agents": [{"id": "A1"}]}', "`lat` - at `$.agents[0]`"),
        (json.dumps(theirs("head_on", agents=[])), "aircraft"),
        (json.dumps(theirs("head_on", seed="x")), "`$.seed`"),
        (json.dumps(theirs("head_on")).replace("51.7", "NaN"), "lat_deg"),
        (json.dumps(theirs("head_on")).replace('"alt_ft": 10000', '"alt_ft": 9000', 2), "9000, 10000 ft"),
    ],
)
def test_a_file_that_is_no_scenario_of_theirs_is_refused(text, complaint, tmp_path, capsys):
    (tmp_path / "a.json").write_text(text)
    assert complaint in refused(capsys, "import", "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
