"""One cell of the learning study: train, judge on the common episodes, and say what it took."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from cells import Cell, machine, whole
from learning_tasks import DATASETS, TASKS, WORLDS, Task
from stopwatch import Stopwatch

from slipstream.config.load import load
from slipstream.config.scenario import Scenario

CURVE_POINTS, CURVE_EPISODES = 20, 10
THREADS = 1  # of each learner, ours and the peer's
STREAK, STREAK_LIMIT_S = 20, 600.0  # episodes; the scenarios themselves ask for 100
TASK = {task.name: task for task in TASKS}


def cells_of(task: Task, who: Iterable[str], seeds: Iterable[int], budget: int | None) -> list[Cell]:
    """The cells of a task. `recipe` tells the settings, so that a cell of other settings is not taken for done."""
    sides = {"ours": _recipe(scenario_of(task, 0, budget), WORLDS[task.world].dataset)}
    if task.peer is not None:
        sides["sb3"] = _digest([task.peer, budget or task.budget])
    return [
        {"task": task.name, "who": side, "seed": seed, "recipe": recipe}
        for side, recipe in sides.items()
        if side in who
        for seed in seeds
    ]


def baseline_cells(world: str, who: Iterable[str], seeds: Iterable[int]) -> list[Cell]:
    """Those who do not learn in the world: what is drawn or trained with each seed; scripts and recorders once."""
    scenario = scenario_of(_first_task(world), 0)
    recipe = _digest(
        [scenario.world.model_dump(mode="json", exclude_unset=True), dataset_recipe(WORLDS[world].dataset)]
    )
    return [
        {"task": world, "who": name, "seed": seed, "recipe": recipe}
        for name in WORLDS[world].baselines
        if "baseline" in who
        for seed in (seeds if name in ("random", "bc") else (0,))
    ]


def scenario_of(task: Task, seed: int, budget: int | None = None, dataset: str = "") -> Scenario:
    """The packaged scenario of a task, with its budget and as many evaluations as a curve has points."""
    steps = budget or task.budget
    changes: dict[str, Any] = {"algo": task.kind or task.algo, "seed": seed, "timesteps": steps, **task.overrides}
    changes["learner_threads"] = THREADS
    if WORLDS[task.world].dataset:
        changes["algo.replay.dataset"] = dataset or WORLDS[task.world].dataset
    if task.score == "streak":
        return load(task.scenario, {**changes, "stop.wall_time_s": STREAK_LIMIT_S, "stop.zero_conflict_streak": STREAK})
    updates = max(1, round(steps / CURVE_POINTS / load(task.scenario, changes).rollout_steps))
    evaluate = {"evaluate.evaluation_interval": updates, "evaluate.evaluation_duration": CURVE_EPISODES}
    return load(task.scenario, {**changes, **evaluate})


def _first_task(world: str) -> Task:
    return next(task for task in TASKS if task.world == world)


def recorder_scenario(dataset: str) -> Scenario:
    """What the recorder of a dataset is trained on."""
    about = DATASETS[dataset]
    return load(about["scenario"], {**about["recorder"], "learner_threads": THREADS})


def dataset_recipe(dataset: str) -> str:
    """Tells datasets of other settings apart; empty where there is none."""
    return _digest([DATASETS[dataset], _recipe(recorder_scenario(dataset), "")]) if dataset else ""


def _recipe(scenario: Scenario, dataset: str) -> str:
    """What was written down about world, algorithm, collection and dataset; not defaults, which the commit tells."""
    parts = {"world", "algo", "collect", "policies", "teams", "stop", "timesteps"}
    return _digest([scenario.model_dump(mode="json", exclude_unset=True, include=parts), dataset_recipe(dataset)])


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def run_cell(cell: Cell, budget: int | None) -> Cell:
    """Everything a cell adds to what identifies it."""
    _quieten_mujoco()
    if cell["who"] == "ours":
        result = ours(TASK[cell["task"]], cell["seed"], budget)
    elif cell["who"] == "sb3":
        result = sb3(TASK[cell["task"]], cell["seed"], budget)
    else:
        result = baseline(cell["task"], cell["who"], cell["seed"])
    info = machine()
    return {**result, **info}


def _quieten_mujoco() -> None:
    """Its 4.0 warns of a word in Gymnasium's HalfCheetah once per world, on the screen and in a log file."""
    if find_spec("mujoco") is not None:
        import mujoco

        mujoco.set_mju_user_warning(lambda _: None)


def ours(task: Task, seed: int, budget: int | None) -> Cell:
    from players import judged, world_spec

    from slipstream.data.run_folder import METRICS_FILE
    from slipstream.run.metrics import read_rows
    from slipstream.run.parts.evaluation import Evaluator
    from slipstream.run.saved_cast import load_cast, trained_teams
    from slipstream.run.session import train

    scenario = scenario_of(task, seed, budget, _dataset(task.world))
    evaluations = Stopwatch()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(Evaluator, "evaluate", evaluations.around(Evaluator.evaluate)),
    ):
        training = Stopwatch()
        result = whole(training.around(train)(scenario, root=Path(folder) / "runs", models=Path(folder) / "models"))
        rows = list(read_rows(result.run / METRICS_FILE))
        saved = load_cast(result.checkpoint)[1]
    found = {
        **scores(judged(scenario, trained_teams(scenario, saved, world_spec(scenario)))),
        "steps": result.counters.steps,
        "seconds": round(training.wall - evaluations.wall, 2),
        "cpu_seconds": round(training.cpu - evaluations.cpu, 2),
        "curve": [
            (row["timesteps_total"], round(row["eval/return_mean"], 3)) for row in rows if "eval/return_mean" in row
        ],
    }
    if task.score == "streak":  # here evaluations are part of the way: they end it
        wanted = scenario.stop.zero_conflict_streak or 0
        found |= {"reached_streak": result.stop.streak >= wanted, "seconds": round(result.counters.seconds, 2)}
    return found


def sb3(task: Task, seed: int, budget: int | None) -> Cell:
    import peer_sb3
    from players import everyone, judged, world_spec

    assert task.peer is not None
    scenario = scenario_of(task, seed, budget)
    player, found = peer_sb3.train(scenario, task.peer, scenario.timesteps, CURVE_POINTS, CURVE_EPISODES)
    return {**scores(judged(scenario, everyone(player, world_spec(scenario)))), **found}


def _dataset(world: str) -> str:
    """The path of the dataset a world is learned from, or nothing."""
    return str(_offline().dataset(name)) if (name := WORLDS[world].dataset) else ""


def _offline() -> Any:
    import offline  # needs torch, which listing the cells does not

    return offline


def baseline(world: str, who: str, seed: int) -> Cell:
    from players import Random, everyone, judged, world_spec

    from slipstream.run.saved_cast import scripted_team

    scenario, name = scenario_of(_first_task(world), seed), WORLDS[world].dataset
    spec = world_spec(scenario)
    if who == "random":
        teams = everyone(Random(spec, seed), spec)
    elif who == "bc":
        teams = everyone(_offline().cloned(name, seed), spec)
    elif who == "recorder":
        teams = _offline().recorder_teams(name, scenario, spec)
    else:
        teams = [scripted_team(who, tuple(range(spec.num_agents)), who, spec, "baseline")]
    return scores(judged(scenario, teams))


def scores(episodes: Any) -> Cell:
    """Means over the judged episodes; the world's own figures too, where it has some."""
    means = {name: round(float(episodes.stat(name).mean()), 4) for name in episodes.names}
    return {"return": round(float(episodes.team_returns.mean()), 3), **means}
