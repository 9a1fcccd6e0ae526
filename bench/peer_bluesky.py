"""bluesky-gym's HorizontalCREnv-v0 under random actions; runs inside .venv-peers (`make peers`), without Slipstream.

    .venv-peers/bin/python bench/peer_bluesky.py                 # reads seconds, line by line; answers with JSON lines
    .venv-peers/bin/python bench/peer_bluesky.py --record FILE   # writes the episodes our tests replay

BlueSky keeps one simulator per process and chats on stdout, so answers go to the stdout this process was started with.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any, TextIO

PACKAGES = ("bluesky-gym", "bluesky-simulator", "openap", "gymnasium", "numpy")
EPISODES = (("random", 1, 30), ("random", 2, 30), ("straight", 3, 60))  # actions, seed, most steps


def main() -> None:
    """Serve blocks of timed steps, or record episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="FILE", help="write episodes for the tests instead of timing")
    file = parser.parse_args().record
    answers = _own_stdout()
    env = _make()
    if file:
        with open(file, "w", encoding="utf-8") as out:
            json.dump(_record(env), out, separators=(",", ":"))
            out.write("\n")
        return
    print(json.dumps(_versions()), file=answers, flush=True)
    stepper = _Stepper(env)
    for line in sys.stdin:
        print(json.dumps(stepper.run(float(line))), file=answers, flush=True)


def _own_stdout() -> TextIO:
    """The original stdout; whatever else prints goes to stderr from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _make() -> Any:
    import bluesky_gym
    import gymnasium

    bluesky_gym.register_envs()
    return gymnasium.make("HorizontalCREnv-v0", disable_env_checker=True)  # the checker only costs it time


def _versions() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


class _Stepper:
    """Random actions from episode to episode, timed in blocks."""

    def __init__(self, env: Any) -> None:
        import numpy as np

        self.env = env
        self.actions = np.random.default_rng(0).uniform(-1.0, 1.0, (4096, 1))
        np.random.seed(0)  # noqa: NPY002  the environment draws from the global generator
        self.at = 0
        env.reset()
        self.run(0.5)

    def run(self, seconds: float) -> dict[str, float]:
        """Step for about `seconds`; counts resets as part of the work, as any user would pay for them."""
        steps, start, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - start < seconds:
            _, _, terminated, truncated, _ = self.env.step(self.actions[self.at % len(self.actions)])
            self.at += 1
            steps += 1
            if terminated or truncated:
                self.env.reset()
        return {"steps": steps, "seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}


def _record(env: Any) -> dict[str, Any]:
    """Whole episodes: states of the six aircraft, actions, observations, rewards and ends."""
    import numpy as np

    episodes = []
    for kind, seed, most in EPISODES:
        np.random.seed(seed)  # noqa: NPY002
        actions = np.random.default_rng(seed).uniform(-1.0, 1.0, (most, 1)).round(6) * (kind == "random")
        obs, _ = env.reset()
        task = env.unwrapped
        episode: dict[str, Any] = {
            "waypoint": [float(task.wpt_lat[0]), float(task.wpt_lon[0])],
            "states": [_states()],
            "obs": [_flat(obs)],
            "actions": [],
            "rewards": [],
            "terminated": False,
        }
        for action in actions:
            obs, reward, terminated, _, _ = env.step(action)
            episode["actions"].append(float(action[0]))
            episode["obs"].append(_flat(obs))
            episode["rewards"].append(round(float(reward), 9))
            if terminated:  # the task has deleted its aircraft
                episode["terminated"] = True
                break
            episode["states"].append(_states())
        episodes.append(episode)
    return {
        "source": "HorizontalCREnv-v0, bench/peer_bluesky.py --record",
        "versions": _versions(),
        "episodes": episodes,
    }


def _states() -> list[list[float]]:
    """lat_deg, lon_deg, heading_deg, tas_mps of every aircraft; the agent first."""
    import bluesky as bs

    columns = (bs.traf.lat, bs.traf.lon, bs.traf.hdg, bs.traf.tas)
    return [[round(float(c[i]), 9) for c in columns] for i in range(len(bs.traf.lat))]


def _flat(obs: dict[str, Any]) -> list[float]:
    return [round(float(x), 8) for values in obs.values() for x in values]


if __name__ == "__main__":
    main()
