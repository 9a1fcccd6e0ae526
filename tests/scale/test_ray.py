"""Workers as Ray actors: the bits of a local run on three nodes, whatever dies; and nobody else reaches Ray's ports.

Run by `make test-ray`, in an environment that has Ray.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS / "run"))
# Read when Ray is imported, here and in its processes: nodes on loopback, nothing told to anybody.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
ray = pytest.importorskip("ray", reason="Ray is not installed here; make test-ray has an environment with it")

from interrupted import StopAfter, learned_by  # noqa: E402
from learning import TINY, digest, scenario_of, tiny  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from slipstream.collect.pool import WorkerHandle, WorkerPool  # noqa: E402
from slipstream.config.load import from_plain, load, override, to_plain  # noqa: E402
from slipstream.config.scenario import Scenario  # noqa: E402
from slipstream.config.sweep import load_sweep  # noqa: E402
from slipstream.data import checkpoint  # noqa: E402
from slipstream.errors import ScenarioError, WorkerDied  # noqa: E402
from slipstream.run.federated.replicas import plan, supervise, write_plan  # noqa: E402
from slipstream.run.metrics import metrics_hash, read_rows  # noqa: E402
from slipstream.run.progress import Display  # noqa: E402
from slipstream.run.session import resume, train  # noqa: E402
from slipstream.runtime.fork_server import Forks  # noqa: E402
from slipstream.runtime.place import Place  # noqa: E402
from slipstream.runtime.process import Here  # noqa: E402
from slipstream.runtime.slabs import Gate  # noqa: E402
from slipstream.scale import results, sweep  # noqa: E402
from slipstream.scale.cluster import joined, listeners  # noqa: E402
from slipstream.scale.pool import ProcessPool  # noqa: E402
from slipstream.scale.ray_place import RayCluster  # noqa: E402

SAID: list[str] = []
HOST = "127.0.0.1"
ON_RAY = RayCluster(HOST, 3, 5, SAID.append)
PPO = {**TINY, "world.max_episode_steps": 12, "log.log_episodes": True}
LAGGED = {"collect.overlap": "deterministic", "collect.lag": 2, "world.max_episode_steps": 12}


@pytest.fixture(scope="module")
def cluster():
    """Three nodes; the run is on the first."""
    os.environ["PYTHONPATH"] = f"{TESTS}:{TESTS / 'run'}"  # of Ray's processes: where broken_env is
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        nodes.add_node(num_cpus=2)
    with joined(nodes.address, 0) as found:
        assert found.nodes == 3
        yield nodes
    nodes.shutdown()


@pytest.fixture
def accepted(monkeypatch):
    """The numbers of all slabs that were taken in, by worker."""
    numbers: dict[int, list[int]] = defaultdict(list)
    take_in = WorkerPool._take_in

    def audited(pool: WorkerPool, handle: WorkerHandle, ready: Any) -> None:
        take_in(pool, handle, ready)
        numbers[handle.index].append(ready.number)

    monkeypatch.setattr(WorkerPool, "_take_in", audited)
    return numbers


def run(
    scenario: Scenario, folder: Path, display: Any = None, place: RayCluster | None = ON_RAY, **collect: Any
) -> Path:
    changed = override(scenario, {f"collect.{key}": value for key, value in collect.items()})
    result = train(changed, out=folder, models=folder.parent / "models", display=display, cluster=place)
    assert result.interrupted == isinstance(display, StopAfter), f"the run was stopped: {result.reason}"
    return result.run


def fingerprint(folder: Path) -> tuple[str, str]:
    """Weights, optimiser, worlds, slabs in flight; and the metrics."""
    saved = checkpoint.load_latest(folder / "checkpoints").checkpoint
    return digest(saved.arrays), metrics_hash(folder / "metrics.jsonl")


def events(folder: Path) -> Counter[str]:
    return Counter(row["event"] for row in read_rows(folder / "events.jsonl"))


def processes(title: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [""])[0].startswith(title)]


def actors() -> list[psutil.Process]:
    """Processes of workers."""
    return processes("ray::NodeObject")


def services() -> list[psutil.Process]:
    """Processes of replay services."""
    return [p for p in psutil.process_iter(["cmdline"]) if "slipstream.replay.process" in (p.info["cmdline"] or [])]


def wait_until(is_so: Any) -> None:
    end = time.monotonic() + 30.0
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def bundle_nodes() -> list[str]:
    """The nodes of the workers' places."""
    groups = ray.util.placement_group_table().values()
    return [node for group in groups if group["state"] == "CREATED" for node in group["bundles_to_node_id"].values()]


class After(Display):
    """Does something once, when so many updates are over."""

    def __init__(self, updates: int, act: Any) -> None:
        self.left, self.act, self.notes = updates, act, []

    def advance(self, done: int, text: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: scenario_of("head_on", PPO),
        lambda: learned_by("appo", "head_on", LAGGED),
        lambda: learned_by("sac", "head_on", {"world.max_episode_steps": 12}, **{"replay.n_step": 3}),
    ],
    ids=["ppo", "appo_lag", "sac"],
)
def test_actors_on_three_nodes_learn_the_bits_of_no_workers_at_all(make, cluster, accepted, tmp_path):
    alone = run(make(), tmp_path / "alone", place=None)
    places: list[str] = []
    display = After(2, lambda: places.extend(bundle_nodes()))
    spread = run(make(), tmp_path / "spread", display, workers=3)
    assert fingerprint(spread) == fingerprint(alone)
    assert list(accepted.values()) == [list(range(len(accepted[0])))] * 3
    assert len(set(places)) == 3


def test_a_replay_service_on_a_node_keeps_the_bits_and_is_revived(cluster, tmp_path):
    """By TCP and with a token; it is killed in mid-run, before its first snapshot, and what is lost is counted."""
    short = {"world.max_episode_steps": 12}
    scenario = learned_by("sac", "head_on", short, **{"replay.n_step": 3})
    served = learned_by("sac", "head_on", short, **{"replay.n_step": 3, "replay.kind": "service"})
    alone = run(scenario, tmp_path / "alone", place=None)
    SAID.clear()
    far = run(served, tmp_path / "far", workers=2)
    assert fingerprint(far)[0] == fingerprint(alone)[0]
    (sentence,) = [said for said in SAID if "replay service" in said]
    assert sentence.startswith("replay service at tcp://127.0.0.1:")

    def kill() -> None:
        (service,) = services()
        service.kill()

    killed = run(served, tmp_path / "killed", After(2, kill), workers=2)
    assert events(killed)["replay"] == 1
    assert len([said for said in SAID if "replay service" in said]) == 3
    assert services() == []


def test_sac_on_pendulum_with_the_replay_on_a_node_has_the_weights_of_a_local_run(cluster, tmp_path):
    """So its score is the local one's, whatever that is."""
    changes = {"timesteps": 640, "collect.num_worlds": 4, "collect.rollout_length": 16, "algo.learning_starts": 64}
    changes |= {"evaluate.evaluation_interval": 5, "evaluate.evaluation_duration": 2, "learner_threads": 1}
    changes |= {"algo.hidden": [16], "device": "cpu"}
    alone = run(load("pendulum", {"algo": "sac", **changes}), tmp_path / "alone", place=None)
    served = load("pendulum", {"algo": "sac", **changes, "algo.replay.kind": "service"})
    far = run(served, tmp_path / "far", workers=2)
    both = [checkpoint.load_latest(folder / "checkpoints").checkpoint.arrays for folder in (alone, far)]
    learned = [{k: v for k, v in arrays.items() if k.startswith("policy.")} for arrays in both]
    assert learned[0]
    assert digest(learned[0]) == digest(learned[1])
    scores = [[row.get("eval/return_mean") for row in read_rows(folder / "metrics.jsonl")] for folder in (alone, far)]
    assert any(score is not None for score in scores[0])
    assert scores[0] == scores[1]


def test_a_curriculum_reaches_actors_and_a_run_goes_on_with_local_workers(cluster, tmp_path):
    phases = {"curriculum.window": 3, "curriculum.evaluation_success": None, "world.border_m": 1e-3}
    convoy = {"world.task": "convoy_lock", "world.max_episode_steps": 7, **phases}
    phases_of_five = {"collect.rollout_length": 5, "timesteps": 160, "algo.minibatch_size": 10}
    scenario = scenario_of("gaplock_curriculum", {**TINY, **phases_of_five, **convoy})
    alone = run(scenario, tmp_path / "alone", place=None)
    half = run(scenario, tmp_path / "half", StopAfter(3), workers=2)
    resume(half, models=tmp_path / "models")
    assert fingerprint(half) == fingerprint(alone)
    assert events(half)["phase"] >= 2


@pytest.mark.parametrize("blow", [None, signal.SIGKILL, signal.SIGSTOP])
def test_evaluations_on_nodes_have_the_numbers_of_the_runs_own_though_one_is_lost(blow, cluster, tmp_path):
    changes = {**PPO, "evaluate.evaluation_interval": 2, "evaluate.evaluation_duration": 5, "collect.deadline_s": 10.0}
    scenario = scenario_of("head_on", changes)
    alone = run(scenario, tmp_path / "alone", place=None)
    playing: list[int] = []

    def strike() -> None:
        # Those of the evaluators were begun first: parts of a run are made before its source.
        playing.extend(p.pid for p in sorted(processes("ray::NodeObject"), key=lambda p: p.create_time())[:2])
        if blow is not None:
            os.kill(playing[0], blow)

    place = RayCluster(HOST, 3, 5, SAID.append, evaluators=2)
    far = run(scenario, tmp_path / "far", After(3, strike), place, workers=2)
    assert fingerprint(far) == fingerprint(alone)
    assert len(playing) == 2
    assert events(far)["evaluator_lost"] == (0 if blow is None else 1)
    wait_until(lambda: not processes("ray::NodeObject"))


def test_more_evaluators_than_the_cluster_has_cpus_are_refused(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("slipstream.scale.ray_place.PLACE_S", 10.0)
    scenario = scenario_of("head_on", {**PPO, "evaluate.evaluation_interval": 2, "evaluate.evaluation_duration": 40})
    with pytest.raises(ScenarioError, match=r"--ray\.evaluators: 40 "):
        run(scenario, tmp_path / "run", place=RayCluster(HOST, 3, 5, SAID.append, evaluators=40))


def test_slabs_come_in_by_a_way_of_their_own_that_is_named(cluster, tmp_path):
    said: list[str] = []
    run(scenario_of("head_on", PPO), tmp_path / "run", place=RayCluster(HOST, 3, 5, said.append), workers=2)
    (sentence,) = said
    assert sentence.startswith("slabs come in at tcp://127.0.0.1:")


def test_a_worker_whose_slabs_do_not_arrive_is_given_up_with_the_reason(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("slipstream.run.processes.remote_workers.SLAB_S", 1.0)
    monkeypatch.setattr(Gate, "has", lambda gate, life, number: False)
    with pytest.raises(WorkerDied, match=r"worker \d .*tcp://127\.0\.0\.1:\d+ .* 1 s"):
        run(scenario_of("head_on", PPO), tmp_path / "run", workers=2)


def test_free_actors_spend_the_budget_and_repeat_no_slab(cluster, accepted, tmp_path):
    free = {"overlap": "free", "lag": 2, "prefetch": 2}
    scenario = scenario_of("probe_leaver", {**tiny("impala"), "algo.minibatch_size": 12})
    rows = list(read_rows(run(scenario, tmp_path / "run", workers=2, **free) / "metrics.jsonl"))
    assert [row["timesteps_total"] for row in rows] == [32 * i for i in range(1, 9)]
    assert all(0 <= row["collector/policy_lag_max"] <= 4 for row in rows)
    assert all(numbers == list(range(len(numbers))) for numbers in accepted.values())


def test_an_exception_in_an_actor_reaches_the_run_with_its_traceback(cluster, tmp_path):
    from broken_env import BROKEN

    plain = to_plain(scenario_of("probe_constant", {**TINY, "evaluate.evaluation_interval": None}))
    scenario = from_plain(plain | {"world": {"kind": "gymnasium", "id": f"broken_env:{BROKEN}"}})
    with pytest.raises(WorkerDied, match="the simulator lost its licence") as caught:
        run(scenario, tmp_path / "run", workers=2)
    assert 'broken_env.py", line' in caught.value.trace


def test_more_workers_than_the_cluster_has_cpus_are_refused(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("slipstream.scale.ray_place.PLACE_S", 0.5)
    with pytest.raises(ScenarioError, match=r"collect\.workers: 8 .* \d "):
        run(scenario_of("head_on", {**PPO, "collect.num_worlds": 8}), tmp_path / "run", workers=8)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_an_actor_that_is_killed_or_stalls_is_replaced_and_changes_nothing(blow, cluster, accepted, tmp_path):
    scenario = scenario_of("head_on", PPO)
    alone = run(scenario, tmp_path / "alone", place=None)
    display = After(3, lambda: os.kill(actors()[0].pid, blow))
    struck = run(scenario, tmp_path / "struck", display, workers=2, deadline_s=3.0)
    assert fingerprint(struck) == fingerprint(alone)
    assert all(numbers == list(range(8)) for numbers in accepted.values())
    assert events(struck)["worker_restarted"] == 1
    assert any("and is replaced" in note for note in display.notes)


@pytest.mark.parametrize("kind", ["ppo", "appo"])
def test_a_run_whose_node_is_killed_goes_on_elsewhere_with_the_same_bits(kind, cluster, accepted, tmp_path):
    scenario = scenario_of("head_on", PPO) if kind == "ppo" else learned_by("appo", "head_on", LAGGED)
    alone = run(scenario, tmp_path / "alone", place=None)
    doomed = cluster.add_node(num_cpus=2)
    began = time.monotonic()
    display = After(3, lambda: cluster.remove_node(doomed, allow_graceful=False))
    hit = run(scenario, tmp_path / "hit", display, workers=4, deadline_s=30.0)
    print(f"with a node lost: {time.monotonic() - began:.1f} s; {display.notes}")
    assert fingerprint(hit) == fingerprint(alone)
    assert [numbers == list(range(len(accepted[0]))) for numbers in accepted.values()] == [True] * 4
    assert events(hit)["worker_died"] >= events(hit)["worker_restarted"] >= 1


def test_replicas_on_nodes_agree_on_the_bits_of_local_ones_though_one_is_lost(cluster, tmp_path):
    """Its actor is killed; the process ends with it, and another goes on from the last checkpoint."""
    words = ["probe_constant", "--timesteps", "1280", "--collect.num-worlds", "4", "--collect.rollout-length", "16"]
    words += ["--algo.minibatch-size", "64", "--checkpoint.checkpoint-every", "128", "--federated.interval", "20"]
    words += ["--evaluate.evaluation-interval", "None", "--device", "cpu", "--learner-threads", "1"]
    killed: list[int] = []

    def watch(root: Path, is_to_kill: bool) -> Any:
        def show(watched: Any) -> None:
            first = root / "runs" / "client-0" / "checkpoints"
            if is_to_kill and not killed and first.is_dir() and any(first.iterdir()):
                pids = [p.pid for p in psutil.process_iter(["cmdline"]) if "ray::NodeProcess" in str(p.info["cmdline"])]
                killed.extend(pids[:1])
                os.kill(pids[0], signal.SIGKILL)

        return show

    found = []
    places: dict[str, Place] = {"here": Here(), "there": ON_RAY}
    for name, place in places.items():
        root = tmp_path / name
        what = plan(words, root, repeat=2, max_parallel=2, seeds=[1, 2], prefix="client-")
        write_plan(root, what)
        watched = supervise(root, what, watch(root, place is ON_RAY), place)
        assert [one.state for one in watched] == ["finished", "finished"]
        found.append([fingerprint(one.replica.folder(root))[0] for one in watched])
    assert found[0] == found[1]
    assert len(killed) == 1


SWEEP = """
scenario: probe_target
overrides:
  timesteps: 2048
  collect: {num_worlds: 4, rollout_length: 16}
  algo: {minibatch_size: 16, epochs: 1}
  evaluate: {evaluation_interval: 8, evaluation_duration: 3}
  checkpoint: {checkpoint_every: 256}
  device: cpu
parameters:
  algo.learning_rate: {kind: log_uniform, low: 1e-4, high: 1e-1}
method: {kind: asha, trials: 4, eta: 2, rungs: 2}
"""


def test_a_sweep_on_nodes_has_the_table_of_a_local_one_though_a_run_is_lost(cluster, tmp_path):
    """Successive halving; an actor is killed once a run of it has saved something."""
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    read = load_sweep(tmp_path / "sweep.yaml")
    killed: list[int] = []

    def kill_one(root: Path) -> None:
        if not killed and any(root.glob("trials/*/*/checkpoints/checkpoint_*")):
            pids = [p.pid for p in psutil.process_iter(["cmdline"]) if "ray::NodeProcess" in str(p.info["cmdline"])]
            killed.extend(pids[:1])
            os.kill(pids[0], signal.SIGKILL)

    tables = []
    for name, place in (("here", Forks()), ("there", ON_RAY)):
        work = sweep.begin(tmp_path / name, read.sweep, read.base)
        pool = ProcessPool(work.root / sweep.LOGS, 2, place)
        on_nodes = name == "there"
        state = sweep.run(work, pool, 1, lambda *_, w=work, n=on_nodes: kill_one(w.root) if n else None)
        hashes = [metrics_hash(path) for path in sorted(work.root.glob("trials/*/*/metrics.jsonl"))]
        tables.append((str(results.table(work, state)), hashes))
        if isinstance(place, Forks):
            place.close()
    assert tables[0] == tables[1]
    assert len(killed) == 1


def test_a_run_of_its_own_listens_on_loopback_only_and_leaves_nothing(tmp_path):
    """In a process of its own, as a person starts it; every port of it and its children is listed while it runs."""
    words = ["head_on", "--timesteps", "1e9", "--collect.workers", "2", "--ui", "none", "--out", str(tmp_path / "run")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-m", "slipstream.cli.main", "train", *words, "--on", "ray"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, cwd=tmp_path, text=True)
    here = psutil.Process(child.pid)
    rows = tmp_path / "run" / "metrics.jsonl"
    while child.poll() is None and not (rows.exists() and rows.stat().st_size):
        time.sleep(0.2)
    family = [here, *here.children(recursive=True)]
    names = {process.name() for process in family}
    found = [s for p in family for s in p.net_connections("inet") if s.status == psutil.CONN_LISTEN]
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert {"gcs_server", "raylet"} <= names
    assert len(found) >= 5
    assert {s.laddr.ip.removeprefix("::ffff:") for s in found} == {"127.0.0.1"}
    assert "ray: one node of our own, reached from this machine only" in said
    assert child.returncode == 0
    assert (tmp_path / "run" / "checkpoints").exists()
    assert [process for process in psutil.wait_procs(family, 10)[1] if process.name() in names] == []


def test_listeners_beyond_loopback_are_found_and_named():
    import socket

    from slipstream.scale.cluster import Listener

    with socket.create_server(("0.0.0.0", 0)) as server:
        mine = [each for each in listeners() if each.port == server.getsockname()[1]]
    assert [(each.address, each.is_loopback) for each in mine] == [("0.0.0.0", False)]
    assert Listener("", "::ffff:127.0.0.1", 1).is_loopback
    assert not Listener("", "::", 1).is_loopback


def test_learners_in_step_as_actors_learn_the_bits_of_those_on_this_machine(cluster, tmp_path):
    scenario = override(scenario_of("head_on", PPO), {"learners": 2})
    here = run(scenario, tmp_path / "here", place=None)
    there = run(scenario, tmp_path / "there", workers=2)
    assert fingerprint(there) == fingerprint(here)


def test_a_learner_that_is_killed_on_its_node_is_named(cluster, tmp_path):
    def end() -> None:
        (process,) = [
            p
            for p in psutil.process_iter(["cmdline"])
            if "slipstream.run.processes.data_parallel" in (p.info["cmdline"] or [])
        ]
        process.kill()

    with pytest.raises(WorkerDied, match=r"(?s)learner 1 .*SIGKILL.*slipstream resume"):
        run(override(scenario_of("head_on", PPO), {"learners": 2}), tmp_path / "run", After(2, end), workers=2)
