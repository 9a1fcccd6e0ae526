"""What is said of a learner's weights is true, and saying it changes nothing."""

import numpy as np
import pytest
from learning import build, scenario_of, tiny

from slipstream.config.load import load
from slipstream.run.metrics import read_rows
from slipstream.run.parts.diagnostics import diagnose, weights
from slipstream.run.session import train


def test_norms_and_ratios_by_hand():
    before = {"actor.a.weight": np.array([[3.0, 0.0]], np.float32), "actor.a.bias": np.array([4.0], np.float32)}
    after = {"actor.a.weight": np.array([[3.0, 0.0]], np.float32), "actor.a.bias": np.array([0.0], np.float32)}
    assert diagnose(after, before) == {"diag/actor_norm": 5.0, "diag/actor_update_ratio": pytest.approx(0.8)}
    assert diagnose(before, before)["diag/actor_update_ratio"] == 0.0


@pytest.mark.parametrize(("kind", "networks"), [("ppo", {"actor", "critic"}), ("sac", {"actor", "critics"})])
def test_only_what_is_trained_counts_and_an_update_moves_it(kind, networks):
    parts = build(scenario_of("head_on", tiny(kind)))
    before = weights(parts.learner)
    assert {name.split(".")[0] for name in before} == networks
    assert all(name.endswith((".weight", ".bias")) for name in before)
    for _ in range(3):
        parts.advance()
    found = diagnose(before, weights(parts.learner))
    assert set(found) == {f"diag/{n}_{what}" for n in networks for what in ("norm", "update_ratio")}
    assert all(0 < found[f"diag/{n}_update_ratio"] < 1 for n in networks)


def test_a_run_without_them_has_the_same_bits(tmp_path):
    rows = []
    for on in (True, False):
        scenario = load("head_on", tiny("ppo") | {"log.diagnostics": on})
        run = train(scenario, out=tmp_path / str(on), models=tmp_path / "models").run
        rows.append(list(read_rows(run / "metrics.jsonl")))
    assert any(key.startswith("diag/") for key in rows[0][0])
    kept = [{k: v for k, v in row.items() if k.startswith(("train/", "env/", "eval/"))} for row in rows[0]]
    assert kept == [{k: v for k, v in row.items() if k.startswith(("train/", "env/", "eval/"))} for row in rows[1]]
    assert not any(key.startswith("diag/") for row in rows[1] for key in row)
