"""What Dr. Mario players learn: level 0 over five seeds, and a curriculum that certifies as far as two hours get.

python studies/drmario.py [--only level_0,curriculum] [--jobs 1]     # make study-drmario; docs/results/drmario.json

Policies are judged on 200 games of the 4,096 seeds that training never draws, beside the world's scripts on the same
games. Tuning used other seeds (see the page).
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import Cell, asked, machine, read_cells, run_cells

SEEDS = (11, 12, 13, 14, 15)
GAMES = 200
SCRIPTS = ("random", "fastest", "greedy")
REFERENCE_FRAMES = 5_000_000  # after which the public reference cleared 12.5 % of level 0
HOURS = 2.0


@dataclass(frozen=True)
class Task:
    """A scenario to learn."""

    name: str
    scenario: str
    seeds: tuple[int, ...]
    changes: tuple[tuple[str, Any], ...] = ()


TASKS = (
    Task("level_0", "drmario_level_0", SEEDS),
    Task("curriculum", "drmario_curriculum", (11,), (("stop.wall_time_s", HOURS * 3600), ("timesteps", 6_000_000))),
)


def main() -> None:
    """Compute what is missing, then write the page."""
    args = asked(__doc__, "drmario", [task.name for task in TASKS])
    chosen = [task for task in TASKS if task.name in args.only]
    cells = [{"task": task.name, "seed": seed} for task in chosen for seed in args.seeds or task.seeds]
    try:
        run_cells("drmario", cells, partial(train_cell, budget=args.budget), args.jobs, args.out)
    finally:
        from drmario_page import write_page

        write_page(read_cells(args.out), args.out.with_suffix(".md"))


def train_cell(cell: Cell, budget: int | None = None) -> Cell:
    """Train one policy and judge it."""
    from slipstream.config.load import load
    from slipstream.run.certify import read_ledger
    from slipstream.run.metrics import read_rows
    from slipstream.run.saved_cast import load_cast
    from slipstream.run.session import train

    task = next(task for task in TASKS if task.name == cell["task"])
    changes = dict(task.changes) | ({} if budget is None else {"timesteps": budget})
    scenario = load(task.scenario, {**changes, "seed": cell["seed"], "learner_threads": 1})
    with tempfile.TemporaryDirectory() as folder:
        begun = os.times()
        result = train(scenario, root=Path(folder) / "runs", models=Path(folder) / "models")
        ended = os.times()
        assert result.model is not None
        rows = list(read_rows(result.run / "metrics.jsonl"))
        evaluated = [row for row in rows if "eval/success_mean" in row]
        trained, saved = load_cast(result.model)
        policies = {f"level {level}": judged(trained, saved, level) for level in _levels(task)}
        ledger = [[a.phase, a.verdict, a.successes, a.trials, a.spends, a.steps] for a in read_ledger(result.run)]
    early = [row for row in evaluated if row["global_step_frames_total"] <= REFERENCE_FRAMES]
    cpu = ended.user + ended.system - begun.user - begun.system
    return {
        "decisions": result.counters.steps,
        "frames": result.counters.ticks,
        "seconds": round(result.counters.seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "policies": policies,
        "early": [early[-1]["global_step_frames_total"], early[-1]["eval/success_mean"]] if early else None,
        "ledger": ledger,
        "times": [[row["timesteps_total"], round(row["time_total_s"])] for row in rows[:: max(1, len(rows) // 50)]],
        "commit": machine()["commit"],
        "curve": [[row["timesteps_total"], round(row["eval/success_mean"], 3)] for row in evaluated],
    }


def _levels(task: Task) -> tuple[int, ...]:
    return (0,) if task.name == "level_0" else (0, 1, 2, 3, 5, 7, 10)


def judged(trained: Any, saved: Any, level: int) -> dict[str, Any]:
    """The policy and the scripts on one level, whole, on seeds that training never drew."""
    from slipstream.collect.episodes import play
    from slipstream.config.load import override
    from slipstream.run.saved_cast import FIRST_JUDGED, script_instead, trained_teams
    from slipstream.run.setup import make_evaluation_worlds

    unseen = {"world.first_seed": trained.world.last_seed + 1, "world.last_seed": 32_767}
    one = {"world.levels": [level], "world.phases": [], "curriculum": None}
    scenario = override(trained, {**unseen, **one})
    worlds = make_evaluation_worlds(scenario, GAMES)
    found = {}
    for policy in ("learned", *SCRIPTS):
        teams = (
            trained_teams(scenario, saved, worlds.spec)
            if policy == "learned"
            else script_instead(scenario, policy, worlds.spec)
        )
        played = play(worlds, teams, GAMES, scenario.evaluate.seed, FIRST_JUDGED)
        times = sorted(float(t) for t in played.stat("clear_frames") if not math.isnan(t))
        found[policy] = {"cleared": len(times), "median": median(times) if times else None}
    worlds.close()
    return found


if __name__ == "__main__":
    main()
