"""From a racing config to a batch of native worlds."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from slipstream import _core
from slipstream.worlds.racing import config as schema
from slipstream.worlds.racing.cars import Mode
from slipstream.worlds.racing.drivers import raceline
from slipstream.worlds.racing.maps import Map, circuit, corridor, oval
from slipstream.worlds.vec_env import EnvOptions, NativeVecEnv, make_native, to_native

# What cars are paid for unless they say otherwise: the first one, and the others.
_PAID = {
    "time_trial": ("race", "race"),
    "head_to_head": ("duel", "duel"),
    "overtake": ("overtake", "race"),
    "gaplock": ("attacker", "defender"),
    "convoy_lock": ("convoy_lock", "defender"),
}
_WORKED_OUT = {"cars", "observation", "spawn", "phases"}


def build(config: schema.RacingConfig, num_worlds: int, options: EnvOptions) -> NativeVecEnv:
    """A batch of one race; where it has phases, in the last one."""
    env = make_native(_core.make_racing, native_config(config), num_worlds, options)
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
    """The same for the core, with presets, spawn sets and phases worked out."""
    native = to_native(config, _core.RacingConfig(), without=_WORKED_OUT)
    native.cars = [_car(config, i) for i in range(len(config.cars))]
    native.observation = _observation(config)
    native.spawn = _spawn(config)
    native.phases = [_phase(config, phase) for phase in config.phases or (schema.PhaseConfig(name="all"),)]
    track = config.track
    if isinstance(track, schema.CircuitTrack) and track.seed is None:
        native.circuits = to_native(track, _core.CircuitConfig())
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
    native = to_native(car, _core.CarConfig(), without={"reward"})
    native.reward = list(car.reward.weights(first if i == 0 else other).values())
    return native


def _phase(config: schema.RacingConfig, phase: schema.PhaseConfig) -> _core.RacingPhase:
    sets = list(config.spawn.sets)
    native = to_native(phase, _core.RacingPhase(), without={"spawns"})
    native.spawns = [sets.index(name) for name in phase.spawns or ()]
    native.speed_from_mps, native.speed_to_mps = phase.start_speed_mps or config.start_speed_mps
    changed = {name: value for name in ("gain", "bubble", "fast_mps") if (value := getattr(phase, name)) is not None}
    native.follow_gap = to_native(config.follow_gap.model_copy(update=changed), _core.FollowGap())
    return native


def _spawn(config: schema.RacingConfig) -> _core.SpawnConfig:
    native = to_native(config.spawn, _core.SpawnConfig(), without={"sets"})
    for name, places in config.spawn.sets.items():
        native.add_set(name, [places[car.id] for car in config.cars])
    return native


def _observation(config: schema.RacingConfig) -> _core.RacingObservation:
    native = to_native(config.observation, _core.RacingObservation())
    for name, value in config.observation.blocks(len(config.cars)).items():
        setattr(native, name, value)
    return native
