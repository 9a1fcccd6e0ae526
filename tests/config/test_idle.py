"""Settings that change nothing because of others are said in a sentence each."""

import pytest

from slipstream.cli.main import main
from slipstream.config.checks import without_effect
from slipstream.config.load import dump, load
from slipstream.config.packaged import list_scenarios

FREE = {"collect.overlap": "free"}
DQN = {"algo.kind": "dqn"}
SERVICE = {**DQN, "algo.replay.kind": "service"}
SAC = {"algo.kind": "sac", "algo.target_entropy": -1.0}
OFFLINE = {"algo.kind": "cql", "algo.replay.dataset": "d"}


@pytest.mark.parametrize(
    ("name", "changes", "paths"),
    [
        ("convoy_lock_td3", {"collect.workers": 4, "collect.prefetch": 8, "collect.seed_stride": 17},
         ["collect.prefetch", "collect.seed_stride"]),
        ("convoy_lock_td3", {"collect.workers": 4, "collect.prefetch": 8, **FREE}, []),
        ("convoy_lock_td3", {"algo.gamma": 0.9}, ["algo.gamma"]),
        ("convoy_lock_td3", {"algo.gamma": 0.9, "algo.gamma_per_second": None}, []),
        ("probe_bandit", {"collect.prefetch": 2, "collect.overlap": "deterministic", **DQN}, ["collect.prefetch"]),
        ("probe_bandit", {"collect.lag": 2}, ["collect.lag"]),
        ("probe_bandit", {"collect.lag": 2, "collect.overlap": "deterministic", **DQN}, []),
        ("probe_bandit", {"collect.lag": 2, **FREE, **DQN}, ["collect.lag"]),
        ("probe_bandit", {"collect.lag": 2, "collect.workers": 2, **FREE, **DQN}, []),
        ("probe_bandit", {"collect.mode": "thread"}, ["collect.mode"]),
        ("probe_bandit", {"collect.mode": "thread", "collect.workers": 2}, []),
        ("pendulum", {"collect.seed_stride": 17}, []),
        ("pendulum", {"collect.world_threads": 4}, ["collect.world_threads"]),
        ("probe_bandit", {"collect.world_threads": 4}, []),
        ("probe_target", {"collect.workers": 2, **OFFLINE}, ["collect.workers"]),
        ("probe_target", {"shaping.kappa": 2.0, "shaping.use_potential_shaping": False}, ["shaping.kappa"]),
        ("probe_target", {"federated.interval": 60}, ["federated.interval"]),
        ("probe_target", {"federated.interval": 60, "federated.enabled": True}, []),
        ("probe_target", {"algo.kl_target": 0.01}, ["algo.kl_target"]),
        ("probe_target", {"algo.kl_target": 0.01, "algo.kl_coef": 0.2}, []),
        ("probe_target", {**SAC, "algo.learn_temperature": False}, ["algo.target_entropy"]),
        ("probe_target", SAC, []),
        ("probe_bandit", {**DQN, "algo.replay.sharing.mixing": "uniform"}, ["algo.replay.sharing.mixing"]),
        ("probe_bandit", {**SERVICE, "algo.replay.sharing.weight": 2.0}, ["algo.replay.sharing.weight"]),
        ("probe_bandit", {**SERVICE, "algo.replay.address": "ipc://x", "algo.replay.sharing.weight": 2.0}, []),
        ("head_on", {"log.log_trajectories": True, "evaluate.evaluation_interval": None,
                     "stop.zero_conflict_streak": None}, ["log.log_trajectories"]),
        ("head_on", {"log.log_trajectories": True}, []),
        ("probe_bandit", {**DQN, "algo.accumulate": 2, "federated.dp_sgd": {}}, ["algo.accumulate"]),
        ("probe_bandit", {**DQN, "algo.accumulate": 2}, []),
        ("head_on", {"log.frames_keep": 3, "log.frames_every": None}, ["log.frames_keep"]),
        ("probe_target", {"federated.secure": True, "federated.transport": "files"}, ["federated.secure"]),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_named_and_nothing_else(name, changes, paths):
    sentences = without_effect(load(name, changes))
    assert [sentence.split(maxsplit=1)[0] for sentence in sentences] == paths


def test_no_packaged_scenario_has_a_setting_without_effect():
    assert {info.name: found for info in list_scenarios() if (found := without_effect(load(info.name)))} == {}


def test_check_and_train_say_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(dump(load("probe_bandit", {"collect.prefetch": 3})))
    assert main(["scenarios", "check", "mine.yaml"]) == 0
    assert "collect.prefetch " in capsys.readouterr().out
    tiny = ["--collect.rollout-length", "8", "--timesteps", "128", "--evaluate.evaluation-interval", "None"]
    assert main(["train", "probe_bandit", "--collect-prefetch", "8", "--collect-seed-stride", "17", *tiny]) == 0
    said = capsys.readouterr().out
    assert said.count("has no effect here") == 2
    (log,) = tmp_path.glob("runs/*/training_log.txt")
    assert log.read_text().count("has no effect here") == 2
