"""Runs on a replay service: the bits of a local replay, exact resume, a killed service, two runs on one."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from learning import build, digest, scenario_of, tiny
from replay_faults import service, until

from slipstream.algos.protocol import Progress
from slipstream.cli.main import main
from slipstream.collect.slab import under
from slipstream.config.load import load
from slipstream.data import checkpoint
from slipstream.errors import ScenarioError
from slipstream.replay.client import ServedReplay
from slipstream.replay.process import OwnService
from slipstream.run.metrics import metrics_hash
from slipstream.run.session import resume, train
from slipstream.runtime.address import read_token

WORLD = {"sac": "probe_target", "td3": "probe_target", "dqn": "probe_bandit"}


def weights(kind: str, updates: int = 8, **changes) -> str:
    parts = build(scenario_of(WORLD[kind], tiny(kind, **changes)))
    try:
        for _ in range(updates):
            parts.advance()
        (feed,) = parts.feeds.values()
        return digest(parts.learner.state_dict()) + digest(feed.state_arrays())
    finally:
        for feed in parts.feeds.values():
            feed.close()


@pytest.mark.parametrize("kind", ["sac", "td3", "dqn"])
def test_a_run_on_a_service_learns_the_same_bits_as_one_with_a_local_replay(kind, tmp_path):
    with service(tmp_path) as process:
        shared = {"replay.kind": "service", "replay.address": process.address}
        for prioritised in (None, {}):
            local = weights(kind, **{"replay.prioritised": prioritised})
            assert (
                weights(kind, **{"replay.prioritised": prioritised, "replay.sharing.table": f"{prioritised}", **shared})
                == local
            )


def test_a_run_starts_a_service_of_its_own_and_goes_on_exactly_after_an_interruption(tmp_path):
    # Nothing may depend on how much of the budget is left, since the half that is resumed had a smaller one.
    steady = {"epsilon": 0.1, "learning_rate": 1e-3, "replay.prioritised": {"beta": 0.5}, "replay.kind": "service"}
    changes, models = tiny("dqn", **steady), tmp_path / "models"
    whole = train(scenario_of("probe_bandit", changes), root=tmp_path / "a", models=models)
    half = train(scenario_of("probe_bandit", {**changes, "timesteps": 4 * 32}), root=tmp_path / "b", models=models)
    rest = resume(half.run, timesteps=8 * 32, models=models)
    found = [(path / "arrays.safetensors").read_bytes() for path in (whole.checkpoint, rest.checkpoint)]
    assert found[0] == found[1]
    assert metrics_hash(whole.run / "metrics.jsonl") == metrics_hash(rest.run / "metrics.jsonl")
    row = json.loads((rest.run / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < row["replay/fill"] <= 1
    assert row["replay/sample_insert_ratio"] > 0
    assert row["replay/share/probe_bandit.42/main"] == 1.0
    assert {"replay/wait_add_s", "replay/wait_sample_s", "replay/wait_connect_s"} <= set(row)
    assert not [child for child in psutil.Process().children() if "-m slipstream" in " ".join(child.cmdline())]


def test_workers_that_collect_while_it_learns_feed_a_service_the_bits_of_a_local_replay(tmp_path):
    beside = {"collect.overlap": "deterministic", "collect.lag": 2}
    local = train(scenario_of("probe_target", {**tiny("td3"), **beside}), root=tmp_path, models=tmp_path / "models")
    shared = {**beside, "collect.workers": 2, "collect.mode": "thread", "algo.replay.kind": "service"}
    served = train(scenario_of("probe_target", {**tiny("td3"), **shared}), root=tmp_path, models=tmp_path / "models")
    found = [(path / "arrays.safetensors").read_bytes() for path in (local.checkpoint, served.checkpoint)]
    assert found[0] == found[1]


def test_a_run_whose_own_service_is_killed_starts_it_again_and_tells(tmp_path):
    parts = build(scenario_of("probe_bandit", tiny("dqn", **{"replay.kind": "service", "replay.prioritised": {}})))
    (feed,) = parts.feeds.values()
    try:
        for update in range(8):
            parts.advance()
            if update % 3 == 2:
                os.kill(feed._own._process.pid, signal.SIGKILL)
        assert np.isfinite(parts.advance()["grad_norm"])
        events = feed.events()
        assert {event["what"] for event in events} == {"reconnected"}
        assert len(events) >= 2
        assert feed.events() == []
        assert len(feed.replay) > 0
    finally:
        feed.close()


def test_a_service_killed_in_the_middle_of_a_checkpoint_is_read_again(tmp_path, monkeypatch):
    """It comes back without the rows the checkpoint was to hold; the run goes on and what it saved can be resumed."""
    read, killed = ServedReplay.read, []

    def read_from_a_killed_service(self, first, end):
        if len(killed) < 2:
            killed.append(end)
            self._link.forget_chunks()  # as if the rows were too old to be sent again
            os.kill(self._link._revive.__self__._process.pid, signal.SIGKILL)
        return read(self, first, end)

    monkeypatch.setattr(ServedReplay, "read", read_from_a_killed_service)
    changes = tiny("dqn", **{"replay.kind": "service", "replay.prioritised": {}})
    done = train(scenario_of("probe_bandit", changes), root=tmp_path / "a", models=tmp_path / "models")
    assert len(killed) == 2
    assert resume(done.run, timesteps=12 * 32, models=tmp_path / "models").checkpoint is not None


def test_two_runs_share_a_service_and_draw_from_each_other(tmp_path, capsys):
    with service(tmp_path) as process:
        shared = {"replay.kind": "service", "replay.address": process.address, "replay.sharing.mixing": "uniform"}
        runs = []
        for seed in (1, 2):
            scenario = scenario_of("probe_target", {**tiny("sac", **shared), "seed": seed})
            runs.append(build(scenario))
        for _ in range(6):
            for parts in runs:
                parts.advance()
        ((name, table),) = process.stats().tables.items()
        assert [lane.client for lane in table.lanes] == ["probe_target.1", "probe_target.2"]
        assert min(lane.drawn for lane in table.lanes) > 0.3 * table.drawn
        assert main(["replay", "stats", process.address]) == 0
        said = capsys.readouterr().out
        assert name in said
        assert "probe_target.2/main " in said
        assert main(["replay", "stats", process.address, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["clients"] == 3
        for parts in runs:
            for feed in parts.feeds.values():
                feed.close()


def test_the_service_of_a_run_dies_with_it_and_leaves_nothing():
    own = OwnService()
    own.revive()
    child, folder = psutil.Process(own._process.pid), own._folder
    until(lambda: (folder / "replay.sock").exists())
    own._process.stop()  # closes its pipe, as the end of this process would
    assert child.wait(60) == 0
    assert not folder.exists()
    own.close()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"address": "ipc://x"}, "algo.replay: address ipc://x .*kind"),
        ({"kind": "service", "dataset": "d"}, "algo.replay: dataset .*kind"),
        ({"kind": "service", "sharing": {"limit": {"samples_per_insert": 4}}}, "algo.replay: sharing.limit"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, complaint):
    with pytest.raises(ScenarioError, match=complaint):
        load("probe_target", {"algo.kind": "sac", "algo.replay": changes})


def limited(samples: float) -> dict:
    """For runs that draw 8 x 16 rows after each rollout of 32 steps, 4 for each row they add."""
    limit = {"samples_per_insert": samples, "tolerance": 1e5}
    return {"replay.kind": "service", "replay.sharing.limit": limit}


@pytest.mark.parametrize("samples", [2.0, 8.0])
def test_a_limit_that_fights_the_ratio_of_the_run_itself_is_refused_before_it_begins(samples, tmp_path):
    address = {"replay.address": f"ipc://{tmp_path}/none.sock"}
    changes = {**tiny("sac", **limited(samples), **address), "timesteps": 3_000_000}
    with pytest.raises(ScenarioError, match=r" 32 rows .* 8 x 16 .* 4 ") as error:
        train(load("probe_target", changes), root=tmp_path / "runs", models=tmp_path / "models")
    assert str(error.value).startswith("algo.replay.sharing.limit: ")
    assert not (tmp_path / "runs").exists()


def test_two_runs_under_a_limit_of_their_own_ratio_go_to_their_end(tmp_path):
    with service(tmp_path) as process:
        shared = {"replay.address": process.address, "replay.sharing.mixing": "uniform", **limited(4.0)}
        runs = [build(scenario_of("probe_target", {**tiny("sac", **shared), "seed": seed})) for seed in (1, 2)]
        for _ in range(8):
            for parts in runs:
                parts.advance()
        (table,) = process.stats().tables.values()
        assert table.drawn == 2 * 7 * 8 * 16  # the first rollout of each is its warm-up
        for parts in runs:
            for feed in parts.feeds.values():
                feed.close()


def parted(address: str, samples: float) -> dict:
    """For a run that only adds or only draws, at a ratio of which a run that does both could not be."""
    limit = {"samples_per_insert": samples, "tolerance": 1000.0, "min_size": 64}
    return {"replay.kind": "service", "replay.address": address, "replay.sharing.limit": limit}


def test_a_producer_is_throttled_by_a_learner_that_only_draws(tmp_path):
    """40 rollouts of 32 rows may be added only as 4 are drawn for each row, by 8 steps of 16 at a time."""
    with service(tmp_path) as process:
        shared = parted(process.address, 4.0)
        producer = build(scenario_of("probe_target", tiny("sac", **shared, **{"replay.role": "add"})))
        learner = build(scenario_of("probe_target", tiny("sac", **shared, **{"replay.role": "draw"})))
        (feed,), before = learner.feeds.values(), digest(producer.learner.state_dict())
        with ThreadPoolExecutor(1) as pool:
            adding = pool.submit(lambda: [producer.advance() for _ in range(40)])
            until(lambda: next(iter(process.stats().tables.values())).added == 9 * 32)  # 4 * (10 * 32 - 64) > 1000
            assert not adding.done()  # 16 chunks may be on their way
            said = [feed.learn(None, Progress(0.0, update, 32 * update)) for update in range(31)]
            assert not any("gradient_steps" in row for row in adding.result(60))
        until(lambda: next(iter(process.stats().tables.values())).added == 40 * 32)
        (table,) = process.stats().tables.values()
        assert table.drawn == 31 * 8 * 16
        assert all(np.isfinite(row["grad_norm"]) for row in said)
        assert {row["gradient_steps"] for row in said} == {8.0}
        assert said[-1]["replay/share/probe_target.42/main"] == 1.0
        assert digest(producer.learner.state_dict()) == before
        for parts in (producer, learner):
            for each in parts.feeds.values():
                each.close()


def test_a_producer_acts_with_the_newest_weights_of_the_run_it_follows(tmp_path):
    with service(tmp_path) as process:
        shared = {"replay.kind": "service", "replay.address": process.address}
        follows = {"replay.role": "add", "replay.weights": str(tmp_path / "learner")}
        producer = build(scenario_of("probe_target", tiny("sac", **shared, **follows)))
        first = producer.learner.actor_arrays()
        producer.advance()
        assert digest(producer.learner.actor_arrays()) == digest(first)  # there is no such run yet
        changes = tiny("sac", **shared, **{"replay.role": "draw"})
        done = train(scenario_of("probe_target", changes), out=tmp_path / "learner", models=tmp_path / "models")
        assert done.counters.updates == 8
        producer.advance()
        saved = under(checkpoint.load(done.checkpoint).arrays, "policy.main.")
        acts = producer.learner.actor_arrays()
        assert digest(acts) == digest({name: saved[name] for name in acts}) != digest(first)
        for feed in producer.feeds.values():
            feed.close()
        again = resume(done.run, timesteps=10 * 32, models=tmp_path / "models")
        assert again.counters.updates == 10


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"replay.role": "draw"}, "role draw .*address"),
        ({"replay.weights": "runs/x"}, "weights .*role add"),
        (
            {
                "replay.kind": "service",
                "replay.address": "ipc://x",
                "replay.role": "add",
                "normalize_observation": True,
            },
            "role add .* normalize_observation: ",
        ),
    ],
)
def test_parts_that_a_run_alone_cannot_play_are_refused(changes, complaint):
    with pytest.raises(ScenarioError, match=complaint):
        load("probe_target", tiny("sac", **changes))


def test_a_token_is_long_and_private(tmp_path):
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o644)
    with pytest.raises(ScenarioError, match=r"/token: .*chmod 600 "):
        read_token(path)
    path.chmod(0o600)
    assert read_token(path) == "0123456789abcdef"
    path.write_text("short")
    with pytest.raises(ScenarioError, match=r"/token: .* 16 .* 5$"):
        read_token(path)
