"""PPO on classic control beside Stable-Baselines3: same steps, five seeds, 100 deterministic evaluation episodes.

    python studies/classic.py

SB3 runs with the hyper-parameters its own zoo tuned for each task; ours with the packaged scenario.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import RESULTS, Cell, machine, run_cells, whole

TASKS = {"cartpole": 100_000, "pendulum": 100_000, "acrobot": 100_000}
IDS = {"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1", "acrobot": "Acrobot-v1"}
SEEDS = (1, 2, 3, 4, 5)
EPISODES = 100
# From rl-baselines3-zoo's hyperparams/ppo.yml (facts: the values).
SB3: dict[str, dict[str, Any]] = {
    "cartpole": {
        "n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
        "learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.2 * left,
    },
    "pendulum": {
        "n_envs": 4, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "learning_rate": 1e-3,
        "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
    },
    "acrobot": {"n_envs": 16, "n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "normalize": True},
}  # fmt: skip


def run_cell(cell: Cell) -> Cell:
    return (ours if cell["library"] == "slipstream" else sb3)(cell)


def ours(cell: Cell) -> Cell:
    from slipstream.collect.episodes import play
    from slipstream.config.load import load
    from slipstream.run.saved_cast import FIRST_JUDGED, load_cast, trained_teams
    from slipstream.run.session import train
    from slipstream.run.setup import make_evaluation_worlds

    changes = {"seed": cell["seed"], "timesteps": TASKS[cell["task"]], "learner_threads": 1}
    scenario = load(cell["task"], changes)
    with tempfile.TemporaryDirectory() as folder:
        result = whole(train(scenario, root=Path(folder) / "runs", models=Path(folder) / "models"))
        saved = load_cast(result.checkpoint)[1]
    worlds = make_evaluation_worlds(scenario, EPISODES)
    episodes = play(worlds, trained_teams(scenario, saved, worlds.spec), EPISODES, 777, FIRST_JUDGED)
    return {"return": float(episodes.team_returns.mean()), "seconds": round(result.counters.seconds, 1)}


def sb3(cell: Cell) -> Cell:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    settings = dict(SB3[cell["task"]])
    normalize = settings.pop("normalize", False)
    env = make_vec_env(IDS[cell["task"]], n_envs=settings.pop("n_envs"), seed=cell["seed"])
    if normalize:
        env = VecNormalize(env)
    model = PPO("MlpPolicy", env, seed=cell["seed"], device="cpu", **settings)
    start = time.monotonic()
    model.learn(TASKS[cell["task"]])
    seconds = time.monotonic() - start
    test = make_vec_env(IDS[cell["task"]], n_envs=8, seed=10_000 + cell["seed"])
    if normalize:
        test = VecNormalize(test, training=False, norm_reward=False)
        test.obs_rms = env.obs_rms
    score, _ = evaluate_policy(model, test, EPISODES, deterministic=True)
    return {"return": float(score), "seconds": round(seconds, 1)}


def write_page(cells: list[Cell]) -> None:
    from slipstream.stats.intervals import iqm_interval

    lines = [
        "# PPO on classic control",
        "",
        "PPO beside Stable-Baselines3 (SB3) with its zoo's tuned hyper-parameters, with the same steps, one",
        "torch thread",
        f"each, on the same machine. Scores are interquartile means of {len(SEEDS)} seeds with a 95 % bootstrap",
        "interval;",
        f"a seed's score is the mean of {EPISODES} deterministic evaluation episodes after training. Seconds",
        "are medians",
        "of training, with other jobs running: indicative only.",
        "",
        "| task | steps | slipstream IQM [95 %] | seconds | SB3 IQM [95 %] | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for task, steps in TASKS.items():
        row = f"| {IDS[task]} | {steps:,} "
        for library in ("slipstream", "sb3"):
            chosen = [c for c in cells if c["task"] == task and c["library"] == library]
            value = iqm_interval([[c["return"]] for c in chosen])
            seconds = sorted(c["seconds"] for c in chosen)[len(chosen) // 2]
            row += f"| {value.estimate:.1f} [{value.low:.1f}, {value.high:.1f}] | {seconds:.0f} "
        lines.append(row + "|")
    info = machine()
    lines += [
        "",
        "The settings were not chosen blindly. With a constant learning rate our Pendulum had scored -178 to -258 on",
        "these seeds. The decay was then chosen on seeds 11 and 12, and the five cells were run again. The zoo tuned",
        "CartPole and Pendulum for this budget; Acrobot's settings are for 1M steps. CartPole's cells are of an",
        "earlier commit than the others (before actor and critic were computed side by side).",
        "",
        f"Command: `make study-classic`; cells in `classic.json`. Commit {info['commit']}, {info['cpu']}, "
        f"{info['date']}. Two cells ran at a time.",
        "",
    ]
    (RESULTS / "classic.md").write_text("\n".join(lines))


if __name__ == "__main__":
    grid = [
        {"task": task, "library": library, "seed": seed}
        for task in TASKS
        for library in ("slipstream", "sb3")
        for seed in SEEDS
    ]
    write_page(run_cells("classic", grid, run_cell, jobs=2))
