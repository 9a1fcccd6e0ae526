"""PPO and DQN on images beside SB3's CnnPolicy: how many frames each makes in a CPU second.

    python bench/images.py [--only breakout] [--repeats 3]

MinAtar's Breakout, and Atari's Pong where ale-py and opencv are installed, as `studies/images.py` sets them up: the
same images, networks, settings and steps, on one thread each. Only the warm-up of DQN is shortened, so that gradient
steps are measured. A step is a decision: four frames of Atari. Every measurement runs in a process of its own,
interleaved; what comes before the first full update is not counted, and of the repeats the median counts. Needs an
otherwise idle machine. Writes docs/results/images_speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, machine

TARGET = 1.5
LIBRARIES = ("slipstream", "sb3")
WARM_UP = {"breakout": 4096, "pong": 2048}  # steps before the measurement begins
STEPS = {"breakout": 16384, "pong": 4096}  # that are measured
DQN_STARTS = 1024  # steps before DQN learns, instead of 5,000 and 100,000
CELLS = [(task, algo) for task in STEPS for algo in ("ppo", "dqn")]


def ours(task: str, algo: str) -> dict[str, float]:
    """CPU time of a step, and the fractions of it that go into parts of the run."""
    from images import IDS  # of the studies

    import slipstream
    from slipstream.config.load import load

    changes = {
        "algo": algo,
        "collect.workers": 0,
        "learner_threads": 1,
        "device": "cpu",
        "evaluate.evaluation_interval": None,
        "checkpoint.checkpoint_every": 10**9,
        "timesteps": 10**6,
        **({"algo.learning_starts": DQN_STARTS} if algo == "dqn" else {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        scenario = load(f"gymnasium:{IDS[task]}", changes)
        with slipstream.Trainer(scenario, out=Path(folder) / "run", models=Path(folder) / "models") as trainer:
            while trainer.steps < WARM_UP[task]:
                trainer.step()
            begin, steps = time.process_time(), trainer.steps
            while trainer.steps < steps + STEPS[task]:
                trainer.step()
            return {"us_per_step": 1e6 * (time.process_time() - begin) / (trainer.steps - steps)}


def sb3(task: str, algo: str) -> dict[str, float]:
    """The same of SB3."""
    from images import sb3_model  # of the studies
    from stable_baselines3.common.callbacks import BaseCallback

    class Clock(BaseCallback):
        """Begins to count with the first rollout after the warm-up."""

        begin, steps = 0.0, 0

        def _on_rollout_start(self) -> None:
            if not self.begin and self.num_timesteps >= WARM_UP[task]:
                self.begin, self.steps = time.process_time(), self.num_timesteps

        def _on_step(self) -> bool:
            return True

    model, clock = sb3_model(task, algo, 1, **({"learning_starts": DQN_STARTS} if algo == "dqn" else {})), Clock()
    model.learn(WARM_UP[task] + STEPS[task], callback=clock)
    return {"us_per_step": 1e6 * (time.process_time() - clock.begin) / (model.num_timesteps - clock.steps)}


def measure(*what: str) -> dict[str, float]:
    """One measurement in a fresh process."""
    command = [sys.executable, __file__, "--child", ":".join(what)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{':'.join(what)} failed:\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def child(what: str) -> dict[str, float]:
    """What a fresh process does."""
    task, algo, library = what.split(":")
    return (ours if library == "slipstream" else sb3)(task, algo)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.child)))
        return
    load = os.getloadavg()[0]  # of others, before this begins
    has_atari = find_spec("ale_py") is not None and find_spec("cv2") is not None
    cells = [cell for cell in CELLS if cell[0] in args.only and (has_atari or cell[0] != "pong")]
    found: dict[tuple[str, ...], list[float]] = {(*cell, library): [] for cell in cells for library in LIBRARIES}
    for repeat in range(args.repeats):
        for what, results in found.items():
            results.append(measure(*what)["us_per_step"])
            print(f"repeat {repeat + 1}: {':'.join(what):<24} {results[-1]:8.1f} µs a step", flush=True)
    ratios = {
        " ".join(cell): statistics.median(found[*cell, "sb3"]) / statistics.median(found[*cell, "slipstream"])
        for cell in cells
    }
    print(f"\nsteps per CPU second by SB3's (target: at least {TARGET:g})")
    for name, ratio in ratios.items():
        print(f"{name:<28} {ratio:6.2f}")
    runs: dict[str, Any] = {":".join(what): results for what, results in found.items()}
    record = {"benchmark": "images_speed", **machine(), "load": load, "us_per_step": runs, "ratios": ratios}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "images_speed.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
