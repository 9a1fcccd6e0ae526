"""A function of the user's as a member of a team, wherever a script of the world could stand."""

from __future__ import annotations

import numpy as np
import pytest
from learning import TINY

import slipstream
from slipstream.config.load import load
from slipstream.errors import ScenarioError, WorldContractError
from slipstream.run.metrics import metrics_hash

CALLS = []


def partner(obs, mask):
    """Plays `coordination` perfectly: the bit it sees, or its opposite, by its role."""
    CALLS.append(len(obs["obs"]))
    bit = (obs["obs"][:, 0] > 0).astype(int)
    complements = obs["obs"][:, 1] > 0
    return np.where(complements, 1 - bit, bit)


def wrong_shape(obs, mask):
    """One row too many."""
    return np.zeros(len(obs["obs"]) + 1, int)


def wrong_choice(obs, mask):
    """No such choice."""
    return np.full(len(obs["obs"]), 7)


def wrong_type(obs, mask):
    """Fractions of choices."""
    return np.full(len(obs["obs"]), 0.5)


def raises(obs, mask):
    """An error of its own."""
    raise KeyError("speed")


def scenario(script, changes=TINY):
    """One role learns, the function plays the other."""
    policies = {"learner": {"kind": "learning"}, "other": {"kind": "scripted", "script": f"{__name__}:{script}"}}
    return load(
        "probe_coordination", {**changes, "policies": policies, "teams": {"same": "learner", "complement": "other"}}
    )


def train(asked, folder, **options):
    slipstream.train(asked, out=folder / "run", models=folder / "models", **options)
    return folder / "run"


def test_a_learner_learns_beside_it(tmp_path):
    CALLS.clear()
    asked = scenario("partner", {"timesteps": 12288})
    run = train(asked, tmp_path)
    assert CALLS
    assert slipstream.load_run(run).metrics["eval/return_mean"][-1] > 0.9 * asked.world.horizon  # of the learner alone


def test_it_plays_in_judgements_too(tmp_path):
    run = train(scenario("partner"), tmp_path)
    CALLS.clear()
    found = slipstream.evaluate(run, episodes=3)
    assert CALLS
    best = next(row for row in found["rows"] if row["policy"] == "best")
    assert best["figures"]["return"]["estimate"] > 0


def test_a_run_with_it_goes_on_with_the_same_bits(tmp_path):
    whole = train(scenario("partner"), tmp_path / "whole")
    cut = train(scenario("partner"), tmp_path / "cut", pause_at=96)
    slipstream.resume(cut)
    assert metrics_hash(whole / "metrics.jsonl") == metrics_hash(cut / "metrics.jsonl")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("wrong_shape", r"int64\[\d+\] for \d+ rows"),
        ("wrong_choice", r"2 choices"),
        ("wrong_type", r"float64.*whole numbers"),
        ("raises", r"KeyError.*speed"),
    ],
)
def test_an_answer_that_is_none_ends_the_run_by_name(tmp_path, script, problem):
    with pytest.raises(WorldContractError, match=rf"{__name__}:{script}.*{problem}"):
        train(scenario(script), tmp_path)


def test_a_function_that_is_not_there_is_refused_before_training(tmp_path):
    with pytest.raises(ScenarioError, match=r"policies\.other\.script.*patner.*partner"):
        train(scenario("patner"), tmp_path)
    assert not (tmp_path / "run").exists()
