"""End-to-end training speed of PPO beside RLlib's, on the same world with the same settings.

    .venv-rllib/bin/python bench/rllib.py [--updates 4] [--repeats 5]    (make test-rllib sets up .venv-rllib)

Both train `head_on`, two aircraft with one policy, as the scenario says: the same networks, 64 worlds, a batch of 4096
steps, minibatches of 1024 rows and 6 epochs. RLlib gets the world through `slipstream.scale.rllib`, with worlds in the
learner's process and with two env runners; the better rate counts. It has one torch thread, with which it was faster
than with two when that was tried. Ours has the threads it chooses itself; it writes its run folder and normalises
observations and returns, RLlib does neither; neither evaluates. Every measurement runs in a process of its own, in
turn, ours over ten times as many updates so that both take seconds; the first update of each is not counted, but in our
CPU seconds. Writes docs/results/rllib.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

import psutil
from cells import RESULTS, machine

from slipstream.config.load import load

SCENARIO = "head_on"
TARGET = 10.0
RATES = ("steps_per_s", "steps_per_cpu_s")
KINDS = ("ours", "rllib:0", "rllib:2")  # env runners


def ours(updates: int) -> dict[str, float]:
    """Steps per second, and rows learned from in an update (all epochs), from the run's own metrics."""
    from slipstream.run.metrics import read_rows
    from slipstream.run.session import train

    whole = load(SCENARIO)
    changes = {
        "device": "cpu",
        "timesteps": whole.rollout_steps * (updates + 1),
        "evaluate.evaluation_interval": None,
        "stop.zero_conflict_streak": None,
    }
    began = cpu_s()
    with tempfile.TemporaryDirectory() as folder:
        result = train(load(SCENARIO, changes), root=Path(folder) / "runs", models=Path(folder) / "models")
        spent = cpu_s() - began
        rows = list(read_rows(result.run / "metrics.jsonl"))
    steps = rows[-1]["timesteps_total"] - rows[0]["timesteps_total"]
    agent_steps = rows[-1]["agent_steps_total"] - rows[0]["agent_steps_total"]
    return {
        "steps_per_s": steps / (rows[-1]["time_total_s"] - rows[0]["time_total_s"]),
        "steps_per_cpu_s": rows[-1]["timesteps_total"] / spent,
        "rows_per_update": whole.algo.epochs * agent_steps / updates,
    }


def rllib(updates: int, runners: int) -> dict[str, float]:
    """The same of RLlib's PPO."""
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    from slipstream.scale.cluster import joined
    from slipstream.scale.rllib import register

    scenario = load(SCENARIO)
    algo, collect = scenario.algo, scenario.collect
    network = DefaultModelConfig(
        fcnet_hiddens=list(algo.hidden),
        fcnet_activation=algo.activation,
        vf_share_layers=algo.shared_torso,
        free_log_std=True,
    )
    config = (
        PPOConfig()
        .environment(f"slipstream/{SCENARIO}")
        .multi_agent(policies={"main"}, policy_mapping_fn=lambda agent, episode, **_: "main")
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=collect.num_worlds // max(runners, 1),
            rollout_fragment_length=collect.rollout_length,
        )
        .rl_module(model_config=network)
        .training(
            train_batch_size_per_learner=scenario.rollout_steps,
            minibatch_size=algo.minibatch_size,
            num_epochs=algo.epochs,
            lr=algo.learning_rate,
            gamma=algo.gamma,
            lambda_=algo.gae_lambda,
            clip_param=algo.clip_coef,
            vf_clip_param=float("inf"),
            vf_loss_coeff=algo.value_coef,
            entropy_coeff=algo.entropy_coef,
            use_kl_loss=False,
            grad_clip=algo.max_grad_norm,
        )
        .debugging(seed=1, log_level="ERROR")
    )
    torch.set_num_threads(1)
    with joined(None, runners):
        register()
        learner = config.build_algo()
        steps = learner.train()["num_env_steps_sampled_lifetime"]
        began, before = time.perf_counter(), cpu_s()
        results = [learner.train() for _ in range(updates)]
        seconds, spent = time.perf_counter() - began, cpu_s() - before
        learner.stop()
    steps = float(results[-1]["num_env_steps_sampled_lifetime"] - steps)
    trained = [result["learners"]["main"]["num_module_steps_trained"] for result in results]
    return {
        "steps_per_s": steps / seconds,
        "steps_per_cpu_s": steps / spent,
        "rows_per_update": float(sum(trained)) / updates,
    }


def cpu_s() -> float:
    """CPU seconds of this process and all it has started, Ray's own too."""
    here = psutil.Process()
    times = [process.cpu_times() for process in [here, *here.children(recursive=True)]]
    return sum(each.user + each.system for each in times)


def measure(kind: str, updates: int) -> dict[str, Any]:
    """One measurement in a fresh process."""
    command = [sys.executable, __file__, "--updates", str(updates), "--child", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{kind} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=4, help="updates of RLlib's counted in each measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        kind, _, runners = args.child.partition(":")
        print(json.dumps(ours(10 * args.updates) if kind == "ours" else rllib(args.updates, int(runners))))
        return
    cells: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for repeat in range(args.repeats):
        for kind in KINDS:
            cells[kind].append(measure(kind, args.updates))
            wall, cpu = (cells[kind][-1][key] for key in RATES)
            print(f"repeat {repeat + 1}: {kind:<8} {wall:>10,.0f} steps/s {cpu:>10,.0f} steps/CPU s", flush=True)
        report(cells)


def report(cells: dict[str, list[dict[str, Any]]]) -> None:
    """Print and keep the medians of the repeats so far."""
    medians = {key: {kind: median(cell[key] for cell in found) for kind, found in cells.items()} for key in RATES}
    ratios = {}
    for key, rates in medians.items():
        best = max(KINDS[1:], key=rates.__getitem__)
        ratios[key] = rates["ours"] / rates[best]
        runners = best.removeprefix("rllib:")
        print(
            f"{key:<16} slipstream {rates['ours']:>8,.0f}  RLlib {rates[best]:>7,.0f} ({runners} env runners)", end=""
        )
        print(f"  ratio {ratios[key]:.1f} (target {TARGET:g}; medians of {len(cells['ours'])})")
    record = {"benchmark": "rllib", **machine(), "ray": version("ray"), "load": os.getloadavg()[1]}
    record |= {"cells": cells, "medians": medians, "ratios": ratios}
    (RESULTS / "rllib.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
