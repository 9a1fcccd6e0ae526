"""The page of the faults study, from its cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from cells import Cell, machine

HEAD = """# Faults

Runs, workers and services survive being killed, stopped, damaged and attacked: no fault was found. With 0 faults in n
trials, the rate is below 3/n with 95 % confidence. Trials in one process are not independent, so they show less. Made
by
`make study-faults`; cells in `faults.json`.

| what happens | trials | faults found | rate below |
|---|---|---|---|"""


def write_page(cells: Sequence[Cell], faults: Mapping[str, str], learning: Mapping[str, str]) -> str:
    """Of the cells that are there; rows of `faults` and of `learning` are named by kind."""
    by_kind: dict[str, list[Cell]] = {}
    for cell in cells:
        by_kind.setdefault(cell["fault"], []).append(cell)
    lines = [HEAD, *(_row(what, by_kind[kind]) for kind, what in faults.items() if kind in by_kind)]
    if notes := [f"- {NOTES[kind](by_kind[kind])}" for kind in faults if kind in by_kind]:
        lines += ["", "For each row, what would have been a fault, and what was seen:", "", *notes]
    if any(kind in by_kind for kind in learning):
        lines += ["", "## Learning meanwhile", "", "| what | seeds | IQM [95 %] | each |", "|---|---|---|---|"]
        lines += [_scores(what, by_kind[kind]) for kind, what in learning.items() if kind in by_kind]
    if found := [f"- {cell['fault']} {cell['seed']}: {fault}" for cell in cells for fault in cell.get("faults", [])]:
        lines += ["", "## Faults that were found", "", *found]
    info = machine()
    return "\n".join([*lines, "", f"Commit {info['commit']}, {info['cpu']}, {info['date']}.", ""])


def _row(what: str, cells: Sequence[Cell]) -> str:
    count, broken = sum(cell["count"] for cell in cells), sum(len(cell["faults"]) for cell in cells)
    return f"| {what} | {count:,} | {broken} | {'-' if broken else f'{min(100.0, 300 / count):.2g} %'} |"


def _scores(what: str, cells: Sequence[Cell]) -> str:
    from slipstream.stats.intervals import iqm_interval

    value = iqm_interval([[cell["return"]] for cell in cells])
    each = ", ".join(f"{cell['return']:.0f}" for cell in cells)
    if any("reached_at" in cell for cell in cells):
        after = ", ".join("never" if cell["reached_at"] is None else f"{cell['reached_at']:,}" for cell in cells)
        each += f" at the end; first at the target in an evaluation after {after} steps"
    return f"| {what} | {len(cells)} | {value.estimate:.1f} [{value.low:.1f}, {value.high:.1f}] | {each} |"


def _sum(cells: Sequence[Cell], name: str) -> str:
    return f"{sum(cell[name] for cell in cells):,}"


def _spread(cells: Sequence[Cell], name: str) -> str:
    values: Any = np.concatenate([cell[name] for cell in cells])
    half, most = np.quantile(values, [0.5, 0.95])
    return f"median {half:.2f} s, 95 % within {most:.2f} s, longest {values.max():.2f} s"


def _checkpoint_kill(cells: Sequence[Cell]) -> str:
    return (
        "Killed while saving. Faults: a checkpoint that cannot be read or has wrong content, a lost step, a stray file "
        f"after the next start, metrics that do not match. {_sum(cells, 'mid_write')} kills fell into a "
        f"save or a prune and left unfinished files, which the next start cleared; {_sum(cells, 'newer')} left a newer "
        "checkpoint than the process had been able to report."
    )


def _checkpoint_damage(cells: Sequence[Cell]) -> str:
    return "A damaged checkpoint. Faults: it is loaded, or the one before is not used instead."


def _worker_kill(cells: Sequence[Cell]) -> str:
    phases = sum((Counter(cell["phases"]) for cell in cells), Counter[str]())
    doing = ", ".join(f"{phase} {count}" for phase, count in phases.most_common())
    return (
        "A killed worker. Faults: a number in a slab that differs from an undisturbed collector's (`overlap` none and "
        "deterministic), an episode that is missing or repeated (these and free), a worker not replaced within 5 s. "
        f"{_sum(cells, 'slabs')} slabs were compared. Workers were killed while: {doing}. Replaced after: "
        f"{_spread(cells, 'back_s')}."
    )


def _worker_stop(cells: Sequence[Cell]) -> str:
    return (
        "A stopped worker, with a deadline of 3 s. Faults: no worker or another one is named, the run waits longer, "
        f"slabs differ. Given up after: {_spread(cells, 'waited_s')}."
    )


def _worker_cycle(cells: Sequence[Cell]) -> str:
    return (
        "Workers started repeatedly. Faults: more descriptors, mappings of shared memory, threads or children than "
        "before. Every other cycle ends with all workers killed, every fourth with the process that "
        "starts them killed too."
    )


def _service_kill(cells: Sequence[Cell]) -> str:
    return (
        "A killed replay service. Faults: a client that does not continue by itself, rows taken and rows lost that do "
        "not add up to those sent, a repeated row, an incomplete draw, lost saved rows, a sum tree whose total is off "
        f"by 1e-9 or more (largest: {max(cell['widest_gap'] for cell in cells):.1g}). "
        f"{_sum(cells, 'lost')} of {_sum(cells, 'sent')} rows were lost. From kill to both "
        f"clients' next draw: {_spread(cells, 'back_s')}."
    )


def _service_cycle(cells: Sequence[Cell]) -> str:
    return "A service started repeatedly. Faults: as for workers. Every other cycle ends with a kill."


def _orphans(cells: Sequence[Cell]) -> str:
    return (
        "A killed run with two workers, one of them stopped, the process that starts them, and a replay service. "
        "Fault: any of these is still there after 5 s."
    )


def _hostile(cells: Sequence[Cell]) -> str:
    half = np.median([cell["draw_median_s"] for cell in cells]) * 1e3
    worst = max(cell["draw_worst_s"] for cell in cells) * 1e3
    return (
        "Hostile bytes (random, oversized, incomplete, changed, slow; half of them over TCP). Faults: the service "
        "ends, grows by more than 8 MB or keeps connections; an honest client draws a broken row or none. The "
        f"service ended {_sum(cells, 'dropped')} connections itself and grew by "
        f"{max(cell['grown'] for cell in cells) / 1e6:.1f} MB at most. "
        f"An honest client's draw took {half:.1f} ms (median) and {worst:.0f} ms at worst."
    )


def _limiter(cells: Sequence[Cell]) -> str:
    return "The rate limiter. Faults: producer and learner both wait, or the balance leaves its band."


NOTES: dict[str, Callable[[Sequence[Cell]], str]] = {
    "checkpoint_kill": _checkpoint_kill,
    "checkpoint_damage": _checkpoint_damage,
    "worker_kill": _worker_kill,
    "worker_stop": _worker_stop,
    "worker_cycle": _worker_cycle,
    "service_kill": _service_kill,
    "service_cycle": _service_cycle,
    "orphans": _orphans,
    "hostile": _hostile,
    "limiter": _limiter,
}
