"""Scenario files of the published air-traffic project (JSON) as scenarios of ours, number for number."""

from __future__ import annotations

from typing import Any

import msgspec

from slipstream.config.records import from_value
from slipstream.errors import ScenarioError


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
