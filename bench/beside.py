"""This checkout beside another one of Slipstream, usually an earlier commit: the same work in turn, and the ratios.

    git worktree add /elsewhere/before COMMIT && make -C /elsewhere/before setup
    python bench/beside.py /elsewhere/before [--repeats 7]

Every figure is measured by a fresh process in each checkout with that checkout's own environment, alternately, in
changing order; a repeat gives one ratio, and the median of the ratios counts. Needs an otherwise idle machine. Writes
docs/results/beside.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, machine

ROOT = Path(__file__).resolve().parents[1]

# Each program prints one number, more is better; it runs in the folder bench/ of either checkout.
TRAIN = """
import contextlib, io, json, sys, tempfile
from pathlib import Path
from slipstream.cli.main import main
with tempfile.TemporaryDirectory() as folder:
    words = ["train", *{words!r}, "--ui", "none", "--device", "cpu", "--stop.zero-conflict-streak", "None"]
    words += ["--evaluate.evaluation-interval", "None", "--checkpoint.checkpoint-every", "1000000000"]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([*words, "--out", folder + "/run", "--models", folder + "/models"]) == 0
    rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
rows = [row for row in rows if "perf/time_learn_frac" in row or "perf/time_collect_frac" in row] or rows
steps = rows[-1]["timesteps_total"] - rows[0]["timesteps_total"]
print(steps / (rows[-1]["time_total_s"] - rows[0]["time_total_s"]))
"""
WORLDS = """
from slipstream.config.load import load
from slipstream.worlds.speed import measure
print(measure(load("head_on").world, {worlds}, {threads}, 2.0).steps_per_s)
"""
SERVICE = """
import replay_service as bench
print(bench.with_service({prioritised}, lambda at: bench.measure(at, 2, 2.0))[{column}])
"""
COLLECT = """
import collectors as bench
print(bench.rate(bench.scenarios()[{name!r}], {workers}, 4.0))
"""
COMMAND = """
import subprocess, sys, time
from pathlib import Path
times = []
for _ in range(7):
    start = time.perf_counter()
    subprocess.run([{words}], check=True, capture_output=True)
    times.append(time.perf_counter() - start)
print(1 / min(times))
"""
PPO = ["horizontal_cr", "--preset", "published_cpu", "--collect.num-worlds", "32", "--collect.rollout-length", "128"]
FIGURES = {
    "train, horizontal_cr with PPO, as in bench/train.py": TRAIN.format(words=[*PPO, "--timesteps", "28672"]),
    "train, head_on with PPO": TRAIN.format(words=["head_on", "--timesteps", "98304"]),
    "step head_on, 64 worlds": WORLDS.format(worlds=64, threads=1),
    "step head_on, 1024 worlds on 2 threads": WORLDS.format(worlds=1024, threads=2),
    "replay service, rows in, uniform, 2 producers": SERVICE.format(prioritised=False, column=0),
    "replay service, rows out, uniform, 2 producers": SERVICE.format(prioritised=False, column=1),
    "replay service, rows in, prioritised, 2 producers": SERVICE.format(prioritised=True, column=0),
    "replay service, rows out, prioritised, 2 producers": SERVICE.format(prioritised=True, column=1),
    "collect head_on, no worker": COLLECT.format(name="head_on", workers=0),
    "collect head_on, 2 workers": COLLECT.format(name="head_on", workers=2),
    "collect a slow world, 2 workers": COLLECT.format(name="slow", workers=2),
    "slipstream --help, runs per second": COMMAND.format(
        words="Path(sys.executable).with_name('slipstream'), '--help'"
    ),
    "import slipstream, per second": COMMAND.format(words="sys.executable, '-c', 'import slipstream'"),
}


def measured(checkout: Path, program: str) -> float:
    """What the program prints in that checkout."""
    python = checkout / ".venv" / "bin" / "python"
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run([python, "-c", program], cwd=checkout / "bench", capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{checkout}: the program ended with {done.returncode}:\n{program}\n{done.stderr}")
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the other checkout, with its .venv")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="figures whose name contains this")
    args = parser.parse_args()
    before = args.before.resolve()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=before, capture_output=True, text=True)
    rows = {}
    for name, program in FIGURES.items():
        if args.only not in name:
            continue
        pairs = []
        for repeat in range(args.repeats):
            order = (before, ROOT) if repeat % 2 == 0 else (ROOT, before)
            found = {checkout: measured(checkout, program) for checkout in order}
            pairs.append((found[before], found[ROOT]))
        ratios = [after / earlier for earlier, after in pairs]
        rows[name] = {"pairs": pairs, "ratio": statistics.median(ratios)}
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name:<54}{statistics.median(ratios):>7.3f}   ({spread})", flush=True)
    path = RESULTS / "beside.json"
    path.write_text(json.dumps({"machine": machine(), "before": commit.stdout.strip(), "rows": rows}, indent=2) + "\n")
    print(f"written: {path}")


if __name__ == "__main__":
    main()
