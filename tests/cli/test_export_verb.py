"""A policy written for other programs acts as the policy does, and the file says what goes in and comes out."""

import json

import numpy as np
import pytest
from learning import tiny

from slipstream.cli.main import main
from slipstream.config.load import load
from slipstream.run import portable_model as portable
from slipstream.run.policy_file import from_checkpoint, load_policy
from slipstream.run.saved_cast import load_cast
from slipstream.run.session import train


def trained(folder, name, kind, **algo):
    return train(load(name, tiny(kind, **algo)), out=folder / "run", models=folder / "models").run


@pytest.fixture(scope="module")
def head_on(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("head_on"), "head_on", "ppo")


def test_the_verb_writes_both_files_checks_them_and_prints_latency(head_on, tmp_path, capsys):
    import onnx
    import onnxruntime
    import torch

    onnx_file, pt2_file = tmp_path / "policy.onnx", tmp_path / "policy.pt2"
    assert (
        main(["export", str(head_on), "--onnx", str(onnx_file), "--torch-export", str(pt2_file), "--rows", "200"]) == 0
    )
    said = capsys.readouterr().out
    assert said.count("200 recorded observations, worst difference") == 2
    assert "1 rows    64 rows" in said
    # Asked by a program that knows nothing of ours, any number of rows at a time.
    policy = load_policy(head_on)
    session = onnxruntime.InferenceSession(onnx_file, providers=["CPUExecutionProvider"])
    module = torch.export.load(pt2_file).module()
    for rows in (1, 7, 130):
        obs = np.random.default_rng(rows).normal(0, 3, (rows, 40)).astype(np.float32)
        (action,) = session.run(["action"], {"obs": obs})
        assert np.abs(action).max() <= 1.0  # the world's bounds, which a Gaussian's centre may leave
        np.testing.assert_allclose(action, policy.act(obs), atol=1e-6)
        np.testing.assert_allclose(module([torch.from_numpy(obs)], None).numpy(), policy.act(obs), atol=1e-6)
    (entry,) = onnx.load(onnx_file).metadata_props
    about = json.loads(entry.value)
    assert (about["scenario"], about["policy"], about["mask"]) == ("head_on", "main", None)
    assert about["inputs"][0]["features"] == list(policy.record.world.obs[0].features)
    assert about["action"] == {
        "kind": "axes",
        "names": ["heading_delta", "speed_delta"],
        "size": 2,
        "low": -1.0,
        "high": 1.0,
    }


@pytest.mark.parametrize(
    ("name", "kind", "algo"),
    [
        ("head_on", "td3", {}),  # one action, through tanh
        ("pendulum", "td3", {}),  # in the units of a foreign environment
        ("head_on", "dqn", {}),  # choices of a table, answered as axes
        ("probe_entities", "ppo", {}),  # rows of others, some of which are nobody
        ("random_sector", "sac", {"network": {"kind": "entities", "depth": 2}}),
        ("probe_bandit", "dqn", {"dueling": True, "values.kind": "quantile"}),  # masked choices
        # states go in and come out
        ("probe_remember", "dqn", {"network": {"kind": "lstm", "size": 5, "length": 2}, "dueling": True}),
        ("probe_remember", "sac", {"network": {"kind": "gru", "size": 5, "length": 2}}),
        ("probe_recall", "td3", {"network": {"kind": "gru", "size": 5, "length": 2}}),
        ("head_on", "sac", {"network": {"kind": "mlp", "norm": "layer", "residual": True}, "activation": "gelu"}),
        ("drmario_level_0", "ppo", {"network": "candidates"}),  # several blocks, a mask, as many passes as placements
        ("probe_remember", "ppo", {"network": "gru"}),  # the state goes in and comes out
        ("probe_remember", "ppo", {"network": "lstm"}),
    ],
)
def test_every_kind_of_policy_acts_the_same_through_onnxruntime(name, kind, algo, tmp_path):
    run = trained(tmp_path, name, kind, **algo)
    scenario, saved = load_cast(run)
    policy = from_checkpoint(saved, run)
    asked = portable.record(scenario, saved, next(iter(saved.meta["policies"])), 200)
    portable.write_onnx(portable.to_program(policy, asked), policy, {}, tmp_path / "policy.onnx")
    agreement = portable.compare(policy, portable.read_onnx(tmp_path / "policy.onnx", policy), asked)
    assert agreement.rows == asked.rows > 20
    assert agreement.worst <= 1e-6


def test_what_is_written_keeps_to_the_worlds_bounds(head_on):
    import torch

    policy = load_policy(head_on)
    with torch.no_grad():
        policy.network.head.weight *= 1000  # a Gaussian's centre may be anywhere
    obs = np.random.default_rng(0).normal(0, 3, (50, 40)).astype(np.float32)
    action = portable.Portable(policy)([torch.from_numpy(obs)], None).numpy()
    assert np.abs(action).max() == 1.0
    np.testing.assert_array_equal(action, policy.act(obs))


def test_a_file_that_acts_otherwise_is_noticed(head_on, tmp_path, monkeypatch, capsys):
    scenario, saved = load_cast(head_on)
    policy = from_checkpoint(saved, head_on)
    asked = portable.record(scenario, saved, "main", 50)
    off = portable.compare(policy, lambda obs, mask: policy.act(obs, mask) + np.float32(0.25), asked)
    assert off == (50, 50, pytest.approx(0.25, abs=1e-6))
    monkeypatch.setattr(portable, "read_pt2", lambda path, policy: lambda obs, mask: policy.act(obs, mask) * 0.5)
    assert main(["export", str(head_on), "--torch-export", str(tmp_path / "x.pt2"), "--rows", "50"]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'x.pt2'}: " in said
    assert "0.0001" in said


def test_a_choice_that_differs_counts_by_how_much_worse_the_policy_finds_it(tmp_path):
    run = trained(tmp_path, "probe_bandit", "ppo")
    scenario, saved = load_cast(run)
    policy = from_checkpoint(saved, run)
    asked = portable.record(scenario, saved, next(iter(saved.meta["policies"])), 50)
    assert portable.compare(policy, policy.act, asked) == (asked.rows, 0, 0.0)
    forbidden = portable.compare(policy, lambda obs, mask: (mask == 0).argmax(1), asked)
    assert forbidden.differing > 0
    assert forbidden.worst > 1e8  # a masked choice is out of the question


def test_nothing_to_write_is_refused(head_on, capsys):
    assert main(["export", str(head_on)]) == 2
    assert "--onnx FILE" in capsys.readouterr().err
