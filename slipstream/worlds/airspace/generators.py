"""Scenes by name and numbers: the published encounters, larger, smaller, elsewhere, faster; and random traffic.

Each function returns a scenario's values. Its defaults are those of the published scene of that name, to the sixth
decimal of a degree. Offsets are flat: a degree of latitude is 60 NM, one of longitude 60 NM times the cosine of the
latitude of the place they are measured from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import count
from typing import Any, Literal, NamedTuple

import msgspec

from slipstream.config.records import from_value
from slipstream.errors import ScenarioError

Values = dict[str, Any]
Layout = Literal["2x2", "3p1", "4all"]

NM_PER_DEG = 60.0
CONVERGING = ((20.0, 2.6, 2.2), (140.0, -2.4, 2.5), (260.0, 2.3, -2.6), (320.0, -2.5, -2.3))  # inbound, waypoint N, E
# Small enough that gaps stay open and waypoints are met when nobody acts.
IN_TRAIL = {"position_jitter_nm": 0.2, "heading_jitter_deg": 0.5, "speed_jitter_kt": 2}


class MapPoint(NamedTuple):
    """A place on the map."""

    lat_deg: float
    lon_deg: float

    def offset(self, north_nm: float, east_nm: float) -> MapPoint:
        """The place so far from here."""
        across = NM_PER_DEG * math.cos(math.radians(self.lat_deg))
        return MapPoint(self.lat_deg + north_nm / NM_PER_DEG, self.lon_deg + east_nm / across)

    def along(self, heading_deg: float, distance_nm: float) -> MapPoint:
        """The place so far in a direction."""
        heading = math.radians(heading_deg)
        return self.offset(distance_nm * math.cos(heading), distance_nm * math.sin(heading))

    def heading_to(self, other: MapPoint) -> float:
        """The direction of another place, to a thousandth of a degree."""
        east = (other.lon_deg - self.lon_deg) * math.cos(math.radians(self.lat_deg))
        return round(math.degrees(math.atan2(east, other.lat_deg - self.lat_deg)) % 360.0, 3)


class Leg(NamedTuple):
    """An aircraft to be: from where, in which direction, to where."""

    start: MapPoint
    heading_deg: float
    waypoint: MapPoint


PUBLISHED, DRESDEN = MapPoint(52.0, 4.0), MapPoint(51.0, 13.7)


def head_on(
    approach_nm: float = 18.0, cas_kt: float = 250.0, center_lat_deg: float = 52.0, center_lon_deg: float = 4.0
) -> Values:
    """Two aircraft fly straight at each other and meet in the middle, `approach_nm` ahead of each."""
    center = MapPoint(center_lat_deg, center_lon_deg)
    return _scene("Two aircraft fly straight at each other.", _across(center, (0.0, 180.0), approach_nm), cas_kt)


def parallel(
    aircraft: int = 3,
    gap_nm: float = 8.0,
    start_nm: float = 18.0,
    waypoint_nm: float = 12.0,
    cas_kt: float = 250.0,
    faster_kt: float = 0.0,
    center_lat_deg: float = 52.0,
    center_lon_deg: float = 4.0,
) -> Values:
    """Aircraft in trail, northbound; each is `faster_kt` faster than the one ahead, and 0 leaves nothing to do."""
    legs = _trail(MapPoint(center_lat_deg, center_lon_deg), aircraft, gap_nm, start_nm, waypoint_nm)
    return _in_trail(f"{aircraft} aircraft in trail, {gap_nm:g} NM gaps.", [legs], cas_kt, faster_kt)


def t_formation(
    arm_nm: float = 20.0,
    stem_nm: float = 16.0,
    offset_nm: float = -6.0,
    cas_kt: float = 250.0,
    center_lat_deg: float = 52.0,
    center_lon_deg: float = 4.0,
) -> Values:
    """Two aircraft in trail, `offset_nm` east of the middle, cross the track of a third at a right angle."""
    center = MapPoint(center_lat_deg, center_lon_deg)
    first, second = (center.offset(-share * stem_nm, offset_nm) for share in (1.0, 0.6))
    legs = [
        *_across(center, (90.0,), arm_nm),
        Leg(first, 0.0, center.offset(stem_nm, offset_nm)),
        Leg(second, 0.0, center.offset(0.8 * stem_nm, offset_nm)),
    ]
    return _scene("Two aircraft in trail cross the track of a third at a right angle.", legs, cas_kt)


def canonical_crossing(
    aircraft: int = 4,
    radius_nm: float = 12.5,
    cas_kt: float = 250.0,
    center_lat_deg: float = 52.0,
    center_lon_deg: float = 4.0,
) -> Values:
    """Aircraft from all sides, evenly spread, meet in the middle."""
    center = MapPoint(center_lat_deg, center_lon_deg)
    legs = _across(center, [360.0 * k / aircraft for k in range(aircraft)], radius_nm)
    text = f"{aircraft} aircraft from all sides meet in the middle, {radius_nm:g} NM ahead of each."
    return _scene(text, legs, cas_kt, first=0)


def converging(
    radius_nm: float = 12.0, cas_kt: float = 250.0, center_lat_deg: float = 52.0, center_lon_deg: float = 4.0
) -> Values:
    """Four aircraft converge on neighbouring waypoints, each from `radius_nm` away."""
    legs = []
    for inbound, north, east in CONVERGING:
        waypoint = MapPoint(center_lat_deg, center_lon_deg).offset(north, east)
        start = waypoint.along(inbound + 180.0, radius_nm)
        legs.append(Leg(start, start.heading_to(waypoint), waypoint))
    return _scene(f"Four aircraft converge on neighbouring waypoints from {radius_nm:g} NM away.", legs, cas_kt)


def chase(
    layout: Layout = "2x2",
    gap_nm: float = 6.0,
    cas_kt: float = 250.0,
    faster_kt: float = 0.0,
    center_lat_deg: float = 51.0,
    center_lon_deg: float = 13.7,
) -> Values:
    """Four aircraft in trail: two and two, three and one, or all; each is `faster_kt` faster than the one ahead."""
    center = MapPoint(center_lat_deg, center_lon_deg)
    lanes = {"2x2": ((2, -8.0), (2, 8.0)), "3p1": ((3, 0.0), (1, 15.0)), "4all": ((4, 0.0),)}[layout]
    trails = [_trail(center.offset(0.0, east), number, gap_nm, 18.0, 12.0) for number, east in lanes]
    return _in_trail(f"Four aircraft in trail ({layout}), {gap_nm:g} NM gaps.", trails, cas_kt, faster_kt)


def cross(
    layout: Layout = "2x2",
    radius_nm: float = 15.0,
    cas_kt: float = 250.0,
    center_lat_deg: float = 51.0,
    center_lon_deg: float = 13.7,
) -> Values:
    """Four aircraft cross at right angles: two pairs, three and one that passes, or all in one point."""
    center = MapPoint(center_lat_deg, center_lon_deg)
    if layout == "2x2":
        legs = [leg for east in (-12.0, 12.0) for leg in _across(center.offset(0.0, east), (0.0, 90.0), radius_nm)]
    elif layout == "3p1":
        alone = center.offset(0.0, 18.0)
        passes = Leg(alone.along(180.0, radius_nm), 0.0, alone.along(0.0, 0.8 * radius_nm))
        legs = [*_across(center, (0.0, 90.0, 270.0), radius_nm), passes]
    else:
        legs = _across(center, (0.0, 90.0, 180.0, 270.0), radius_nm)
    return _scene(f"Four aircraft cross at right angles ({layout}), {radius_nm:g} NM ahead of each.", legs, cas_kt)


def merge(
    layout: Layout = "2x2",
    radius_nm: float = 50.0,
    cas_kt: float = 250.0,
    center_lat_deg: float = 51.0,
    center_lon_deg: float = 13.7,
) -> Values:
    """Four aircraft merge onto waypoints: two pairs, three and one alone, or all onto one."""
    center = MapPoint(center_lat_deg, center_lon_deg)
    if layout == "2x2":
        west, east = center.offset(0.0, -15.0), center.offset(0.0, 15.0)
        legs = [*_onto(west, (352.5, 7.5), radius_nm), *_onto(east, (172.5, 187.5), radius_nm)]
    elif layout == "3p1":
        legs = [*_onto(center, (345.0, 0.0, 15.0), radius_nm), *_onto(center.offset(0.0, 25.0), (0.0,), radius_nm)]
    else:
        legs = _onto(center, (340.0, 355.0, 5.0, 20.0), radius_nm)
    return _scene(f"Four aircraft merge ({layout}) from {radius_nm:g} NM out.", legs, cas_kt)


def random_sector(
    aircraft: int = 8,
    types: str = "A320 B738 CRJ9",
    density_per_nm2: float = 0.003,
    conflict_share: float = 0.6,
    min_cas_kt: float = 230.0,
    max_cas_kt: float = 270.0,
) -> Values:
    """Traffic drawn anew in every episode: aircraft of some types enter a round sector and cross it."""
    return _file(
        f"{aircraft} aircraft enter a round sector at random places and speeds and cross it.",
        {
            "random_sector": {
                "num_aircraft": aircraft,
                "types": types.split(),
                "density_per_nm2": density_per_nm2,
                "conflict_share": conflict_share,
                "min_cas_kt": min_cas_kt,
                "max_cas_kt": max_cas_kt,
            }
        },
    )


GENERATORS = {
    function.__name__: function
    for function in (
        *(head_on, parallel, t_formation, canonical_crossing, converging),
        *(chase, cross, merge, random_sector),
    )
}


def _across(center: MapPoint, headings: Iterable[float], radius_nm: float) -> list[Leg]:
    """Aircraft that meet at a place and fly on as far as they came."""
    return [Leg(center.along(h + 180.0, radius_nm), h, center.along(h, radius_nm)) for h in headings]


def _onto(waypoint: MapPoint, headings: Iterable[float], radius_nm: float) -> list[Leg]:
    """Aircraft that fly to a place from so far away."""
    return [Leg(waypoint.along(h + 180.0, radius_nm), h, waypoint) for h in headings]


def _trail(center: MapPoint, number: int, gap_nm: float, start_nm: float, waypoint_nm: float) -> list[Leg]:
    """Northbound, the last first."""
    waypoint = center.offset(waypoint_nm, 0.0)
    return [Leg(center.offset(k * gap_nm - start_nm, 0.0), 0.0, waypoint) for k in range(number)]


def _in_trail(text: str, trails: list[list[Leg]], cas_kt: float, faster_kt: float) -> Values:
    speeds = [cas_kt + faster_kt * (len(trail) - 1 - k) for trail in trails for k in range(len(trail))]
    scene = _scene(text, [leg for trail in trails for leg in trail], cas_kt, speeds=speeds)
    if faster_kt == 0.0:
        scene["world"] = {"kind": "airspace", **IN_TRAIL, **scene["world"]}
    return scene


def _scene(text: str, legs: list[Leg], cas_kt: float, *, first: int = 1, speeds: list[float] | None = None) -> Values:
    aircraft = []
    for number, leg, speed in zip(count(first), legs, speeds or [cas_kt] * len(legs), strict=False):
        start, waypoint = (MapPoint(*(_neat(x) for x in place)) for place in (leg.start, leg.waypoint))
        aircraft.append(
            {
                "id": f"A{number}",
                "lat_deg": start.lat_deg,
                "lon_deg": start.lon_deg,
                "heading_deg": leg.heading_deg,
                **({} if speed == 250.0 else {"cas_kt": speed}),
                "waypoint_lat_deg": waypoint.lat_deg,
                "waypoint_lon_deg": waypoint.lon_deg,
            }
        )
    return _file(text, {"aircraft": aircraft})


def _neat(degrees: float) -> float:
    return round(degrees, 6)


def _file(text: str, world: Values) -> Values:
    return {"description": text, "includes": ["presets/ppo_airspace.yaml"], "world": {"kind": "airspace", **world}}


# --- scenario files of the published air-traffic project ---


class Waypoint(msgspec.Struct, frozen=True):
    """Where an aircraft is going."""

    lat: float
    lon: float


class Agent(msgspec.Struct, frozen=True):
    """One aircraft of theirs."""

    id: str
    lat: float
    lon: float
    hdg_deg: float
    waypoint: Waypoint
    type: str = "A320"
    spd_kt: float = 250.0
    alt_ft: float = 10_000.0


class Theirs(msgspec.Struct, frozen=True):
    """A file of theirs; their environment reads nothing but the agents."""

    agents: tuple[Agent, ...]
    scenario_name: str = ""
    notes: str = ""
    seed: int | None = None
    sim_dt_s: float = 1.0


def import_scenario(record: Any) -> dict[str, Any] | None:
    """Our values for a file of theirs; None where it is something else."""
    if not (isinstance(record, dict) and isinstance(record.get("agents"), list)):
        return None
    try:
        theirs = from_value(record, Theirs)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"an air-traffic scenario with a mistake in it: {error}") from None
    levels = sorted({agent.alt_ft for agent in theirs.agents})
    if len(levels) > 1:
        shown = ", ".join(f"{level:g}" for level in levels)
        raise ScenarioError(f"agents fly at {shown} ft, but all aircraft of our airspace share one level; choose one")
    aircraft = [
        {
            "id": agent.id,
            "type": agent.type,
            "lat_deg": agent.lat,
            "lon_deg": agent.lon,
            "heading_deg": agent.hdg_deg,
            "cas_kt": agent.spd_kt,
            "waypoint_lat_deg": agent.waypoint.lat,
            "waypoint_lon_deg": agent.waypoint.lon,
        }
        for agent in theirs.agents
    ]
    world: dict[str, Any] = {"kind": "airspace", "altitude_ft": levels[0] if levels else 10_000.0}
    if theirs.sim_dt_s != 1.0:
        world["substep_s"] = theirs.sim_dt_s
    return {
        "description": " ".join(theirs.notes.split()) or f"{theirs.scenario_name}, imported.",
        "includes": ["presets/ppo_airspace.yaml"],
        **({} if theirs.seed is None else {"seed": theirs.seed}),
        "world": {**world, "aircraft": aircraft},
    }
