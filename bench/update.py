"""How near PPO's and SAC's updates come to what the machine can multiply: native passes, bfloat16, torch.compile.

    python bench/update.py [--repeats 9]

Networks [256, 256], observations of 24 numbers, 6 action axes. The limit is torch's float32 product of two matrices of
1024 x 1024, on one core and on all, measured before every repeat; ways are interleaved, and of each the median of its
ratios to the limit of the same repeat counts. A PPO update here is 8 epochs of 4096 rows with all that belongs to it
(advantages, shuffling, losses, Adam); a SAC step draws nothing. Counted are the multiplications and additions of the
linear layers, forward and back, which is what a matrix product would need: 2 per weight and row forward, 4 back, and 2
where a gradient goes through a network to its input only. Writes docs/results/update.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, machine
from history import gemm
from learners import AXES, HIDDEN, OBS, our_spec

ROWS, EPOCHS = 4096, 8


class Way(NamedTuple):
    """How the networks are multiplied out."""

    name: str
    threads: int
    precision: str = "float32"
    compiled: bool = False


class Work(NamedTuple):
    """An update, and the floating-point operations of its linear layers."""

    run: Callable[[], Any]
    flops: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    ways = [
        Way("native, 1 thread", 1),
        Way(f"native, {cores} threads", cores),
        Way("bfloat16, 1 thread", 1, "bfloat16"),
        Way(f"bfloat16, {cores} threads", cores, "bfloat16"),
        Way("torch.compile, 1 thread", 1, "float32", True),
    ]
    works = {f"ppo, minibatches of {size}": ppo(size) for size in (256, 1024, 4096)}
    works |= {f"sac, batches of {size}": sac(size) for size in (256, 4096)}
    rates: dict[tuple[str, str], list[tuple[float, float]]] = {}
    limits = []
    for name, work in works.items():
        for way in ways:
            timed(work, way)  # torch.compile compiles, caches fill
        for _ in range(args.repeats):
            limit = gemm(cores, 0.2)
            limits.append(limit)
            for way in ways:
                rate = work.flops / timed(work, way) / 1e9
                rates.setdefault((name, way.name), []).append((rate, rate / limit))
        print(f"{name}: done", flush=True)
    rows = [
        {"work": work, "way": way, "gflops": round(median(r for r, _ in found), 1),
         "of_the_limit": round(median(s for _, s in found), 3)}
        for (work, way), found in rates.items()
    ]  # fmt: skip
    print(f"float32 GEMM limit, {cores} cores: {median(limits):.0f} GFLOP/s ({min(limits):.0f} to {max(limits):.0f})")
    for row in rows:
        print(f"{row['work']:28} {row['way']:26} {row['gflops']:7.1f} GFLOP/s  {row['of_the_limit']:6.1%} of the limit")
    record = {"command": " ".join(["python", *sys.argv]), **machine(), "cores": cores,
              "gemm_gflops": round(median(limits), 1), "load_average": os.getloadavg()[0], "rows": rows}  # fmt: skip
    (RESULTS / "update.json").write_text(json.dumps(record, indent=1) + "\n")


def timed(work: Work, way: Way) -> float:
    """Seconds of one update done this way."""
    import torch

    from slipstream import _core
    from slipstream.nets.arithmetic import Arithmetic, arithmetic

    is_native = way.precision == "float32" and not way.compiled
    _core.set_kernel_threads(way.threads if is_native else 1)
    torch.set_num_threads(1 if is_native else way.threads)
    with arithmetic(Arithmetic(getattr(torch, way.precision), way.compiled)):
        start = time.perf_counter()
        work.run()
        return time.perf_counter() - start


def weights(inputs: int, outputs: int) -> int:
    sizes = (inputs, *HIDDEN, outputs)
    return sum(a * b for a, b in pairwise(sizes))


def ppo(minibatch: int) -> Work:
    """An update of one slab, from advantages to the last step."""
    import torch

    from slipstream.algos.ppo import Ppo
    from slipstream.algos.protocol import Progress
    from slipstream.config.algos import PpoConfig
    from slipstream.data.rollout import allocate_rollout

    spec = our_spec(False)
    config = PpoConfig(hidden=HIDDEN, minibatch_size=minibatch, epochs=EPOCHS)
    learner = Ppo(config, spec, 1, torch.device("cpu"))
    worlds = 32
    rollout = allocate_rollout(spec, ROWS // worlds, worlds, 1, False, 0)
    rng = np.random.default_rng(0)
    for block in (*rollout.obs.values(), *rollout.last_obs.values(), rollout.action, rollout.reward, rollout.logp):
        block[...] = rng.normal(size=block.shape)
    rollout.decided[1:], rollout.paid[1:], rollout.duration[1:] = 1, 1, 1
    rollout.decided[0] = 0
    seen = 2.0 * ROWS * weights(OBS, 1)  # the values the update begins with
    learned = 6.0 * ROWS * EPOCHS * (weights(OBS, AXES) + weights(OBS, 1))
    return Work(lambda: learner.update(rollout, Progress(0.0, 1)), seen + learned)


def sac(batch: int) -> Work:
    """Gradient steps on one draw, as many as make the time worth measuring."""
    import torch

    from slipstream.algos.protocol import Progress
    from slipstream.algos.sac import Sac
    from slipstream.config.algos import SacConfig
    from slipstream.data.transitions import Sample, Transitions

    learner = Sac(SacConfig(hidden=HIDDEN, batch_size=batch), our_spec(False), 1, torch.device("cpu"))
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    rows = Transitions(
        obs={"obs": numbers(batch, OBS)},
        action=np.tanh(numbers(batch, AXES)),
        mask=None,
        reward=numbers(batch),
        discount=np.full(batch, 0.99, np.float32),
        next_obs={"obs": numbers(batch, OBS)},
        next_mask=None,
    )
    sample = Sample(rows, np.arange(batch), np.ones(batch, np.float32))
    actor, critic = weights(OBS, 2 * AXES), weights(OBS + AXES, 1)
    steps = max(1, 2048 // batch)
    # Targets: actor and both target critics forward. Critics: both, forward and back. Actor: itself forward and back,
    # both critics forward, and back to their inputs only.
    flops = batch * steps * (2 * actor + 2 * 2 * critic + 6 * 2 * critic + 6 * actor + (2 + 2) * 2 * critic)

    def run() -> None:
        for _ in range(steps):
            learner.update(sample, Progress(0.0, 1))

    return Work(run, float(flops))


if __name__ == "__main__":
    main()
