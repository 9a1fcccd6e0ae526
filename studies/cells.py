"""Long studies as cells: each is computed once, kept in a JSON file, and skipped when the study is started again."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"

Cell = dict[str, Any]  # what identifies a cell, and after its run what came out of it


def run_cells(name: str, cells: Sequence[Cell], work: Callable[[Cell], Cell], jobs: int = 1) -> list[Cell]:
    """Compute the missing cells of docs/results/<name>.json on `jobs` processes, saving after each; returns all."""
    path = RESULTS / f"{name}.json"
    done: list[Cell] = json.loads(path.read_text())["cells"] if path.exists() else []

    def key(cell: Cell) -> str:
        return json.dumps({k: cell[k] for k in cells[0]}, sort_keys=True)

    known = {key(cell): cell for cell in done}
    missing = [cell for cell in cells if key(cell) not in known]
    print(f"{name}: {len(cells) - len(missing)} of {len(cells)} cells are done")
    start = time.monotonic()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(work, cell): cell for cell in missing}
        for count, future in enumerate(as_completed(futures), 1):
            cell = {**futures[future], **future.result()}
            known[key(cell)] = cell
            _save(path, name, [known[key(c)] for c in cells if key(c) in known])
            left = (time.monotonic() - start) / count * (len(missing) - count)
            print(f"  {count}/{len(missing)}  {left / 60:.1f} min left  {cell}", flush=True)
    return [known[key(cell)] for cell in cells]


def _save(path: Path, name: str, cells: list[Cell]) -> None:
    record = {"study": name, "command": " ".join(["python", *sys.argv]), **machine(), "cells": cells}
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_suffix(".tmp")
    temp.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(temp, path)


def machine() -> dict[str, str]:
    """Commit, processor and date: what a published number must carry."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    cpu = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = f"{len(names)} x {names[0]}" if names else cpu
    return {"commit": commit, "cpu": cpu, "date": time.strftime("%Y-%m-%d")}
