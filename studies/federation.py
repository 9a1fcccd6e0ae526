"""Does it help to learn together? One learner, four apart, four that average their weights, four that share a replay.

python studies/federation.py [--only TASK,…] [--jobs 1]     # make study-federation; docs/results/federation.md

Every way takes the same number of environment steps in all: the single learner takes them alone, each of the four takes
a quarter. So one of the four apart is also what a single learner does with one share. The four are threads of one
process; with a shared replay, what they draw depends on their timing, and the same bits are not promised.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import Cell, asked, machine, run_cells

FOUR = 4
SEEDS = (11, 12, 13, 14, 15)
WAYS = ("single", "isolated", "federated", "replay")
POINTS = 10  # of a curve
RANDOM = "random"


@dataclass(frozen=True)
class Task:
    """A scenario, the steps of all its learners together, and what they are judged by."""

    scenario: str
    total: int
    score: str  # return, or a 0/1 figure of the world
    interval: int  # episodes of a client between two rounds
    learning_starts: int  # of all learners together
    changes: Mapping[str, Any]
    scripts: tuple[str, ...] = ()
    settings: str = ""  # the scenario that has the settings of the table, where it is another one now


TASKS = {
    task.scenario: task
    for task in (
        Task(
            "pendulum", 20_000, "return", 2, 500,
            {"algo.kind": "sac", "algo.hidden": [64, 64], "algo.batch_size": 128},
        ),
        Task(
            "head_on", 32_768, "clean", 8, 4096,
            {"algo.kind": "sac", "collect.num_worlds": 16, "stop.zero_conflict_streak": None},
            ("noop", "direct", "mvp"),
        ),
        Task(
            "convoy_lock_td3", 300_000, "success", 16, 8000,
            {"collect.num_worlds": 16, "algo.hidden": [64, 64], "algo.batch_size": 128},
            ("squeezer", "follow_gap", "straight"),
            "convoy_lock_td3_published",
        ),
    )
}  # fmt: skip


def cells_of(tasks: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """Baselines first, which nothing is learned for; then seed by seed."""
    baselines = [(task, who, 0) for task in tasks for who in (RANDOM, *TASKS[task].scripts)]
    learned = [(task, way, seed) for task in tasks for seed in seeds for way in WAYS]
    return [{"task": task, "way": way, "seed": seed} for task, way, seed in baselines + learned]


def run_cell(cell: Cell, budget: int | None = None, episodes: int = 100) -> Cell:
    """Train and judge, or only judge."""
    task, way = TASKS[cell["task"]], cell["way"]
    if way not in WAYS:
        return {"scores": [_baseline(task, way, episodes)], "commit": machine()["commit"]}
    with tempfile.TemporaryDirectory() as folder:
        return _trained(task, way, cell["seed"], budget or task.total, Path(folder), episodes)


def scenarios_of(task: Task, way: str, seed: int, total: int, root: Path, service: str) -> list[Any]:
    """What each learner of a way is given."""
    from slipstream.config.load import load

    learners = 1 if way == "single" else FOUR
    share = total // learners
    changes: dict[str, Any] = {
        **task.changes,
        "timesteps": share,
        "learner_threads": 1,
        "device": "cpu",
        "algo.learning_starts": max(1, min(task.learning_starts, total // 8) // learners),
        "checkpoint.checkpoint_every": share,
        "federated.enabled": way == "federated",
    }
    if way == "federated":
        # Saving after every round would be most of the work here.
        changes |= {"federated.clients": FOUR, "federated.interval": task.interval, "federated.root": str(root)}
        changes |= {"federated.init_seed": seed, "federated.checkpoint_after_sync": False}
    if way == "replay":
        changes |= {"algo.replay.kind": "service", "algo.replay.address": service}
        changes |= {"algo.replay.sharing.mixing": "uniform"}
    updates = share // load(task.settings or task.scenario, changes).rollout_steps
    changes |= {"evaluate.evaluation_interval": max(1, updates // POINTS), "evaluate.evaluation_duration": 10}
    return [
        load(task.settings or task.scenario, {**changes, "seed": 100 * seed + index, "federated.client": str(index)})
        for index in range(learners)
    ]


def _trained(task: Task, way: str, seed: int, total: int, folder: Path, episodes: int) -> Cell:
    from slipstream.run.metrics import read_rows
    from slipstream.run.session import train

    with _service(way == "replay") as service:
        scenarios = scenarios_of(task, way, seed, total, folder / "rounds", service)
        begun = os.times()
        with ThreadPoolExecutor(len(scenarios)) as pool:
            pending = [
                pool.submit(train, scenario, out=folder / f"{index}", models=folder / f"models{index}")
                for index, scenario in enumerate(scenarios)
            ]
            results = [one.result() for one in pending]
        ended = os.times()
    key = "eval/return_mean" if task.score == "return" else _eval_key(task.score)
    curves = []
    for result in results:
        rows = [row for row in read_rows(result.run / "metrics.jsonl") if key in row]
        curves.append([(row["timesteps_total"], row[key]) for row in rows])
    shown = [
        [points[0][0] * len(results), round(mean(value for _, value in points), 4)]
        for points in zip(*curves, strict=False)
    ]
    last = [curve[-1][1] for curve in curves]
    return {
        "scores": [_judge_run(task, result.model, episodes) for result in results],
        "chosen": last.index(max(last)),  # by the last evaluation, whose episodes are not those that are judged
        "steps": sum(result.counters.steps for result in results),
        "rounds": _rounds(folder / "rounds"),
        "seconds": round(max(result.counters.seconds for result in results), 1),
        "cpu_seconds": round(ended.user + ended.system - begun.user - begun.system, 1),
        "commit": machine()["commit"],
        "curve": shown,
    }


def _eval_key(score: str) -> str:
    return "eval/clean_fraction" if score == "clean" else f"eval/{score}_mean"


@contextmanager
def _service(wanted: bool) -> Iterator[str]:
    """The address of a replay service, where there is to be one."""
    from slipstream.replay.process import OwnService

    if not wanted:
        yield ""
        return
    own = OwnService(snapshot_s=1e6)
    own.revive()
    try:
        yield own.address
    finally:
        own.close()


def _rounds(root: Path) -> dict[str, int]:
    """How the rounds of a federation ended, and how many updates were refused."""
    import msgspec

    from slipstream.federate.folder import HISTORY
    from slipstream.federate.rounds import RoundRecord

    found: Counter[str] = Counter()
    for path in root.glob(f"*/{HISTORY}"):
        for line in path.read_bytes().splitlines():
            record = msgspec.json.decode(line, type=RoundRecord)
            found[record.state] += 1
            found["refused"] += sum(record.refused.values())
    return dict(found)


# --- judging ---


def _judge_run(task: Task, model: Path | None, episodes: int) -> float:
    from players import judged, world_spec

    from slipstream.run.saved_cast import load_cast, trained_teams

    assert model is not None
    scenario, saved = load_cast(model)
    return _score(task, judged(scenario, trained_teams(scenario, saved, world_spec(scenario)), episodes))


def _baseline(task: Task, who: str, episodes: int) -> float:
    from players import Random, everyone, judged, world_spec

    from slipstream.config.load import load
    from slipstream.run.saved_cast import script_instead
    from slipstream.run.setup import resolve

    scenario = resolve(load(task.settings or task.scenario, {**task.changes, "device": "cpu"}))
    spec = world_spec(scenario)
    if who != RANDOM or RANDOM in spec.scripts:  # where others play too, the world knows who is who
        return _score(task, judged(scenario, script_instead(scenario, who, spec), episodes))
    return _score(task, judged(scenario, everyone(Random(spec, 0), spec), episodes))


def _score(task: Task, episodes: Any) -> float:
    values = episodes.team_returns if task.score == "return" else episodes.stat(task.score)
    return round(float(values.mean()), 4)


def main() -> None:
    """Compute what is missing, then write the page."""
    args = asked(__doc__, "federation", list(TASKS))
    work = partial(run_cell, budget=args.budget)
    try:
        run_cells("federation", cells_of(args.only, args.seeds or SEEDS), work, args.jobs, args.out)
    finally:
        from federation_page import write_page

        write_page(args.out.with_suffix(".md"))


if __name__ == "__main__":
    main()
