"""A learner's state as named arrays: there and back, and clear words when it does not fit."""

import numpy as np
import pytest
from learning import TINY, build, digest, scenario_of

from slipstream.algos.ppo import Ppo
from slipstream.algos.protocol import Traits, refuse_mismatch
from slipstream.config.errors import CheckpointError


def learner(seed: int = 1, updates: int = 0, **changes: object) -> Ppo:
    parts = build(scenario_of("probe_coordination", {**TINY, "seed": seed, "algo.kl_coef": 0.2, **changes}))
    for _ in range(updates):
        parts.advance()
    return parts.learner


def test_a_state_goes_there_and_back_bit_for_bit():
    trained, fresh = learner(1, updates=3), learner(2)
    assert digest(trained.state_dict()) != digest(fresh.state_dict())
    fresh.load_state_dict(trained.state_dict())
    assert digest(fresh.state_dict()) == digest(trained.state_dict())


def test_learning_goes_on_exactly_after_a_round_trip():
    parts = build(scenario_of("probe_coordination", {**TINY, "algo.kl_coef": 0.2, "algo.kl_target": 0.01}))
    parts.advance()
    twin = build(parts.scenario)
    twin.learner.load_state_dict(parts.learner.state_dict())
    rollouts, _ = parts.collector.collect(1)
    from slipstream.algos.protocol import Progress

    for one in (parts.learner, twin.learner):
        one.update(rollouts["main"], Progress(0.5, 1))
    assert digest(parts.learner.state_dict()) == digest(twin.learner.state_dict())


def test_state_arrays_are_copies():
    one = learner(1)
    state = one.state_dict()
    before = digest(one.state_dict())
    for array in state.values():
        array[...] = 7
    assert digest(one.state_dict()) == before


def test_without_the_optimiser_only_networks_and_statistics_travel():
    trained, fresh = learner(1, updates=2), learner(2, updates=1)
    state = trained.state_dict(include_optim=False)
    assert not [key for key in state if key.startswith("optim.")]
    moments = {k: v for k, v in fresh.state_dict().items() if k.startswith("optim.")}
    fresh.load_state_dict(trained.state_dict(), include_optim=False)
    after = fresh.state_dict()
    assert digest({k: v for k, v in after.items() if k.startswith("optim.")}) == digest(moments)
    assert digest({k: v for k, v in after.items() if not k.startswith("optim.")}) == digest(state)


def test_a_fresh_state_without_moments_clears_the_moments_of_the_receiver():
    fresh, trained = learner(1), learner(2, updates=1)
    trained.load_state_dict(fresh.state_dict())
    assert digest(trained.state_dict()) == digest(fresh.state_dict())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("actor.head.weight"), ["actor", "lacks head.weight"]),
        (lambda s: s.pop("critic.torso.0.bias"), ["critic", "lacks torso.0.bias"]),
        (lambda s: s.update({"actor.head.wieght": np.zeros(1)}), ["has head.wieght", "did you mean 'head.weight'"]),
        (lambda s: s.update({"actor.head.bias": np.zeros(9, np.float32)}), ["actor.head.bias", "(9,)", "(2,)"]),
        (lambda s: s.update({"optim.actor.head.bias.exp_avg": np.zeros(9)}), ["exp_avg", "(9,)", "(2,)"]),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name(change, words):
    state = learner(1, updates=1).state_dict()
    change(state)
    with pytest.raises(CheckpointError) as error:
        learner(2).load_state_dict(state)
    for word in words:
        assert word in str(error.value)


def test_not_strict_takes_what_fits_and_leaves_the_rest():
    state = learner(1).state_dict(include_optim=False)
    receiver = learner(2)
    kept = receiver.state_dict()["actor.head.weight"]
    del state["actor.head.weight"]
    state["actor.unknown"] = np.zeros(3)
    receiver.load_state_dict(state, strict=False, include_optim=False)
    after = receiver.state_dict()
    np.testing.assert_array_equal(after["actor.head.weight"], kept)
    np.testing.assert_array_equal(after["actor.head.bias"], state["actor.head.bias"])


def test_an_optimiser_state_of_another_network_is_refused_when_strict():
    small, large = learner(1, updates=1), learner(1, updates=1, **{"algo.hidden": [24]})
    state = {**small.state_dict(), **large.state_dict(include_optim=False)}
    with pytest.raises(CheckpointError):
        learner(1, **{"algo.hidden": [24]}).load_state_dict(state)


PPO_LIKE = {"continuous": True, "discrete": True, "masks": True, "durations": True}


@pytest.mark.parametrize(
    ("lacks", "world", "words"),
    [
        ("discrete", "probe_constant", "2 discrete choices"),
        ("masks", "probe_bandit", "forbids some actions"),
        ("durations", "probe_duration", "last several"),
    ],
)
def test_an_algorithm_that_lacks_a_trait_is_refused_naming_both_sides(lacks, world, words):
    spec = build(scenario_of(world, TINY)).env.spec
    assert refuse_mismatch(Traits("whole", "rollout", **PPO_LIKE), spec, "policies.main") is None
    problem = refuse_mismatch(Traits("lame", "rollout", **{**PPO_LIKE, lacks: False}), spec, "policies.main")
    assert problem is not None
    for word in ("policies.main", "lame", spec.name, words):
        assert word in problem
