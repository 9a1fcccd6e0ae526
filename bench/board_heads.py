"""What every network for boards costs: one decision of a batch, one alone, and one row of a gradient step.

    python bench/board_heads.py [--quick]

On positions of the scenario drmario_level_0, one thread, CPU time, medians of repeats that are interleaved over all
networks. A decision is inputs, logits, draw and log-probability; a row of a gradient step has its share of advantages,
losses, the actor's and the critic's passes, and Adam. Beside it, why rows run in shards: how many of 64 rows get other
bits from torch in smaller batches than among all 64. Writes docs/results/board_heads.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from slipstream.algos.ppo import Ppo
from slipstream.algos.protocol import Progress
from slipstream.collect.serial import Collector
from slipstream.config.algos.learner import IMPLEMENTATIONS
from slipstream.config.load import load
from slipstream.data.rollout import Blocks, Rollout
from slipstream.nets.actor import Actor, act, tensors
from slipstream.nets.inputs import VECTOR
from slipstream.run.setup import complete, gammas, make_cast, make_training_worlds, resolve

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "studies"))

from cells import RESULTS, machine  # noqa: E402

NETWORKS = tuple(IMPLEMENTATIONS)
CPU = torch.device("cpu")
BATCHES = (1, 2, 7, 16)
WORLDS, TICKS = 64, 8


class Bench(NamedTuple):
    """A network with something to do."""

    learner: Ppo
    rollout: Rollout
    obs: Blocks
    mask: np.ndarray[Any, Any]
    noise: np.ndarray[Any, Any]

    def decide(self, rows: int) -> None:
        """Act for the first of the worlds."""
        obs = {name: block[:rows] for name, block in self.obs.items()}
        act(self.learner.actor, obs, self.mask[:rows], self.noise[:rows], CPU)

    def learn(self) -> None:
        """One epoch of one minibatch."""
        self.learner.update(self.rollout, Progress(0.0, 0))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a rough answer, not written")
    args = parser.parse_args()
    record: dict[str, Any] = {"benchmark": "board_heads", "command": "python bench/board_heads.py", **machine()}
    record["load_average"] = os.getloadavg()[0]
    print(f"{record['cpu']}, commit {record['commit']}, {record['date']}, load {record['load_average']:.1f}\n")
    benches = {network: made(network) for network in NETWORKS}
    repeats = 2 if args.quick else 9
    decided, alone, learned = ({network: [] for network in NETWORKS} for _ in range(3))
    for repeat in range(repeats + 1):
        for network, bench in benches.items():
            rows = int(np.count_nonzero(bench.rollout.decided[:-1]))
            taken = (
                (decided, seconds(lambda b=bench: b.decide(WORLDS)) / WORLDS),
                (alone, seconds(lambda b=bench: b.decide(1))),
                (learned, seconds(bench.learn) / rows),
            )
            for kept, took in taken if repeat else ():  # the first time kernels are made
                kept[network].append(1e6 * took)
    record["networks"] = [
        {
            "network": network,
            "parameters": sum(p.numel() for p in bench.learner.actor.parameters()),
            "decision_us": round(median(decided[network])),
            "decision_alone_us": round(median(alone[network])),
            "update_row_us": round(median(learned[network])),
            "other_bits": other_bits(bench.learner.actor, bench.obs, bench.mask),
        }
        for network, bench in benches.items()
    ]
    print_networks(record["networks"])
    if not args.quick:
        (RESULTS / "board_heads.json").write_text(json.dumps(record, indent=1) + "\n")


def made(network: str) -> Bench:
    """A learner of the scenario with this network, a rollout, and the positions it ends with."""
    changes: dict[str, Any] = {"learner_threads": 1, "device": "cpu", "collect.rollout_length": TICKS}
    changes |= {"algo.network": network, "algo.epochs": 1, "algo.minibatch_size": WORLDS * TICKS}
    scenario = resolve(load("drmario_level_0", changes))
    env = make_training_worlds(scenario)
    scenario = complete(scenario, env.spec)
    cast = make_cast(scenario, env.spec)
    collector = Collector(env, cast.teams, TICKS, scenario.seed, gammas(scenario), cast.shaping)
    collector.collect(0)
    rollouts, _ = collector.collect(1)
    (learner,) = cast.learners.values()
    assert isinstance(learner, Ppo)
    assert env.action_mask is not None
    obs = {name: np.ascontiguousarray(block[:, 0]) for name, block in env.obs.items()}
    mask = np.ascontiguousarray(env.action_mask[:, 0])
    noise = np.random.default_rng(0).random(mask.shape, np.float32)
    return Bench(learner, rollouts["main"], obs, mask, noise)


def seconds(work: Callable[[], None]) -> float:
    """CPU seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


@torch.no_grad()
def other_bits(actor: Actor, obs: Blocks, mask: np.ndarray[Any, Any]) -> dict[str, int] | None:
    """Rows that torch without shards gives other logits in batches of each size than in one of all rows."""
    placer = getattr(actor, "placer", None)  # a perceptron has none
    if placer is None:
        return None  # native, and tested to give the same bits in any batch
    x, allowed, width = actor.inputs(tensors(obs, CPU))[VECTOR], torch.from_numpy(mask), placer.head.widths[-1]

    def whole(rows: slice) -> torch.Tensor:
        some, such = x[rows].clone(), allowed[rows].clone()
        out: torch.Tensor = placer.head(placer.torso(some), some, such, width)
        return out

    expected = whole(slice(0, WORLDS))
    found = {}
    for size in BATCHES:
        pieces = [whole(slice(begin, begin + size)) for begin in range(0, WORLDS, size)]
        found[str(size)] = int((torch.cat(pieces)[:WORLDS] != expected).any(1).sum())
    return found


def print_networks(rows: list[dict[str, Any]]) -> None:
    """A table as the page has it."""
    print("| network | parameters | µs a decision, of 64 | alone | µs a row learned from | other bits without shards |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        bits = "native" if row["other_bits"] is None else ", ".join(f"{b}: {n}" for b, n in row["other_bits"].items())
        print(
            f"| `{row['network']}` | {row['parameters']:,} | {row['decision_us']:,} | {row['decision_alone_us']:,} | "
            f"{row['update_row_us']:,} | {bits} |"
        )


if __name__ == "__main__":
    main()
