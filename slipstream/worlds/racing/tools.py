"""What racing offers: how races end, scenarios from numbers, shifts of a race, and all that other modules make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slipstream.errors import ScenarioError
from slipstream.types import F64, Bools
from slipstream.worlds.racing import config as schema
from slipstream.worlds.racing.build import build
from slipstream.worlds.racing.config import RacingConfig
from slipstream.worlds.tools import Drawings, OnUse, Reach, Shift, Shifts, SkippedShift, WorldTools, partition
from slipstream.worlds.vec_env import EnvOptions

Sizes = tuple[tuple[float, ...], tuple[float, ...]]  # micro and macro

GRIP: tuple[Sizes, Sizes] = (((0.9, 1.1), (0.75, 0.6)), ((0.95, 0.9, 1.05, 1.1), (0.8, 0.75, 0.7, 0.6, 0.5, 1.25)))
MASS: tuple[Sizes, Sizes] = (((0.9, 1.1), (1.25, 1.5)), ((0.95, 0.9, 1.05, 1.1), (0.75, 1.25, 1.5, 2.0)))
NOISE_M: tuple[Sizes, Sizes] = (((0.03, 0.05), (0.1, 0.2)), ((0.02, 0.03, 0.05), (0.1, 0.15, 0.2, 0.3)))
LOST: tuple[Sizes, Sizes] = (((0.02, 0.05), (0.1, 0.3)), ((0.01, 0.02, 0.05), (0.1, 0.2, 0.3, 0.5)))


def shifts(config: schema.RacingConfig, full: bool) -> Shifts:
    """Every car's grip and weight, every scanner's errors and missing beams, and other tracks."""
    found: list[Shift] = []
    skipped: list[SkippedShift] = []
    for shift in (*_cars(config, full), *_scanner(config, full), *_tracks(config)):
        assert isinstance(shift.world, schema.RacingConfig)
        try:
            build(shift.world, 1, EnvOptions())
            found.append(shift)
        except ScenarioError as error:
            skipped.append(SkippedShift(shift.name, str(error)))
    return Shifts(tuple(found), tuple(skipped))


def _by_reach(sizes: tuple[Sizes, Sizes], full: bool) -> Iterator[tuple[Reach, float]]:
    micro, macro = sizes[int(full)]
    yield from (("micro", size) for size in micro)
    yield from (("macro", size) for size in macro)


def _cars(config: schema.RacingConfig, full: bool) -> Iterator[Shift]:
    for kind, field, sizes in (("friction", "friction_scale", GRIP), ("mass", "mass_scale", MASS)):
        for reach, size in _by_reach(sizes, full):
            cars = tuple(car.model_copy(update={field: size * getattr(car, field)}) for car in config.cars)
            world = config.model_copy(update={"cars": cars})
            yield Shift(f"{kind} x{size:g}", kind, reach, "all", size, "times", world)


def _scanner(config: schema.RacingConfig, full: bool) -> Iterator[Shift]:
    for kind, field, sizes, unit in (
        ("lidar_noise", "noise_m", NOISE_M, "m"),
        ("lidar_dropout", "dropout", LOST, "share"),
    ):
        for reach, size in _by_reach(sizes, full):
            lidar = config.lidar.model_copy(update={field: size})
            yield Shift(f"{kind} {size:g} {unit}", kind, reach, "all", size, unit, _with(config, "lidar", lidar))


def _tracks(config: schema.RacingConfig) -> Iterator[Shift]:
    """The road narrower or wider, and circuits nobody has driven; where places are given, roads stay as long."""
    track = config.track
    if not isinstance(track, schema.MapTrack):
        for reach, size in _by_reach((((0.9, 1.1), (0.8,)),) * 2, full=False):
            narrow: dict[str, object] = {"width_m": size * track.width_m}
            if isinstance(track, schema.CircuitTrack) and track.narrowest_m is not None:
                narrow["narrowest_m"] = size * track.narrowest_m
            world = _with(config, "track", track.model_copy(update=narrow))
            yield Shift(f"track width x{size:g}", "track", reach, "all", size, "times", world)
    if config.spawn.kind == "sets" or isinstance(track, schema.CorridorTrack):
        return
    if isinstance(track, schema.CircuitTrack) and track.seed is None:
        tighter: dict[str, object] = {"radius_m": 0.8 * track.radius_m}
        wilder: dict[str, object] = {"corners": 2 * track.corners}
        for label, changes in (("tighter", tighter), ("wilder", wilder)):
            world = _with(config, "track", track.model_copy(update=changes))
            yield Shift(f"track {label} circuits", "track", "macro", "all", 1.0, "kind", world)
        return
    fresh = schema.CircuitTrack(resolution_m=0.1)
    yield Shift("track fresh circuits", "track", "macro", "all", 1.0, "kind", _with(config, "track", fresh))


def _with(config: schema.RacingConfig, name: str, value: object) -> schema.RacingConfig:
    return config.model_copy(update={name: value})


Values = dict[str, Any]


def oval(straight_m: float = 20.0, radius_m: float = 5.0, width_m: float = 2.2) -> Values:
    """One car laps an oval: two straights joined by half circles."""
    track = {"kind": "oval", "straight_m": straight_m, "radius_m": radius_m, "width_m": width_m}
    return _time_trial("One car laps an oval against the clock.", track)


def circuit(
    seed: int = -1, corners: int = 12, radius_m: float = 14.0, roughness: float = 0.8, width_m: float = 2.2
) -> Values:
    """One car laps a random circuit: that of a seed, or with -1 another in every episode."""
    track = {"kind": "circuit", "corners": corners, "radius_m": radius_m, "roughness": roughness, "width_m": width_m}
    which = "circuits it has never seen" if seed == -1 else f"circuit {seed}"
    return _time_trial(f"One car laps {which}.", track if seed == -1 else {**track, "seed": seed})


GENERATORS: dict[str, Callable[..., Values]] = {"oval": oval, "circuit": circuit}


def _time_trial(text: str, track: Values) -> Values:
    return {
        "description": text,
        "includes": ["presets/ppo_racing.yaml"],
        "world": {
            "kind": "racing",
            "task": "time_trial",
            "track": track,
            "cars": [{"id": "car", "speed_min_mps": 0.5, "speed_max_mps": 8.0}],
            "spawn": {"kind": "random", "lateral_jitter_m": 0.3, "yaw_jitter_rad": 0.2},
            "start_speed_mps": [0, 4],
            "max_episode_steps": 1000,
        },
    }


# Figures of an episode that say why it was no success, the most telling first.
_WHY = {
    "target_finish": "target finished",
    "self_crash": "own crash",
    "collision": "contact",
    "idle_stop": "gave up",
    "crashed": "crashed",
    "collided": "contact with a car",
}


def outcomes(stat: Callable[[str], F64]) -> dict[str, Bools]:
    """Finished (in a duel: the target beaten), crashed, or neither in time; ways that nobody ended are left out."""
    ordered = {"finished": stat("success") > 0.5} | {label: stat(name) > 0.5 for name, label in _WHY.items()}
    found = partition(ordered, rest="timed out")
    shown = {"finished", "crashed", "timed out"}
    return {name: flags for name, flags in found.items() if name in shown or flags.any()}


HERE = "slipstream.worlds.racing"

TOOLS = WorldTools[RacingConfig](
    build,
    headline=("success", "lap_s", "progress_m", "crashed", "collided"),
    proportions=(
        *("success", "clean", "crashed", "collided"),
        *("target_finish", "collision", "target_crash", "self_crash", "idle_stop", "timeout"),
    ),
    survival=("progress_m", None),
    shift_figures=("success", "crashed", "lap_s", "progress_m"),
    outcomes=outcomes,
    compared_scripts=("follow_gap", "pure_pursuit"),
    shifts=shifts,
    drawings=Drawings(
        picture=OnUse(f"{HERE}.drawing:picture"),
        renderer=OnUse(f"{HERE}.drawing:make_renderer"),
        sketch=OnUse(f"{HERE}.drawing:sketch"),
        scene=Path(__file__).with_name("scene.js"),
        characters=OnUse(f"{HERE}.terminal:characters"),
    ),
    generators=GENERATORS,
)
