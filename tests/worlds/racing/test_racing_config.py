"""The race's schema: every key reaches the core, and nonsense is refused in a sentence."""

from __future__ import annotations

import typing
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import BaseModel
from racing_scenes import race, scene

from slipstream.config.load import load
from slipstream.config.overrides import cli_overrides
from slipstream.errors import ScenarioError
from slipstream.worlds.racing import Map
from slipstream.worlds.racing import config as schema
from slipstream.worlds.racing.build import build, native_config
from slipstream.worlds.vec_env import EnvOptions

SIMPLE = (int, float, str, bool, type(None))


def plain(value: Any) -> Any:
    """A native config as plain data, however deep."""
    if isinstance(value, SIMPLE):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    names = [n for n in dir(value) if not n.startswith("_") and not callable(getattr(type(value), n, None))]
    return {n: plain(getattr(value, n)) for n in names if n != "course"}


def leaves(model: type[BaseModel], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key that can be written, but for tracks, which are compared by their walls."""
    found = []
    for name, field in model.model_fields.items():
        inner = [t for t in (field.annotation, *typing.get_args(field.annotation)) if isinstance(t, type)]
        nested = [t for t in inner if issubclass(t, BaseModel)]
        found += leaves(nested[0], (*path, name)) if nested else [(*path, name)]
    return found


BASE = {
    "kind": "racing",
    "task": "gaplock",
    "track": {"kind": "corridor", "length_m": 20},
    "cars": [{"id": "a"}, {"id": "b"}],
    "observation": {"preset": "full"},
    "spawn": {
        "kind": "sets",
        "sets": {"one": {"a": [3, 0, 0], "b": [6, 0, 0]}, "two": {"a": [2, 0, 0], "b": [6, 0, 0]}},
    },
    "phases": [{"name": "first", "spawns": ["one"]}],
}
# What a value becomes where one more would be nonsense.
OTHER: dict[str, Any] = {
    "task": "convoy_lock", "physics": "compat", "ideal_line": None, "vehicle": "limo", "preset": None, "kind": "random",
    "sets": {"one": {"a": [3, 0.1, 0], "b": [6, 0, 0]}, "two": {"a": [2, 0, 0], "b": [6, 0, 0]}}, "role": "boss",
    "spawns": ["two"], "start_speed_mps": [0.5, 1.0], "ahead_m": [1.0, 3.0], "id": None, "fov_rad": 4.0,
    "smooth": 0.5, "depth": 0.4, "careful": True, "name": "other",
}  # fmt: skip


def changed(value: Any, path: tuple[str, ...]) -> Any:
    """Another value of the same kind."""
    name = path[-1]
    if name in OTHER and path != ("squeezer", "ahead_m"):
        return OTHER[name]
    if path[:2] == ("observation", "overrides") and not name.endswith(("stack", "others")):
        return False
    return not value if isinstance(value, bool) else 7 if value is None else value + 1


def with_value(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of nested data with one key set; lists of things are entered at their first."""
    copy = dict(tree)
    if len(path) == 1:
        copy[path[0]] = value
        return copy
    inner = copy.get(path[0]) or {}
    if isinstance(inner, (list, tuple)):
        copy[path[0]] = [with_value(inner[0], path[1:], value), *inner[1:]]
    else:
        copy[path[0]] = with_value(inner, path[1:], value)
    return copy


def keys() -> list[tuple[str, ...]]:
    """All keys of the schema, lists of things by their first."""
    found = [path for path in leaves(schema.RacingConfig) if path[0] not in ("kind", "track", "cars", "phases")]
    found += [("cars", *path) for path in leaves(schema.CarConfig)]
    return found + [("phases", *path) for path in leaves(schema.PhaseConfig)]


@pytest.mark.parametrize("path", keys(), ids=".".join)
def test_every_key_of_the_schema_is_read(path):
    before = schema.RacingConfig.model_validate(BASE)
    value: Any = before
    for part in path:
        value = getattr(value[0] if isinstance(value, tuple) and value and part != path[0] else value, part)
    name = path[-1]
    if path in {("ideal_line",), ("cars", "id")}:  # a raceline needs a circuit; names are tested below
        return
    if name == "preset":
        other: Any = {"observation": "lidar"}.get(path[0], "race")
    else:
        other = changed(value, path)
    after = schema.RacingConfig.model_validate(with_value(BASE, path, other))
    assert plain(native_config(after)) != plain(native_config(before)), f"nothing reads {'.'.join(path)}"


def test_the_ideal_line_and_car_names_are_read():
    env = race("time_trial_oval", ideal_line="centerline", cars=[{"id": "red", "role": "fast"}])
    assert (env.spec.agents, env.spec.roles) == (("red",), ("fast",))
    oval = scene("time_trial_oval") | {"track": {"kind": "oval", "straight_m": 4, "radius_m": 3}}
    starts = []
    for line in ("centerline", "raceline"):
        config = schema.RacingConfig.model_validate(oval | {"ideal_line": line})
        env = build(config, 1, EnvOptions())
        env.reset()
        env.act_scripted("pure_pursuit", [0])
        starts.append(env.actions.copy())
    assert (starts[0] != starts[1]).any()


TRACKS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"kind": "oval"}, {"straight_m": 10, "radius_m": 6, "width_m": 3, "resolution_m": 0.1}),
    ({"kind": "corridor"}, {"length_m": 50, "width_m": 3, "resolution_m": 0.1}),
    (
        {"kind": "circuit", "seed": 3},
        {
            "seed": 4,
            "corners": 9,
            "radius_m": 10,
            "roughness": 0.3,
            "width_m": 3,
            "tightest_m": 2,
            "resolution_m": 0.2,
            "narrowest_m": 1.5,
            "mirrored": True,
        },
    ),
]


@pytest.mark.parametrize(("track", "changes"), TRACKS, ids=lambda value: value.get("kind", ""))
def test_every_key_of_a_track_changes_it(track, changes):
    def walls(track: dict[str, Any]) -> tuple[Any, ...]:
        env = race("time_trial_random", track=track)
        env.reset()
        seen = env.backdrop(0)
        return (seen.occupied.shape, seen.occupied.tobytes(), seen.resolution_m, seen.origin)

    model = {"oval": schema.OvalTrack, "corridor": schema.CorridorTrack, "circuit": schema.CircuitTrack}[track["kind"]]
    assert set(changes) == set(model.model_fields) - {"kind"}
    before = walls(track)
    for key, value in changes.items():
        assert walls(track | {key: value}) != before, key


# --- bad input ---

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("time_trial_oval", {"lidar.beams": 0}, r"lidar\.beams: .*0.* 1"),
    ("time_trial_oval", {"track.width_m": -1}, r"track\.width_m: .*-1.* 0"),
    ("gaplock_ppo", {"track.width_m": 0}, r"track\.width_m: .*0.* 0"),
    ("gaplock_ppo", {"track.width_m": 0.05}, r"corridor: .*0\.05\d* m .*0\.05\d* m"),
    ("time_trial_oval", {"track.radius_m": 1}, r"oval: .*1\.0* m .*2\.20* m"),
    ("gaplock_ppo", {"spawn.sets.pinch_left.attacker": [4.4, 1.3, 0]}, r"pinch_left: attacker .*4\.4 m .*1\.3 m"),
    ("gaplock_ppo", {"spawn.sets.pinch_left.attacker": [3.2, 0, 0]}, "pinch_left: attacker and defender"),
    ("gaplock_ppo", {"spawn.sets.pinch_left.atacker": [3, 0, 0]}, "pinch_left .*'atacker' .*'attacker'"),
    ("gaplock_curriculum", {"phases": [{"name": "p", "spawns": ["pinch_lft"]}]}, "p: .*'pinch_lft'.* 'pinch_left'"),
    ("time_trial_oval", {"cars": [{"id": "a"}, {"id": "a"}]}, r"cars: ids [^:]*: a\b"),
    ("time_trial_oval", {"cars": [{"id": "a"}, {"id": "b"}]}, "task: .*2 cars"),
    ("time_trial_oval", {"task": "gaplock"}, "task: .*2 cars.* 1$"),
    ("time_trial_oval", {"cars": [{"id": "a", "vehicle": "limo"}]}, "0 to 8 m/s.*limo"),
    ("time_trial_oval", {"cars": [{"id": "a", "reward": {"overrides": {"progres": 1}}}]}, r"\.progres: .*'progress'"),
    ("time_trial_oval", {"cars": [{"id": "a", "reward": {"preset": "rase"}}]}, r"preset: .*'rase'.* 'race'"),
    ("time_trial_oval", {"observation.overrides.target": True}, r"observation\.target: "),
    ("time_trial_oval", {"track": {"kind": "map", "path": "nowhere.yaml"}}, r"nowhere\.yaml: "),
    ("time_trial_oval", {"track": {"kind": "ovl"}}, "'ovl' .*'oval'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "facts"), WRONG, ids=lambda value: str(value)[:40])
def test_nonsense_is_refused_with_what_was_found(name, changes, facts):
    with pytest.raises(ScenarioError, match=f"(?s){facts}"):
        race(name, **changes)


def test_a_map_without_a_centreline_cannot_be_raced_on(tmp_path):
    Image.fromarray(np.full((40, 40), 255, np.uint8)).save(tmp_path / "room.png")
    (tmp_path / "room.yaml").write_text("image: room.png\nresolution: 0.1\norigin: [0, 0, 0]\n")
    Map.load(tmp_path / "room.yaml")
    with pytest.raises(ScenarioError, match=r"room_centerline\.csv"):
        race("time_trial_oval", track={"kind": "map", "path": str(tmp_path / "room.yaml")})


def test_a_curriculum_needs_phases_and_past_selves_a_learner():
    with pytest.raises(ScenarioError, match=r"curriculum: .*world\.phases"):
        load("gaplock_ppo", {"curriculum.window": 10})
    with pytest.raises(ScenarioError, match=r"start_phase.*'standart'.*'standard'"):
        load("gaplock_curriculum", {"curriculum.start_phase": "standart"})
    with pytest.raises(ScenarioError, match=r"policies\.past\.of.*'mian'.*'main'"):
        load("head_to_head_past_selves", {"policies.past.of": "mian"})
    with pytest.raises(ScenarioError, match=r"federated\.agents.*'atacker'.*'attacker'"):
        load("convoy_lock_td3", {"federated.agents": ["atacker"]})


def test_a_kind_is_a_flag_and_what_it_needs_is_asked_for():
    changed = cli_overrides(load("time_trial_oval"), ["--world.spawn.kind", "grid"])
    assert changed.world.spawn.kind == "grid"
    with pytest.raises(ScenarioError, match=r"world: .*aircraft .*random_sector"):
        cli_overrides(load("time_trial_oval"), ["--world.kind", "airspace"])
