"""Memory: our cells beside sb3-contrib's RecurrentPPO and beside no memory, and what they bring in our own worlds.

    python studies/memory.py [--only cartpole,grid --seeds 101 --budget 20000 --out cells.json]

Five tasks that hide something, the same steps, worlds and wrappers for all, one torch thread each. A score is the mean
return of fresh episodes after training, with exploration off. Then two of our worlds with their packaged settings, with
and without a memory, judged by their own figures. Needs popgym and minigrid (`make study-memory` installs them).
Writes docs/results/memory.json and memory.md.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import Cell, asked, run_cells, whole

STEPS = 100_000
SEEDS = (1, 2, 3, 4, 5)
EPISODES = 100  # judged
CONTRIB = "sb3-contrib"
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"kind": "mlp"},
    "gru": {"kind": "gru", "length": 64},
    "lstm": {"kind": "lstm", "length": 64},
}


class Task(NamedTuple):
    """An environment that hides something, and what RecurrentPPO is told there."""

    id: str
    title: str
    contrib: str  # its settings, by name
    wrapper: str = ""  # in hidden.py
    kwargs: Mapping[str, Any] = MappingProxyType({})
    preset: str | None = "default"  # of ours; None: what we ship for its id

    @property
    def wrappers(self) -> list[dict[str, Any]]:
        """As a scenario names them."""
        return [{"target": f"hidden:{self.wrapper}", "kwargs": dict(self.kwargs)}] if self.wrapper else []


TASKS = {
    "cartpole": Task("CartPole-v1", "CartPole without velocities", "zoo_cartpole", "Seen", {"elements": [0, 2]}),
    "pendulum": Task("Pendulum-v1", "Pendulum without velocity", "zoo_pendulum", "Seen", {"elements": [0, 1]}, None),
    "repeat_previous": Task("popgym:popgym-RepeatPreviousEasy-v0", "POPGym RepeatPreviousEasy", "ours"),
    "repeat_first": Task("popgym:popgym-RepeatFirstEasy-v0", "POPGym RepeatFirstEasy", "ours"),
    "grid": Task("minigrid:MiniGrid-MemoryS7-v0", "MiniGrid MemoryS7", "ours", "Grid"),
}
WORLDS = {"random_sector": 1_000_000, "time_trial_hard": 1_000_000}  # steps

# --- ours ---

SETTINGS = {
    "algo.kind": "ppo",
    "algo.learning_rate": [[0, 1e-3], [1, 0]],
    "algo.minibatch_size": 256,
    "collect.num_worlds": 16,
    "collect.rollout_length": 128,
    "collect.seed_statistics": 2048,
}
ALONE = {
    "learner_threads": 1,
    "collect.workers": 0,
    "collect.world_threads": 1,
    "evaluate.evaluation_interval": None,
    "stop.zero_conflict_streak": None,
}


def run_cell(cell: Cell) -> Cell:
    """Train and judge one policy."""
    if cell["task"] in WORLDS:
        return in_world(cell)
    return contrib(cell) if cell["who"] == CONTRIB else ours(cell)


def ours(cell: Cell) -> Cell:
    """PPO with a network."""
    from side_by_side import trained

    from slipstream.config.load import load

    task = TASKS[cell["task"]]
    changes = {"world.wrappers": task.wrappers, "algo.network": NETWORKS[cell["who"]]}
    seen = {"seed": cell["seed"], "timesteps": cell["steps"]}
    scenario = load(f"gymnasium:{task.id}", {**SETTINGS, **ALONE, **changes, **seen}, preset=task.preset)
    return trained(scenario, {}, EPISODES)


def in_world(cell: Cell) -> Cell:
    """A packaged scenario with another network, judged by the figures of its world."""
    from slipstream.config.load import load
    from slipstream.judging.judge import judge
    from slipstream.run.saved_cast import load_cast
    from slipstream.run.session import train

    network = NETWORKS[cell["who"]]
    changes = {**ALONE, "algo.network": network, "seed": cell["seed"], "timesteps": cell["steps"]}
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        result = whole(train(load(cell["task"], changes), root=Path(folder) / "runs", models=Path(folder) / "models"))
        seconds = time.process_time() - start
        judgement = judge(*load_cast(result.checkpoint), EPISODES)
    figures = next(row.figures for row in judgement.rows if row.policy == "learned")
    found = {name: round(value.estimate, 4) for name, value in figures.items() if value.estimate == value.estimate}
    return {"figures": found, "cpu_seconds": round(seconds, 1)}


# --- sb3-contrib ---


def contrib(cell: Cell) -> Cell:
    """RecurrentPPO on the same environment."""
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    task, seed = TASKS[cell["task"]], cell["seed"]
    settings = contrib_settings(task.contrib)
    env = VecNormalize(vectorised(task, settings.pop("worlds"), seed), gamma=settings["gamma"])
    model = RecurrentPPO("MlpLstmPolicy", env, seed=seed, device="cpu", **settings)
    start = time.process_time()
    model.learn(cell["steps"])
    seconds = time.process_time() - start
    test = VecNormalize(vectorised(task, 8, 10_000 + seed), training=False, norm_reward=False)
    test.obs_rms = env.obs_rms
    score, _ = evaluate_policy(model, test, EPISODES, deterministic=True)
    return {"return": float(score), "cpu_seconds": round(seconds, 1)}


def vectorised(task: Task, worlds: int, seed: int) -> Any:
    """Environments of a task, as SB3 takes them."""
    import gymnasium
    import hidden
    from gymnasium.wrappers import FlattenObservation
    from stable_baselines3.common.env_util import make_vec_env

    def make() -> Any:
        env = gymnasium.make(task.id, disable_env_checker=True)
        env = getattr(hidden, task.wrapper)(env, **task.kwargs) if task.wrapper else env
        return FlattenObservation(env)  # a choice as one of several ones, as ours reads it

    return make_vec_env(make, n_envs=worlds, seed=seed)


def contrib_settings(name: str) -> dict[str, Any]:
    """Ours; those of RL Zoo for the two tasks that it has tuned; or the library's own with eight worlds.

    Cells have 64 units, as RL Zoo's and ours: the library's usual 256 take two to five times as long.
    """
    from torch import nn

    network = {
        "lstm_hidden_size": 64,
        "enable_critic_lstm": True,
        "net_arch": {"pi": [64], "vf": [64]},
        "activation_fn": nn.ReLU,
        "ortho_init": False,
    }
    usual = {"n_epochs": 10, "gamma": 0.99, "gae_lambda": 0.95, "clip_range": 0.2, "policy_kwargs": network}
    special: dict[str, dict[str, Any]] = {
        "ours": {"worlds": 16, "n_steps": 128, "batch_size": 256, "learning_rate": lambda left: 1e-3 * left},
        "library": {
            "worlds": 8,
            "n_steps": 128,
            "batch_size": 128,
            "learning_rate": 3e-4,
            "policy_kwargs": {"lstm_hidden_size": 64},
        },
        "zoo_cartpole": {
            "worlds": 8,
            "n_steps": 32,
            "batch_size": 256,
            "n_epochs": 20,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "learning_rate": lambda left: 1e-3 * left,
            "clip_range": lambda left: 0.2 * left,
        },
        "zoo_pendulum": {
            "worlds": 4,
            "n_steps": 1024,
            "batch_size": 128,
            "gamma": 0.9,
            "learning_rate": 1e-3,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
    }
    return {**usual, **special[name]}


if __name__ == "__main__":
    from memory_page import write_page

    wanted = asked(__doc__, "memory", (*TASKS, *WORLDS))
    grid = [
        {"task": task, "who": who, "seed": seed, "steps": wanted.budget or WORLDS.get(task, STEPS)}
        for seed in wanted.seeds or SEEDS
        for task in wanted.only
        for who in (("mlp", "gru") if task in WORLDS else (*NETWORKS, CONTRIB))
    ]
    write_page(run_cells("memory", grid, run_cell, wanted.jobs, wanted.out), wanted.out)
