"""What it costs to look: CPU seconds of `slipstream watch` beside those of the run it follows.

    python bench/watch.py [--seconds 240] [--scenario drmario_level_0] [--turn]

A run is trained for so many seconds; meanwhile the view is open on a terminal of its own (100 x 30), on its overview or
with --turn on each of its views for a share of the time. CPU seconds are those the operating system has counted for
each process when the run ended; what the view took to start (the interpreter, its imports, the first picture) is told
apart, for it is paid once and a run of hours is watched in the same way. Writes docs/results/watch.json.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, machine

VIEWS = "1234567"
STARTED_S = 8.0  # by then the view has drawn its first picture, also on a busy machine


def main() -> None:
    """Train, watch, and say what each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--scenario", default="drmario_level_0")
    parser.add_argument("--turn", action="store_true", help="go through all views")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measure(args.scenario, args.seconds, args.turn, Path(folder))
    print(
        f"{row['scenario']}: the run took {row['run_cpu_s']:.1f} CPU s in {row['seconds']:.0f} s; the view took "
        f"{row['view_cpu_s']:.2f} ({row['share']:.2%}), {row['start_cpu_s']:.2f} of it to start; "
        f"then {row['share_after_start']:.2%} of the run"
    )
    path = RESULTS / "watch.json"
    path.write_text(json.dumps({"machine": machine(), "rows": [row]}, indent=2) + "\n")


def measure(scenario: str, seconds: float, turn: bool, folder: Path) -> dict[str, Any]:
    """One run with a view open on it."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}
    ours = [sys.executable, "-m", "slipstream"]
    words = ["train", scenario, "--out", str(folder / "run"), "--models", str(folder / "models"), "--ui", "none"]
    words += ["--timesteps", "1_000_000_000", "--stop.wall-time-s", str(seconds), "--learner-threads", "1"]
    words += ["--evaluate.evaluation-interval", "None", "--stop.zero-conflict-streak", "None"]
    began = time.monotonic()
    run = subprocess.Popen([*ours, *words], env=env, stdout=subprocess.DEVNULL)
    while not (folder / "run" / "metadata.json").exists():
        time.sleep(0.1)
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    words = ["watch", str(folder / "run")]
    view = subprocess.Popen([*ours, *words], env=env, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    os.set_blocking(control, False)
    opened, start_cpu, shown, turned = time.monotonic(), None, 0, 0
    run_cpu = run_before = 0.0
    while run.poll() is None:
        time.sleep(0.05)
        with suppress(OSError):
            shown += len(os.read(control, 1 << 20))
        age = time.monotonic() - opened
        if start_cpu is None and age > STARTED_S:
            start_cpu, run_before = cpu(view.pid), cpu(run.pid)
        share = (seconds - STARTED_S) / len(VIEWS)
        if turn and turned < len(VIEWS) - 1 and age > STARTED_S + (turned + 1) * share:
            turned += 1
            os.write(control, VIEWS[turned].encode())
        run_cpu = max(run_cpu, cpu(run.pid))
    view_cpu = cpu(view.pid)
    os.write(control, b"q")
    assert view.wait(30) == 0, "the view did not end in order"
    assert start_cpu is not None
    assert run.returncode == 0
    return {
        "scenario": scenario,
        "views": "all in turn" if turn else "overview",
        "seconds": time.monotonic() - began,
        "run_cpu_s": run_cpu,
        "view_cpu_s": view_cpu,
        "start_cpu_s": start_cpu,
        "share": view_cpu / run_cpu,
        "share_after_start": (view_cpu - start_cpu) / (run_cpu - run_before),
        "bytes_to_the_terminal": shown,
    }


def cpu(pid: int) -> float:
    """CPU seconds of a process so far; 0 where it is no more."""
    with suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


if __name__ == "__main__":
    main()
