"""Images: our convolutions beside SB3's CnnPolicy on MinAtar's five games and two of Atari's, with PPO and DQN.

    python studies/images.py [--only breakout,pong --budget 100000 --seeds 1 --out cells.json]

Both libraries get the same images, settings and steps (a step is a decision: four frames of Atari), with one torch
thread each. A score is the mean return of fresh episodes after training, with exploration off. Needs minatar, ale-py
and opencv (`make study-images` installs them). Writes docs/results/images.json and images.md.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import Cell, asked, machine, run_cells

MINATAR = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
TASKS = (*(name.lower() for name in MINATAR), "pong", "atari_breakout")
IDS = {name.lower(): f"MinAtar/{name}-v1" for name in MINATAR} | {
    "pong": "ale_py:ALE/Pong-v5",
    "atari_breakout": "ale_py:ALE/Breakout-v5",
}
ALGOS = ("ppo", "dqn")
STEPS = 1_000_000
EPISODES = {True: 10, False: 50}  # judged, of Atari's games and MinAtar's
LONGEST = 5000  # steps of a judged episode


def is_atari(task: str) -> bool:
    return IDS[task].startswith("ale_py:")


def seeds_of(task: str) -> tuple[int, ...]:
    return (1, 2, 3) if is_atari(task) else (1, 2, 3, 4, 5)


def run_cell(cell: Cell) -> Cell:
    return (ours if cell["library"] == "slipstream" else sb3)(cell)


# --- ours ---


def ours(cell: Cell) -> Cell:
    from side_by_side import trained

    from slipstream.config.load import load

    changes = {
        "algo": cell["algo"],
        "seed": cell["seed"],
        "timesteps": cell["steps"],
        "learner_threads": 1,
        "collect.workers": 0,
        "evaluate.evaluation_interval": None,  # SB3 plays none either
    }
    scenario = load(f"gymnasium:{IDS[cell['task']]}", changes)
    judged = {"world.max_episode_steps": LONGEST, **whole_games(cell["task"])}
    return trained(scenario, judged, EPISODES[is_atari(cell["task"])])


def whole_games(task: str) -> dict[str, Any]:
    """Judged games of Atari end when all lives are lost, not with the first."""
    return {"world.wrappers.0.kwargs": {"terminal_on_life_loss": False}} if is_atari(task) else {}


# --- SB3 ---


def sb3(cell: Cell) -> Cell:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    task = cell["task"]
    model = sb3_model(task, cell["algo"], cell["seed"])
    start = time.process_time()
    model.learn(cell["steps"])
    seconds = time.process_time() - start
    test = make_vec_env(lambda: images_of(task, False), n_envs=5, seed=10_000 + cell["seed"])
    score, _ = evaluate_policy(model, test, EPISODES[is_atari(task)], deterministic=True)
    return {"return": float(score), "cpu_seconds": round(seconds, 1)}


def sb3_model(task: str, algo: str, seed: int, **changes: Any) -> Any:
    """A learner of SB3's that has not begun, with our settings."""
    import torch
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    settings = (ppo_settings if algo == "ppo" else dqn_settings)(is_atari(task)) | changes
    env = make_vec_env(lambda: images_of(task, True), n_envs=settings.pop("worlds"), seed=seed)
    policy = {} if is_atari(task) else {"policy_kwargs": {"features_extractor_class": small_layers()}}
    return {"ppo": PPO, "dqn": DQN}[algo]("CnnPolicy", env, seed=seed, device="cpu", **settings, **policy)


def images_of(task: str, training: bool) -> Any:
    """The environment as SB3 reads it: bytes of 0 to 255, channels first."""
    import gymnasium
    import minatar.gym
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit, TransformObservation

    if is_atari(task):
        env = gymnasium.make(IDS[task], frameskip=1, repeat_action_probability=0.0)
        env = AtariPreprocessing(env, terminal_on_life_loss=training)
        env = FrameStackObservation(env, 4)
    else:
        minatar.gym.register_envs()
        env = gymnasium.make(IDS[task])
        height, width, channels = env.observation_space.shape
        space = gymnasium.spaces.Box(0, 255, (channels, height, width), np.uint8)
        env = TransformObservation(env, lambda shown: shown.transpose(2, 0, 1).astype(np.uint8) * 255, space)
    return env if training else TimeLimit(env, LONGEST)


def ppo_settings(atari: bool) -> dict[str, Any]:
    """Those of our scenarios atari and minatar."""
    return {
        "worlds": 8 if atari else 16,
        "learning_rate": (lambda left: 2.5e-4 * left) if atari else (lambda left: 1e-3 * left),
        "n_steps": 128,
        "batch_size": 256,
        "n_epochs": 4,
        "clip_range": 0.1 if atari else 0.2,
        "ent_coef": 0.01,
    }


def dqn_settings(atari: bool) -> dict[str, Any]:
    """Those of our presets dqn_atari and dqn_minatar; SB3 counts target updates in steps."""
    return {
        "worlds": 8,
        "learning_rate": 1e-4 if atari else 2.5e-4,
        "batch_size": 32,
        "buffer_size": 100_000,
        "learning_starts": 100_000 if atari else 5_000,
        "train_freq": 4,
        "gradient_steps": 8,
        "target_update_interval": 1000,
        "exploration_fraction": 0.1,
        "exploration_final_eps": 0.01 if atari else 0.05,
    }


def small_layers() -> Any:
    """The convolution of MinAtar's authors, as our `layers: small`; SB3's own needs 36 pixels."""
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from torch import nn

    class Small(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, 128)
            channels, height, width = space.shape
            flat = 16 * (height - 2) * (width - 2)
            self.layers = nn.Sequential(
                nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(flat, 128), nn.ReLU()
            )

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            shown: torch.Tensor = self.layers(images)
            return shown

    return Small


# --- the page ---


def write_page(cells: list[Cell], path: Path) -> None:
    from side_by_side import columns

    rows = []
    for task in TASKS:
        for algo in ALGOS:
            found = columns(cells, task=task, algo=algo)
            if found is None:
                continue
            ours, theirs = found.shown()
            rows.append(
                f"| {IDS[task].rpartition(':')[2]} | {algo.upper()} | {len(found.ours)} | {ours} | {theirs} | "
                f"{found.their_seconds / found.our_seconds:.2f} |"
            )
    info, steps = machine(), sorted({cell["steps"] for cell in cells})
    lines = [
        "# Images",
        "",
        "Our convolutions beside Stable-Baselines3's CnnPolicy, with the same images, settings and steps",
        f"({', '.join(f'{count:,}' for count in steps)} decisions; of Atari, four frames each). Returns are of fresh",
        "episodes after training. The last column says how many times as many steps ours makes in a CPU second.",
        "",
        "| game | algorithm | seeds | slipstream IQM [95 %] | SB3 IQM [95 %] | speed |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        f"Command: `make study-images`; cells in `{path.name}`. Commit {info['commit']}, {info['cpu']},",
        f"{info['date']}.",
        "",
    ]
    path.with_suffix(".md").write_text("\n".join(lines))


if __name__ == "__main__":
    wanted = asked(__doc__, "images", TASKS)
    grid = [
        {"task": task, "algo": algo, "library": library, "seed": seed, "steps": wanted.budget or STEPS}
        for task in wanted.only
        for algo in ALGOS
        for seed in wanted.seeds or seeds_of(task)
        for library in ("slipstream", "sb3")
    ]
    write_page(run_cells("images", grid, run_cell, wanted.jobs, wanted.out), wanted.out)
