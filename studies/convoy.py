"""convoy_lock: TD3 as its scenario says beside SAC, PPO and scripts; and which of its settings does what.

    python studies/convoy.py [--only learned,screen --budget 100000 --seeds 1 --out cells.json]

`learned`: five seeds of each way, judged on 200 episodes that no training run sees, the scripts on the same ones.
`screen`: six factors, each as it was published or as it is now, in 16 of the 64 combinations, with three seeds. No
factor's effect is mixed up with that of another one or of two together (resolution IV). `make study-convoy`; cells are
kept in docs/results/convoy.json, and a study that was interrupted goes on.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import Cell, asked, machine, read_cells, run_cells, whole

SCENARIO = "convoy_lock_td3"
EPISODES = 200
GOOD = 0.9  # success from which a policy counts as having learned the task
SHOWN = {"algo.replay.demonstrations": {"script": "squeezer"}}

# Ways to learn it: changes of the scenario. PPO has what gaplock_ppo has, and no demonstrations: it keeps no rows.
WAYS: dict[str, dict[str, Any]] = {
    "td3": {},
    "td3, nothing shown": {"algo.replay.demonstrations": None},
    "sac": {"algo": "sac", **SHOWN},
    "ppo": {"algo": "ppo", "algo.gamma": 0.999, "algo.entropy_coef": 0.003, "timesteps": 6_000_000},
}
SEEDS = {"learned": (1, 2, 3, 4, 5), "screen": (1, 2, 3)}
SCREEN_STEPS = 300_000

# What the published scenario had instead.
PUBLISHED: dict[str, dict[str, Any]] = {
    "gamma": {"algo.gamma_per_second": None, "algo.gamma": 0.99},
    "reward": {"world.cars.0.reward.preset": None},  # the task's own
    "rate": {
        "algo.learning_rate": 2.5e-4,
        "algo.adam_eps": 1e-5,
        "algo.training_intensity": 0.125,
        "algo.learning_starts": 8000,
    },
    "priorities": {"algo.replay.prioritised": {"alpha": 0.6, "beta": 0.4}},
    "inputs": {"algo.normalize_observation": False, "algo.network": {"kind": "mlp"}, "algo.replay.n_step": 1},
    "demonstrations": {"algo.replay.demonstrations": None},
}
ABOUT_FACTOR = {
    "gamma": "0.95 a second for 0.99 a decision (0.13 a second)",
    "reward": "preset attacker for convoy_lock",
    "rate": "four times as many gradient steps, larger ones, and a warm-up of 32,768 steps for 8,000",
    "priorities": "uniform draws for prioritised ones",
    "inputs": "standardised inputs, LayerNorm and returns over 10 decisions for none of them",
    "demonstrations": "a share of every batch from the squeezer for none",
}


def design() -> list[tuple[int, ...]]:
    """16 of the 64 combinations: 1 is as now, 0 as published; both columns made from others have resolution IV."""
    return [(a, b, c, d, (a + b + c) % 2, (b + c + d) % 2) for a, b, c, d in product((0, 1), repeat=4)]


# --- cells ---


def cells_of(parts: Sequence[str], seeds: Sequence[int] | None) -> list[Cell]:
    """Seed by seed, so that an interrupted study has a whole design of the first seeds."""
    cells: list[Cell] = []
    for part in parts:
        for seed in seeds or SEEDS[part]:
            ways = list(WAYS) if part == "learned" else ["".join(map(str, levels)) for levels in design()]
            cells += [{"part": part, "way": way, "seed": seed} for way in ways]
    return cells


def changes_of(cell: Cell) -> dict[str, Any]:
    """What a cell changes in the scenario."""
    common = {"seed": cell["seed"], "learner_threads": 1, "collect.workers": 0, "federated.enabled": False}
    if cell["part"] == "learned":
        return {**common, **WAYS[cell["way"]]}
    old = [name for name, level in zip(PUBLISHED, cell["way"], strict=True) if level == "0"]
    changes = {key: value for name in old for key, value in PUBLISHED[name].items()}
    return {**common, "timesteps": SCREEN_STEPS, **changes}


def run_cell(cell: Cell, budget: int | None = None, episodes: int = EPISODES) -> Cell:
    """Train one policy, and judge it."""
    from slipstream.config.load import load
    from slipstream.judging.judge import judge
    from slipstream.run.metrics import read_rows
    from slipstream.run.saved_cast import load_cast
    from slipstream.run.session import train

    scenario = load(SCENARIO, {**changes_of(cell), **({} if budget is None else {"timesteps": budget})})
    with tempfile.TemporaryDirectory() as folder:
        begun = os.times()
        result = whole(train(scenario, root=Path(folder) / "runs", models=Path(folder) / "models"))
        ended = os.times()
        curve = [
            [row["timesteps_total"], round(row["eval/success_mean"], 3)]
            for row in read_rows(result.run / "metrics.jsonl")
            if "eval/success_mean" in row
        ]
        judgement = judge(*load_cast(result.model), episodes)
    figures = ("success", "self_crash", "collision", "idle_stop", "timeout")
    policies = {row.policy: {name: round(row.figures[name].estimate, 4) for name in figures} for row in judgement.rows}
    return {
        "steps": result.counters.steps,
        "cpu_seconds": round(ended.user + ended.system - begun.user - begun.system, 1),
        "success": policies["learned"]["success"],
        "policies": policies if cell["part"] == "learned" else {},
        "episodes": episodes,
        "curve": curve,
        "commit": machine()["commit"],
    }


# --- the page ---


@dataclass(frozen=True)
class Effect:
    """What a factor adds to the share of successes, over all runs of the screen."""

    name: str
    now: float
    published: float
    low: float  # of the difference
    high: float


def effects(cells: Sequence[Cell]) -> list[Effect]:
    """Runs with a factor as it is now against runs with it as it was, whatever the others were."""
    from slipstream.stats.intervals import bootstrap

    found = []
    for place, name in enumerate(PUBLISHED):
        now, old = (
            np.array([[cell["success"]] for cell in cells if cell["way"][place] == level], np.float64) for level in "10"
        )
        if not len(now) or not len(old):
            continue
        gain = bootstrap([now, old], lambda a, b: a.mean((-2, -1)) - b.mean((-2, -1)), 0.95, 2000, 0)
        found.append(Effect(name, float(now.mean()), float(old.mean()), gain.low, gain.high))
    return found


def write_page(cells: Sequence[Cell], path: Path) -> None:
    """Everything there is so far."""
    learned, screen = ([cell for cell in cells if cell["part"] == part] for part in ("learned", "screen"))
    info = machine()
    commits = ", ".join(sorted({cell["commit"] for cell in cells}))
    lines = [
        "# convoy_lock",
        "",
        "An attacker has 50 s to make a follow-the-gap car touch the wall or the border, without touching it; half of",
        "the episodes begin 2.5 m behind it. Settings were chosen on seeds 101 and up.",
        "",
        *(_learned(learned) if learned else []),
        *(_screen(screen) if screen else []),
        f"Command: `make study-convoy`; cells in `{path.name}` ({commits}). {info['cpu']}, {info['date']}.",
        "",
    ]
    path.with_suffix(".md").write_text("\n".join(lines))


def _learned(cells: Sequence[Cell]) -> list[str]:
    lines = [
        "## What is learned",
        "",
        f"Rates over {cells[0]['episodes']} fresh episodes a seed, exploration off, with 95 % Wilson intervals; the",
        "scripts play the same episodes. To 90 %: steps at which an evaluation first had so many successes, the median",
        "over seeds.",
        "",
        "| policy | seeds | steps | CPU s | to 90 % | success | by seed | own crash | contact | gave up | timeout |",
        "|---|---:|---:|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for way in WAYS:
        own = sorted((cell for cell in cells if cell["way"] == way), key=lambda cell: cell["seed"])
        if not own:
            continue
        by_seed = ", ".join(f"{cell['success']:.1%}" for cell in own)
        steps, seconds = own[0]["steps"], float(np.median([cell["cpu_seconds"] for cell in own]))
        rates = _rates([cell["policies"]["learned"] for cell in own], own[0]["episodes"])
        head = f"| {way} | {len(own)} | {steps:,} | {seconds:.0f} | {_first_good(own)} | {rates[0]} | {by_seed} | "
        lines.append(head + " | ".join(rates[1:]) + " |")
    for script in (name for name in cells[0]["policies"] if name != "learned"):
        rates = _rates([cells[0]["policies"][script]], cells[0]["episodes"])
        lines.append(f"| {script.replace('_', ' ')} | | | | | {rates[0]} | | " + " | ".join(rates[1:]) + " |")
    return [*lines, ""]


def _rates(rows: Sequence[dict[str, float]], episodes: int) -> list[str]:
    from slipstream.stats.intervals import wilson

    shown = []
    for name in rows[0]:
        value = wilson(round(sum(row[name] * episodes for row in rows)), episodes * len(rows))
        shown.append(f"{value.estimate:.1%} [{value.low:.1%}, {value.high:.1%}]")
    return shown


def _first_good(cells: Sequence[Cell]) -> str:
    firsts = [next((steps for steps, share in cell["curve"] if share >= GOOD), np.inf) for cell in cells]
    median = float(np.median(firsts))
    return f"{median:,.0f}" if np.isfinite(median) else "–"


def _screen(cells: Sequence[Cell]) -> list[str]:
    lines = [
        "## Which setting does what",
        "",
        f"{len(cells)} runs of {cells[0]['steps']:,} steps: each factor is as now in half of them, as published in",
        "the other half, whatever the others are. The interval of the difference is a bootstrap over runs.",
        "",
        "| factor | now, for as published | success with | without | difference |",
        "|---|---|---:|---:|---:|",
    ]
    for each in effects(cells):
        gain = f"{each.now - each.published:+.1%} [{each.low:+.1%}, {each.high:+.1%}]"
        lines.append(f"| {each.name} | {ABOUT_FACTOR[each.name]} | {each.now:.1%} | {each.published:.1%} | {gain} |")
    return [*lines, ""]


def main() -> None:
    """Compute what is missing, then write the page."""
    args = asked(__doc__, "convoy", list(SEEDS))
    try:
        run_cells("convoy", cells_of(args.only, args.seeds), partial(run_cell, budget=args.budget), args.jobs, args.out)
    finally:
        if cells := read_cells(args.out):
            write_page(cells, args.out)


if __name__ == "__main__":
    main()
