"""Long studies as cells: each is computed once, kept in a JSON file, and skipped when the study is started again."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"

Cell = dict[str, Any]  # what identifies a cell, and after its run what came out of it


@dataclass(frozen=True)
class Asked:
    """What a study was asked for on the command line."""

    only: tuple[str, ...]  # tasks
    seeds: tuple[int, ...] | None  # None: each task's own
    jobs: int
    budget: int | None  # steps; None: each task's own
    out: Path


def asked(about: str | None, name: str, tasks: Sequence[str]) -> Asked:
    """Read the command line of a study whose cells are kept in docs/results/<name>.json."""
    official = RESULTS / f"{name}.json"
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(tasks), help=f"tasks, by comma: {', '.join(tasks)}")
    parser.add_argument("--seeds", help="by comma; others than the study's need --out")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time; more than 1 spoils the seconds")
    parser.add_argument("--budget", type=int, help="steps instead of each task's own, to try things; needs --out")
    parser.add_argument("--out", type=Path, default=official, help="where the cells are kept")
    args = parser.parse_args()
    only = tuple(args.only.split(","))
    if unknown := set(only) - set(tasks):
        parser.error(f"there is no {', '.join(sorted(unknown))}; tasks are {', '.join(tasks)}")
    if args.out == official and (args.budget is not None or args.seeds is not None):
        parser.error("another budget or other seeds are not the study's: say where to keep their cells with --out")
    seeds = None if args.seeds is None else tuple(map(int, args.seeds.split(",")))
    return Asked(only, seeds, args.jobs, args.budget, args.out)


def run_cells(
    name: str, cells: Sequence[Cell], work: Callable[[Cell], Cell], jobs: int = 1, path: Path | None = None
) -> list[Cell]:
    """Compute the missing ones of `cells` on `jobs` processes, each in a fresh one, and return them all.

    They are kept in docs/results/<name>.json, or `path`, saved after each; cells of that file that are not asked for
    stay as they are. A cell that fails is told and left out, so that the others are not lost; the script then ends
    with an error, and starting it again tries the cell once more.
    """
    path = path or RESULTS / f"{name}.json"
    known = {_key(cell, cells): cell for cell in read_cells(path)}
    missing = [cell for cell in cells if _key(cell, cells) not in known]
    print(f"{name}: {len(cells) - len(missing)} of {len(cells)} cells are done")
    took: dict[str, list[float]] = {}  # seconds of the cells that differ only in their seed
    left, failed = list(missing), []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(_timed, work, cell): cell for cell in missing}
        for count, future in enumerate(as_completed(futures), 1):
            asked = futures[future]
            left.remove(asked)
            try:
                result, seconds = future.result()
            except Exception as error:
                failed.append(asked)
                traceback.print_exception(error)
                print(f"  {count}/{len(missing)}  FAILED  {asked}: {error}", flush=True)
                continue
            cell = {**asked, **result}
            known = {_key(each, cells): each for each in [*read_cells(path), cell]}  # others may have added to it
            save_cells(path, name, list(known.values()))
            took.setdefault(_group(asked), []).append(seconds)
            shown = {key: value for key, value in cell.items() if not isinstance(value, list)}
            minutes = _seconds_left(left, took) / jobs / 60
            print(f"  {count}/{len(missing)}  {minutes:.1f} min left  {shown}", flush=True)
    if failed:
        sys.exit(f"{name}: {len(failed)} cells failed; start the command again to try them once more")
    return [known[_key(cell, cells)] for cell in cells]


def whole(result: Any) -> Any:
    """What a training run ended with; refused where it was stopped by a signal: half a run is no cell."""
    if result.interrupted:
        raise RuntimeError(f"the run was interrupted after {result.counters.steps:,} steps")
    return result


def read_cells(path: Path) -> list[Cell]:
    """The cells computed so far; none where there is no file."""
    cells: list[Cell] = json.loads(path.read_text())["cells"] if path.exists() else []
    return cells


def _key(cell: Cell, cells: Sequence[Cell]) -> str:
    """What identifies a cell: the columns that were asked for."""
    return json.dumps({column: cell.get(column) for column in cells[0]}, sort_keys=True)


def _group(cell: Cell) -> str:
    return json.dumps({column: value for column, value in cell.items() if column != "seed"}, sort_keys=True)


def _seconds_left(left: Sequence[Cell], took: dict[str, list[float]]) -> float:
    """Mean time of a cell's kind, or of all cells where none of its kind is done."""
    everything = [seconds for group in took.values() for seconds in group]
    return sum(mean(took.get(_group(cell), everything)) for cell in left)


def _timed(work: Callable[[Cell], Cell], cell: Cell) -> tuple[Cell, float]:
    start = time.monotonic()
    return work(cell), time.monotonic() - start


def save_cells(path: Path, name: str, cells: Sequence[Cell]) -> None:
    """Write all cells of a study with the command and the machine that made them."""
    head = json.dumps({"study": name, "command": " ".join(["python", *sys.argv]), **machine()}, indent=1)
    rows = ",\n".join(f"  {json.dumps(cell)}" for cell in cells)  # a cell a line, or curves would fill thousands
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_suffix(".tmp")
    temp.write_text(head.removesuffix("\n}") + f',\n "cells": [\n{rows}\n ]\n}}\n')
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
