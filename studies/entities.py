"""One policy for any number of aircraft: trained among 2 to 6 in a random sector, judged among up to 40.

    python studies/entities.py [--only entities,perceptron --budget 100000 --seeds 1 --out cells.json]

The network of entities reads every other aircraft as a row, the perceptron the three nearest. Both learn with PPO, the
same settings and steps. They are judged on the same episodes as MVP and doing nothing, with exploration off. Writes
docs/results/entities.json and entities.md.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import Cell, asked, machine, run_cells, whole

LEARNED = ("entities", "perceptron")
SCRIPTS = {"mvp": "mvp", "nothing": "noop"}
POLICIES = (*LEARNED, *SCRIPTS)
NAMES = {
    "entities": "entities, all others",
    "perceptron": "perceptron, 3 nearest",
    "mvp": "MVP",
    "nothing": "straight on",
}
SEEDS = (21, 22, 23, 24, 25)
STEPS = 800_000
FEWEST, MOST = 2, 6  # aircraft in training
NEAREST = 3  # that the perceptron sees
JUDGED = {"2 to 6": (2, 3, 4, 5, 6), "8": (8,), "12": (12,), "16": (16,), "24": (24,), "40": (40,)}
EPISODES = 60  # judged of each group
LONGEST = 300  # decisions of a judged episode: 40 aircraft have up to 130 NM to go
JUDGED_SEED = 777

SCENARIO: dict[str, Any] = {
    "world": {
        "kind": "airspace",
        "random_sector": {"num_aircraft": MOST, "min_aircraft": FEWEST, "types": ["A320", "B738", "CRJ9"]},
        "time_penalty_per_sec": -0.01,
    },
    "algo": {
        "kind": "ppo",
        "hidden": [64, 64],
        "activation": "relu",
        "learning_rate": [[0, 1e-3], [1, 1e-5]],
        "minibatch_size": 1024,
        "epochs": 6,
        "gamma": 0.99,
        "entropy_coef": 0.0,
        "init_log_std": -0.7,
    },
    "collect": {"num_worlds": 64, "rollout_length": 64},
    "evaluate": {"evaluation_interval": None},
    "learner_threads": 1,
}
ENTITIES = {"kind": "entities", "features": 32, "heads": 2}


def scenario_of(cell: Cell) -> Any:
    from slipstream.config.load import from_plain, override

    changes: dict[str, Any] = {"timesteps": cell["steps"], "seed": cell["seed"] or 0}
    if cell["policy"] == "entities":
        changes["algo.network"] = ENTITIES
    changes["world.neighbor_topk"] = rows_of(cell["policy"], MOST)
    return override(from_plain({"name": "entities", **SCENARIO}), changes)


def rows_of(policy: str, aircraft: int) -> int:
    """Neighbours that are observed."""
    return aircraft - 1 if policy == "entities" else NEAREST


def run_cell(cell: Cell) -> Cell:
    from slipstream.run.saved_cast import load_cast, script_instead, trained_teams
    from slipstream.run.session import train

    scenario = scenario_of(cell)
    if cell["policy"] in SCRIPTS:
        return judged(cell, scenario, lambda spec: script_instead(scenario, SCRIPTS[cell["policy"]], spec))
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        result = whole(train(scenario, root=Path(folder) / "runs", models=Path(folder) / "models"))
        seconds = time.process_time() - start
        saved = load_cast(result.checkpoint)[1]
    return {
        "cpu_seconds": round(seconds, 1),
        **judged(cell, scenario, lambda spec: trained_teams(scenario, saved, spec)),
    }


def judged(cell: Cell, scenario: Any, teams_of: Any) -> Cell:
    """Figures of a policy by group; within a group every number of aircraft has as many episodes."""
    found = {}
    for name, numbers in JUDGED.items():
        found[name] = figures([flights(cell, scenario, teams_of, n, EPISODES // len(numbers)) for n in numbers])
    return found


def flights(cell: Cell, scenario: Any, teams_of: Any, aircraft: int, episodes: int) -> dict[str, float]:
    """Sums over judged episodes with so many aircraft."""
    from slipstream.collect.episodes import play
    from slipstream.config.load import override
    from slipstream.run.saved_cast import FIRST_JUDGED
    from slipstream.run.setup import make_evaluation_worlds

    scenario = override(
        scenario,
        {
            "world.random_sector.num_aircraft": aircraft,
            "world.random_sector.min_aircraft": None,
            "world.neighbor_topk": rows_of(cell["policy"], aircraft),
            "world.max_episode_steps": LONGEST,
        },
    )
    worlds = make_evaluation_worlds(scenario, episodes)
    played = play(worlds, teams_of(worlds.spec), episodes, JUDGED_SEED, FIRST_JUDGED)
    worlds.close()
    return {
        "episodes": episodes,
        "aircraft": aircraft * episodes,
        "clean": float(played.stat("clean").sum()),
        "reached": float(played.stat("reached").sum()),
        "intrusions": float(played.stat("conflicts").sum()),
        "hours": float(played.stat("flight_seconds").sum()) * aircraft / 3600.0,
        "extra_nm": float(played.stat("extra_distance_nm").sum()) * aircraft,
    }


def figures(flown: list[dict[str, float]]) -> dict[str, float]:
    """Of a group: share of clean episodes, intrusions per flight hour, extra distance and arrivals per aircraft."""
    total = {name: sum(each[name] for each in flown) for name in flown[0]}
    return {
        "clean": round(total["clean"] / total["episodes"], 4),
        "intrusions_per_hour": round(total["intrusions"] / total["hours"], 4),
        "extra_nm": round(total["extra_nm"] / total["aircraft"], 3),
        "reached": round(total["reached"] / total["aircraft"], 4),
    }


# --- the page ---


def write_page(cells: list[Cell], path: Path) -> None:
    lines = [
        "# One policy for any number of aircraft",
        "",
        f"PPO learned among {FEWEST} to {MOST} aircraft of `random_sector` (every episode draws how many), with",
        f"attention over all others (`network: entities`) or a perceptron that sees the {NEAREST} nearest. The same",
        "weights then fly among more than they ever saw, beside MVP and beside flying straight on, on the same",
        "episodes, at the same density: the sector grows with the traffic. Of the learned ones, the interquartile mean",
        "over seeds with its 95 % interval; of scripts, the figure over the episodes.",
        "",
    ]
    for title, name, digits in (
        ("Clean episodes, %", "clean", 1),
        ("Intrusions (a pair newly below 5 NM) per flight hour", "intrusions_per_hour", 2),
        ("Extra distance per aircraft, NM", "extra_nm", 2),
    ):
        lines += [
            f"## {title}",
            "",
            f"| policy | {' | '.join(JUDGED)} |",
            "|---" * (1 + len(JUDGED)) + "|",
            *(row(cells, policy, name, digits) for policy in POLICIES if of(cells, policy)),
            "",
        ]
    lines += [*costs(cells), "", *made(cells, path), ""]
    path.with_suffix(".md").write_text("\n".join(lines))


def of(cells: list[Cell], policy: str) -> list[Cell]:
    return [cell for cell in cells if cell["policy"] == policy]


def row(cells: list[Cell], policy: str, name: str, digits: int) -> str:
    scale = 100.0 if name == "clean" else 1.0
    shown = []
    for group in JUDGED:
        values = [scale * cell[group][name] for cell in of(cells, policy)]
        shown.append(summary(values, digits))
    return f"| {NAMES[policy]} | {' | '.join(shown)} |"


def summary(values: list[float], digits: int) -> str:
    from slipstream.stats.intervals import iqm_interval

    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    found = iqm_interval([[value] for value in values])
    return f"{found.estimate:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def costs(cells: list[Cell]) -> list[str]:
    told = []
    for policy in LEARNED:
        if found := of(cells, policy):
            mean = sum(cell["cpu_seconds"] for cell in found) / len(found)
            told.append(f"{NAMES[policy]}: {mean:.0f} CPU seconds of training a seed.")
    return told


def made(cells: list[Cell], path: Path) -> list[str]:
    info, steps = machine(), cells[0]["steps"]
    seeds = ", ".join(str(seed) for seed in sorted({cell["seed"] for cell in cells if cell["policy"] in LEARNED}))
    return [
        f"{steps:,} steps of training a seed, seeds {seeds}; {EPISODES} episodes of each column. An episode is clean",
        "if nobody was ever below 5 NM of anybody and everybody reached the waypoint. Settings are those of PPO for",
        "small airspace scenarios, but for a time penalty of 0.01 a second, no entropy bonus and a learning rate that",
        "falls to 1e-5; none was tuned for this study.",
        f"Command: `make study-entities`; cells in `{path.name}`. Commit {info['commit']}, {info['cpu']},",
        f"{info['date']}.",
    ]


if __name__ == "__main__":
    wanted = asked(__doc__, "entities", POLICIES)
    grid = [
        {"policy": policy, "seed": seed, "steps": wanted.budget or STEPS}
        for policy in wanted.only
        for seed in ((wanted.seeds or SEEDS) if policy in LEARNED else (0,))
    ]
    write_page(run_cells("entities", grid, run_cell, wanted.jobs, wanted.out), wanted.out)
