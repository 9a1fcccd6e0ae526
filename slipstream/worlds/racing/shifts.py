"""Shifts of a race: grip, weight, a worse scanner, and tracks that were not trained on."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.errors import ScenarioError
from slipstream.worlds.racing import config as schema
from slipstream.worlds.racing.build import build
from slipstream.worlds.shift import Reach, Shift, Shifts, SkippedShift
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
