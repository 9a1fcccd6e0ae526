"""The page of the study of memory, from its cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from cells import Cell, machine
from memory import CONTRIB, EPISODES, STEPS, TASKS, WORLDS

from slipstream.stats.intervals import Interval, iqm_interval

FASTER = 3.0  # times RecurrentPPO's steps per CPU second: what is asked of ours
FIGURES = {
    "random_sector": (("clean", "clean episodes", 100.0), ("extra_distance_nm", "extra miles", 1.0)),
    "time_trial_hard": (("success", "laps finished", 100.0), ("lap_s", "seconds of a lap", 1.0)),
}
TRIED = """
## How tasks and settings were chosen

Nothing was chosen by the seeds of the tables. Ours has the same settings on all five tasks (`SETTINGS` in
`studies/memory.py`) with length 64, over the fields' defaults; on Pendulum over our scenario `pendulum`. RecurrentPPO
has RL Zoo's published settings on CartPole and Pendulum without velocities, which were tuned for these, and elsewhere
the settings of ours. Its cells have 64 units, as RL
Zoo's. Both see observations standardised.

Ours had more tries than RecurrentPPO, all of them single runs:

- Seed 101, 50,000 steps, what was usual then (3e-4, minibatches of 64, 8 worlds of 256 steps, length 32): the five
  tasks, POPGym's AutoencodeEasy (-0.48) and CountRecallEasy (-0.84). These two were left out: hardly anything is
  learned in so few steps. CountRecallEasy came to -0.76 with 100,000 steps and the settings of the tables.
- Seed 101, 150,000 steps: RepeatPreviousEasy and RepeatFirstEasy three times each, with 3e-4 and 1e-3, minibatches of
  64 and 256, once with span 50. CartPole once more with 1e-3 and 100,000 steps.
- MemoryS7 as it comes, with numbers for kinds of things and seven actions: seed 101, twice 150,000 steps and once
  400,000. It stays at one half, a guess. With ones for kinds and the three actions that do something (`Grid` in
  `studies/hidden.py`) it is learned in 60,000 steps, with and without standardised observations. Both libraries and
  the baseline get that.
- Seeds 101 and 102, 100,000 steps: the usual settings beside those of the tables on all five tasks; RepeatPreviousEasy
  and RepeatFirstEasy with length 32 and with 8 worlds; RepeatPreviousEasy once with minibatches of 64.
- CartPole, seeds 101 to 103: these settings over the values of the scenario `cartpole` came to 500, 242 and 485, over
  the general ones to 498, 371 and 500, and, once statistics of observations begin with 2,048 random steps, to 500 and
  500 (seeds 101 and 102).
- Pendulum: over the values of the scenario `pendulum` -196 and -183 (seeds 101 and 102), over the general ones -1059,
  with gamma 0.95 -489 (seed 101).
- RecurrentPPO, seed 101, 100,000 steps, with the settings of ours: -0.41 on RepeatPreviousEasy, -0.51 on
  RepeatFirstEasy. The settings of the library were begun there and not finished.
- Our own worlds: seed 101, once each, 600,000 and 700,000 steps.
"""


def write_page(cells: Sequence[Cell], path: Path) -> None:
    """Write memory.md beside the cells."""
    info = machine()
    lines = [
        "# Memory",
        "",
        "Our PPO with a memory (`gru`, `lstm`) and without (`mlp`) beside sb3-contrib's RecurrentPPO (MlpLstmPolicy),",
        f"on tasks that hide what is needed: {STEPS:,} steps, one torch thread, {seeds_of(cells)} seeds. A score is",
        f"the mean return of {EPISODES} fresh episodes after training, with exploration off. Not below: the interval",
        "of `gru` does not end below the one of RecurrentPPO. Asked of us: not below, at",
        f"{FASTER:g} times the steps per CPU second.",
        "",
        "| task | mlp IQM [95 %] | gru IQM [95 %] | lstm IQM [95 %] | RecurrentPPO IQM [95 %] | not below |",
        "|---|---|---|---|---|---|",
        *(row for task in TASKS if (row := score_row(cells, task))),
        "",
        "Steps per CPU second of training, collecting included. The last column is `gru` by RecurrentPPO.",
        "",
        "| task | mlp | gru | lstm | RecurrentPPO | ratio |",
        "|---|---:|---:|---:|---:|---:|",
        *(row for task in TASKS if (row := speed_row(cells, task))),
        "",
        "## In our own worlds",
        "",
        "PPO with the packaged settings of the scenario, with and without a memory, the same steps and seeds;",
        f"judged on {EPISODES} episodes that no training run sees.",
        "",
        "| scenario | steps | figure | mlp IQM [95 %] | gru IQM [95 %] | CPU s, mlp | CPU s, gru |",
        "|---|---:|---|---|---|---:|---:|",
        *(row for task in WORLDS for row in world_rows(cells, task)),
        "",
        TRIED.strip(),
        "",
        f"Command: `make study-memory`; cells in `{path.name}`. Commit {info['commit']}, {info['cpu']},",
        f"{info['date']}.",
        "",
    ]
    path.with_suffix(".md").write_text("\n".join(lines))


def seeds_of(cells: Sequence[Cell]) -> int:
    return len({cell["seed"] for cell in cells})


def found(cells: Sequence[Cell], task: str, who: str) -> list[Cell]:
    return [cell for cell in cells if cell["task"] == task and cell["who"] == who]


def interval(values: Sequence[float]) -> Interval:
    return iqm_interval([[value] for value in values])


def shown(values: Sequence[float], digits: int) -> str:
    estimate, low, high = interval(values)
    return f"{estimate:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def score_row(cells: Sequence[Cell], task: str) -> str:
    """Scores of all four; empty where one is missing."""
    columns = {who: [cell["return"] for cell in found(cells, task, who)] for who in ("mlp", "gru", "lstm", CONTRIB)}
    if not all(columns.values()):
        return ""
    digits = 0 if task in ("cartpole", "pendulum") else 2
    is_kept = interval(columns["gru"]).high >= interval(columns[CONTRIB]).low
    scores = " | ".join(shown(values, digits) for values in columns.values())
    return f"| {TASKS[task].title} | {scores} | {'yes' if is_kept else 'no'} |"


def speed_row(cells: Sequence[Cell], task: str) -> str:
    """Steps per CPU second of all four; empty where one is missing."""
    rates = {
        who: mean(cell["steps"] / cell["cpu_seconds"] for cell in own)
        for who in ("mlp", "gru", "lstm", CONTRIB)
        if (own := found(cells, task, who))
    }
    if len(rates) < 4:
        return ""
    speeds = " | ".join(f"{rate:,.0f}" for rate in rates.values())
    return f"| {TASKS[task].title} | {speeds} | {rates['gru'] / rates[CONTRIB]:.1f} |"


def world_rows(cells: Sequence[Cell], task: str) -> list[str]:
    """A row for each figure of a world; none where a network is missing."""
    columns = {who: found(cells, task, who) for who in ("mlp", "gru")}
    if not all(columns.values()):
        return []
    seconds = " | ".join(f"{mean(cell['cpu_seconds'] for cell in own):.0f}" for own in columns.values())
    steps = max(cell["steps"] for cell in columns["gru"])
    rows = []
    for figure, title, factor in FIGURES[task]:
        known = [[cell["figures"] for cell in own if figure in cell["figures"]] for own in columns.values()]
        if not all(known):
            continue
        values = [[factor * figures[figure] for figures in own] for own in known]
        unit = " (%)" if factor == 100.0 else ""
        scores = " | ".join(shown(each, 1) for each in values)
        rows.append(f"| `{task}` | {steps:,} | {title}{unit} | {scores} | {seconds} |")
    return rows
