"""Time of one gradient step of each algorithm, ours beside SB3's, with the same shapes and the same number of threads.

    python bench/learners.py [--seconds 4] [--repeats 3]

Observations of 24 numbers, 6 action axes (6 choices for DQN), networks [256, 256], batches of 256 and 4096. A step is
what a user's run pays for it: drawing the batch (replay algorithms), losses, gradients, optimisers, targets; of the
rollout learners an eighth of an update of 8 epochs, with the advantages that begin it. Same work on both sides: DQN
without the double estimate, which SB3 lacks. Every
measurement runs in a process of its own, interleaved; of each the median step counts, and of the repeats the median.
Writes docs/results/learners.json and docs/results/learners.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, machine

OBS, AXES = 24, 6
HIDDEN = (256, 256)
BATCHES = (256, 4096)
SHARED = ("ppo", "sac", "td3", "dqn")
OURS = (*SHARED, "cql", "impala", "appo")
TARGET = 1.3
EPOCHS = 8  # of a rollout learner's update, which is one minibatch long


def median_ms(step: Callable[[], None], seconds: float) -> float:
    """Median time of a step in milliseconds, after a warm-up."""
    warm_up(step)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


def warm_up(step: Callable[[], None]) -> None:
    """Five steps, or as many as a second has."""
    end = time.perf_counter() + 1.0
    for _ in range(5):
        step()
        if time.perf_counter() > end:
            return


# --- ours ---


def our_spec(discrete: bool) -> Any:
    """A world of the right shapes; nothing is stepped."""
    from slipstream.spec import ActionSpec, ObsBlock, WorldSpec

    return WorldSpec(
        name="bench/shapes",
        agents=("a",),
        roles=("a",),
        obs=(ObsBlock("obs", "float32", (OBS,), -10.0, 10.0),),
        action=ActionSpec(discrete=discrete, size=AXES),
    )


def our_step(kind: str, batch: int) -> Callable[[], None]:
    """One gradient step of one of our algorithms on random data."""
    import torch

    from slipstream.algos.protocol import Progress
    from slipstream.algos.registry import ALGORITHMS
    from slipstream.config.algos import AppoConfig, CqlConfig, DqnConfig, ImpalaConfig, PpoConfig, SacConfig, Td3Config

    configs: dict[str, Any] = {
        "ppo": PpoConfig,
        "impala": ImpalaConfig,
        "appo": AppoConfig,
        "sac": SacConfig,
        "td3": Td3Config,
        "dqn": DqnConfig,
        "cql": CqlConfig,
    }
    spec = our_spec(kind == "dqn")
    rollout = kind in ("ppo", "impala", "appo")
    settings: dict[str, Any] = {"hidden": HIDDEN, "normalize_observation": False}
    if rollout:
        settings |= {"minibatch_size": batch, "epochs": EPOCHS, "normalize_value": False}
    if kind == "dqn":
        settings |= {"double": False}  # SB3's has no such thing
    config = configs[kind](**settings)
    learner = ALGORITHMS[kind](config, spec, 1, torch.device("cpu"))
    progress = Progress(0.0, 0, 10**6)
    if rollout:
        slab = our_rollout(spec, batch)
        return lambda: learner.update(slab, progress)
    replay = our_replay(spec, kind == "dqn")
    count = iter(range(10**9))

    def step() -> None:
        learner.update(replay.sample(batch, next(count)), progress)

    return step


def our_replay(spec: Any, discrete: bool) -> Any:
    """A replay of 100,000 random transitions."""
    from slipstream.data.transitions import Transitions
    from slipstream.replay.buffer import Replay

    rng = np.random.default_rng(1)
    rows = 100_000
    obs, following = (rng.normal(size=(rows, OBS)).astype(np.float32) for _ in range(2))
    action = rng.integers(0, AXES, rows).astype(np.int32) if discrete else rng.uniform(-1, 1, (rows, AXES))
    transitions = Transitions(
        obs={"obs": obs},
        action=action if discrete else action.astype(np.float32),
        mask=None,
        reward=rng.normal(size=rows).astype(np.float32),
        discount=np.full(rows, 0.99, np.float32),
        next_obs={"obs": following},
        next_mask=None,
    )
    replay = Replay(transitions, rows, 1)
    replay.add(transitions)
    return replay


def our_rollout(spec: Any, rows: int) -> Any:
    """A rollout of exactly one minibatch: one world, `rows` ticks."""
    from slipstream.data.rollout import allocate_rollout

    rng = np.random.default_rng(1)
    slab = allocate_rollout(spec, rows, 1, 1, discrete=False, choices=0)
    slab.obs["obs"][:] = rng.normal(size=slab.obs["obs"].shape)
    slab.action[:] = rng.normal(size=slab.action.shape)
    slab.logp[:] = -8.0
    slab.decided[1:] = slab.paid[1:] = 1
    slab.duration[:] = 1
    slab.reward[:] = rng.normal(size=slab.reward.shape)
    return slab


def where_time_goes(kind: str, batch: int) -> dict[str, float]:
    """Share of a step in drawing, networks, optimisers and the rest, from timers around each."""
    from slipstream import _core
    from slipstream.nets import mlp
    from slipstream.replay.buffer import Replay

    spent = {"drawing": 0.0, "networks": 0.0, "optimisers": 0.0}

    def timed(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            spent[name] += time.perf_counter() - start
            return result

        return call

    step = our_step(kind, batch)
    warm_up(step)
    saved = Replay.sample, mlp._forward, mlp._backward, _core.adam_step
    Replay.sample = timed("drawing", Replay.sample)  # type: ignore[method-assign]
    mlp._forward = timed("networks", mlp._forward)
    mlp._backward = timed("networks", mlp._backward)
    _core.adam_step = timed("optimisers", _core.adam_step)
    start = time.perf_counter()
    while (total := time.perf_counter() - start) < 1.0:
        step()
    Replay.sample, mlp._forward, mlp._backward, _core.adam_step = saved  # type: ignore[method-assign]
    shares = {name: seconds / total for name, seconds in spent.items()}
    return {**shares, "losses and the rest": 1.0 - sum(shares.values())}


# --- SB3 ---


def sb3_step(kind: str, batch: int) -> Callable[[], None]:
    """One gradient step of SB3's algorithm of that name on random data."""
    import gymnasium
    import torch
    from stable_baselines3 import DQN, PPO, SAC, TD3
    from stable_baselines3.common.logger import configure

    class Shapes(gymnasium.Env[Any, Any]):
        """A world of the right shapes."""

        observation_space = gymnasium.spaces.Box(-10, 10, (OBS,), np.float32)
        action_space: Any = gymnasium.spaces.Discrete(AXES) if kind == "dqn" else gymnasium.spaces.Box(-1, 1, (AXES,))

        def reset(self, **kwargs: Any) -> Any:
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 0.0, False, False, {}

    net = {"net_arch": list(HIDDEN), "activation_fn": torch.nn.ReLU}
    common: dict[str, Any] = {"policy_kwargs": net, "device": "cpu", "seed": 1}
    rng = np.random.default_rng(1)
    if kind == "ppo":
        net["activation_fn"] = torch.nn.Tanh
        model: Any = PPO("MlpPolicy", Shapes(), n_steps=batch, batch_size=batch, n_epochs=EPOCHS, **common)
        model.set_logger(configure(None, []))
        buffer = model.rollout_buffer
        buffer.reset()
        for _ in range(batch):
            buffer.add(
                rng.normal(size=(1, OBS)).astype(np.float32),
                rng.normal(size=(1, AXES)).astype(np.float32),
                rng.normal(size=1),
                np.zeros(1),
                torch.zeros(1),
                torch.full((1,), -8.0),
            )
        buffer.compute_returns_and_advantage(torch.zeros(1), np.zeros(1))
        return model.train
    model = {"sac": SAC, "td3": TD3, "dqn": DQN}[kind](
        "MlpPolicy", Shapes(), buffer_size=100_000, batch_size=batch, learning_starts=0, **common
    )
    model.set_logger(configure(None, []))
    buffer = model.replay_buffer
    for name in ("observations", "next_observations", "rewards"):
        array = getattr(buffer, name)
        array[:] = rng.normal(size=array.shape)
    buffer.pos, buffer.full = 0, True
    return lambda: model.train(gradient_steps=1, batch_size=batch)


# --- all of it ---


def child(who: str, kind: str, batch: int, threads: int, seconds: float) -> None:
    """One measurement, as JSON on the last line."""
    import torch

    from slipstream import _core

    torch.set_num_threads(threads if who == "sb3" else 1)
    _core.set_kernel_threads(threads)
    if who == "ours":
        _core.keep_freed_memory()  # as every run of ours does
    steps = EPOCHS if kind in ("ppo", "impala", "appo") else 1
    result: dict[str, Any] = {"ms": median_ms((our_step if who == "ours" else sb3_step)(kind, batch), seconds) / steps}
    if who == "ours":
        result["shares"] = where_time_goes(kind, batch)
    print(json.dumps(result))


def measure(who: str, kind: str, batch: int, threads: int, seconds: float) -> dict[str, Any]:
    """One measurement in a fresh process."""
    words = ["--child", who, kind, str(batch), str(threads), "--seconds", str(seconds)]
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{who} {kind} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(OURS), help="algorithms")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        who, kind, batch, threads = args.child
        child(who, kind, int(batch), int(threads), args.seconds)
        return
    rows = []
    for kind in args.only:
        for batch in BATCHES:
            for threads in (1, 2):
                times: dict[str, list[float]] = {"ours": [], "sb3": []}
                shares: dict[str, float] = {}
                for _ in range(args.repeats if kind in SHARED else 1):
                    for who in ("ours", "sb3") if kind in SHARED else ("ours",):
                        result = measure(who, kind, batch, threads, args.seconds)
                        times[who].append(result["ms"])
                        shares = result.get("shares", shares)
                ours = float(np.median(times["ours"]))
                peer = float(np.median(times["sb3"])) if times["sb3"] else None
                rows.append(
                    {
                        "algo": kind,
                        "batch": batch,
                        "threads": threads,
                        "ours_ms": ours,
                        "sb3_ms": peer,
                        "ratio": None if peer is None else peer / ours,
                        "shares": shares,
                        "all": times,
                    }
                )
                print(_line(rows[-1]), flush=True)
    if set(args.only) >= set(SHARED):
        command = " ".join(["python", "bench/learners.py", *sys.argv[1:]])
        record = {"benchmark": "learners", "command": command, **machine(), "rows": rows}
        (RESULTS / "learners.json").write_text(json.dumps(record, indent=1) + "\n")
        (RESULTS / "learners.md").write_text(page(record))


def _line(row: dict[str, Any]) -> str:
    peer = "" if row["sb3_ms"] is None else f"SB3 {row['sb3_ms']:8.2f} ms   ratio {row['ratio']:.2f}"
    shares = ", ".join(f"{name} {share:.0%}" for name, share in row["shares"].items())
    return (
        f"{row['algo']:<7} batch {row['batch']:<5} {row['threads']} thread{'s' * (row['threads'] > 1):<1} "
        f"ours {row['ours_ms']:8.2f} ms   {peer:<34} {shares}"
    )


def page(record: dict[str, Any]) -> str:
    """The results as a page."""
    lines = [
        "# One gradient step, beside SB3's",
        "",
        "Time of one gradient step, ours and SB3's, with the same number of threads. The target is "
        f"{TARGET} times SB3's speed.",
        "",
        "| algorithm | batch | threads | ours, ms | SB3, ms | ratio | where our time goes |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        peer = "–" if row["sb3_ms"] is None else f"{row['sb3_ms']:.2f}"
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2f}"
        shares = ", ".join(f"{name} {share:.0%}" for name, share in row["shares"].items())
        what = f"{row['algo']} | {row['batch']} | {row['threads']}"
        lines.append(f"| {what} | {row['ours_ms']:.2f} | {peer} | {ratio} | {shares} |")
    lines += [
        "",
        f"Medians of `{record['command']}` on {record['cpu']}, commit {record['commit']}, {record['date']}. "
        f"Observations have {OBS} numbers, actions {AXES} axes ({AXES} choices for DQN), networks {list(HIDDEN)}. A "
        "step includes drawing the batch, losses, gradients, optimisers and targets. For PPO, IMPALA and APPO it is an "
        f"eighth of an {EPOCHS}-epoch update. DQN is without the double estimate, which SB3 lacks.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
