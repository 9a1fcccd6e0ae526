"""Averaged weights: what is judged, what is saved, and that learning does not know of them."""

import numpy as np
import pytest
from learning import TINY, build, digest, scenario_of

import slipstream
from slipstream.data import checkpoint
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.run.metrics import read_rows
from slipstream.run.session import train

DECAY = 0.5
AVERAGED = {**TINY, "algo.ema_decay": DECAY, "algo.learning_rate": 1e-2}


def weights(state, prefix):
    """Parameters of a network by name; what it has seen of its inputs left out."""
    return {
        name.removeprefix(f"{prefix}."): array
        for name, array in state.items()
        if name.startswith(f"{prefix}.") and ".norm." not in name
    }


def test_the_average_forgets_the_start_and_then_keeps_its_share():
    parts = build(scenario_of("probe_target", AVERAGED))
    shares = [1.0, 10 / 11, 10 / 12, 10 / 13, 10 / 14, 10 / 15, 10 / 16, 10 / 17, 10 / 18, 10 / 19] + 6 * [1 - DECAY]
    expected = None
    for share in shares:
        parts.advance()
        newest = weights(parts.learner.state_dict(), "actor")
        expected = {
            name: array.astype(np.float64) if expected is None else expected[name] + share * (array - expected[name])
            for name, array in newest.items()
        }
        average = weights(parts.learner.state_dict(), "average")
        assert average.keys() == expected.keys()
        for name, array in average.items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-6)
    assert digest(average) != digest(newest)
    state = parts.learner.state_dict()
    assert state["actor.norm.count"] > 0
    for name in ("mean", "shift", "scale", "count"):  # what was seen is not averaged
        assert state[f"average.norm.{name}"].tobytes() == state[f"actor.norm.{name}"].tobytes()


def test_what_was_seen_of_entities_is_not_averaged_either():
    parts = build(scenario_of("probe_entities", AVERAGED))
    parts.advance()
    state = parts.learner.state_dict()
    assert state["actor.entity_norms.0.count"] > 0
    for name in ("mean", "shift", "scale", "count"):
        assert state[f"average.entity_norms.0.{name}"].tobytes() == state[f"actor.entity_norms.0.{name}"].tobytes()


def test_the_average_is_judged_and_the_newest_weights_explore():
    parts = build(scenario_of("probe_target", AVERAGED))
    for _ in range(4):
        parts.advance()
    learner = parts.learner
    obs = {"obs": np.random.default_rng(0).uniform(-1, 1, (9, *parts.env.spec.obs[0].shape)).astype(np.float32)}
    quiet = np.zeros((9, parts.env.spec.action.size), np.float32)  # a Gaussian's centre
    judged, explored = learner.act(obs, None, None).action, learner.act(obs, None, quiet).action
    assert np.abs(judged - explored).max() > 1e-4
    plain = build(scenario_of("probe_target", {**AVERAGED, "algo.ema_decay": None})).learner
    state = learner.state_dict(include_optim=False)
    plain.load_state_dict(state, strict=False, include_optim=False)
    assert plain.act(obs, None, None).action.tobytes() == explored.tobytes()
    swapped = {name.replace("average.", "actor.", 1): a for name, a in state.items() if not name.startswith("actor.")}
    plain.load_state_dict(swapped, strict=False, include_optim=False)
    assert plain.act(obs, None, None).action.tobytes() == judged.tobytes()


def test_learning_does_not_know_of_the_average():
    one, other = (build(scenario_of("probe_corridor", {**AVERAGED, "algo.ema_decay": d})) for d in (DECAY, None))
    for _ in range(3):
        one.advance()
        other.advance()
    mine, theirs = one.learner.state_dict(), other.learner.state_dict()
    assert digest({name: a for name, a in mine.items() if not name.startswith("average.")}) == digest(theirs)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("averaged")
    return train(scenario_of("probe_target", AVERAGED), out=folder / "run", models=folder / "models")


def test_what_was_saved_acts_by_its_average_and_holds_both(trained):
    env = slipstream.make("probe_target", num_worlds=7, seed=5)
    policies = [slipstream.load_policy(path) for path in (trained.model, trained.checkpoint, trained.run)]
    actions = [policy.act(env.obs["obs"]) for policy in policies]
    for path in (trained.model, trained.checkpoint):
        saved = checkpoint.load(path)
        state = {n.removeprefix("policy.main."): a for n, a in saved.arrays.items() if n.startswith("policy.main.")}
        average, newest = weights(state, "average"), weights(state, "actor")
        assert average.keys() == newest.keys()
        assert digest(average) != digest(newest)
        assert {k: tuple(v.shape) for k, v in policies[0].network.state_dict().items() if "norm" not in k} == {
            k: v.shape for k, v in average.items()
        }
        for name, array in average.items():
            assert policies[0].network.state_dict()[name].numpy().tobytes() == array.tobytes()
    assert len({action.tobytes() for action in actions}) == 1
    assert not any(name.startswith("policy.main.critic") for name in checkpoint.load(trained.model).arrays)


def test_a_runs_evaluations_are_of_the_average(trained, tmp_path):
    newest = train(
        scenario_of("probe_target", {**AVERAGED, "algo.ema_decay": None}), out=tmp_path / "run", models=tmp_path / "m"
    )
    mine, theirs = (
        [row["eval/return_mean"] for row in read_rows(run / "metrics.jsonl") if "eval/return_mean" in row]
        for run in (trained.run, newest.run)
    )
    assert len(mine) == len(theirs) > 1
    assert mine != theirs


def test_a_state_without_an_average_cannot_be_continued_with_one():
    plain = build(scenario_of("probe_target", {**AVERAGED, "algo.ema_decay": None})).learner.state_dict()
    with pytest.raises(CheckpointError, match=r"average: .*head\.bias, head\.weight"):
        build(scenario_of("probe_target", AVERAGED)).learner.load_state_dict(plain)


@pytest.mark.parametrize("decay", [0, 1, -0.5])
def test_a_share_that_keeps_all_or_nothing_is_refused(decay):
    with pytest.raises(ScenarioError, match="ema_decay"):
        scenario_of("probe_target", {"algo.ema_decay": decay})
