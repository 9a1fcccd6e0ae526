"""Collectors: agent steps per second in this process and with 1 and 2 workers.

    python bench/collectors.py [--seconds 5] [--repeats 3] [--learning]

Two worlds: one whose step takes a millisecond on purpose (a Gymnasium environment that sleeps, 8 of them), where
workers should pay, and head_on (64 native worlds), where a step takes microseconds and the price of processes shows.
Only collecting is measured: slabs are taken one after the other and nobody learns. Settings are measured in turn,
repeatedly; the median counts. Writes docs/results/collectors.json.

With --learning, whole updates are measured: DQN learns from the world that sleeps (8 of it, so that a step of all takes
8 ms), while its collector waits (overlap none) or collects (deterministic, free). Writes docs/results/overlap.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # where workers find the slow environment
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, machine

from slipstream.algos.protocol import Progress
from slipstream.config.load import from_plain, load, override
from slipstream.config.scenario import Scenario
from slipstream.run.learner_input import make_feed
from slipstream.run.parts.quarantine import Quarantine
from slipstream.run.setup import complete, make_cast, make_training_worlds, progress_at, resolve
from slipstream.run.sources import make_source

SLOW = "SlipstreamSlow-v0"
STEP_S = 1e-3
WORKERS = (0, 1, 2)


class Slow(gymnasium.Env[Any, Any]):
    """A step takes a millisecond, and an episode fifty of them."""

    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        self.steps = 0
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleep."""
        time.sleep(STEP_S)
        self.steps += 1
        return np.zeros(8, np.float32), 0.0, False, self.steps == 50, {}


if SLOW not in gymnasium.registry:
    gymnasium.register(SLOW, entry_point=Slow)


def scenarios() -> dict[str, Scenario]:
    """What is collected."""
    plain = {"name": "slow", "world": {"kind": "gymnasium", "id": f"collectors:{SLOW}"}, "device": "cpu"}
    slow = from_plain({**plain, "collect": {"num_worlds": 8, "rollout_length": 32}, "algo": {"kind": "ppo"}})
    native = {"collect.num_worlds": 64, "collect.rollout_length": 128, "device": "cpu", "learner_threads": 1}
    return {"slow": override(slow, {"algo.minibatch_size": 64}), "head_on": load("head_on", native)}


def rate(scenario: Scenario, workers: int, seconds: float) -> float:
    """Agent steps per second."""
    scenario = resolve(override(scenario, {"collect.workers": workers}))
    worlds = make_training_worlds(scenario)
    source = make_source(scenario, worlds, make_cast(scenario, worlds.spec), lambda event, sentence, **_: None)
    try:
        source.begin(0)
        source.take(Progress(0.0, 0))
        slabs, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            source.publish(slabs + 1)
            source.take(Progress(0.0, slabs + 1))
            slabs += 1
        took = time.perf_counter() - start
    finally:
        source.close()
        worlds.close()
    return slabs * scenario.rollout_steps * worlds.spec.num_agents / took


def learning_rate(overlap: str, workers: int, seconds: float) -> tuple[float, float]:
    """Steps per second of a DQN that learns meanwhile, and the share of its time it waits for rollouts."""
    algo = {"kind": "dqn", "hidden": [256, 256], "batch_size": 256, "training_intensity": 1.0, "learning_starts": 0}
    plain = {"name": "slow", "world": {"kind": "gymnasium", "id": f"collectors:{SLOW}"}, "device": "cpu"}
    collect = {"num_worlds": 8, "rollout_length": 16, "overlap": overlap, "workers": workers}
    scenario = resolve(from_plain({**plain, "collect": collect, "algo": algo, "learner_threads": 1}))
    worlds = make_training_worlds(scenario)
    scenario = complete(scenario, worlds.spec)
    cast = make_cast(scenario, worlds.spec)
    (learner,) = cast.learners.values()
    quarantine = Quarantine(Path("quarantine"), "main", learner, 10, lambda sentence, **_: None)
    feed = make_feed(scenario, "main", learner, 1, worlds.spec, quarantine)
    source = make_source(scenario, worlds, cast, lambda event, sentence, **_: None)
    waited = 0.0
    try:
        source.begin(0)
        updates, start = 0, 0.0
        while updates < 3 or time.perf_counter() - start < seconds:
            if updates == 2:
                start, waited = time.perf_counter(), 0.0
            progress, before = progress_at(scenario, updates), time.perf_counter()
            slab = source.take(progress)
            waited += time.perf_counter() - before
            feed.learn(slab.rollouts["main"], progress, slab.blocks)
            updates += 1
            source.publish(updates)
        took = time.perf_counter() - start
    finally:
        source.close()
        feed.close()
        worlds.close()
    return (updates - 2) * scenario.rollout_steps / took, waited / took


def measure_learning(seconds: float, repeats: int) -> None:
    """Every overlap, on a thread and with a worker process, in turn and repeatedly."""
    settings = [(overlap, workers) for workers in (0, 1) for overlap in ("none", "deterministic", "free")]
    found: dict[tuple[str, int], list[tuple[float, float]]] = {setting: [] for setting in settings}
    for _ in range(repeats):
        for setting in settings:
            found[setting].append(learning_rate(*setting, seconds))
    alone = statistics.median(rate for rate, _ in found["none", 0])
    rows = []
    print(f"{'workers':>8}{'overlap':>15}{'steps/s':>10}{'of none':>9}{'waiting':>9}")
    for (overlap, workers), measured in found.items():
        median = statistics.median(rate for rate, _ in measured)
        wait = statistics.median(share for _, share in measured)
        rows.append({"workers": workers, "overlap": overlap, "steps_per_s": median, "wait": wait, "all": measured})
        print(f"{workers:>8}{overlap:>15}{median:>10,.0f}{median / alone:>8.2f}x{wait:>9.0%}")
    path = RESULTS / "overlap.json"
    path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")
    print(f"written: {path}")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--learning", action="store_true", help="measure whole updates of a learner from replay")
    args = parser.parse_args()
    if args.learning:
        measure_learning(args.seconds, args.repeats)
        return
    found: dict[str, dict[int, list[float]]] = {name: {n: [] for n in WORKERS} for name in scenarios()}
    for _ in range(args.repeats):
        for name, scenario in scenarios().items():
            for workers in WORKERS:
                found[name][workers].append(rate(scenario, workers, args.seconds))
    rows = []
    print(f"{'world':<10}{'workers':>8}{'agent steps/s':>16}{'of this process':>18}")
    for name, by_workers in found.items():
        alone = statistics.median(by_workers[0])
        for workers, rates in by_workers.items():
            median = statistics.median(rates)
            rows.append({"world": name, "workers": workers, "agent_steps_per_s": median, "all": rates})
            print(f"{name:<10}{workers:>8}{median:>16,.0f}{median / alone:>17.2f}x")
    path = RESULTS / "collectors.json"
    path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")
    print(f"written: {path}")


if __name__ == "__main__":
    main()
