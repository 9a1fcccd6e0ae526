"""Runs whose learners are processes in step: what they learn, how they are resumed, and what is left of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from interrupted import StopAfter
from learning import TINY, digest, scenario_of, tiny

from slipstream.config.load import override
from slipstream.config.scenario import Scenario
from slipstream.data import checkpoint
from slipstream.errors import ScenarioError, WorkerDied
from slipstream.run import session
from slipstream.run.metrics import metrics_hash
from slipstream.run.processes.data_parallel import CLOSE_S, Leader
from slipstream.run.progress import Display
from slipstream.run.session import resume, train
from slipstream.run.setup import make_training_worlds


@pytest.fixture(autouse=True)
def nothing_is_left(straight: tuple[str, str]) -> Iterator[None]:
    """No child or descriptor outlives a run, but for two that gloo keeps from a process's first one on."""
    here = psutil.Process()
    before = len(here.children(recursive=True)), here.num_fds()
    yield
    assert len(here.children(recursive=True)) <= before[0]
    assert here.num_fds() <= before[1]


def in_step(kind: str, learners: int = 2) -> Scenario:
    changes = {**tiny(kind), "evaluate.evaluation_interval": None, "learners": learners}
    return override(scenario_of("probe_target", changes), {"checkpoint.checkpoint_every": 32})


def run(scenario: Scenario, out: Path, display: Any = None) -> Path:
    return train(scenario, out=out, models=out.parent / "models", display=display).run


def fingerprint(folder: Path) -> tuple[str, str]:
    return digest(saved(folder)), metrics_hash(folder / "metrics.jsonl")


def saved(folder: Path) -> dict[str, np.ndarray]:
    return checkpoint.load_latest(folder / "checkpoints").checkpoint.arrays


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A run of two learners that nothing befell."""
    return fingerprint(run(in_step("ppo"), tmp_path_factory.mktemp("straight") / "run"))


class Look(Display):
    """Notes who listens where while a run goes on."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def advance(self, steps: int, text: str) -> None:
        here = psutil.Process()
        for process in (here, *here.children(recursive=True)):
            listening = (s for s in process.net_connections("inet") if s.status == psutil.CONN_LISTEN)
            self.found |= {socket.laddr.ip for socket in listening}


def test_two_processes_learn_what_one_does_and_listen_on_loopback_only(tmp_path):
    look, scenario = Look(), in_step("sac")
    two = saved(run(scenario, tmp_path / "two", look))
    one = saved(run(override(scenario, {"learners": 1}), tmp_path / "one"))
    names = [name for name in one if name.startswith("policy.") and one[name].dtype == np.float32]
    assert names
    for name in names:
        np.testing.assert_allclose(two[name], one[name], atol=2e-4, rtol=1e-3, err_msg=name)
    assert look.found == {"127.0.0.1"}


def test_interrupted_and_resumed_they_are_never_interrupted(tmp_path, straight):
    broken = run(in_step("ppo"), tmp_path / "broken", StopAfter(3))
    resume(broken, models=tmp_path / "models")
    assert fingerprint(broken) == straight


class KillAfter(Display):
    """Ends a learner in the middle of a run."""

    def __init__(self, updates: int) -> None:
        self._left = updates

    def advance(self, steps: int, text: str) -> None:
        self._left -= 1
        if self._left == 0:
            (other,) = [child for child in psutil.Process().children() if "data_parallel" in " ".join(child.cmdline())]
            os.kill(other.pid, signal.SIGKILL)


def test_a_killed_learner_is_named_and_the_run_goes_on_from_its_checkpoint(tmp_path, straight):
    with pytest.raises(WorkerDied, match=r"(?s)learner 1 was killed by SIGKILL.*slipstream resume"):
        run(in_step("ppo"), tmp_path / "broken", KillAfter(3))
    resume(tmp_path / "broken", models=tmp_path / "models")
    assert fingerprint(tmp_path / "broken") == straight


def test_a_leader_that_fails_in_an_update_does_not_wait_for_those_who_cannot_hear_it():
    """The others stand in the sum that it has left; they end when it closes their pipes."""
    told: list[float] = []
    leader = object.__new__(Leader)
    leader.group = SimpleNamespace(tell=lambda order, arrays, limit_s: told.append(limit_s))  # type: ignore[assignment]
    leader._others, leader.learners = [], []
    leader.close()
    assert told == [CLOSE_S]


def test_what_was_made_for_a_run_that_cannot_begin_is_closed_again(tmp_path, monkeypatch):
    closed: list[Any] = []
    scenario = scenario_of("probe_constant", TINY)
    kind = type(make_training_worlds(scenario))
    monkeypatch.setattr(kind, "close", lambda worlds: closed.append(worlds))

    def fail(*_: Any) -> None:
        raise ScenarioError("no source")

    monkeypatch.setattr(session, "make_source", fail)
    with pytest.raises(ScenarioError, match="no source"):
        run(scenario, tmp_path / "run")
    assert len(closed) == 2  # the worlds of training, and those of judging


def test_draws_that_cannot_be_shared_evenly_are_refused(tmp_path):
    with pytest.raises(ScenarioError, match=r"3 cannot share sac's batches of 16 .* try algo\.batch_size 15"):
        run(in_step("sac", learners=3), tmp_path / "run")
