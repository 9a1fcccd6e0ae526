"""Replay: rows added, drawn and re-prioritised per second, beside cpprb's and SB3's buffers; and the law of the draws.

    python bench/replay.py [--repeats 5] [--calls 2000]    rates; needs .venv-peers (make peers)
    python bench/replay.py --law                           5 times 10^7 draws and 10^8 updates for each capacity

A full ring of a million rows (observations of 24 floats twice, actions of 6), added to in blocks of 64, drawn from in
batches of 256. Each library is measured in a process of its own, in turn; SB3's faster setting counts (with and without
its handling of time limits). Writes docs/results/replay.json.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, ROOT, machine

CAPACITY = 1_000_000
OBS, ACT = 24, 6
BLOCK, BATCH = 64, 256
LAW_CAPACITIES = (1, 7, 1000, 65536, 100_003)
LAW_SEEDS = (1, 2, 3, 4, 5)
PEERS = ROOT / ".venv-peers" / "bin" / "python"
KINDS = {"ours": Path(sys.executable), "cpprb": PEERS, "sb3": PEERS, "sb3_plain": PEERS}

Calls = dict[str, Callable[[int], Any]]  # what is timed, given the number of the call


def block() -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.normal(size=(BLOCK, *shape)).astype(np.float32)

    return {"obs": normal(OBS), "next_obs": normal(OBS), "act": normal(ACT), "rew": normal(), "done": normal() > 2}


def updates() -> tuple[list[Any], Any]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, CAPACITY, BATCH) for _ in range(100)], rng.random(BATCH).astype(np.float32)


def ours() -> Calls:
    from slipstream.data.transitions import Transitions
    from slipstream.replay.buffer import Prioritised, Replay

    b = block()
    discount = np.where(b["done"], np.float32(0), np.float32(0.99))
    rows = Transitions({"obs": b["obs"]}, b["act"], None, b["rew"], discount, {"obs": b["next_obs"]}, None)
    uniform, by_priority = Replay(rows, CAPACITY, 1), Replay(rows, CAPACITY, 1, Prioritised())
    index, error = updates()
    return {
        "uniform add": lambda i: uniform.add(rows),
        "uniform sample": lambda i: uniform.sample(BATCH, i),
        "prioritised add": lambda i: by_priority.add(rows),
        "prioritised sample": lambda i: by_priority.sample(BATCH, i, 0.4),
        "prioritised update": lambda i: by_priority.update_priorities(index[i % 100], error),
    }


def cpprb() -> Calls:
    from cpprb import PrioritizedReplayBuffer, ReplayBuffer

    shapes = {"obs": {"shape": OBS}, "act": {"shape": ACT}, "rew": {}, "next_obs": {"shape": OBS}, "done": {}}
    rows = block()
    uniform, by_priority = ReplayBuffer(CAPACITY, shapes), PrioritizedReplayBuffer(CAPACITY, shapes)
    index, error = updates()
    return {
        "uniform add": lambda i: uniform.add(**rows),
        "uniform sample": lambda i: uniform.sample(BATCH),
        "prioritised add": lambda i: by_priority.add(**rows),
        "prioritised sample": lambda i: by_priority.sample(BATCH, beta=0.4),
        "prioritised update": lambda i: by_priority.update_priorities(index[i % 100], error),
    }


def sb3(time_limits: bool) -> Calls:
    from gymnasium.spaces import Box
    from stable_baselines3.common.buffers import ReplayBuffer

    b = block()
    obs, act = Box(-1, 1, (OBS,), np.float32), Box(-1, 1, (ACT,), np.float32)
    buffer = ReplayBuffer(CAPACITY, obs, act, "cpu", n_envs=BLOCK, handle_timeout_termination=time_limits)
    infos: list[dict[str, Any]] = [{} for _ in range(BLOCK)]
    return {
        "uniform add": lambda i: buffer.add(b["obs"], b["next_obs"], b["act"], b["rew"], b["done"], infos),
        "uniform sample": lambda i: buffer.sample(BATCH),
    }


def child(kind: str, calls: int) -> dict[str, float]:
    """Rows per second of each call, after the ring was filled."""
    made = {"ours": ours, "cpprb": cpprb, "sb3": lambda: sb3(True), "sb3_plain": lambda: sb3(False)}[kind]()
    rates = {}
    for name, call in made.items():
        if name.endswith("add"):
            for i in range(CAPACITY // BLOCK + 1):
                call(i)
        start = time.perf_counter()
        for i in range(calls):
            call(i)
        rates[name] = (BLOCK if name.endswith("add") else BATCH) * calls / (time.perf_counter() - start)
    return rates


def measure(kind: str, calls: int) -> dict[str, float]:
    command = [str(KINDS[kind]), __file__, "--calls", str(calls), "--child", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{kind} failed:\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(repeats: int, calls: int) -> dict[str, Any]:
    """Medians of all, measured in turn, and how far ours is ahead of the best peer."""
    rates: dict[str, dict[str, list[float]]] = {}
    for repeat in range(repeats):
        for kind in KINDS:
            for name, rate in measure(kind, calls).items():
                rates.setdefault(name, {}).setdefault(kind, []).append(rate)
        print(f"repeat {repeat + 1} of {repeats} is done", flush=True)
    ratios = {}
    print(f"\n{'million rows/s':<20}{'ours':>10}{'cpprb':>10}{'SB3':>10}{'ahead by':>10}")
    for name, by_kind in rates.items():
        median = {kind: sorted(values)[len(values) // 2] for kind, values in by_kind.items()}
        peers = {"cpprb": median["cpprb"], "sb3": max(median.get("sb3", 0.0), median.get("sb3_plain", 0.0))}
        ratios[name] = {peer: median["ours"] / rate for peer, rate in peers.items() if rate}
        shown = [f"{rate / 1e6:10.2f}" if rate else f"{'-':>10}" for rate in (median["ours"], *peers.values())]
        print(f"{name:<20}{''.join(shown)}{min(ratios[name].values()):9.2f}x")
    print("(SB3 has no prioritised buffer)")
    return {"rates": rates, "ratios": ratios}


def law() -> dict[str, Any]:
    """Chi-square of draws against (|error| + eps)^alpha, and the total against the sum of the leaves."""
    return {str(capacity): {**draws(capacity), **drift(capacity)} for capacity in LAW_CAPACITIES}


def draws(capacity: int, count: int = 10**7) -> dict[str, Any]:
    """p-values of `count` draws for each of LAW_SEEDS, and of all of them together (Fisher)."""
    from scipy import stats

    found = [p_value(capacity, count, seed) for seed in LAW_SEEDS]
    together = float(stats.combine_pvalues(found).pvalue)
    shown = " ".join(f"{p:.3f}" for p in found)
    print(f"capacity {capacity:>7,}: {count:.0e} draws, chi-square p = {shown}; together {together:.3f}")
    return {"draws": count, "p_values": found, "p_together": together}


def p_value(capacity: int, count: int, seed: int) -> float:
    from scipy import stats

    from slipstream.data.transitions import Transitions
    from slipstream.replay.buffer import Prioritised, Replay

    one = np.zeros((capacity, 1), np.float32)
    rows = Transitions({"obs": one}, one, None, one[:, 0], one[:, 0], {"obs": one}, None)
    replay = Replay(rows, capacity, seed, Prioritised(alpha=0.6, eps=1e-6))
    replay.add(rows)
    error = np.random.default_rng(seed).standard_cauchy(capacity)
    replay.update_priorities(np.arange(capacity), error)
    counts = np.zeros(capacity)
    for draw in range(count // 100_000):
        counts += np.bincount(replay.sample(100_000, draw).index, minlength=capacity)
    priority = (np.abs(error) + 1e-6) ** 0.6
    expected = priority / priority.sum() * count
    # Neighbours are taken together until every group expects at least 20 draws.
    group = (np.cumsum(expected) // 20).astype(int)
    group = np.unique(np.minimum(group, max(group[-1] - 1, 0)), return_inverse=True)[1]
    seen, stated = np.bincount(group, counts), np.bincount(group, expected)
    return float(stats.chisquare(seen, stated).pvalue) if len(seen) > 1 else 1.0


def drift(capacity: int, count: int = 10**8) -> dict[str, Any]:
    from slipstream import _core

    rng = np.random.default_rng(capacity + 1)
    tree = _core.SumTree(capacity)
    start = time.perf_counter()
    for _ in range(count // 10**6):
        index, value = rng.integers(0, capacity, 10**6), rng.random(10**6)
        for at in range(0, 10**6, BATCH):
            tree.set(index[at : at + BATCH], value[at : at + BATCH])
    leaves = np.zeros(capacity)
    tree.get(np.arange(capacity), leaves)
    gap = abs(tree.total() - math.fsum(leaves.tolist()))
    seconds = time.perf_counter() - start
    print(f"{'':>18}{count:.0e} updates, |total - sum of leaves| = {gap:.1e} of {tree.total():.6g} ({seconds:.0f} s)")
    return {"updates": count, "gap": gap, "total": tree.total()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000, help="calls counted in each measurement")
    parser.add_argument("--law", action="store_true", help="check the draws and the sums instead of measuring rates")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.child, args.calls)))
        return
    path = RESULTS / "replay.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if args.law:
        record["law"] = {**machine(), "capacities": law()}
    else:
        record |= {"benchmark": "replay", **machine(), **compare(args.repeats, args.calls)}
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
