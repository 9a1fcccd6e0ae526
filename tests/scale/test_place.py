"""What `--on ray` does, without Ray: workers, evaluators, learners and a replay service on a cluster of threads."""

import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "run"))

from broken_env import BROKEN
from clusters import ThreadCluster
from interrupted import learned_by
from learning import TINY, digest, scenario_of, tiny

from slipstream.cli.main import main
from slipstream.collect.memory import EXTRA_BYTES, BufferPlan, WorkerBuffers, layout_of
from slipstream.config.load import from_plain, override, to_plain
from slipstream.data import checkpoint
from slipstream.errors import ReplayRefusedError, ReplayTimeoutError, ScenarioError, WorkerDied
from slipstream.replay.link import ask
from slipstream.replay.messages import AskStatistics
from slipstream.replay.process import OwnService
from slipstream.run.metrics import metrics_hash, read_rows
from slipstream.run.processes.remote_workers import RemoteWorker
from slipstream.run.progress import Display
from slipstream.run.session import train
from slipstream.runtime.address import parse_address
from slipstream.runtime.memory import make_memory
from slipstream.runtime.slabs import Gate


@pytest.mark.parametrize("words", [["train", "head_on"], ["federate", "head_on"]])
def test_without_ray_one_sentence_says_what_to_install(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    assert main([*words, "--on", "ray"]) == 2
    assert capsys.readouterr().err == "slipstream: --on ray: ray is not installed; pip install 'slipstream[ray]'\n"
    assert list(tmp_path.iterdir()) == []


def test_an_address_without_on_ray_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "head_on", "--ray.address", "auto"]) == 2
    assert re.search("--ray.address.*--on ray", capsys.readouterr().err)


PLAN = BufferPlan(2, {"a": layout_of({"x": np.zeros((3, 2), np.float32)})}, slots=2, extra_bytes=1000, state_bytes=100)


def buffers() -> WorkerBuffers:
    return WorkerBuffers(make_memory("test", PLAN.size)[1], PLAN)


def test_a_slot_holds_what_another_held():
    there, here = buffers().slots[1], buffers().slots[1]
    there.begin(owner=3, number=7, version=5)
    there.rollouts["a"]["x"][:] = np.arange(6).reshape(3, 2)
    there.finish({"state": np.arange(9)})
    here.unpack(there.packed())
    assert here.is_ready(3, 7)
    assert here.rollouts["a"]["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert here.extra()["state"].tolist() == list(range(9))
    assert len(there.packed()) < PLAN.slot_size  # what was not used does not travel


@pytest.mark.parametrize("cut", [slice(0, 8), slice(0, -1), slice(0, 0)])
def test_a_slot_that_came_in_part_is_refused_and_nothing_is_written(cut):
    there, here = buffers().slots[0], buffers().slots[0]
    there.begin(1, 0, 0)
    there.finish({"state": np.arange(9)})
    part = there.packed()[cut]
    with pytest.raises(RuntimeError, match=f"^{len(part)} bytes .* 128 "):
        here.unpack(part)
    assert here.words.tolist() == [0] * 8


@pytest.mark.parametrize("claim", [-1, 10**6])
def test_a_slot_that_claims_another_length_is_refused(claim):
    there, here = buffers().slots[0], buffers().slots[0]
    there.begin(1, 0, 0)
    there.finish({"state": np.arange(9)})
    data = there.packed()
    data.view(np.int64)[EXTRA_BYTES : EXTRA_BYTES + 1] = claim
    with pytest.raises(RuntimeError, match=f"^{len(data)} bytes .* 128 and {claim} "):
        here.unpack(data)


# --- a cluster that is threads of this process ---

PPO = {**TINY, "world.max_episode_steps": 12, "log.log_episodes": True}
LAGGED = {"collect.overlap": "deterministic", "collect.lag": 2, "world.max_episode_steps": 12}


def run(scenario, folder: Path, cluster=None, display=None, **collect) -> Path:
    changed = override(scenario, {f"collect.{key}": value for key, value in collect.items()})
    return train(changed, out=folder, models=folder.parent / "models", cluster=cluster, display=display).run


def fingerprint(folder: Path) -> tuple[str, str]:
    saved = checkpoint.load_latest(folder / "checkpoints").checkpoint
    return digest(saved.arrays), metrics_hash(folder / "metrics.jsonl")


def events(folder: Path) -> Counter[str]:
    return Counter(row["event"] for row in read_rows(folder / "events.jsonl"))


class After(Display):
    """Does something once, when so many updates are over."""

    def __init__(self, updates: int, act) -> None:
        self.left, self.act = updates, act

    def advance(self, done: int, text: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()


@pytest.mark.parametrize(
    "make",
    [lambda: scenario_of("head_on", PPO), lambda: learned_by("appo", "head_on", LAGGED)],
    ids=["ppo", "appo_lag"],
)
def test_remote_workers_learn_the_bits_of_no_workers_though_one_is_lost(make, tmp_path):
    alone = run(make(), tmp_path / "alone")
    cluster = ThreadCluster()
    display = After(3, lambda: cluster.of(RemoteWorker)[1].lose())
    spread = run(make(), tmp_path / "spread", cluster, display, workers=2)
    assert fingerprint(spread) == fingerprint(alone)
    assert events(spread)["worker_died"] == events(spread)["worker_restarted"] == 1
    assert len(cluster.of(RemoteWorker)) == 3
    assert cluster.free_cpus() == 8  # the room was given back
    (sentence,) = cluster.said
    assert sentence.startswith("slabs come in at tcp://127.0.0.1:")


def test_free_remote_workers_spend_the_budget_and_every_version_is_shared_once(tmp_path):
    scenario = scenario_of("probe_leaver", {**tiny("impala"), "algo.minibatch_size": 12})
    cluster = ThreadCluster()
    folder = run(scenario, tmp_path / "run", cluster, workers=2, overlap="free", lag=2, prefetch=2)
    rows = list(read_rows(folder / "metrics.jsonl"))
    assert [row["timesteps_total"] for row in rows] == [32 * i for i in range(1, 9)]
    assert cluster.shared <= len(rows) + 1


def test_an_exception_of_a_remote_worker_ends_the_run_with_its_traceback(tmp_path):
    plain = to_plain(scenario_of("probe_constant", {**TINY, "evaluate.evaluation_interval": None}))
    scenario = from_plain(plain | {"world": {"kind": "gymnasium", "id": f"broken_env:{BROKEN}"}})
    with pytest.raises(WorkerDied, match="the simulator lost its licence") as caught:
        run(scenario, tmp_path / "run", ThreadCluster(), workers=2)
    assert 'broken_env.py", line' in caught.value.trace


def test_a_worker_whose_slabs_do_not_arrive_is_given_up_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("slipstream.run.processes.remote_workers.SLAB_S", 0.2)
    monkeypatch.setattr(Gate, "has", lambda gate, life, number: False)
    with pytest.raises(WorkerDied, match=r"worker 0 .*tcp://127\.0\.0\.1:\d+ .* 0\.2 s"):
        run(scenario_of("head_on", PPO), tmp_path / "run", ThreadCluster(), workers=1)


@pytest.mark.parametrize(("cluster", "key"), [(ThreadCluster(1), "collect.workers"), (ThreadCluster(1, 2), "--ray.ev")])
def test_more_than_the_cluster_has_room_for_is_refused(cluster, key, tmp_path):
    evaluated = {"evaluate.evaluation_interval": 2, "evaluate.evaluation_duration": 4}
    with pytest.raises(ScenarioError, match=key):
        run(scenario_of("head_on", {**PPO, **evaluated}), tmp_path / "run", cluster, workers=2)
    assert cluster.free_cpus() == 1


def test_learners_in_step_on_a_cluster_learn_the_bits_of_those_on_this_machine(tmp_path):
    scenario = override(scenario_of("head_on", PPO), {"learners": 2})
    assert fingerprint(run(scenario, tmp_path / "far", ThreadCluster(), workers=1)) == fingerprint(
        run(scenario, tmp_path / "near")
    )


def test_a_service_on_a_cluster_keeps_the_bits_and_comes_back_at_another_port(tmp_path):
    digests = []
    for name, cluster, kind in (("local", None, "local"), ("far", ThreadCluster(), "service")):
        asked = override(learned_by("sac", "probe_target", **{"replay.kind": kind}), {"collect.workers": 1})
        saved = checkpoint.load_latest(run(asked, tmp_path / name, cluster) / "checkpoints").checkpoint.arrays
        digests.append(digest({key: array for key, array in saved.items() if key.startswith("policy.")}))
    assert digests[0] == digests[1]
    cluster = ThreadCluster()
    again = OwnService(cluster)
    try:
        first = again.revive()
        assert again.revive() == first
        assert len(cluster.said) == 1
        os.kill(again._process.pid, signal.SIGKILL)
        again._process.is_over(30)
        assert parse_address(again.revive()).host == "127.0.0.1"
        with pytest.raises((ReplayRefusedError, ReplayTimeoutError)):
            ask(again.address, "another word of 16 letters", AskStatistics(check=False))
    finally:
        again.close()
    assert len(cluster.said) == 2
