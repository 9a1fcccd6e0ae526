"""First look at a run of a million reports through the web viewer: seconds until the curves are there, and memory.

    python bench/view.py [--rows 1000000] [--keys 10] [--out docs/results/view.json]

A row has the ten keys that the page shows first, about 300 bytes; --keys 60 is what a run of today writes, 1.6 GB.
The viewer is a process of its own, asked as the page asks. Then a second run of the same size, which nobody has looked
at, is opened in chromium where there is one: from the click to the drawn curve, and from a row written to a row shown.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from slipstream.config.load import load, to_plain
from slipstream.run import folder as run_folder
from slipstream.view.server import listen

KEYS = (
    "env/return_mean", "eval/return_mean", "env/length_mean", "train/policy_loss", "train/value_loss", "train/entropy",
    "train/approx_kl", "train/explained_variance", "perf/steps_per_s", "eval/clean_fraction",
)  # fmt: skip
NOW = datetime(2026, 11, 16, tzinfo=UTC)


def row(k: int, keys: Sequence[str]) -> str:
    value = round(math.sin(k / 5e4) + 0.1 * math.sin(k), 4)
    return json.dumps({"timesteps_total": 4096 * (k + 1)} | dict.fromkeys(keys, value), separators=(",", ":"))


def make_run(root: Path, name: str, rows: int, keys: Sequence[str]) -> Path:
    metadata = run_folder.describe_run(seed=1, command=["slipstream", "train", "head_on"], now=NOW)
    with run_folder.create(
        root, "head_on", "ppo", NOW, scenario_yaml="name: head_on\n", config=to_plain(load("head_on")),
        metadata=metadata, out=root / name,
    ) as run:  # fmt: skip
        with (run.path / "metrics.jsonl").open("w") as file:
            for begin in range(0, rows, 10_000):
                file.write("".join(row(k, keys) + "\n" for k in range(begin, min(begin + 10_000, rows))))
        return run.path


def ask(port: int, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body
    return json.loads(body)


def timed(work: Any) -> tuple[float, Any]:
    begin = time.perf_counter()
    done = work()
    return time.perf_counter() - begin, done


def in_browser(port: int, name: str, run: Path, rows: int) -> dict[str, float] | None:
    """From the click on a run nobody has looked at to its drawn curve, and from rows written to rows drawn."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if found is None:
        return None
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        link = page.get_by_role("link", name=name, exact=True)
        link.wait_for()
        drawn = page.locator('[data-metric="env/return_mean"] svg path.line[d^="M"]')

        def first() -> None:
            link.click()
            drawn.first.wait_for(state="attached")

        seconds, _ = timed(first)
        last = 4096 * (rows + 1)
        shown = page.get_by_text(f"{last:,} of", exact=False)

        def follow() -> None:
            with (run / "metrics.jsonl").open("a") as file:
                file.write(row(rows, KEYS) + "\n")
            shown.wait_for()

        followed, _ = timed(follow)
        browser.close()
    return {"click_to_curve_s": round(seconds, 3), "row_written_to_row_shown_s": round(followed, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=len(KEYS))
    parser.add_argument("--out", type=Path, default=Path("docs/results/view.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_run(root, "long", args.rows, [*KEYS, *(f"train/figure_{k}" for k in range(args.keys - len(KEYS)))])
        shutil.copytree(root / "long", root / "longer")
        size = (root / "long" / "metrics.jsonl").stat().st_size
        free = listen(19200)
        port = free.getsockname()[1]
        free.close()
        command = [sys.executable, "-m", "slipstream.cli.main", "view", str(root), "--port", str(port), "--no-open"]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        child.stdout.readline()
        try:
            process = psutil.Process(child.pid)
            listed, runs = timed(lambda: ask(port, "/api/runs")["runs"])
            before = process.memory_info().rss
            names = {run["name"]: run["id"] for run in runs}
            keys = "&".join(f"key={key}" for key in KEYS)
            first, told = timed(lambda: ask(port, f"/api/runs/{names['long']}/curves?{keys}"))
            again, _ = timed(lambda: ask(port, f"/api/runs/{names['long']}/curves?{keys}"))
            low, high = 4096 * (args.rows // 2), 4096 * (args.rows // 2 + 1000)
            zoomed, window = timed(
                lambda: ask(port, f"/api/runs/{names['long']}/window?low={low}&high={high}&key=env/return_mean")
            )
            browser = in_browser(port, "longer", root / "longer", args.rows)
            after = process.memory_info().rss
        finally:
            child.terminate()
            child.wait()
    points = len(told["curves"]["env/return_mean"]["steps"])
    record = {
        "rows": args.rows, "keys": args.keys,
        "file_mb": round(size / 1e6, 1), "list_s": round(listed, 3), "first_view_s": round(first, 3),
        "second_view_s": round(again, 3), "points_per_curve": points, "zoom_to_1000_rows_s": round(zoomed, 3),
        "zoom_points": len(window["curves"]["env/return_mean"]["steps"]), "browser": browser,
        "memory_mb_before": round(before / 1e6, 1), "memory_mb_after_two_runs": round(after / 1e6, 1),
        "cpus": os.cpu_count(), "load": os.getloadavg()[0], "platform": platform.platform(),
    }  # fmt: skip
    text = json.dumps(record, indent=2)
    print(text)
    args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
