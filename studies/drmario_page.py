"""The Dr. Mario study's page: clear rates and times beside scripts and people, and what was certified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from cells import Cell, machine
from curves import Panel, draw
from drmario import GAMES, REFERENCE_FRAMES, SCRIPTS, SEEDS

from slipstream.stats.intervals import iqm_interval, wilson
from slipstream.worlds.drmario.best_times import human_record_frames

ABOUT = f"""# Dr. Mario

See how well PPO learns to clear levels of Dr. Mario, and what a curriculum can certify in two hours. PPO uses `network:
candidates`, the packaged scenarios and one thread. Its settings were chosen on seeds 1, 2 and 42.

How to read the tables:

- Every policy and script plays the same {GAMES} games of the 4,096 seeds that training never draws, with at most
  as many pills as in training.
- Frames to clear are over cleared games only. A policy that clears fewer games clears the easier ones.
- Rates are over all games of all seeds, with 95 % Wilson intervals. These are too narrow for what another seed would
  do, so every seed is listed too.
"""


def write_page(cells: Sequence[Cell], path: Path) -> None:
    """Everything there is so far."""
    lines = [ABOUT]
    if level_0 := [cell for cell in cells if cell["task"] == "level_0"]:
        lines += _level_0(level_0, path)
    for cell in cells:
        if cell["task"] == "curriculum":
            lines += _curriculum(cell)
    commits = ", ".join(sorted({cell["commit"] for cell in cells}))
    found = machine()
    lines += [
        f"Command: `make study-drmario`; cells in `{path.stem}.json` ({commits}). {found['cpu']}, {found['date']}."
    ]
    path.write_text("\n".join(lines) + "\n")
    print(f"written: {path}")


def _level_0(cells: Sequence[Cell], path: Path) -> list[str]:
    seconds, cpu = (median(cell[name] for cell in cells) for name in ("seconds", "cpu_seconds"))
    frames = median(cell["frames"] for cell in cells)
    lines = [
        "## Level 0",
        "",
        f"Training took {cells[0]['decisions']:,} decisions (about {frames / 1e6:.0f}M frames) for each of "
        f"{len(cells)} seeds. The median run took {seconds / 60:.0f} minutes, {cpu / 60:.0f} of CPU time, on a machine "
        "that did other work too.",
        "",
        *([] if len(cells) == len(SEEDS) else [f"Not all of the {len(SEEDS)} seeds are done yet.", ""]),
        "| policy | cleared | median frames to clear |",
        "|---|---:|---:|",
    ]
    for policy in ("learned", *SCRIPTS):
        rows = [cell["policies"]["level 0"][policy] for cell in cells]
        rows = rows if policy == "learned" else rows[:1]
        lines.append(f"| {policy} | {_rate(rows)} | {_median(rows)} |")
    lines += [f"| human record | – | {human_record_frames(0):.0f} |", ""]
    each = ", ".join(
        f"{c['seed']}: {c['policies']['level 0']['learned']['cleared'] / GAMES:.1%} in "
        f"{_median([c['policies']['level 0']['learned']])}"
        for c in sorted(cells, key=lambda c: c["seed"])
    )
    lines += [f"Learned, by seed: {each}.", ""]
    early = [cell["early"][1] for cell in cells if cell["early"]]
    if early:
        value = iqm_interval(early)
        lines += [
            f"For comparison, the public reference reports 12.5 % after {REFERENCE_FRAMES / 1e6:.0f}M frames. At the "
            f"last evaluation (64 games of training seeds) before that, PPO cleared {value.estimate:.1%} "
            f"[{value.low:.1%}, {value.high:.1%}] (IQM; by seed "
            + ", ".join(f"{x:.0%} after {frames / 1e6:.1f}M" for frames, x in (c["early"] for c in cells if c["early"]))
            + ").",
            "",
        ]
    picture = path.with_name(f"{path.stem}_level_0.png")
    curves = [[(int(steps), float(share)) for steps, share in cell["curve"]] for cell in cells]
    draw(picture, "level 0", "share of evaluation games cleared", [Panel("", {"ours": curves})])
    return [*lines, f"![level 0]({picture.name})", ""]


def _curriculum(cell: Cell) -> list[str]:
    lines = [
        "## Curriculum",
        "",
        f"One run of `drmario_curriculum` (seed {cell['seed']}) made {cell['decisions']:,} decisions in "
        f"{cell['seconds'] / 3600:.1f} hours ({cell['cpu_seconds'] / 3600:.1f} of CPU time). The table lists every "
        "attempt at a certificate (success above 0.8; alpha 0.05 over all of them):",
        "",
        "| attempt | phase | verdict | won | alpha spent | after decisions |",
        "|---:|---|---|---:|---:|---:|",
    ]
    lines += [
        f"| {number} | {phase} | {verdict} | {won} of {trials} | {spends:.2g} | {steps:,} |"
        for number, (phase, verdict, won, trials, spends, steps) in enumerate(cell["ledger"], 1)
    ]
    lines += ["", "The final policy on whole levels:", ""]
    lines += [
        "| level | learned cleared | median frames | greedy cleared | human record |",
        "|---:|---:|---:|---:|---:|",
    ]
    for name, rows in cell["policies"].items():
        level = int(name.split()[1])
        lines.append(
            f"| {level} | {_rate([rows['learned']])} | {_median([rows['learned']])} | {_rate([rows['greedy']])} | "
            f"{human_record_frames(level):.0f} |"
        )
    return [*lines, ""]


def _rate(rows: Sequence[Cell]) -> str:
    value = wilson(sum(row["cleared"] for row in rows), GAMES * len(rows))
    return f"{value.estimate:.1%} [{value.low:.1%}, {value.high:.1%}]"


def _median(rows: Sequence[Cell]) -> str:
    times = [row["median"] for row in rows if row["median"] is not None]
    if not times:
        return "–"
    if len(times) == 1:
        return f"{times[0]:,.0f}"
    value = iqm_interval(times)
    return f"{value.estimate:,.0f} [{value.low:,.0f}, {value.high:,.0f}]"
