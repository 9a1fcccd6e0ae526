"""How fast native worlds step, what a second thread is worth, and horizontal_cr beside bluesky-gym's own task.

    python bench/worlds.py [--quick] [--skip-peer]
    python bench/worlds.py racing [--quick]    cars and beams, by bench/races.py
    python bench/worlds.py drmario [--quick]   frames and decisions, by bench/games.py

1. Steps of worlds per second of wall time, for 1 to 4096 worlds and 1 and 2 threads; one step is one decision of every
   agent of a world. Best of the repeats, which are interleaved over all cells.
2. The second thread: N worlds on 2 threads against two pinned processes with N/2 worlds each, which start together.
   Measured one after the other in every repeat. Efficiency is the median of the repeats' ratios, and beside it the
   ratio of the best rates. A row judges the second thread only where the processes themselves gained from the second
   core (SECOND_CORE_FREE); otherwise something else was using it, and the row is marked.
3. The same task in bluesky-gym, per second of CPU time on one thread, random actions, no learner. Blocks alternate;
   median of the ratios. Needs `make peers`.

Prints Markdown tables and writes docs/results/worlds.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from slipstream.config.load import load
from slipstream.worlds.speed import MeasuredSpeed, measure

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "studies"))

from cells import RESULTS, machine  # noqa: E402

SCENARIOS = ("head_on", "canonical_crossing", "horizontal_cr")
SIZES = (1, 4, 16, 64, 256, 1024, 4096)
THREADS = (1, 2)
PEER_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
EFFICIENCY_TARGET = 0.9
SECOND_CORE_FREE = 1.7  # least speed-up of two processes over one thread for a row to count
PEER_TARGET = 3000.0


class Effort(NamedTuple):
    """How long to measure."""

    repeats: int
    seconds: float  # of one measurement
    paired_sizes: tuple[int, ...]  # batches whose second thread is judged
    peer_blocks: int
    peer_seconds: float  # of one block


FULL = Effort(repeats=7, seconds=0.2, paired_sizes=(256, 1024, 4096), peer_blocks=5, peer_seconds=3.0)
QUICK = Effort(repeats=1, seconds=0.1, paired_sizes=(256,), peer_blocks=2, peer_seconds=1.0)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", nargs="?", choices=("airspace", "racing", "drmario"), default="airspace")
    parser.add_argument("--quick", action="store_true", help="a rough answer in under a minute")
    parser.add_argument("--skip-peer", action="store_true", help="leave bluesky-gym out")
    args = parser.parse_args()
    if args.family == "racing":
        import races

        races.main(args.quick)
        return
    if args.family == "drmario":
        import games

        games.main(args.quick)
        return
    effort = QUICK if args.quick else FULL
    record: dict[str, Any] = {
        "benchmark": "worlds",
        "command": " ".join(["python bench/worlds.py", *sys.argv[1:]]),
        **machine(),
    }
    record["load_average"] = os.getloadavg()[0]
    print(f"{record['cpu']}, commit {record['commit']}, {record['date']}, load {record['load_average']:.1f}\n")

    record["rates"] = rates(effort)
    print_rates(record["rates"])
    if len(os.sched_getaffinity(0)) > 1:
        record["second_thread"] = second_thread(effort)
        print_second_thread(record["second_thread"])
    else:
        print("one processor only: nothing to say about a second thread\n")
    if not args.skip_peer:
        record["peer"] = against_peer(effort)
        print_peer(record["peer"])
    if not args.quick:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "worlds.json").write_text(json.dumps(record, indent=1) + "\n")


def speed(scenario: str, worlds: int, threads: int, seconds: float) -> MeasuredSpeed:
    """Random actions for about `seconds` in this process."""
    return measure(load(scenario).world, worlds, threads, seconds)


# --- 1. steps per second


def rates(effort: Effort) -> list[dict[str, Any]]:
    """Steps per second of every cell, all repeats."""
    cells = [(scenario, worlds, threads) for scenario in SCENARIOS for worlds in SIZES for threads in THREADS]
    runs: dict[tuple[str, int, int], list[MeasuredSpeed]] = {cell: [] for cell in cells}
    for _ in range(effort.repeats):
        for cell in cells:
            runs[cell].append(speed(*cell, effort.seconds))
    return [
        {
            "scenario": scenario,
            "worlds": worlds,
            "threads": threads,
            "steps_per_s": [s.steps_per_s for s in runs[scenario, worlds, threads]],
            "agent_steps_per_s": [s.agent_steps_per_s for s in runs[scenario, worlds, threads]],
            "steps_per_cpu_s": [s.steps / s.cpu_seconds for s in runs[scenario, worlds, threads]],
        }
        for scenario, worlds, threads in cells
    ]


def print_rates(cells: Sequence[dict[str, Any]]) -> None:
    best = {(c["scenario"], c["worlds"], c["threads"]): max(c["steps_per_s"]) for c in cells}
    columns = [f"{scenario}, {threads} thread{'s' * (threads > 1)}" for scenario in SCENARIOS for threads in THREADS]
    print("Steps of worlds per second, best of the repeats:\n")
    print(markdown_row(["worlds", *columns]) + "\n" + "|---:" * (len(columns) + 1) + "|")
    for worlds in SIZES:
        values = [f"{best[scenario, worlds, threads]:,.0f}" for scenario in SCENARIOS for threads in THREADS]
        print(markdown_row([f"{worlds}", *values]))
    print(flush=True)


def markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# --- 2. the second thread


def second_thread(effort: Effort, scenarios: Sequence[str] = SCENARIOS) -> list[dict[str, Any]]:
    """Rates of one thread, two threads and two processes for every large batch, all repeats."""
    cells = [(scenario, worlds) for scenario in scenarios for worlds in effort.paired_sizes]
    rows: dict[tuple[str, int], dict[str, list[float]]] = {
        cell: {"one_thread": [], "two_threads": [], "two_processes": []} for cell in cells
    }
    with two_processes() as pair:
        for _ in range(effort.repeats):
            for scenario, worlds in cells:
                row = rows[scenario, worlds]
                row["one_thread"].append(speed(scenario, worlds, 1, effort.seconds).steps_per_s)
                row["two_threads"].append(speed(scenario, worlds, 2, effort.seconds).steps_per_s)
                row["two_processes"].append(pair_rate(pair, scenario, worlds // 2, effort.seconds))
    return [
        {
            "scenario": scenario,
            "worlds": worlds,
            **row,
            "speed_up": median(b / a for a, b in zip(row["one_thread"], row["two_threads"], strict=True)),
            "efficiency": median(b / a for a, b in zip(row["two_processes"], row["two_threads"], strict=True)),
            "efficiency_of_best": max(row["two_threads"]) / max(row["two_processes"]),
        }
        for (scenario, worlds), row in rows.items()
    ]


@contextmanager
def two_processes() -> Iterator[list[Connection]]:
    """Two processes, each pinned to a processor of its own, that measure when told to."""
    context = get_context("spawn")
    barrier = context.Barrier(2)
    pipes = []
    for cpu in sorted(os.sched_getaffinity(0))[:2]:
        ours, theirs = context.Pipe()
        context.Process(target=_serve, args=(theirs, barrier, cpu), daemon=True).start()
        theirs.close()
        pipes.append(ours)
    try:
        yield pipes
    finally:
        for pipe in pipes:
            pipe.send(None)
            pipe.close()


def pair_rate(pair: Sequence[Connection], scenario: str, worlds: int, seconds: float) -> float:
    """Steps per second of both processes together, `worlds` worlds in each."""
    for pipe in pair:
        pipe.send((scenario, worlds, seconds))
    return float(sum(pipe.recv() for pipe in pair))


def _serve(pipe: Connection, barrier: Barrier, cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    while (task := pipe.recv()) is not None:
        scenario, worlds, seconds = task
        barrier.wait(timeout=60)
        pipe.send(speed(scenario, worlds, 1, seconds).steps_per_s)


def print_second_thread(rows: Sequence[dict[str, Any]]) -> None:
    print(
        f"The second thread (target {EFFICIENCY_TARGET:.0%} of two processes), steps per second, best of the repeats:\n"
    )
    names = [
        "scenario",
        "worlds",
        "1 thread",
        "2 threads",
        "2 processes",
        "speed-up",
        "processes' speed-up",
        "efficiency",
        "of the best",
    ]
    print(markdown_row(names) + "\n|---" + "|---:" * (len(names) - 1) + "|")
    for row in rows:
        values = [f"{max(row[kind]):,.0f}" for kind in ("one_thread", "two_threads", "two_processes")]
        room = median(b / a for a, b in zip(row["one_thread"], row["two_processes"], strict=True))
        note = "" if room >= SECOND_CORE_FREE else " (core busy)"
        ratios = [f"{row['speed_up']:.2f}", f"{room:.2f}{note}"]
        ratios += [f"{row['efficiency']:.0%}", f"{row['efficiency_of_best']:.0%}"]
        print(markdown_row([row["scenario"], f"{row['worlds']}", *values, *ratios]))
    print(flush=True)


# --- 3. the peer


def against_peer(effort: Effort) -> dict[str, Any]:
    """Steps per CPU second of both, in alternating blocks on one thread."""
    if not PEER_PYTHON.exists():
        raise SystemExit("bluesky-gym is not set up here: run `make peers` first, or leave it out with --skip-peer")
    ours: list[float] = []
    theirs: list[float] = []
    with bluesky() as peer:
        versions = json.loads(ask(peer, None))
        for _ in range(effort.peer_blocks):
            block = json.loads(ask(peer, effort.peer_seconds))
            theirs.append(block["steps"] / block["cpu_seconds"])
            mine = speed("horizontal_cr", 1024, 1, effort.peer_seconds / 3)
            ours.append(mine.steps / mine.cpu_seconds)
    ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
    return {"versions": versions, "ours_per_cpu_s": ours, "peer_per_cpu_s": theirs, "worlds": 1024, "ratio": ratio}


@contextmanager
def bluesky() -> Iterator[subprocess.Popen[str]]:
    """The peer in its own environment, on one thread; its first start builds a cache, which takes half a minute."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    process = subprocess.Popen(
        [PEER_PYTHON, ROOT / "bench" / "peer_bluesky.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **single},
        text=True,
    )
    try:
        yield process
    finally:
        process.communicate()


def ask(peer: subprocess.Popen[str], seconds: float | None) -> str:
    """One answer of the peer; None waits for its greeting."""
    assert peer.stdin is not None
    assert peer.stdout is not None
    if seconds is not None:
        peer.stdin.write(f"{seconds}\n")
        peer.stdin.flush()
    answer = peer.stdout.readline()
    if not answer:
        raise SystemExit(f"bluesky-gym died; see why with: {PEER_PYTHON} bench/peer_bluesky.py")
    return answer


def print_peer(peer: dict[str, Any]) -> None:
    versions = ", ".join(f"{name} {number}" for name, number in peer["versions"].items())
    print(f"The same task, steps per CPU second on one thread, medians of {len(peer['ours_per_cpu_s'])} blocks:\n")
    names = ["slipstream horizontal_cr, 1024 worlds", "bluesky-gym HorizontalCREnv-v0", "ratio", "target"]
    print(markdown_row(names) + "\n" + "|---:" * len(names) + "|")
    values = [f"{median(peer['ours_per_cpu_s']):,.0f}", f"{median(peer['peer_per_cpu_s']):,.1f}"]
    print(markdown_row([*values, f"{peer['ratio']:,.0f}", f"{PEER_TARGET:,.0f}"]))
    print(f"\nThe peer: {versions}.")


if __name__ == "__main__":
    main()
