"""Faults: checkpoints, workers and the replay service are broken on purpose, and what they promise is checked.

    make study-faults            or studies/faults.py --only worker_kill,hostile

Every cell is some faults of one kind in a process of their own; what went wrong is a list of sentences, empty hoped
for. The tests run the same functions, fewer times.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import Cell, asked, read_cells, run_cells
from faults_page import write_page

CARTPOLE = {"steps": 250_000, "kill_every": 20_000, "workers": 4, "target": 400}
PENDULUM_STEPS = 20_000
SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Fault:
    """What is broken, how often, and how it reads."""

    what: str  # a row of the page
    cells: int
    each: int  # faults in one cell
    run: Callable[[int, int, Path], Cell]  # cell, faults, a folder -> what was found, with its `faults`


def run_cell(cell: Cell, budget: int | None) -> Cell:
    """Break things as the cell says."""
    import torch

    torch.set_num_threads(1)
    if cell["fault"] in LEARNING:
        return LEARNING[cell["fault"]](cell["seed"], budget)
    fault = FAULTS[cell["fault"]]
    with tempfile.TemporaryDirectory(prefix="slipstream-faults-") as folder:
        return {"count": fault.each, **fault.run(cell["seed"], fault.each, Path(folder))}


# --- the kinds ---


def checkpoint_kill(trial: int, count: int, folder: Path) -> Cell:
    from checkpoint_faults import kill_once

    rng = random.Random(f"kill {trial}")
    kills = [kill_once(folder / "run", rng.uniform(0.0, 0.25)) for _ in range(count)]
    return {
        "faults": [fault for kill in kills for fault in kill.faults],
        "mid_write": sum(kill.mid_write for kill in kills),
        "newer": sum(kill.loaded > kill.promised for kill in kills),
    }


def checkpoint_damage(trial: int, count: int, folder: Path) -> Cell:
    from checkpoint_faults import damage_once, make_pair

    rng = random.Random(f"damage {trial}")
    make_pair(folder)
    damages = [damage_once(folder, rng) for _ in range(count)]
    return {"faults": [f"{damage.what}: {fault}" for damage in damages for fault in damage.faults]}


def worker_kill(trial: int, count: int, folder: Path) -> Cell:
    from worker_faults import OVERLAPS, kill_workers

    overlap = list(OVERLAPS)[trial % len(OVERLAPS)]
    return {"overlap": overlap, **kill_workers(count, np.random.default_rng(trial), overlap)._asdict()}


def worker_stop(trial: int, count: int, folder: Path) -> Cell:
    from worker_faults import stop_worker

    rng = np.random.default_rng(trial)
    stops = [stop_worker(rng) for _ in range(count)]
    return {
        "faults": [fault for stop in stops for fault in stop.faults],
        "waited_s": [stop.waited_s for stop in stops],
        "phases": [stop.phase for stop in stops],
    }


def worker_cycle(trial: int, count: int, folder: Path) -> Cell:
    from worker_faults import cycle_workers

    return {"faults": cycle_workers(count)}


def service_cycle(trial: int, count: int, folder: Path) -> Cell:
    from replay_faults import cycle_service

    return {"faults": cycle_service(folder, count)}


def orphans(trial: int, count: int, folder: Path) -> Cell:
    from worker_faults import orphan

    rng = np.random.default_rng(trial)
    return {"faults": [fault for _ in range(count) for fault in orphan(rng)]}


def service_kill(trial: int, count: int, folder: Path) -> Cell:
    from replay_faults import kill_service

    return kill_service(folder, count, np.random.default_rng(trial))._asdict()


def hostile(trial: int, count: int, folder: Path) -> Cell:
    from replay_faults import besiege

    siege = besiege(folder, count, np.random.default_rng(trial), tcp=trial % 2 == 1)
    draws = np.array(siege.draws_s)
    found = siege._asdict() | {"draw_median_s": float(np.median(draws)), "draw_worst_s": float(draws.max())}
    del found["draws_s"]
    return found


def limiter(trial: int, count: int, folder: Path) -> Cell:
    from replay_faults import operate_limiter

    spi = (0.25, 1.0, 7.5)[trial % 3]
    return {"samples_per_insert": spi, "faults": operate_limiter(count, spi, np.random.default_rng(trial))}


FAULTS = {
    "checkpoint_kill": Fault("SIGKILL while checkpointing", 10, 20, checkpoint_kill),
    "checkpoint_damage": Fault("bit flip or truncation of a checkpoint", 5, 100, checkpoint_damage),
    "worker_kill": Fault("SIGKILL of a worker while a run learns", 30, 10, worker_kill),
    "worker_stop": Fault("SIGSTOP of a worker", 10, 2, worker_stop),
    "worker_cycle": Fault("workers started and ended or killed", 10, 20, worker_cycle),
    "service_kill": Fault("SIGKILL of the replay service", 10, 10, service_kill),
    "service_cycle": Fault("replay service started and ended or killed", 10, 20, service_cycle),
    "orphans": Fault("SIGKILL of a run with workers and a service", 10, 5, orphans),
    "hostile": Fault("hostile messages to the replay service", 10, 10_000, hostile),
    "limiter": Fault("random operations of the rate limiter", 10, 100_000, limiter),
}


# --- learning meanwhile ---


def cartpole(seed: int, budget: int | None) -> Cell:
    """APPO on CartPole with a worker killed every so many steps."""
    import os
    import signal

    from players import judged, world_spec
    from worker_faults import workers

    from slipstream.config.load import load
    from slipstream.run.metrics import read_rows
    from slipstream.run.progress import Display
    from slipstream.run.saved_cast import load_cast, trained_teams
    from slipstream.run.session import train

    rng = np.random.default_rng(seed)

    class Killer(Display):
        kills = 0

        def advance(self, done: int, text: str) -> None:
            if done // CARTPOLE["kill_every"] > self.kills and (found := workers()):
                os.kill(found[rng.integers(len(found))].pid, signal.SIGKILL)
                self.kills += 1

    scenario = load(
        "cartpole",
        {
            "algo": "appo",
            "seed": seed,
            "timesteps": budget or CARTPOLE["steps"],
            "learner_threads": 1,
            "collect.workers": CARTPOLE["workers"],
            "collect.overlap": "deterministic",
            "evaluate.evaluation_interval": 5,  # about every 10,000 steps; training draws nothing from it
        },
    )
    killer = Killer()
    with tempfile.TemporaryDirectory() as folder:
        result = train(scenario, root=Path(folder) / "runs", models=Path(folder) / "models", display=killer)
        saved = load_cast(result.checkpoint)[1]
        events = [row["event"] for row in read_rows(result.run / "events.jsonl")]
        curve = [
            (row["timesteps_total"], row["eval/return_mean"])
            for row in read_rows(result.run / "metrics.jsonl")
            if "eval/return_mean" in row
        ]
    score = judged(scenario, trained_teams(scenario, saved, world_spec(scenario))).team_returns.mean()
    missed = events.count("worker_died")
    return {
        "return": float(score),
        "reached_at": next((step for step, value in curve if value >= CARTPOLE["target"]), None),
        "kills": killer.kills,
        "faults": [] if missed >= killer.kills - 1 else [f"{killer.kills} kills, of which {missed} were missed"],
        "seconds": round(result.counters.seconds, 1),
    }


def pendulum(kind: str, seed: int, budget: int | None) -> Cell:
    """SAC on Pendulum with a replay of its own or a service's."""
    from players import judged, world_spec

    from slipstream.config.load import load
    from slipstream.run.saved_cast import load_cast, trained_teams
    from slipstream.run.session import train

    steps = budget or PENDULUM_STEPS
    changes = {"algo": "sac", "seed": seed, "timesteps": steps, "learner_threads": 1, "algo.replay.kind": kind}
    scenario = load("pendulum", changes)
    with tempfile.TemporaryDirectory() as folder:
        result = train(scenario, root=Path(folder) / "runs", models=Path(folder) / "models")
        saved = load_cast(result.checkpoint)[1]
    score = judged(scenario, trained_teams(scenario, saved, world_spec(scenario))).team_returns.mean()
    return {"return": float(score), "seconds": round(result.counters.seconds, 1)}


LEARNING: dict[str, Callable[[int, int | None], Cell]] = {
    "appo_kills": cartpole,
    "sac_local": partial(pendulum, "local"),
    "sac_service": partial(pendulum, "service"),
}


NAMES = {
    "appo_kills": f"APPO, CartPole, {CARTPOLE['steps']:,} steps, one of {CARTPOLE['workers']} workers killed every "
    f"{CARTPOLE['kill_every']:,} (target {CARTPOLE['target']})",
    "sac_local": f"SAC, Pendulum, {PENDULUM_STEPS:,} steps, replay in the run's memory",
    "sac_service": "the same with a replay service",
}


def main() -> int:
    wanted = asked(__doc__, "faults", [*FAULTS, *LEARNING])
    cells = [
        {"fault": kind, "seed": trial}
        for kind in wanted.only
        for trial in (wanted.seeds or (SEEDS if kind in LEARNING else range(FAULTS[kind].cells)))
    ]
    run_cells("faults", cells, partial(run_cell, budget=wanted.budget), wanted.jobs, wanted.out)
    done = read_cells(wanted.out)
    page = write_page(done, {kind: fault.what for kind, fault in FAULTS.items()}, NAMES)
    wanted.out.with_suffix(".md").write_text(page)
    print(page)
    return 1 if any(cell.get("faults") for cell in done) else 0


if __name__ == "__main__":
    sys.exit(main())
