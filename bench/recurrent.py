"""PPO with a memory beside PPO with a perceptron of the same width, and beside sb3-contrib's RecurrentPPO.

    python bench/recurrent.py [--updates 12] [--repeats 3]

`head_on` (native) with networks mlp, gru and lstm: hidden layers [64, 64] for all, cells of size 64 on top of them for
gru and lstm, everything else equal. The cost of a memory is the CPU time of a step with it by that of a step without,
over whole updates: collecting, values, 8 epochs of minibatches.
Then CartPole: our lstm and RecurrentPPO with the same rollout, minibatches, epochs and sizes, once with a memory for
the critic of its own, as is usual there, and once with a shared one; its better rate counts.
Every measurement runs in a process of its own on one thread, interleaved; the first updates are not counted, and of
the repeats the median counts. Needs an otherwise idle machine. Writes docs/results/recurrent.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, machine

SIZE = 64
WIDTHS = [SIZE, SIZE]
WARM_UP = 2  # updates
MEMORY_TARGET, PEER_TARGET = 3.0, 3.0
PPO = {"minibatch_size": 256, "epochs": 8, "gamma": 0.98, "gae_lambda": 0.8, "clip_coef": 0.2}
SHAPES = {
    "head_on": {"num_worlds": 64, "rollout_length": 64},
    "cartpole": {"num_worlds": 16, "rollout_length": 128},
}
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"kind": "mlp"},
    "gru": {"kind": "gru", "size": SIZE, "length": 32},
    "lstm": {"kind": "lstm", "size": SIZE, "length": 32},
}
OURS = [*(("head_on", network) for network in NETWORKS), ("cartpole", "mlp"), ("cartpole", "lstm")]
PEERS = [("cartpole", "contrib"), ("cartpole", "contrib-shared")]


def ours(task: str, network: str, updates: int) -> dict[str, float]:
    """CPU time of a step of the world, and the fractions of it that go into acting and into updates."""
    import slipstream
    from slipstream.config.load import load

    changes = {
        **{f"algo.{name}": value for name, value in PPO.items()},
        **{f"collect.{name}": value for name, value in SHAPES[task].items()},
        "algo.hidden": WIDTHS,
        "algo.network": NETWORKS[network],
        "collect.workers": 0,
        "collect.world_threads": 1,
        "learner_threads": 1,
        "device": "cpu",
        "evaluate.evaluation_interval": None,
        "stop.zero_conflict_streak": None,
        "checkpoint.checkpoint_every": 10**9,
        "timesteps": 10**9,
    }
    with tempfile.TemporaryDirectory() as folder:
        scenario = load(task, changes)
        with slipstream.Trainer(scenario, out=Path(folder) / "run", models=Path(folder) / "models") as trainer:
            for _ in range(WARM_UP):
                trainer.step()
            begin, steps = time.process_time(), trainer.steps
            for _ in range(updates):
                trainer.step()
            seconds, steps = time.process_time() - begin, trainer.steps - steps
            rows = list(trainer.metrics)[WARM_UP:]
    parts = {name: statistics.mean(row[f"perf/time_{name}_frac"] for row in rows) for name in ("act", "update")}
    return {"us_per_step": 1e6 * seconds / steps, **parts}


def contrib(task: str, shared: bool, updates: int) -> dict[str, float]:
    """The same of RecurrentPPO."""
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    assert task == "cartpole"
    torch.set_num_threads(1)
    shape = SHAPES[task]
    starts: list[float] = []

    class Clock(BaseCallback):
        def _on_rollout_start(self) -> None:
            starts.append(time.process_time())

        def _on_step(self) -> bool:
            return True

    model = RecurrentPPO(
        "MlpLstmPolicy",
        make_vec_env("CartPole-v1", n_envs=shape["num_worlds"], seed=1),
        n_steps=shape["rollout_length"],
        batch_size=PPO["minibatch_size"],
        n_epochs=PPO["epochs"],
        gamma=PPO["gamma"],
        gae_lambda=PPO["gae_lambda"],
        clip_range=PPO["clip_coef"],
        policy_kwargs={
            "net_arch": {"pi": WIDTHS[:1], "vf": WIDTHS[:1]},
            "lstm_hidden_size": SIZE,
            "shared_lstm": shared,
            "enable_critic_lstm": not shared,
        },
        device="cpu",
        seed=1,
    )
    rollout = shape["num_worlds"] * shape["rollout_length"]
    model.learn(rollout * (updates + WARM_UP), callback=Clock())
    starts.append(time.process_time())
    return {"us_per_step": 1e6 * (starts[-1] - starts[WARM_UP]) / (rollout * updates)}


def measure(what: tuple[str, str], updates: int) -> dict[str, float]:
    """One measurement in a fresh process."""
    command = [sys.executable, __file__, "--updates", str(updates), "--child", ":".join(what)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{':'.join(what)} failed:\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def child(what: str, updates: int) -> dict[str, float]:
    """What a fresh process does."""
    task, network = what.split(":")
    if network in NETWORKS:
        return ours(task, network, updates)
    return contrib(task, network == "contrib-shared", updates)


Found = dict[tuple[str, str], list[dict[str, float]]]


def ratios(found: Found) -> dict[str, float]:
    """What a memory costs, by what the perceptron does: of all, and of acting and updates alone."""

    def cost(task: str, network: str, part: str | None = None) -> float:
        return statistics.median(
            each["us_per_step"] * (1.0 if part is None else each[part]) for each in found[task, network]
        )

    memories = [what for what in OURS if what[1] != "mlp"]
    made = {f"{network} on {task}": cost(task, network) / cost(task, "mlp") for task, network in memories}
    for part in ("act", "update"):
        for task, network in memories:
            made[f"{network} on {task}, {part}"] = cost(task, network, part) / cost(task, "mlp", part)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=12, help="updates counted in each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.child, args.updates)))
        return
    load = os.getloadavg()[0]  # of others, before this begins
    found: Found = {what: [] for what in (*OURS, *PEERS)}
    for repeat in range(args.repeats):
        for what, results in found.items():
            results.append(measure(what, args.updates))
            print(f"repeat {repeat + 1}: {':'.join(what):<24} {results[-1]['us_per_step']:8.1f} µs a step", flush=True)
    median = {what: statistics.median(each["us_per_step"] for each in results) for what, results in found.items()}
    peer = min(median[what] for what in PEERS) / median["cartpole", "lstm"]
    print(f"\nCPU time by that of the perceptron (target: at most {MEMORY_TARGET:g} in all)")
    for name, ratio in ratios(found).items():
        print(f"{name:<28} {ratio:6.2f}")
    print(f"steps per CPU second by RecurrentPPO's (target: at least {PEER_TARGET:g})")
    print(f"{'lstm on cartpole':<28} {peer:6.2f}")
    runs = {":".join(what): results for what, results in found.items()}
    record = {
        "benchmark": "recurrent",
        **machine(),
        "load": load,
        "runs": runs,
        "ratios": ratios(found),
        "peer_ratio": peer,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "recurrent.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
