"""Slipstream trains agents that share a world: fast on one machine, exact, and to be trusted.

import slipstream
env = slipstream.make("head_on", num_worlds=256, seed=1)     # a batch of native worlds
checkpoint = slipstream.train("head_on", timesteps=100_000)  # the path of the final checkpoint
slipstream.resume(checkpoint, timesteps=200_000)             # goes on where it ended
policy = slipstream.load_policy(checkpoint)                  # acts without world or config
action = policy.act(env.obs["obs"])
slipstream.evaluate(checkpoint, episodes=100)                # beside the world's scripts, with intervals
run = slipstream.load_run("runs/…")                          # metrics, events, checkpoints as data
with slipstream.Trainer("cartpole") as trainer:              # a run in your hands, one update at a time
    trainer.step()
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's, without importing it: a program hears signals only once this is imported
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from slipstream.config.scenario import Scenario
    from slipstream.run.callbacks import Callback as Callback
    from slipstream.run.policy_file import Policy
    from slipstream.run.run_data import RunData
    from slipstream.run.trainer import Trainer as Trainer
    from slipstream.worlds.vec_env import VecEnv

__version__ = "0.1.0"
__all__ = ["Callback", "Trainer", "evaluate", "load_policy", "load_run", "make", "resume", "train"]

# Imports are inside the functions: `import slipstream` and `slipstream --help` must not load torch.
_CLASSES = {"Callback": "slipstream.run.callbacks", "Trainer": "slipstream.run.trainer"}


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module 'slipstream' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_CLASSES[name]), name)


def make(
    scenario: str | Scenario,
    num_worlds: int = 1,
    seed: int = 0,
    threads: int = 1,
    autoreset: bool = True,
    reward_parts: bool = False,
    **overrides: Any,
) -> VecEnv:
    """A batch of the worlds a scenario describes, reset and ready to step.

    Args:
        scenario: A name (`slipstream scenarios`), a YAML file or a loaded scenario.
        num_worlds: Worlds in the batch.
        seed: World i draws from the stream (seed, i), whatever the batch width.
        threads: Threads that step the batch; the result does not depend on them.
        autoreset: Start the next episode in the same step; otherwise call `reset(mask)`.
        reward_parts: Show the terms of the reward by name.
        **overrides: Settings of the world, such as `neighbor_topk=2`.
    """
    from slipstream.worlds.registry import make_worlds, world_config
    from slipstream.worlds.vec_env import EnvOptions

    options = EnvOptions(seed=seed, threads=threads, autoreset=autoreset, reward_parts=reward_parts)
    worlds = make_worlds(world_config(scenario, overrides), num_worlds, options)
    worlds.reset()
    return worlds


def train(
    scenario: str | Scenario,
    algo: str | None = None,
    timesteps: int | None = None,
    *,
    out: str | Path | None = None,
    runs: str | Path = "runs",
    models: str | Path = "models",
    preset: str | None = None,
    gpu: bool | None = None,
    checkpoint_every: int | None = None,
    log_trajectories: bool | None = None,
    pause_at: int | None = None,
    callbacks: Sequence[Callback] = (),
    **overrides: Any,
) -> Path:
    """Train a scenario and return the path of its final checkpoint.

    Args:
        scenario: A name, a YAML file or a loaded scenario.
        algo: The algorithm, where it is not the scenario's own.
        timesteps: Budget in environment steps.
        out: Folder of the run, new or empty; without it one is made under `runs`.
        runs: Where run folders are made.
        models: Where the final model is written.
        preset: Hyper-parameters: published, published_cpu or published_gpu.
        gpu: Use a GPU, or do not; without it, if there is one.
        checkpoint_every: Steps between periodic checkpoints.
        log_trajectories: Write the track of every evaluation episode as CSV.
        pause_at: Save and return after so many steps; `resume` goes on with the same bits.
        callbacks: Code of yours between updates; see `slipstream.Callback`.
        **overrides: Any field of the scenario, such as `seed=7`; nested ones with two underscores
            (`algo__learning_rate=1e-3`, `world__cars__0__mass_scale=1.1`) or as dicts.
    """
    from pathlib import Path

    from slipstream.config.load import prepare
    from slipstream.run.progress import best_display
    from slipstream.run.session import train as run

    given = {
        "algo.kind": None if algo is None else algo.lower(),
        "timesteps": timesteps,
        "device": None if gpu is None else ("cuda" if gpu else "cpu"),
        "checkpoint.checkpoint_every": checkpoint_every,
        "log.log_trajectories": log_trajectories,
    }
    changes = overrides | {path: value for path, value in given.items() if value is not None}
    return run(
        prepare(scenario, changes, preset),
        root=Path(runs),
        out=None if out is None else Path(out),
        models=Path(models),
        display=best_display(),
        callbacks=callbacks,
        pause_at=pause_at,
    ).checkpoint


def resume(
    path: str | Path,
    timesteps: int | None = None,
    force: bool = False,
    *,
    pause_at: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> Path:
    """Continue a run and return the path of its final checkpoint.

    Args:
        path: The run's folder, one of its checkpoints, or the model that it ended with.
        timesteps: A new budget, counted from the run's beginning; else the one it was begun with.
        force: Where a checkpoint is named and the run has later ones: put those aside, with the metrics since.
        pause_at: Save and return at so many steps in all, or at the run's end; then resume again.
        callbacks: Those that the run was begun with, where they were given in Python.
    """
    from pathlib import Path

    from slipstream.run.progress import best_display
    from slipstream.run.session import resume as run

    display = best_display()
    return run(
        Path(path), timesteps=timesteps, force=force, display=display, pause_at=pause_at, callbacks=callbacks
    ).checkpoint


def evaluate(
    path: str | Path,
    episodes: int = 100,
    *,
    scenario: str | Path | Scenario | None = None,
    seed: int | None = None,
    **overrides: Any,
) -> dict[str, Any]:
    """Judge what a run has learned, and every script of its world, on the same fresh episodes.

    Returns what `slipstream eval --json` prints: figures by policy, each with its mean and 95 % interval.

    Args:
        path: A run's folder, a checkpoint or a model.
        episodes: Of every policy.
        scenario: What to play, where it is not what was trained on.
        seed: Of the episodes; else the scenario's.
        **overrides: Settings of the scenario to play with.
    """
    from pathlib import Path

    from slipstream.config.load import prepare
    from slipstream.judging.judge import as_plain, judge
    from slipstream.run.saved_cast import load_cast

    trained, saved = load_cast(Path(path))
    return as_plain(judge(prepare(trained if scenario is None else scenario, overrides), saved, episodes, seed))


def load_run(path: str | Path) -> RunData:
    """A run's folder as data: `metrics` (a table), `events`, `checkpoints`, `scenario`, `metadata`."""
    from slipstream.run.run_data import load_run as load

    return load(path)


def load_policy(path: str | Path, name: str | None = None, trust: Sequence[str] = ()) -> Policy:
    """A trained policy from a model, checkpoint or run folder; acts with `.act(obs)`, needs no world.

    Args:
        path: A model, a checkpoint or a run's folder.
        name: Which policy, where it holds several.
        trust: Networks that are not Slipstream's own, as module:Class, which may be imported to load it.
    """
    from slipstream.run.policy_file import load_policy as load

    return load(path, name, trust)
