"""Where slabs come from: beside the learner on a thread, in turn with it, or from nowhere."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broken_env import BROKEN
from learning import digest, scenario_of, signal_while_held, tiny
from safetensors.numpy import load_file

from slipstream.collect.episodes import play
from slipstream.collect.teams import Team
from slipstream.config.load import dump, from_plain, load, override, to_plain
from slipstream.data import checkpoint
from slipstream.errors import CheckpointError, ScenarioError, WorldContractError
from slipstream.run import session, sources
from slipstream.run.metrics import read_rows
from slipstream.run.policy_file import load_policy
from slipstream.run.progress import Display
from slipstream.run.saved_cast import Loaded, scripted_team
from slipstream.run.session import resume, train
from slipstream.run.setup import make_evaluation_worlds

LAGGED = ("impala", "appo")


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert [thread for thread in threading.enumerate() if thread not in before] == []


def beside(kind: str, overlap: str = "deterministic", lag: int = 1, **changes: Any) -> dict[str, Any]:
    return {**tiny(kind), "collect.overlap": overlap, "collect.lag": lag, **changes}


@pytest.mark.parametrize("kind", ["ppo", "reinforce"])
def test_an_algorithm_that_cannot_learn_from_an_older_policy_is_refused_beside_a_collector(kind, tmp_path):
    world = "probe_target"
    with pytest.raises(ScenarioError, match=rf"^collect\.overlap: 'free' .* {kind} \(policies\.main\) "):
        train(scenario_of(world, beside(kind, "free")), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", LAGGED)
def test_a_slab_is_learned_from_as_late_as_the_lag_says(kind, tmp_path):
    result = train(scenario_of("probe_constant", beside(kind, lag=3)), out=tmp_path / "run", models=tmp_path / "models")
    lags = [row["train/lag"] for row in read_rows(result.run / "metrics.jsonl")]
    assert lags == [0, 1, 2, 3, 3, 3, 3, 3]
    row = list(read_rows(result.run / "metrics.jsonl"))[-1]
    assert "perf/time_wait_frac" in row  # what collecting costs beside the learner is waiting for it
    assert "perf/time_act_frac" not in row


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("sac", {}),
        ("td3", {"exploration_noise": [[0.0, 0.9], [1.0, 0.0]]}),
        ("dqn", {"epsilon": [[0.0, 1.0], [1.0, 0.0]]}),
    ],
)
@pytest.mark.parametrize("overlap", ["deterministic", "free"])
def test_beside_its_learner_a_policy_explores_as_it_would_in_turn(overlap, kind, own, tmp_path):
    """Without a gradient step all weights are the same, and what is left is how each slab was explored."""
    still = {"learning_starts": 96, "training_intensity": 1e-6, **own}

    def rows(name: str, overlap: str) -> str:
        scenario = scenario_of("probe_target", {**tiny(kind, **still), "collect.overlap": overlap, "collect.lag": 2})
        result = train(scenario, out=tmp_path / name, models=tmp_path / "models")
        told = [(row["env/return_mean"], row["train/rows"]) for row in read_rows(result.run / "metrics.jsonl")]
        return str(told) + "".join(digest(load_file(path)) for path in sorted(result.run.glob("replay/main/*")))

    in_turn = rows("in_turn", "none")
    assert in_turn.count("(") == 8
    assert rows("beside", overlap) == in_turn


@pytest.mark.parametrize(("kind", "task"), [("td3", "target"), ("sac", "delayed"), ("dqn", "corridor")])
def test_a_learner_from_replay_solves_a_probe_whose_slabs_are_three_updates_old(kind, task, tmp_path):
    beside = {"seed": 1, "algo.kind": kind, "collect.overlap": "deterministic", "collect.lag": 3}
    scenario = scenario_of(f"probe_{task}", {**beside, "evaluate.evaluation_interval": 1000})
    result = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    worlds = make_evaluation_worlds(scenario, 64)
    best = scripted_team("best", tuple(range(worlds.spec.num_agents)), "best", worlds.spec, "script")
    policy = load_policy(result.model)
    trained = Team("main", best.agents, Loaded(policy), discrete=policy.record.actor.discrete)
    mine, theirs = (play(worlds, [team], 64, seed=5).team_returns.mean() for team in (trained, best))
    assert mine == pytest.approx(theirs, rel=0.05)


def test_nobody_lags_in_turn(tmp_path):
    scenario = scenario_of("probe_constant", {**tiny("impala"), "collect.overlap": "none"})
    result = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    rows = list(read_rows(result.run / "metrics.jsonl"))
    assert not [row for row in rows if "train/lag" in row]
    assert "perf/time_act_frac" in rows[-1]


def test_the_lag_is_that_of_the_weights_that_acted(tmp_path, monkeypatch):
    """Every update writes its number into the weights; what acts must be that old."""

    acted = []
    real = sources.ActingNetwork.load

    def spy(self: Any, arrays: dict[str, np.ndarray]) -> None:
        acted.append(float(arrays["actor.head.bias"][0]))
        real(self, arrays)

    monkeypatch.setattr(sources.ActingNetwork, "load", spy)
    real_cast = session.make_cast

    def numbered(*args: Any) -> Any:
        cast = real_cast(*args)
        (learner,) = cast.learners.values()

        def update(rollout: Any, progress: Any) -> dict[str, float]:
            learner.actor.head.bias.data[0] = progress.update + 1
            return {"rows": 1.0}

        learner.update = update
        learner.actor.head.bias.data[0] = 0
        return cast

    monkeypatch.setattr(session, "make_cast", numbered)
    train(scenario_of("probe_constant", beside("impala", lag=2)), out=tmp_path / "run", models=tmp_path / "models")
    assert acted[:8] == [0, 0, 0, 1, 2, 3, 4, 5]  # slab i acts with version max(0, i - 2)


@pytest.mark.parametrize("kind", LAGGED)
def test_free_collecting_learns_to_the_end_of_its_budget_and_can_be_resumed(kind, tmp_path):
    class Stop(Display):
        def advance(self, done: int, text: str) -> None:
            if done == 128:
                os.kill(os.getpid(), signal.SIGINT)

    changes = {"algo.minibatch_size": 12, "collect.prefetch": 2}
    scenario = scenario_of("probe_leaver", beside(kind, "free", **changes))
    half = train(scenario, out=tmp_path / "run", models=tmp_path / "models", display=Stop())
    assert (half.interrupted, half.counters.steps) == (True, 128)
    result = resume(half.run, models=tmp_path / "models")
    assert (result.interrupted, result.counters.steps) == (False, 256)
    rows = list(read_rows(result.run / "metrics.jsonl"))
    assert [row["timesteps_total"] for row in rows] == [32 * i for i in range(1, 9)]
    # A slab waits in a queue of two, and one may have begun before; no version is ever ahead.
    assert all(0 <= row["train/lag"] <= 3 for row in rows)


def test_evaluating_and_saving_do_not_disturb_a_deterministic_collector(tmp_path):
    often = {"evaluate.evaluation_interval": 1, "checkpoint.checkpoint_every": 32}
    never = {"evaluate.evaluation_interval": None, "checkpoint.checkpoint_every": 10**9}
    runs = [
        train(scenario_of("probe_alternating", beside("impala", **changes)), out=tmp_path / name, models=tmp_path / "m")
        for name, changes in (("often", often), ("never", never))
    ]
    one, other = (digest(checkpoint.load(result.checkpoint).arrays) for result in runs)
    assert one == other


@pytest.mark.parametrize("overlap", ["deterministic", "free"])
def test_an_exception_in_the_world_reaches_the_caller(overlap, tmp_path):
    plain = to_plain(scenario_of("probe_constant", beside("impala", overlap)))
    plain["world"] = {"kind": "gymnasium", "id": BROKEN}
    plain["evaluate"]["evaluation_interval"] = None
    with pytest.raises(WorldContractError, match=r"world 0, step 5: .*OSError: ") as caught:
        train(from_plain(plain), out=tmp_path / "run", models=tmp_path / "models")
    assert isinstance(caught.value.__cause__, OSError)
    rows = list(read_rows(tmp_path / "run" / "metrics.jsonl"))
    assert len(rows) <= 2  # of what was collected before


def test_an_exception_in_the_learner_stops_the_collector(tmp_path):
    class Crash(Display):
        def advance(self, done: int, text: str) -> None:
            raise RuntimeError("the learner went down")

    with pytest.raises(RuntimeError, match="the learner went down"):
        train(scenario_of("probe_constant", beside("impala", "free")), out=tmp_path / "run", display=Crash())


def test_a_lag_that_was_changed_is_refused_when_resuming(tmp_path):
    half = train(
        scenario_of("probe_constant", beside("impala", lag=2)), out=tmp_path / "run", models=tmp_path / "models"
    )
    changed = override(load(half.run / "scenario.yaml"), {"collect.lag": 1})
    (half.run / "scenario.yaml").write_text(dump(changed))
    with pytest.raises(CheckpointError, match=r"^collect\.overlap, collect\.lag: .* 3 slabs .*lag of 1 .* 2;"):
        resume(half.run, timesteps=512, models=tmp_path / "models")


@pytest.mark.parametrize("overlap", ["free", "deterministic"])
def test_ctrl_c_ends_a_run_that_collects_beside_its_learner_after_its_update(overlap, tmp_path):
    endless = ["train", "probe_leaver", "--algo", "impala", "--timesteps", "1e9", "--checkpoint-every", "1e9"]
    endless += ["--out", "run", "--collect.num-worlds", "4", "--collect.rollout-length", "8", "--learner-threads", "2"]
    endless += ["--algo.minibatch-size", "12", "--collect.overlap", overlap, "--collect.lag", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "slipstream.cli.main", *endless],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_rows(tmp_path / "run", process)
    before = signal_while_held(process, signal.SIGINT, tmp_path / "run")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, "Traceback" in out + err) == (0, False), err
    assert re.search(r"everything is saved; continue with: slipstream resume run$", out, re.MULTILINE)
    rows = [row["timesteps_total"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")]
    assert len(rows) <= before + 1
    steps = rows[-1]
    more = resume(tmp_path / "run", timesteps=steps + 64, models=tmp_path / "models")
    assert more.counters.steps == steps + 64


def wait_for_rows(run: Path, process: subprocess.Popen[str], count: int = 3) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        if (run / "metrics.jsonl").exists() and len(list(read_rows(run / "metrics.jsonl"))) >= count:
            return
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate())
