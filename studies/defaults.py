"""Only an id given: our usual settings beside SB3's defaults on twelve environments that nobody tuned for.

    python studies/defaults.py [--seeds 1,2 --out cells.json]

PPO, the same steps, one torch thread each; a seed's score is the mean of 50 deterministic episodes after training.
The environments are held here: no preset names one of them. Needs the extras mujoco and box2d. Writes
docs/results/defaults.json and defaults.md.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import Cell, asked, machine, run_cells, whole

TASKS = (
    "MountainCar-v0",
    "Taxi-v4",
    "FrozenLake-v1",
    "FrozenLake8x8-v1",
    "CliffWalking-v1",
    "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5",
    "Reacher-v5",
    "Pusher-v5",
    "CliffWalkingSlippery-v1",
    "LunarLanderContinuous-v3",
    "BipedalWalkerHardcore-v3",
)
STEPS = 50_000
SEEDS = (1, 2, 3, 4, 5)
EPISODES = 50
LONGEST = 1000  # steps of a judged episode that has no limit of its own: who walks in circles has no end otherwise


def run_cell(cell: Cell) -> Cell:
    return (ours if cell["library"] == "slipstream" else sb3)(cell)


def ours(cell: Cell) -> Cell:
    from slipstream.collect.episodes import play
    from slipstream.config.load import load, override
    from slipstream.run.saved_cast import FIRST_JUDGED, load_cast, trained_teams
    from slipstream.run.session import train
    from slipstream.run.setup import make_evaluation_worlds

    changes = {"seed": cell["seed"], "timesteps": cell["steps"], "learner_threads": 1}
    scenario = load(f"gymnasium:{cell['task']}", changes)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        result = whole(train(scenario, root=Path(folder) / "runs", models=Path(folder) / "models"))
        seconds = time.process_time() - start
        saved = load_cast(result.checkpoint)[1]
    scenario = override(scenario, {"world.max_episode_steps": limit_of(cell["task"])})
    worlds = make_evaluation_worlds(scenario, EPISODES)
    episodes = play(worlds, trained_teams(scenario, saved, worlds.spec), EPISODES, 777, FIRST_JUDGED)
    return {"return": float(episodes.team_returns.mean()), "cpu_seconds": round(seconds, 1)}


def sb3(cell: Cell) -> Cell:
    import gymnasium
    import torch
    from gymnasium.wrappers import TimeLimit
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    start = time.process_time()
    model = PPO("MlpPolicy", gymnasium.make(cell["task"]), seed=cell["seed"], device="cpu")
    model.learn(cell["steps"])
    seconds = time.process_time() - start
    limited = {"wrapper_class": TimeLimit, "wrapper_kwargs": {"max_episode_steps": limit_of(cell["task"])}}
    test = make_vec_env(cell["task"], n_envs=8, seed=10_000 + cell["seed"], **limited)
    score, _ = evaluate_policy(model, test, EPISODES, deterministic=True)
    return {"return": float(score), "cpu_seconds": round(seconds, 1)}


def limit_of(task: str) -> int:
    """Steps of a judged episode, at most."""
    import gymnasium

    return gymnasium.spec(task).max_episode_steps or LONGEST


def better(ours: list[float], theirs: list[float]) -> float:
    """The probability that a run of ours is better than one of theirs; a tie is half of one."""
    pairs = [(one > other) + 0.5 * (one == other) for one in ours for other in theirs]
    return sum(pairs) / len(pairs)


def write_page(cells: list[Cell], path: Path) -> None:
    from slipstream.stats.intervals import iqm_interval

    rows, chances, times = [], [], []
    for task in TASKS:
        by_library = {
            library: [c for c in cells if c["task"] == task and c["library"] == library]
            for library in ("slipstream", "sb3")
        }
        if not all(by_library.values()):
            continue
        scores = {library: [c["return"] for c in found] for library, found in by_library.items()}
        seconds = {library: sum(c["cpu_seconds"] for c in found) / len(found) for library, found in by_library.items()}
        chance = better(scores["slipstream"], scores["sb3"])
        chances.append(chance)
        times.append(seconds["slipstream"] / seconds["sb3"])
        shown = []
        for library in ("slipstream", "sb3"):
            value = iqm_interval([[score] for score in scores[library]])
            shown.append(f"{value.estimate:.1f} [{value.low:.1f}, {value.high:.1f}] | {seconds[library]:.0f}")
        rows.append(f"| {task} | {shown[0]} | {shown[1]} | {chance:.2f} |")
    info = machine()
    lines = [
        "# Only an id given",
        "",
        f"PPO with our usual settings beside Stable-Baselines3's PPO with its defaults: {STEPS:,} steps of",
        "environments that nobody tuned for. The last column is the probability that a run of ours scores higher",
        f"than one of theirs (0.5: alike); over all {len(chances)} it is **{sum(chances) / len(chances):.2f}**, and",
        f"ours takes {sum(times) / len(times):.2f} times the CPU seconds, its evaluations while training included.",
        "",
        "| environment | slipstream IQM [95 %] | CPU s | SB3 IQM [95 %] | CPU s | ours better |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        f"A score is the mean of {EPISODES} deterministic episodes after training, over {len(SEEDS)} seeds. Ours",
        "takes 2,048 steps at random beforehand for the statistics of observations.",
        "The settings were chosen before these environments were run, and not changed after.",
        "",
        f"Command: `make study-defaults`; cells in `defaults.json`. Commit {info['commit']}, {info['cpu']},",
        f"{info['date']}.",
        "",
    ]
    path.with_suffix(".md").write_text("\n".join(lines))


if __name__ == "__main__":
    wanted = asked(__doc__, "defaults", TASKS)
    grid = [
        {"task": task, "library": library, "seed": seed, "steps": wanted.budget or STEPS}
        for seed in wanted.seeds or SEEDS
        for task in wanted.only
        for library in ("slipstream", "sb3")
    ]
    write_page(run_cells("defaults", grid, run_cell, wanted.jobs, wanted.out), wanted.out)
