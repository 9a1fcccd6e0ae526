"""What a new circuit in every episode costs: decisions per CPU second, driven at random.

    python bench/circuits.py [--before CHECKOUT] [--repeats 5]

64 worlds on one thread. The actions are random, so episodes are short and resets frequent, as when training begins.
Where every episode draws a circuit, most of a reset is drawing it; on the oval, nothing is drawn. With --before,
another checkout of Slipstream with its own .venv is measured too, in turn. A repeat gives one ratio, and the median
counts. Prints a table and writes docs/results/circuits.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

from beside import ROOT, measured
from cells import RESULTS, machine

SCENARIOS = ("time_trial_oval", "time_trial_random", "time_trial_hard")
TARGETS = {"time_trial_random": 60_000, "time_trial_hard": 40_000}
PROGRAM = """
from slipstream.config.load import load
from slipstream.worlds.speed import measure
speed = measure(load({scenario!r}).world, 64, 1, {seconds})
print(speed.steps / speed.cpu_seconds)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the other checkout, with its .venv")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    args = parser.parse_args()
    checkouts = {"now": ROOT} | ({"before": args.before.resolve()} if args.before else {})
    rates: dict[str, dict[str, list[float]]] = {name: {which: [] for which in checkouts} for name in SCENARIOS}
    for repeat in range(args.repeats):
        order = list(checkouts) if repeat % 2 == 0 else list(checkouts)[::-1]
        for name in SCENARIOS:
            for which in order:
                rates[name][which].append(
                    measured(checkouts[which], PROGRAM.format(scenario=name, seconds=args.seconds))
                )
    print(
        "| scenario | "
        + " | ".join(checkouts)
        + " | ratio | of the oval | target |\n|---|"
        + "---:|" * (len(checkouts) + 3)
    )
    oval = median(rates["time_trial_oval"]["now"])
    for name, row in rates.items():
        found = [f"{median(row[which]):,.0f}" for which in checkouts]
        ratio = f"{median(a / b for a, b in zip(row['now'], row['before'], strict=True)):.2f}" if args.before else ""
        share = f"{median(row['now']) / oval:.0%}"
        print("| " + " | ".join([name, *found, ratio, share, f"{TARGETS[name]:,}" if name in TARGETS else ""]) + " |")
    record: dict[str, Any] = {
        "benchmark": "circuits",
        "command": "python bench/circuits.py" + (" --before CHECKOUT" if args.before else ""),
        **machine(),
        "decisions_per_cpu_s": rates,
        "targets": TARGETS,
    }
    if args.before:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=args.before, capture_output=True, text=True
        )
        record["before"] = commit.stdout.strip()
    (RESULTS / "circuits.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
