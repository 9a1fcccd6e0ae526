"""How fast it was before: benchmarks are run, and their headline figures kept beside the machine's own speed.

    python bench/history.py                          every figure beside those of earlier entries, as ratios
    python bench/history.py run worlds train         run benchmarks, and add an entry for each; `make bench` does so
    python bench/history.py run planner -- --boards 200     what follows -- is for the benchmark

The yardstick is the float32 matrix product of torch in GFLOP/s, on one core and on all, measured just before and just
after the benchmark. A figure is compared as it is, and divided by the yardstick: what a busier or slower machine
explains is taken out of the second ratio, roughly. Kept in docs/results/bench_history.json, an entry a line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "studies"))

from cells import RESULTS, machine  # noqa: E402

HISTORY = RESULTS / "bench_history.json"
VERSION = 1
SIZE = 1024  # of the matrices
SECONDS = 0.5  # of one measurement of the yardstick
LOOK_BACK = 5  # entries whose median is compared with
SLOWER = 0.9  # a ratio below this is marked

Record = dict[str, Any]
Figures = dict[str, float]  # more is better


# --- what counts in each benchmark's file; times are turned into rates, so that more is better everywhere ---


def worlds(record: Record) -> Figures:
    shown = [cell for cell in record["rates"] if cell["worlds"] in (1, 1024)]
    figures = {
        f"{cell['scenario']}, {cell['worlds']} worlds, {cell['threads']} threads: steps/s": max(cell["steps_per_s"])
        for cell in shown
    }
    return figures | ({"times bluesky-gym": record["peer"]["ratio"]} if "peer" in record else {})


def train(record: Record) -> Figures:
    return {"PPO end to end: steps/s": median(record["rates"]["ours"]), "times SB3": record["ratio"]}


def replay(record: Record) -> Figures:
    return {f"{name}: rows/s": median(rates["ours"]) for name, rates in record["rates"].items()}


def learners(record: Record) -> Figures:
    return {
        f"{row['algo']}, batch {row['batch']}, {row['threads']} threads: steps/s": 1000.0 / row["ours_ms"]
        for row in record["rows"]
    }


def planner(record: Record) -> Figures:
    return {"boards/s": 1e6 / record["planner_us"], "times plain search": record["ratio"]}


def collectors(record: Record) -> Figures:
    return {
        f"{row['world']}, {row['workers']} workers: agent steps/s": row["agent_steps_per_s"] for row in record["rows"]
    }


BENCHES: dict[str, Callable[[Record], Figures]] = {
    bench.__name__: bench for bench in (worlds, train, replay, learners, planner, collectors)
}


# --- running and keeping ---


def gemm(threads: int, seconds: float = SECONDS) -> float:
    """GFLOP/s of the float32 matrix product on so many threads: the best of the products that fit into the time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a, b = torch.rand(2, SIZE, SIZE)
        out = a @ b
        best, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            torch.mm(a, b, out=out)
            best = min(best, time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return 2.0 * SIZE**3 / best / 1e9


def yardstick() -> dict[str, float]:
    return {"one_core": gemm(1), "all_cores": gemm(len(os.sched_getaffinity(0)))}


def run(names: Sequence[str], words: Sequence[str], path: Path = HISTORY) -> None:
    """Run benchmarks, each with the yardstick before and after it, and add their figures."""
    for name in names:
        result = RESULTS / f"{name}.json"
        began, before = time.time(), yardstick()
        done = subprocess.run([sys.executable, str(ROOT / "bench" / f"{name}.py"), *words], check=False)
        if done.returncode:
            sys.exit(f"{name}: ended with code {done.returncode}; nothing was added for it")
        after = yardstick()
        if result.stat().st_mtime < began:
            sys.exit(f"{name}: has not written {result}; leave out what makes it a trial, such as --quick")
        append(
            path,
            {
                "bench": name,
                **machine(),
                "load_average": os.getloadavg()[0],
                "words": list(words),
                "gemm_gflops": {key: [round(before[key], 2), round(after[key], 2)] for key in before},
                "figures": {key: float(f"{value:.5g}") for key, value in figures_in(name, result).items()},
            },
        )


def figures_in(name: str, result: Path) -> Figures:
    return BENCHES[name](json.loads(result.read_text()))


def read(path: Path) -> list[Record]:
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    if record["version"] != VERSION:
        sys.exit(f"{path}: is of version {record['version']}, and this script reads {VERSION}")
    entries: list[Record] = record["entries"]
    return entries


def append(path: Path, entry: Record) -> None:
    rows = ",\n".join(json.dumps(one) for one in [*read(path), entry])
    temp = path.with_suffix(".tmp")
    temp.write_text(f'{{"benchmark": "history", "version": {VERSION}, "entries": [\n{rows}\n]}}\n')
    os.replace(temp, path)


# --- comparing ---


class Ratio(NamedTuple):
    """A figure of a benchmark's newest entry beside those before it, on the same kind of processor."""

    bench: str
    figure: str
    value: float
    before: float | None  # ratio to the entry before; None: there is none
    median: float | None  # ratio to the median of the last few
    by_yardstick: float | None  # the same, each divided by its own yardstick


def ratios(entries: Sequence[Record]) -> list[Ratio]:
    found = []
    for bench in dict.fromkeys(entry["bench"] for entry in entries):
        own = [entry for entry in entries if entry["bench"] == bench]
        newest = own[-1]
        alike = [entry for entry in own[:-1] if (entry["cpu"], entry["words"]) == (newest["cpu"], newest["words"])]
        for figure, value in newest["figures"].items():
            earlier = [entry for entry in alike if figure in entry["figures"]][-LOOK_BACK:]
            before = [entry["figures"][figure] for entry in earlier]
            scaled = [entry["figures"][figure] / speed(entry, figure) for entry in earlier]
            found.append(
                Ratio(
                    bench,
                    figure,
                    value,
                    value / before[-1] if before else None,
                    value / median(before) if before else None,
                    value / speed(newest, figure) / median(scaled) if scaled else None,
                )
            )
    return found


def speed(entry: Record, figure: str) -> float:
    """What a figure is divided by; one that is a ratio to a peer in the same run is fair as it is."""
    return 1.0 if figure.startswith("times ") else mean(entry["gemm_gflops"]["one_core"])


def show(entries: Sequence[Record]) -> None:
    """A table by benchmark; what got slower, also by the yardstick, is marked."""
    if not entries:
        print(f"no entries yet in {HISTORY}; make some with: make bench")
        return
    newest = {entry["bench"]: entry for entry in entries}
    found = ratios(entries)
    width = max(len(ratio.figure) for ratio in found)
    for bench, entry in newest.items():
        one, every = (mean(entry["gemm_gflops"][key]) for key in ("one_core", "all_cores"))
        about = ", ".join(filter(None, (entry["date"], entry["commit"], entry["cpu"], " ".join(entry["words"]))))
        print(f"\n{bench}: {about}; GEMM {one:.0f} GFLOP/s on one core, {every:.0f} on all")
        print(f"  {'':<{width}} {'value':>12} {'/ before':>9} {f'/ last {LOOK_BACK}':>9} {'by GEMM':>9}")
        for ratio in (one for one in found if one.bench == bench):
            three = [f"{value:9.2f}" if value is not None else f"{'–':>9}" for value in ratio[3:]]
            slower = all(value is not None and value < SLOWER for value in (ratio.median, ratio.by_yardstick))
            print(f"  {ratio.figure:<{width}} {ratio.value:12,.1f} {' '.join(three)}{'  slower' * slower}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", nargs="?", choices=("show", "run"), default="show")
    parser.add_argument("names", nargs="*", metavar="BENCH", help=f"of run: {', '.join(BENCHES)}")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:at])
    unknown = [name for name in args.names if name not in BENCHES]
    if unknown or (args.verb == "run") != bool(args.names):
        parser.error(f"run needs names of benchmarks, among {', '.join(BENCHES)}")
    if args.verb == "run":
        run(args.names, sys.argv[at + 1 :])
    show(read(HISTORY))


if __name__ == "__main__":
    main()
