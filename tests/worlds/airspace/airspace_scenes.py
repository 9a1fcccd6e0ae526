"""Scenes and episodes that the airspace tests share."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.config.load import load
from slipstream.worlds.airspace.build import build
from slipstream.worlds.airspace.config import AirspaceConfig
from slipstream.worlds.vec_env import EnvOptions, NativeVecEnv

FIXTURE = Path(__file__).parents[2] / "fixtures" / "airspace_golden.json"
FROZEN = {"position_jitter_nm": 0.0, "heading_jitter_deg": 0.0, "speed_jitter_kt": 0.0}

FIVE = ("head_on", "parallel", "t_formation", "canonical_crossing", "converging")
NINE = tuple(f"{kind}_{split}" for kind in ("chase", "cross", "merge") for split in ("2x2", "3p1", "4all"))
CONTROLS = ("parallel", "chase_2x2", "chase_3p1", "chase_4all")
OVERTAKING = tuple(f"{name}_overtake" for name in CONTROLS)


def golden() -> list[dict[str, Any]]:
    """The committed part of the golden numbers, and all of them where SLIPSTREAM_GOLDEN says where they are."""
    files = [FIXTURE]
    if folder := os.environ.get("SLIPSTREAM_GOLDEN"):
        files.append(Path(folder) / "airspace_golden.json")
    return [json.loads(file.read_text()) for file in files]


def scene(name: str, **changes: Any) -> AirspaceConfig:
    """A packaged scene with some values changed."""
    world = load(name).world
    assert isinstance(world, AirspaceConfig)
    return AirspaceConfig.model_validate(world.model_dump() | changes)


def frozen(name: str, **changes: Any) -> AirspaceConfig:
    return scene(name, **(FROZEN | changes))


def aircraft(name: str, lat: float, lon: float, heading: float, to: tuple[float, float], **more: Any) -> dict:
    goal = {"waypoint_lat_deg": to[0], "waypoint_lon_deg": to[1]}
    return {"id": name, "lat_deg": lat, "lon_deg": lon, "heading_deg": heading} | goal | more


def airspace(*crew: dict, **changes: Any) -> AirspaceConfig:
    """A frozen scene of these aircraft."""
    return AirspaceConfig.model_validate(FROZEN | {"aircraft": crew} | changes)


def batch(config: AirspaceConfig, num_worlds: int = 1, seed: int = 0) -> NativeVecEnv:
    env = build(config, num_worlds, EnvOptions(seed=seed, autoreset=False, reward_parts=True))
    env.reset()
    return env


class Episode:
    """What one episode of every world of a batch came to."""

    def __init__(self, config: AirspaceConfig, script: str, num_worlds: int = 1, seed: int = 0):
        env = batch(config, num_worlds, seed)
        agents = range(len(env.spec.agents))
        self.frames = [env.frame(0)]
        self.stats = np.full((num_worlds, len(env.spec.stats)), np.nan)
        self.returns = np.full(num_worlds, np.nan)
        self.lengths = np.zeros(num_worlds, dtype=int)
        self.names = env.spec.stats
        while np.isnan(self.returns).any():
            env.act_scripted(script, agents)
            env.step()
            self.frames.append(env.frame(0))
            done = env.episode_done.astype(bool)
            self.stats[done] = env.episode_stats[done]
            self.returns[done] = env.episode_return[done].sum(axis=1)
            self.lengths[done] = env.episode_length[done]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.stats[:, list(self.names).index(name)]
