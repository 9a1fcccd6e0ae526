"""End-to-end training speed of PPO with the published hyper-parameters, beside SB3's on the same world.

    python bench/train.py [--updates 6] [--repeats 3]

Both train on `horizontal_cr` (one agent) with the same network, batch, minibatch and epochs. SB3 gets the world through
our Gymnasium adapter, once with one and once with two torch threads, and its better rate counts. Every measurement runs
in a process of its own, interleaved; the first update of each is not counted. Writes docs/results/train.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, machine

SCENARIO = "horizontal_cr"
PRESET = "published_cpu"
SHAPE = {"device": "cpu", "collect.num_worlds": 32, "collect.rollout_length": 128}  # a batch of 4096, both the same


def ours(updates: int) -> dict[str, Any]:
    """Steps per second and the share of each phase, from the run's own metrics."""
    import tempfile

    from slipstream.config.load import load
    from slipstream.run.metrics import read_rows
    from slipstream.run.session import train

    scenario = load(SCENARIO, SHAPE, preset=PRESET)
    changes = {
        **SHAPE,
        "timesteps": scenario.rollout_steps * (updates + 1),
        "evaluate.evaluation_interval": None,
        "stop.zero_conflict_streak": None,
        "checkpoint.checkpoint_every": 10**9,
    }
    scenario = load(SCENARIO, changes, preset=PRESET)
    with tempfile.TemporaryDirectory() as folder:
        result = train(scenario, root=Path(folder) / "runs", models=Path(folder) / "models")
        rows = list(read_rows(result.run / "metrics.jsonl"))
        threads = load(result.run / "scenario.yaml").learner_threads
    seconds = rows[-1]["time_total_s"] - rows[0]["time_total_s"]
    steps = rows[-1]["timesteps_total"] - rows[0]["timesteps_total"]
    phases = sorted({key for row in rows for key in row if key.startswith("perf/time_")})
    shares = {
        key.removeprefix("perf/time_").removesuffix("_frac"): sum(row.get(key, 0.0) for row in rows[1:])
        / (len(rows) - 1)
        for key in phases
    }
    return {"steps_per_s": steps / seconds, "shares": shares, "threads": threads}


def sb3(updates: int, threads: int) -> dict[str, Any]:
    """Steps per second of SB3's PPO with the same settings."""
    import gymnasium
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    import slipstream.worlds.gymnasium_env  # noqa: F401  registers slipstream/…
    from slipstream.config.load import load

    torch.set_num_threads(threads)
    scenario = load(SCENARIO, SHAPE, preset=PRESET)
    algo, collect = scenario.algo, scenario.collect
    starts: list[float] = []

    class Clock(BaseCallback):
        def _on_rollout_start(self) -> None:
            starts.append(time.perf_counter())

        def _on_step(self) -> bool:
            return True

    env = DummyVecEnv([lambda: gymnasium.make("slipstream/HorizontalCr-v0") for _ in range(collect.num_worlds)])
    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[algo.activation]
    model = PPO(
        "MlpPolicy",
        env,
        learning_rate=3e-4,
        n_steps=collect.rollout_length,
        batch_size=algo.minibatch_size,
        n_epochs=algo.epochs,
        gamma=algo.gamma,
        gae_lambda=algo.gae_lambda,
        clip_range=algo.clip_coef,
        ent_coef=0.01,
        vf_coef=algo.value_coef,
        max_grad_norm=algo.max_grad_norm,
        policy_kwargs={
            "net_arch": {"pi": list(algo.hidden), "vf": list(algo.hidden)},
            "activation_fn": activation,
        },
        device="cpu",
        seed=1,
    )
    model.learn(scenario.rollout_steps * (updates + 1), callback=Clock())
    starts.append(time.perf_counter())
    return {"steps_per_s": scenario.rollout_steps * updates / (starts[-1] - starts[1])}


def measure(what: str, updates: int) -> dict[str, Any]:
    """One measurement in a fresh process."""
    command = [sys.executable, __file__, "--updates", str(updates), "--child", what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{what} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=6, help="updates counted in each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        kind, _, threads = args.child.partition(":")
        print(json.dumps(ours(args.updates) if kind == "ours" else sb3(args.updates, int(threads))))
        return
    kinds = ("ours", "sb3:1", "sb3:2")
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    last: dict[str, Any] = {}
    for repeat in range(args.repeats):
        for kind in kinds:
            result = measure(kind, args.updates)
            rates[kind].append(result["steps_per_s"])
            last = result if kind == "ours" else last
            print(f"repeat {repeat + 1}: {kind:<6} {result['steps_per_s']:>10,.0f} steps/s", flush=True)
    best = {kind: sorted(values)[len(values) // 2] for kind, values in rates.items()}
    peer = max(best["sb3:1"], best["sb3:2"])
    ratio = best["ours"] / peer
    print(f"\nslipstream  {best['ours']:>10,.0f} steps/s  ({last['threads']} learner threads)")
    print(f"SB3         {peer:>10,.0f} steps/s  (1 thread {best['sb3:1']:,.0f}, 2 threads {best['sb3:2']:,.0f})")
    print(f"ratio       {ratio:>10.2f}   (target 3; medians of {args.repeats})")
    print("where our time goes: " + ", ".join(f"{k} {v:.0%}" for k, v in last["shares"].items()))
    record = {"benchmark": "train", **machine(), "rates": rates, "ratio": ratio, "shares": last["shares"]}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "train.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
