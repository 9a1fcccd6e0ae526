"""From an airspace config to a batch of native worlds."""

from __future__ import annotations

from typing import Any

from slipstream import _core
from slipstream.errors import ScenarioError
from slipstream.worlds.airspace.config import AirspaceConfig
from slipstream.worlds.native import fields, fill
from slipstream.worlds.vec_env import EnvOptions, NativeVecEnv

LEGACY_DEADBAND = 3.0  # degrees and kt

_ENUMS: dict[str, Any] = {
    "preset": _core.AirspacePreset,
    "observation": _core.AirspaceObservation,
    "reward": _core.AirspaceReward,
    "team_share": _core.AirspaceTeamShare,
}


def build(config: AirspaceConfig, num_worlds: int, options: EnvOptions) -> NativeVecEnv:
    """A batch of one scene."""
    try:
        return NativeVecEnv(_core.make_airspace(native_config(config), num_worlds, options.native()))
    except ValueError as error:
        raise ScenarioError(f"world: {error}") from None


def native_config(config: AirspaceConfig) -> _core.AirspaceConfig:
    """The same for the core, with what the preset leaves open filled in."""
    legacy = config.preset == "legacy"
    preset = {
        "observation": "legacy" if legacy else "own_frame",
        "reward": config.preset,
        "heading_deadband_deg": LEGACY_DEADBAND if legacy else 0.0,
        "speed_deadband_kt": LEGACY_DEADBAND if legacy else 0.0,
    }
    values = {name: getattr(config, name) for name in AirspaceConfig.model_fields if name != "kind"}
    values |= {name: value for name, value in preset.items() if values[name] is None}
    values |= {name: getattr(enum, values[name]) for name, enum in _ENUMS.items()}
    values["aircraft"] = [fill(_core.AircraftConfig(), fields(a)) for a in config.aircraft]
    sector = values.pop("random_sector")
    native = fill(_core.AirspaceConfig(), values)
    if sector is not None:
        native.random_sector = fill(_core.RandomSectorConfig(), fields(sector) | {"types": list(sector.types)})
    return native
