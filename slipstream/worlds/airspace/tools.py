"""What airspace offers: how episodes end, shifts of a scene, and all that other modules make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from slipstream import _core
from slipstream.types import F64, Bools
from slipstream.worlds.airspace.build import build
from slipstream.worlds.airspace.config import AircraftConfig, AirspaceConfig
from slipstream.worlds.airspace.generators import GENERATORS, import_scenario
from slipstream.worlds.tools import Analysis, Drawings, OnUse, Reach, Shift, Shifts, SkippedShift, WorldTools, partition
from slipstream.worlds.vec_env import EnvOptions, to_native

MIN_START_NM = 6.0  # nobody starts closer to anybody than this
TYPES: tuple[Literal["B737", "B744", "CRJ9"], ...] = ("B737", "B744", "CRJ9")
WINDS = {"N": 0.0, "E": 90.0, "S": 180.0, "W": 270.0}
DIAGONAL_WINDS = {"NE": 45.0, "SE": 135.0, "SW": 225.0, "NW": 315.0}
SIDES = {"N": (1, 0), "S": (-1, 0), "E": (0, 1), "W": (0, -1)}
CORNERS = {"NE": (1, 1), "NW": (1, -1), "SE": (-1, 1), "SW": (-1, -1)}


class Sizes(NamedTuple):
    """How far things are shifted, micro and macro."""

    kinematic: tuple[tuple[float, ...], tuple[float, ...]]  # kt and degrees, both signs
    position_deg: tuple[tuple[float, ...], tuple[float, ...]]
    waypoint_deg: tuple[tuple[float, ...], tuple[float, ...]]
    corners: tuple[str, ...]  # of the waypoint, macro
    corner_deg: tuple[float, ...]


FEW = Sizes(
    kinematic=((5.0, 10.0), (20.0, 30.0)),
    position_deg=((0.05, 0.1, 0.15), (0.2, 0.3, 0.4)),
    waypoint_deg=((0.05,), (0.2,)),
    corners=("NE", "SW"),
    corner_deg=(0.15,),
)
ALL = Sizes(
    kinematic=((2.0, 5.0, 8.0, 10.0), (15.0, 20.0, 25.0, 30.0, 35.0)),
    position_deg=((0.03, 0.05, 0.08, 0.1, 0.12, 0.15), (0.18, 0.2, 0.25, 0.3, 0.35)),
    waypoint_deg=((0.03, 0.05, 0.08), (0.15, 0.2, 0.25, 0.3)),
    corners=("NE", "NW", "SE", "SW"),
    corner_deg=(0.15, 0.2),
)


def shifts(config: AirspaceConfig, full: bool) -> Shifts:
    """One aircraft changed at a time, and the wind; what would start closer than 6 NM or cannot fly is skipped."""
    found: list[Shift] = []
    skipped: list[SkippedShift] = []
    sizes = ALL if full else FEW
    for who in range(len(config.aircraft)):
        for shift in _of_one(config, who, sizes):
            reason = _why_not(shift.world)
            if reason is None:
                found.append(shift)
            else:
                skipped.append(SkippedShift(shift.name, reason))
    return Shifts((*found, *_types_of_all(config), *_winds(config)), tuple(skipped))


def _of_one(config: AirspaceConfig, who: int, sizes: Sizes) -> Iterator[Shift]:
    plane = config.aircraft[who]

    def shifted(kind: str, reach: Reach, size: float, unit: str, label: str, **changes: Any) -> Shift:
        crew = (*config.aircraft[:who], plane.model_copy(update=changes), *config.aircraft[who + 1 :])
        name = f"{plane.id} {kind} {label}"
        return Shift(name, kind, reach, plane.id, size, unit, config.model_copy(update={"aircraft": crew}))

    for reach, size in _by_reach(sizes.kinematic):
        for sign in (1.0, -1.0):
            d = sign * size
            yield shifted("speed", reach, d, "kt", f"{d:+g} kt", cas_kt=plane.cas_kt + d)
            yield shifted("heading", reach, d, "deg", f"{d:+g} deg", heading_deg=_heading(plane.heading_deg + d))
    for reach, size in _by_reach(sizes.position_deg):
        for side, (north, east) in SIDES.items():
            kind = "position_closer" if north else "position_lateral"
            place = {"lat_deg": plane.lat_deg + north * size, "lon_deg": plane.lon_deg + east * size}
            yield shifted(kind, reach, (north + east) * size, "deg", f"{size:g} deg {side}", **place)
    for reach, size in _by_reach(sizes.waypoint_deg):
        for side in SIDES:
            yield shifted("waypoint", reach, size, "deg", f"{size:g} deg {side}", **_waypoint(plane, side, size))
    for size in sizes.corner_deg:
        for side in sizes.corners:
            yield shifted("waypoint", "macro", size, "deg", f"{size:g} deg {side}", **_waypoint(plane, side, size))
    for name in TYPES:
        if name != plane.type:
            yield shifted("aircraft_type", "macro", 1.0, "type", name, type=name)


def _by_reach(sizes: tuple[tuple[float, ...], tuple[float, ...]]) -> Iterator[tuple[Reach, float]]:
    for size in sizes[0]:
        yield "micro", size
    for size in sizes[1]:
        yield "macro", size


def _heading(degrees: float) -> float:
    return (degrees + 180.0) % 360.0 - 180.0


def _waypoint(plane: AircraftConfig, side: str, size: float) -> dict[str, float]:
    north, east = (SIDES | CORNERS)[side]
    return {
        "waypoint_lat_deg": plane.waypoint_lat_deg + north * size,
        "waypoint_lon_deg": plane.waypoint_lon_deg + east * size,
    }


def _types_of_all(config: AirspaceConfig) -> Iterator[Shift]:
    for name in TYPES if len(config.aircraft) > 1 else ():
        crew = tuple(plane.model_copy(update={"type": name}) for plane in config.aircraft)
        if crew != config.aircraft:
            world = config.model_copy(update={"aircraft": crew})
            yield Shift(f"all aircraft_type {name}", "aircraft_type", "macro", "all", 1.0, "type", world)


def _winds(config: AirspaceConfig) -> Iterator[Shift]:
    for reach, speeds, sides in (("micro", (10.0, 15.0), WINDS), ("macro", (25.0, 35.0), WINDS)):
        for speed in speeds:
            for side, degrees in sides.items():
                yield _wind(config, "micro" if reach == "micro" else "macro", speed, side, degrees)
    for side, degrees in DIAGONAL_WINDS.items():
        yield _wind(config, "macro", 30.0, side, degrees)


def _wind(config: AirspaceConfig, reach: Reach, speed: float, side: str, degrees: float) -> Shift:
    world = config.model_copy(update={"wind_speed_kt": speed, "wind_from_deg": degrees})
    return Shift(f"wind {speed:g} kt from {side}", "wind", reach, "all", speed, "kt", world)


def _why_not(config: Any) -> str | None:
    """Why this scene cannot be flown; None: it can."""
    from slipstream.worlds.airspace.geometry import separation_nm

    states = np.array([[a.lat_deg, a.lon_deg, a.heading_deg, 0.0] for a in config.aircraft])
    for i, j in combinations(range(len(states)), 2):
        apart = float(separation_nm(states[i], states[j]))
        if apart < MIN_START_NM:
            names = f"{config.aircraft[i].id} and {config.aircraft[j].id}"
            return f"{names} would start {apart:.2f} NM apart, closer than {MIN_START_NM:g} NM"
    try:
        _core.make_airspace(to_native(config, _core.AirspaceConfig()), 1, EnvOptions().native())
    except ValueError as error:
        return str(error)
    return None


# --- what it offers ---


def outcomes(stat: Callable[[str], F64]) -> dict[str, Bools]:
    """Separation lost at some second, or everybody at the waypoint without that, or time over before."""
    lost, clean = stat("los_seconds") > 0, stat("clean") > 0.5
    return partition({"clean": clean, "lost separation": lost}, rest="not reached")


HERE = "slipstream.worlds.airspace"

TOOLS = WorldTools[AirspaceConfig](
    build,
    headline=("clean", "conflicts", "min_separation_nm", "extra_distance_nm", "reached_fraction"),
    survival=("min_separation_nm", 5.0),
    shift_figures=("clean", "lost_separation", "min_separation_nm", "extra_distance_nm"),
    outcomes=outcomes,
    analysis=Analysis("noop", OnUse(f"{HERE}.flights:analyse")),
    trajectory_csv=OnUse(f"{HERE}.flights:trajectory_csv"),
    compared_scripts=("mvp", "noop"),
    shifts=shifts,
    drawings=Drawings(
        picture=OnUse(f"{HERE}.drawing:picture"),
        renderer=OnUse(f"{HERE}.drawing:make_renderer"),
        sketch=OnUse(f"{HERE}.drawing:sketch"),
        page=OnUse(f"{HERE}.flights:episode_page"),
        scene=Path(__file__).with_name("scene.js"),
        characters=OnUse(f"{HERE}.terminal:characters"),
    ),
    generators=GENERATORS,
    import_scenario=import_scenario,
)
