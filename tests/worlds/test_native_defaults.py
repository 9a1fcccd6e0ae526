"""A default is the same whether a world is made from a scenario or from the C++ core alone."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest

from slipstream import _core
from slipstream.worlds.airspace import build as airspace
from slipstream.worlds.airspace import horizontal_cr
from slipstream.worlds.airspace.config import AirspaceConfig, RandomSectorConfig
from slipstream.worlds.airspace.horizontal_cr_config import HorizontalCrConfig
from slipstream.worlds.drmario import build as drmario
from slipstream.worlds.drmario.config import DrMarioConfig
from slipstream.worlds.probe.config import ProbeConfig
from slipstream.worlds.racing import build as racing
from slipstream.worlds.racing.config import RacingConfig

PLACE = {"lat_deg": 0, "lon_deg": 0, "heading_deg": 0, "waypoint_lat_deg": 0, "waypoint_lon_deg": 0}
ENTRIES = {
    "aircraft": _core.AircraftConfig,
    "cars": _core.CarConfig,
    "phases": _core.RacingPhase,
    "stages": _core.DrMarioStage,
}
# What a scenario must say, or works out from what it says: no default of the core's could be the same.
GIVEN = {
    "AircraftConfig.id": "required",
    "RandomSectorConfig.num_aircraft": "required; 0 says that there is no random traffic",
    "CarConfig.id": "required",
    "CarConfig.reward": "the task's, worked out from it; the core pays nothing unless told",
    "RacingPhase.name": "a world without phases has one of this name",
    "RacingConfig.course": "drawn from the track",
    "DrMarioStage.name": "a game without phases has one of this name",
    "DrMarioConfig.reward": "the core pays nothing unless told",
}


def differences(made: Any, default: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each field that differs: its name, as a scenario has it, as the core has it."""
    kind = type(made).__name__
    for name in (name for name in dir(made) if not name.startswith("_") and not callable(getattr(type(made), name))):
        mine, theirs = getattr(made, name), getattr(default, name)
        if f"{kind}.{name}" in GIVEN:
            continue
        if name in ENTRIES:
            for entry in mine:
                yield from differences(entry, ENTRIES[name]())
        elif type(mine).__module__ == _core.__name__ and not isinstance(mine, Enum):
            yield from differences(mine, theirs)
        elif mine != theirs:
            yield f"{kind}.{name}", mine, theirs


WORLDS: dict[str, Any] = {
    "airspace": lambda: (
        airspace.native_config(AirspaceConfig.model_validate({"aircraft": [{"id": "A1", **PLACE}]})),
        _core.AirspaceConfig(),
    ),
    "random_sector": lambda: (
        airspace.native_config(AirspaceConfig.model_validate({"random_sector": {"num_aircraft": 2}})),
        _core.AirspaceConfig(),
    ),
    "horizontal_cr": lambda: (horizontal_cr.native_config(HorizontalCrConfig()), _core.HorizontalCrConfig()),
    "racing": lambda: (
        racing.native_config(RacingConfig.model_validate({"cars": [{"id": "car"}]})),
        _core.RacingConfig(),
    ),
    "circuits": lambda: (
        racing.native_config(
            RacingConfig.model_validate({"cars": [{"id": "car"}], "track": {"kind": "circuit", "seed": None}})
        ),
        _core.RacingConfig(),
    ),
    "drmario": lambda: (drmario.native_config(DrMarioConfig()), _core.DrMarioConfig()),
}


@pytest.mark.parametrize("world", WORLDS)
def test_defaults_of_scenarios_and_of_the_core_are_the_same(world):
    assert list(differences(*WORLDS[world]())) == []


def test_a_default_that_differs_is_found():
    made, default = WORLDS["racing"]()
    made.lidar.noise_m += 1.0
    assert [name for name, *_ in differences(made, default)] == ["LidarConfig.noise_m"]


def test_a_probe_of_the_core_lasts_as_long_as_a_scenarios():
    assert _core.ProbeConfig(task="constant").horizon == ProbeConfig(task="constant").horizon


def test_what_is_left_out_of_the_comparison_is_there():
    structs = {"AircraftConfig", "RandomSectorConfig", "CarConfig", "RacingPhase", "RacingConfig"}
    structs |= {"DrMarioStage", "DrMarioConfig"}
    assert structs == {name.split(".")[0] for name in GIVEN}
    assert all(hasattr(getattr(_core, struct), name) for struct, name in (key.split(".") for key in GIVEN))
    assert RandomSectorConfig.model_fields["num_aircraft"].is_required()
