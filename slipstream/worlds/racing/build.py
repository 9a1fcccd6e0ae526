"""From a racing config to a batch of native worlds."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from slipstream import _core
from slipstream.config.base import Config
from slipstream.errors import ScenarioError
from slipstream.worlds.native import fields, fill
from slipstream.worlds.racing import config as schema
from slipstream.worlds.racing.cars import Mode
from slipstream.worlds.racing.lines import raceline
from slipstream.worlds.racing.maps import Map
from slipstream.worlds.racing.tracks import circuit, corridor, oval
from slipstream.worlds.vec_env import EnvOptions, NativeVecEnv

# What cars are paid for unless they say otherwise: the first one, and the others.
_PAID = {
    "time_trial": ("race", "race"),
    "head_to_head": ("duel", "duel"),
    "overtake": ("overtake", "race"),
    "gaplock": ("attacker", "defender"),
    "convoy_lock": ("convoy_lock", "defender"),
}
_OWN = {"kind", "task", "track", "cars", "phases", "start_speed_mps", "ideal_line", "ideal_speed_mps", "follow_gap"}


def build(config: schema.RacingConfig, num_worlds: int, options: EnvOptions) -> NativeVecEnv:
    """A batch of one race; where it has phases, in the last one."""
    try:
        env = NativeVecEnv(_core.make_racing(native_config(config), num_worlds, options.native()))
    except ValueError as error:
        raise ScenarioError(f"world: {error}") from None
    env.phases = [max(0, len(config.phases) - 1)] * num_worlds
    return env


def track_of(config: schema.RacingConfig) -> Map | None:
    """The track everything drives on; None where every episode has a circuit of its own."""
    track = config.track
    if isinstance(track, schema.MapTrack):
        return Map.load(track.path, config.physics)
    if isinstance(track, schema.OvalTrack):
        return oval(track.straight_m, track.radius_m, track.width_m, resolution=track.resolution_m)
    if isinstance(track, schema.CorridorTrack):
        return corridor(track.length_m, track.width_m, resolution=track.resolution_m)
    if track.seed is None:
        return None
    return circuit(
        track.seed,
        corners=track.corners,
        radius=track.radius_m,
        roughness=track.roughness,
        width=track.width_m,
        narrowest=track.narrowest_m,
        tightest=track.tightest_m,
        resolution=track.resolution_m,
        mirrored=track.mirrored,
    )


def native_config(config: schema.RacingConfig) -> _core.RacingConfig:
    """The same for the core."""
    native = _core.RacingConfig()
    native.task = getattr(_core.RacingTask, config.task)
    for name in type(config).model_fields.keys() - _OWN:
        value = getattr(config, name)
        if isinstance(value, Config):
            value = _PARTS[type(value)](config, value)
        setattr(native, name, value)
    native.cars = [_car(config, i) for i in range(len(config.cars))]
    native.phases = [_phase(config, phase) for phase in config.phases or (schema.PhaseConfig(name="all"),)]
    native.line_speed_max_mps = config.ideal_speed_mps
    track = config.track
    if isinstance(track, schema.CircuitTrack) and track.seed is None:
        sizes = {name: getattr(track, f"{name}_m") for name in ("radius", "width", "tightest", "resolution")}
        own = {name: getattr(track, name) for name in ("corners", "roughness", "mirrored")}
        native.circuits = fill(_core.CircuitConfig(), own | sizes | {"narrowest": track.narrowest_m or track.width_m})
    else:
        stamp = Path(track.path).stat().st_mtime_ns if isinstance(track, schema.MapTrack) and _exists(track) else 0
        native.course = _course(config.track, config.physics, config.ideal_line, config.ideal_speed_mps, stamp)
    return native


def _exists(track: schema.MapTrack) -> bool:
    return Path(track.path).exists()


@lru_cache(maxsize=16)
def _course(track: schema.TrackConfig, mode: Mode, ideal: str, speed: float, stamp: int) -> _core.RacingCourse:
    """Made once for all worlds that drive on it; `stamp` makes a changed file another one."""
    del stamp
    track_map = track_of(schema.RacingConfig(cars=(schema.CarConfig(id="car"),), track=track, physics=mode))
    assert track_map is not None
    line = track_map.native_line
    if ideal == "raceline":
        fast = raceline(track_map, speed_max=speed)
        along = _core.RacingCenterline(np.ascontiguousarray(fast.points), True)
        return _core.RacingCourse(track_map.native, line, along, np.ascontiguousarray(fast.speed), mode)
    speeds = _core.racing_speeds(line, speed, 8.5, 8.5)
    return _core.RacingCourse(track_map.native, line, line, speeds, mode)


def _car(config: schema.RacingConfig, i: int) -> _core.CarConfig:
    car = config.cars[i]
    first, other = _PAID[config.task]
    weights = car.reward.weights(first if i == 0 else other)
    values = {name: getattr(car, name) for name in type(car).model_fields if name != "reward"}
    return fill(_core.CarConfig(), {**values, "reward": [weights[name] for name in _core.racing_terms()]})


def _phase(config: schema.RacingConfig, phase: schema.PhaseConfig) -> _core.RacingPhase:
    sets = list(config.spawn.sets)
    slowest, fastest = phase.start_speed_mps or config.start_speed_mps
    changed = {name: value for name in ("gain", "bubble", "fast_mps") if (value := getattr(phase, name)) is not None}
    return fill(
        _core.RacingPhase(),
        {
            "name": phase.name,
            "spawns": [sets.index(name) for name in phase.spawns or ()],
            "speed_from_mps": slowest,
            "speed_to_mps": fastest,
            "lock_mps": phase.lock_mps,
            "lock_steps": phase.lock_steps,
            "follow_gap": driver(config.follow_gap.model_copy(update=changed)),
        },
    )


def _spawn(config: schema.RacingConfig, spawn: schema.SpawnConfig) -> _core.SpawnConfig:
    native = fill(_core.SpawnConfig(), {name: v for name, v in fields(spawn).items() if name != "sets"})
    for name, places in spawn.sets.items():
        native.add_set(name, [places[car.id] for car in config.cars])
    return native


def _observation(config: schema.RacingConfig, value: schema.ObservationConfig) -> _core.RacingObservation:
    return fill(_core.RacingObservation(), {**value.blocks(len(config.cars)), "ahead_m": list(value.ahead_m)})


def driver(rules: Config) -> Any:
    """A scripted driver's rules for the core."""
    return fill(getattr(_core, type(rules).__name__)(), fields(rules))


_PARTS: dict[type, Any] = {
    schema.LidarConfig: lambda _, value: fill(_core.LidarConfig(), fields(value)),
    schema.ObservationConfig: _observation,
    schema.SpawnConfig: _spawn,
    schema.FollowGap: lambda _, value: driver(value),
    schema.PurePursuit: lambda _, value: driver(value),
    schema.Squeezer: lambda _, value: driver(value),
    schema.Blocker: lambda _, value: driver(value),
}
