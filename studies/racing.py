"""What drivers learn: laps of circuits never seen, attacks on a defender, real tracks, and the seed scenario's curve.

python studies/racing.py [--only TASK,…] [--jobs 1]     # make study-racing; cells in docs/results/racing.json

Every policy is judged on 200 episodes (real tracks: 100 laps from random places) that no training run sees, beside the
world's scripts on the same episodes. Real tracks are read from $SLIPSTREAM_GOLDEN/maps where that is set; they are
never trained on.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import Cell, asked, machine, read_cells, run_cells

SEEDS = (11, 12, 13, 14, 15)
EPISODES = 200
LAPS = 100
# Seconds of Evans et al. (2024, arXiv 2402.18558): means of the laps that were finished.
PUBLISHED = {
    "raceline + pure pursuit": (16.79, 28.08), "MPCC": (16.87, 31.53), "follow-the-gap": (19.10, 34.99),
    "TD3": (19.94, 34.93),
}  # fmt: skip
TRACKS = ("aut", "mco")


@dataclass(frozen=True)
class Task:
    """A scenario to learn, and what it is judged by."""

    scenario: str
    budget: int
    scripts: tuple[str, ...] = ()  # rows beside the learned policy
    real: bool = False  # judged on real tracks
    seeds: tuple[int, ...] = SEEDS
    settings: str = ""  # the scenario that has the settings of the table, where it is another one now


TASKS = (
    Task("time_trial_random", 1_500_000, ("follow_gap", "pure_pursuit")),
    Task(
        "gaplock_ppo",
        6_000_000,
        ("squeezer", "follow_gap", "pure_pursuit", "straight", "random", "stop"),
        seeds=(31, 32, 33, 34, 35),  # why not the others: racing_page.py
    ),
    Task("time_trial_hard", 5_000_000, ("follow_gap", "pure_pursuit"), real=True),
    Task(
        "convoy_lock_td3",
        300_000,
        ("squeezer", "follow_gap", "straight", "random", "stop"),
        settings="convoy_lock_td3_published",
    ),
)
FIGURES = ("success", "lap_s", "crashed", "collided", "timeout", "self_crash", "collision", "idle_stop")


def main() -> None:
    """Compute what is missing, then write the page."""
    args = asked(__doc__, "racing", [task.scenario for task in TASKS])
    chosen = [task for task in TASKS if task.scenario in args.only]
    cells = [{"task": task.scenario, "seed": seed} for task in chosen for seed in args.seeds or task.seeds]
    try:
        run_cells("racing", cells, partial(train_cell, budget=args.budget), args.jobs, args.out)
    finally:
        from racing_page import write_page

        write_page(read_cells(args.out), args.out.with_suffix(".md"))


def train_cell(cell: Cell, budget: int | None = None) -> Cell:
    """Train one policy and judge it."""
    from slipstream.config.load import load
    from slipstream.judging.judge import judge
    from slipstream.run.metrics import read_rows
    from slipstream.run.saved_cast import load_cast
    from slipstream.run.session import train

    task = next(task for task in TASKS if task.scenario == cell["task"])
    steps = budget or task.budget
    scenario = load(task.settings or task.scenario, {"seed": cell["seed"], "timesteps": steps, "learner_threads": 1})
    with tempfile.TemporaryDirectory() as folder:
        begun = os.times()
        result = train(scenario, root=Path(folder) / "runs", models=Path(folder) / "models")
        ended = os.times()
        assert result.model is not None
        rows = [row for row in read_rows(result.run / "metrics.jsonl") if "eval/success_mean" in row]
        trained, saved = load_cast(result.model)
        judgement = judge(trained, saved, EPISODES)
        found: dict[str, Any] = {row.policy: _figures(row.figures) for row in judgement.rows}
        kept = {name: found[name] for name in ("learned", *task.scripts)}
        real = _real_tracks(trained, saved) if task.real else {}
    cpu = ended.user + ended.system - begun.user - begun.system
    return {
        "steps": result.counters.steps,
        "seconds": round(result.counters.seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "policies": kept,
        "real": real,
        "commit": machine()["commit"],
        "curve": [[row["timesteps_total"], round(row["eval/success_mean"], 3)] for row in rows],
    }


def _figures(figures: Any) -> dict[str, float | None]:
    values = {name: figures[name].estimate for name in FIGURES}
    return {name: round(value, 4) if value == value else None for name, value in values.items()}


def _real_tracks(trained: Any, saved: Any) -> dict[str, Any]:
    """The same policy, follow-the-gap and pure pursuit of our raceline, on tracks that were never trained on."""
    from slipstream.config.load import override
    from slipstream.judging.judge import judge

    folder = os.environ.get("SLIPSTREAM_GOLDEN")
    found: dict[str, Any] = {}
    for name in TRACKS if folder else ():
        path = Path(str(folder)) / "maps" / f"{name}.yaml"
        if not path.exists():
            continue
        changes = {
            "world.track": {"kind": "map", "path": str(path)},
            "world.ideal_line": "raceline",
            "world.start_speed_mps": [0, 0],
            "world.spawn.lateral_jitter_m": 0,
            "world.spawn.yaw_jitter_rad": 0,
            "world.max_episode_steps": 2500,
        }
        judgement = judge(override(trained, changes), saved, LAPS)
        rows = {row.policy: _figures(row.figures) for row in judgement.rows}
        found[name] = {policy: rows[policy] for policy in ("learned", "follow_gap", "pure_pursuit")}
    return found


if __name__ == "__main__":
    main()
