"""Workers that collect: the same bits whatever their number, and what happens when they fail, die or stall."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from broken_env import BROKEN
from interrupted import PPO, StopAfter, learned_by
from learning import TINY, digest, recast, scenario_of, tiny
from worker_faults import scenario_of as small
from worker_faults import training
from worker_faults import workers as living

from slipstream.collect.messages import Collect
from slipstream.collect.pool import WorkerPool
from slipstream.config.load import dump, from_plain, load, override, to_plain
from slipstream.config.scenario import Scenario
from slipstream.data import checkpoint
from slipstream.errors import ScenarioError, WorkerDied
from slipstream.run.metrics import metrics_hash, read_rows
from slipstream.run.processes import workers
from slipstream.run.progress import Display
from slipstream.run.session import resume, train
from slipstream.runtime import packets
from slipstream.runtime.fork_server import ForkServer


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No thread, child or descriptor outlives a run."""
    here = psutil.Process()
    before = set(threading.enumerate()), len(here.children(recursive=True)), here.num_fds()
    yield
    left = [thread for thread in threading.enumerate() if thread not in before[0]]
    assert left == []
    assert len(here.children(recursive=True)) <= before[1]
    assert here.num_fds() <= before[2]  # one of an earlier test may have been closed in the meantime


def run(scenario: Scenario, folder: Path, name: str, display: Any = None, **collect: Any) -> Path:
    changed = override(scenario, {f"collect.{key}": value for key, value in collect.items()})
    result = train(changed, out=folder / name, models=folder / "models", display=display)
    # A signal meant for the tests (`timeout` sends SIGTERM) ends a run as it should, and the tests go on: say so here,
    # or a run that is short would be taken for one with other bits.
    assert result.interrupted == isinstance(display, StopAfter), f"the run was stopped: {result.reason}"
    return result.run


def fingerprint(folder: Path) -> tuple[str, str]:
    """Weights, optimiser, worlds, slabs in flight; and the metrics."""
    saved = checkpoint.load_latest(folder / "checkpoints").checkpoint
    return digest(saved.arrays), metrics_hash(folder / "metrics.jsonl")


# --- the same bits ---


def test_one_two_four_and_eight_processes_learn_the_same_bits_as_none(tmp_path):
    eight = {"collect.num_worlds": 8, "collect.rollout_length": 4, "world.max_episode_steps": 12}
    scenario = scenario_of("head_on", {**TINY, **eight})
    alone = fingerprint(run(scenario, tmp_path, "alone"))
    assert [fingerprint(run(scenario, tmp_path, f"by_{n}", workers=n)) for n in (1, 2, 4, 8)] == [alone] * 4


def several() -> Scenario:
    three = {"a": {"kind": "learning"}, "b": {"kind": "learning"}, "c": {"kind": "scripted", "script": "best"}}
    return recast(scenario_of("probe_leaver", PPO), three, {"stays_0": "a", "stays_1": "c", "leaves": "b"})


def past_selves() -> Scenario:
    past = {"policies.past.every": 2, "policies.past.keep": 2, "world.max_episode_steps": 7}
    return scenario_of("head_to_head_past_selves", {**PPO, **past})


LAGGED = {"collect.overlap": "deterministic", "collect.lag": 2}
CASES = {
    "boards": lambda: scenario_of("drmario_level_0", {**PPO, "world.max_pills": 6}),
    "central_critic": lambda: scenario_of("probe_coordination", {**PPO, "algo.centralised_critic": True}),
    "gru": lambda: learned_by("ppo", "probe_alternating", network={"kind": "gru", "size": 24, "length": 3}),
    "lstm": lambda: learned_by("impala", "probe_leaver", network={"kind": "lstm", "size": 24, "length": 3}),
    "several": several,
    "past_selves": past_selves,
    "sac": lambda: learned_by("sac", "head_on", {"world.max_episode_steps": 12}, **{"replay.n_step": 3}),
    "td3": lambda: learned_by("td3"),
    "dqn_durations": lambda: learned_by("dqn", "probe_alternating", **{"replay.n_step": 3}),
    "sac_lag": lambda: learned_by("sac", "head_on", {**LAGGED, "world.max_episode_steps": 12}, **{"replay.n_step": 3}),
    "td3_lag": lambda: learned_by("td3", changes=LAGGED),
    "dqn_lag": lambda: learned_by("dqn", "probe_alternating", LAGGED, **{"replay.n_step": 3, "replay.prioritised": {}}),
    "impala_lag": lambda: learned_by("impala", "probe_alternating", LAGGED),
    "appo_lag": lambda: learned_by("appo", "head_on", {**LAGGED, "world.max_episode_steps": 12}),
}


@pytest.mark.parametrize("name", CASES)
def test_any_algorithm_learns_the_same_bits_with_any_number_of_workers(name, tmp_path):
    """On threads, which run the same code and start at once."""
    scenario = CASES[name]()
    alone = fingerprint(run(scenario, tmp_path, "alone"))
    assert fingerprint(run(scenario, tmp_path, "by_3", workers=3, mode="thread")) == alone


@pytest.mark.parametrize("name", ["sac", "impala_lag"])
def test_processes_are_threads_that_share_nothing_else(name, tmp_path):
    scenario = CASES[name]()
    by_threads = fingerprint(run(scenario, tmp_path, "threads", workers=2, mode="thread"))
    assert fingerprint(run(scenario, tmp_path, "processes", workers=2)) == by_threads


def curriculum() -> Scenario:
    phases = {"curriculum.window": 3, "curriculum.evaluation_success": None, "world.border_m": 1e-3}
    convoy = {"world.task": "convoy_lock", "world.max_episode_steps": 7, **phases}
    return scenario_of("gaplock_curriculum", {**PPO, **convoy})


def test_workers_follow_a_curriculum(tmp_path):
    alone, by_3 = (run(curriculum(), tmp_path, f"by_{n}", workers=n, mode="thread") for n in (0, 3))
    assert fingerprint(by_3) == fingerprint(alone)
    phases = [row for row in read_rows(by_3 / "events.jsonl") if row["event"] == "phase"]
    assert len(phases) >= 2  # worlds were restarted in mid-episode


RESUMED = {"boards": CASES["boards"], "appo_lag": CASES["appo_lag"], "sac": CASES["sac"], "curriculum": curriculum}


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_goes_on_exactly_with_another_number_of_workers(name, tmp_path):
    scenario = RESUMED[name]()
    whole = fingerprint(run(scenario, tmp_path, "whole"))
    stopped = run(scenario, tmp_path, "stopped", StopAfter(2), workers=2, mode="thread")
    for number, updates in ((4, 2), (0, 2), (3, 99)):
        go_on = override(load(stopped / "scenario.yaml"), {"collect.workers": number})
        (stopped / "scenario.yaml").write_text(dump(go_on))
        resume(stopped, models=tmp_path / "models", display=StopAfter(updates))
    assert fingerprint(stopped) == whole


def test_free_workers_spend_the_budget_and_nobody_lags_too_far(tmp_path):
    free = {"overlap": "free", "lag": 2, "prefetch": 2, "mode": "thread"}
    scenario = scenario_of("probe_leaver", {**tiny("impala"), "algo.minibatch_size": 12, "log.log_episodes": True})
    half = run(scenario, tmp_path, "run", StopAfter(4), workers=2, **free)
    result = resume(half, models=tmp_path / "models")
    rows = list(read_rows(half / "metrics.jsonl"))
    assert [row["timesteps_total"] for row in rows] == [32 * i for i in range(1, 9)]
    assert result.counters.steps == 256
    assert all(0 <= row["collector/policy_lag_max"] <= 4 for row in rows if "collector/policy_lag_max" in row)
    assert once_each(half) > 10


@pytest.mark.parametrize("network", ["mlp", {"kind": "gru", "size": 4, "length": 4}])
@pytest.mark.parametrize("kind", ["sac", "td3", "dqn"])
def test_free_workers_feed_a_learner_from_replay(kind, network, tmp_path):
    """Spans and sequences of decisions are chained world by world, whoever's worlds stand side by side in a slab."""
    free = {"overlap": "free", "lag": 4, "prefetch": 2, "mode": "thread"}
    world = "probe_bandit" if kind == "dqn" else "probe_target"
    scenario = scenario_of(world, {**tiny(kind, **{"replay.n_step": 3, "replay.kind": "local", "network": network})})
    half = run(scenario, tmp_path, "run", StopAfter(4), workers=2, **free)
    result = resume(half, models=tmp_path / "models")
    rows = list(read_rows(half / "metrics.jsonl"))
    assert [row["timesteps_total"] for row in rows] == [32 * i for i in range(1, 9)]
    assert result.counters.steps == 256
    assert all(0 <= row["collector/policy_lag_max"] <= 6 for row in rows if "collector/policy_lag_max" in row)
    assert rows[-1]["train/gradient_steps"] == 8


def once_each(folder: Path) -> int:
    """How many episodes were told of, each of them once and none left out, world by world."""
    ends = [
        (row["world"], row["episode"]) for row in read_rows(folder / "events.jsonl") if row["event"] == "episode_end"
    ]
    for world, count in Counter(world for world, _ in ends).items():
        assert sorted(episode for w, episode in ends if w == world) == list(range(count)), world
    return len(ends)


# --- what may go wrong ---


def foreign(env: str, **changes: Any) -> Scenario:
    plain = to_plain(scenario_of("probe_constant", {**TINY, **changes}))
    plain["evaluate"]["evaluation_interval"] = None
    return from_plain(plain | {"world": {"kind": "gymnasium", "id": env}})


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_an_exception_in_a_worker_reaches_the_caller_with_its_traceback(mode, tmp_path):
    with pytest.raises(WorkerDied, match=r"worker [01] \(worlds \d to \d\) .* stepping") as caught:
        run(foreign(f"broken_env:{BROKEN}"), tmp_path, "run", workers=2, mode=mode)
    assert "the simulator lost its licence" in str(caught.value)
    assert 'broken_env.py", line' in caught.value.trace


def test_an_exception_is_heard_though_more_had_been_ordered(tmp_path):
    """The system reports what was left unread before it gives what was said."""
    scenario = foreign(f"broken_env:{BROKEN}", **tiny("impala"), **LAGGED)
    with pytest.raises(WorkerDied, match="the simulator lost its licence"):  # in the first slab of three
        run(scenario, tmp_path, "run", rollout_length=24, workers=2, mode="thread")


class Worker(Display):
    """Does something to a worker process after every update."""

    def __init__(self, act: Any) -> None:
        self.act, self.notes, self.seconds = act, [], []

    def advance(self, done: int, text: str) -> None:
        self.act(living())

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_workers_killed_ten_times_change_nothing(tmp_path):
    """Nothing is lost and nothing comes twice: the run is, bit for bit, the one where nobody was killed."""
    changes = {**TINY, "timesteps": 12 * 32, "world.max_episode_steps": 12, "log.log_episodes": True}
    scenario = scenario_of("head_on", changes)
    whole = run(scenario, tmp_path, "whole")
    chance = np.random.default_rng(1)

    def kill_one(found: list[psutil.Process]) -> None:
        os.kill(found[chance.integers(len(found))].pid, signal.SIGKILL)

    display = Worker(kill_one)
    killed = run(scenario, tmp_path, "killed", display, workers=2)
    assert fingerprint(killed) == fingerprint(whole)
    assert once_each(killed) == once_each(whole)
    events = Counter(row["event"] for row in read_rows(killed / "events.jsonl"))
    assert events["worker_died"] == events["worker_restarted"] >= 10
    assert any("was killed by SIGKILL while waiting, and is replaced" in note for note in display.notes)


def test_a_worker_killed_at_any_line_of_its_code_loses_and_repeats_nothing(monkeypatch):
    """Each of twelve lives ends at another line; a collector that nobody disturbs makes the same slabs beside."""
    monkeypatch.setattr(workers, "ForkServer", lambda module: ForkServer("doomed"))
    with training(small("deterministic", rollout_length=4, num_worlds=2)) as run:
        while len(run.of("worker_died")) < 12:
            run.advance()
    assert run.faults == []
    assert len({heard.fields["phase"] for heard in run.of("worker_died")}) >= 3
    assert not run.of("worker_stuck")


def test_a_stopped_worker_is_named_with_its_phase_and_replaced(tmp_path):
    stopped: list[int] = []

    def stop_one(found: list[psutil.Process]) -> None:
        if not stopped:
            stopped.append(found[0].pid)
            os.kill(found[0].pid, signal.SIGSTOP)

    display = Worker(stop_one)
    scenario = scenario_of("probe_constant", TINY)
    whole = fingerprint(run(scenario, tmp_path, "whole"))
    folder = run(scenario, tmp_path, "stopped", display, workers=2, deadline_s=3.0)
    assert fingerprint(folder) == whole
    stuck = [row for row in read_rows(folder / "events.jsonl") if row["event"] == "worker_stuck"]
    assert "waiting" in [row["phase"] for row in stuck]
    assert any("has shown no sign of life for" in note and "while waiting" in note for note in display.notes)


def test_a_worker_suspended_in_the_middle_of_a_message_holds_the_learner_no_longer_than_a_limit(tmp_path, monkeypatch):
    scenario = scenario_of("probe_constant", TINY)
    whole = fingerprint(run(scenario, tmp_path, "whole"))
    monkeypatch.setattr(workers, "ForkServer", lambda module: ForkServer("halting"))
    monkeypatch.setattr(packets, "MIDDLE_S", 0.5)
    folder = run(scenario, tmp_path, "halted", workers=1, deadline_s=1000.0)
    assert fingerprint(folder) == whole
    events = Counter(row["event"] for row in read_rows(folder / "events.jsonl"))
    assert events["worker_stuck"] == events["worker_restarted"] == 1


def test_a_worker_that_dies_again_and_again_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(workers.LocalWorkers, "job", lambda *args: "no job at all")
    with pytest.raises(WorkerDied, match=r"worker 0 .* code 1 .* 4 times"):
        run(scenario_of("probe_constant", TINY), tmp_path, "run", workers=1)


def test_a_worker_that_cannot_be_replaced_is_what_the_run_ends_with(tmp_path, monkeypatch):
    """And not with what goes wrong on the way out."""
    start, killed = ForkServer.start, list[int]()

    def only_before(server: ForkServer, *args: Any) -> Any:
        if killed:
            raise WorkerDied("no worker could be started within 120 s")
        return start(server, *args)

    def kill_one(found: list[psutil.Process]) -> None:
        if not killed:
            killed.append(found[0].pid)
            os.kill(found[0].pid, signal.SIGKILL)

    monkeypatch.setattr(ForkServer, "start", only_before)
    with pytest.raises(WorkerDied, match="no worker could be started within 120 s"):
        run(scenario_of("probe_constant", TINY), tmp_path, "run", Worker(kill_one), workers=2)


def test_a_worker_is_not_taken_for_stuck_because_its_learner_was_busy():
    """While the learner learns nobody looks at the workers; only what they do from the next order on counts."""
    pool = object.__new__(WorkerPool)
    handle = SimpleNamespace(orders=deque([object()]), beat_at=0.0, channel=SimpleNamespace(send=id))
    pool.handles = [handle]
    pool.order(0, Collect(1, 0, 0))
    assert handle.beat_at > 0.0


def test_a_worker_that_took_long_to_build_its_worlds_is_not_taken_for_stuck_when_it_has_begun():
    pool = object.__new__(WorkerPool)
    handle = SimpleNamespace(
        has_begun=False, beats=3, beat_at=0.0, buffers=SimpleNamespace(beats=3), state={}, gone_at=None
    )
    pool._on_begun(handle)
    assert handle.has_begun
    assert handle.beat_at > 0.0


def test_more_workers_than_worlds_are_refused():
    with pytest.raises(ScenarioError, match=r"collect\.workers: 5 .* 4 "):
        scenario_of("probe_constant", {**TINY, "collect.workers": 5})
    with pytest.raises(ScenarioError, match=r"collect.workers: .*4 worlds.* 3 workers"):
        scenario_of("probe_constant", {**tiny("impala"), "collect.workers": 3, "collect.overlap": "free"})


ENDLESS = ["train", "probe_constant", "--timesteps", "1e9", "--checkpoint-every", "1e9", "--out", "run"]
ENDLESS += ["--collect.num-worlds", "4", "--collect.rollout-length", "8", "--algo.minibatch-size", "16"]
ENDLESS += ["--learner-threads", "1", "--collect.workers", "2"]


@pytest.fixture
def endless(tmp_path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "slipstream.cli.main", *ENDLESS],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 200
    metrics = tmp_path / "run" / "metrics.jsonl"
    try:
        while process.poll() is None and not (metrics.exists() and len(list(read_rows(metrics))) > 3):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_killing_the_run_leaves_no_worker(endless):
    family = psutil.Process(endless.pid).children(recursive=True)
    assert len(family) == 3
    family[-1].suspend()  # one that cannot even notice
    endless.kill()
    gone, alive = psutil.wait_procs(family, timeout=30)
    assert (len(gone), alive) == (3, [])


def test_ctrl_c_is_for_the_run_alone(endless, tmp_path):
    endless.send_signal(signal.SIGINT)
    out, err = endless.communicate(timeout=120)
    assert (endless.returncode, "Traceback" in out + err) == (0, False), err
    assert "everything is saved" in out
    assert "worker" not in out + err
