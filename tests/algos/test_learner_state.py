"""A learner's state as named arrays, for every algorithm: there and back, and clear words when it does not fit."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from learning import Parts, build, digest, scenario_of, tiny

from slipstream.algos.protocol import Progress, Traits, refuse_mismatch
from slipstream.algos.registry import ALGORITHMS
from slipstream.errors import CheckpointError

# Every algorithm, with whatever of its options has a state of its own.
LEARNERS: dict[str, dict[str, Any]] = {
    **{kind: tiny(kind) for kind in ALGORITHMS},
    "ppo-kl": tiny("ppo", kl_coef=0.2, kl_target=0.01),
    "sac-discrete": tiny("sac", discrete_actions=True, normalize_observation=True),
    "qr-dqn": tiny("dqn", dueling=True, values={"kind": "quantile", "quantiles": 3}, normalize_observation=True),
    "td3-delayed": tiny("td3", policy_delay=3),
    "sac-normed": tiny(
        "sac", hidden=[16, 16], activation="silu", network={"kind": "mlp", "norm": "layer", "residual": True}
    ),
}
everyone = pytest.mark.parametrize("name", LEARNERS)


def parts_of(name: str, seed: int = 1, updates: int = 0, **changes: Any) -> Parts:
    parts = build(scenario_of("probe_target", {**LEARNERS[name], "seed": seed, **changes}))
    for _ in range(updates):
        parts.advance()
    return parts


def learner(name: str, seed: int = 1, updates: int = 0, **changes: Any) -> Any:
    return parts_of(name, seed, updates, **changes).learner


@cache
def _trained_state(name: str) -> dict[str, Any]:
    return learner(name, updates=4).state_dict()


def trained_state(name: str) -> dict[str, Any]:
    """The state of a learner with some updates behind it."""
    return {key: array.copy() for key, array in _trained_state(name).items()}


def optimisers(state: dict[str, Any]) -> dict[str, Any]:
    """The moments in a state."""
    return {key: array for key, array in state.items() if "optim." in key}


def networks(state: dict[str, Any]) -> dict[str, Any]:
    """All but the moments."""
    return {key: array for key, array in state.items() if "optim." not in key}


@everyone
def test_a_state_goes_there_and_back_bit_for_bit(name):
    state, fresh = trained_state(name), learner(name, 2)
    assert optimisers(state)  # it has learned
    assert digest(state) != digest(fresh.state_dict())
    fresh.load_state_dict(state)
    assert digest(fresh.state_dict()) == digest(state)


@everyone
def test_learning_goes_on_exactly_after_a_round_trip(name):
    parts, twin = parts_of(name, updates=3), parts_of(name, seed=1)
    twin.learner.load_state_dict(parts.learner.state_dict())
    progress, replay = Progress(0.5, 3, 3 * parts.scenario.rollout_steps), parts.feeds["main"].replay
    for one in (parts.learner, twin.learner):
        one.explore(progress)
    for draw in range(5):
        batch = parts.collector.collect(3)[0]["main"] if replay is None else replay.sample(16, 1000 + draw, 1.0)
        told = [one.update(batch, progress) for one in (parts.learner, twin.learner)]
        if replay is not None:
            assert told[0].td_error.numpy().tobytes() == told[1].td_error.numpy().tobytes()
            assert {k: float(v) for k, v in told[0].stats.items()} == {k: float(v) for k, v in told[1].stats.items()}
    assert digest(parts.learner.state_dict()) == digest(twin.learner.state_dict())


@everyone
def test_an_actor_is_what_its_arrays_say(name):
    trained, fresh = learner(name, 1, updates=3), learner(name, 2)
    obs = {"obs": np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)}
    assert trained.act(obs, None, None).action.tobytes() != fresh.act(obs, None, None).action.tobytes()
    fresh.load_state_dict({**fresh.state_dict(), **trained.actor_arrays()})
    assert trained.act(obs, None, None).action.tobytes() == fresh.act(obs, None, None).action.tobytes()
    assert trained.actor_spec() == fresh.actor_spec()


@everyone
def test_nothing_moves_where_adams_epsilon_dwarfs_every_gradient(name):
    still = {"algo.normalize_value": False} if "algo.epochs" in LEARNERS[name] else {}  # PopArt moves heads by itself
    parts = parts_of(name, **still, **{"algo.adam_eps": 1e9})
    before = parts.learner.state_dict()
    for _ in range(4):
        parts.advance()
    after = parts.learner.state_dict()
    learned = {key.split("optim.")[1].removesuffix(".exp_avg") for key in after if key.endswith(".exp_avg")}
    assert learned
    assert all(digest({"": after[key]}) != digest({"": trained_state(name)[key]}) for key in learned)
    for key in learned:
        np.testing.assert_allclose(after[key], before[key], atol=1e-7, err_msg=key)


@everyone
def test_state_arrays_are_copies(name):
    one = learner(name, updates=2)
    state = one.state_dict()
    before = digest(state)
    for array in state.values():
        array[...] = 7
    assert digest(one.state_dict()) == before


@everyone
def test_without_the_optimiser_only_networks_and_statistics_travel(name):
    state, receiver = trained_state(name), learner(name, 2, updates=2)
    moments = optimisers(receiver.state_dict())
    assert moments
    receiver.load_state_dict(state, include_optim=False)
    after = receiver.state_dict()
    assert digest(optimisers(after)) == digest(moments)
    assert digest(networks(after)) == digest(networks(state))
    assert digest(receiver.state_dict(include_optim=False)) == digest(networks(state))


@everyone
def test_a_fresh_state_without_moments_clears_the_moments_of_the_receiver(name):
    fresh, trained = learner(name, 1), learner(name, 2, updates=2)
    assert optimisers(trained.state_dict())
    trained.load_state_dict(fresh.state_dict())
    assert digest(trained.state_dict()) == digest(fresh.state_dict())


# --- a state that does not fit ---


@everyone
def test_every_array_that_is_missing_is_named(name):
    state = trained_state(name)
    fresh = learner(name, 2)
    # Numbers of a few algorithms that have a natural value where none was saved.
    optional = {"kl_coef", "actor_loss", *(key for key in state if key.endswith("optim.step"))}
    assert len(state) > len(optional)
    for key in state.keys() - optional:
        with pytest.raises(CheckpointError) as error:
            fresh.load_state_dict({k: v for k, v in state.items() if k != key})
        prefix, _, rest = key.partition(".")
        assert prefix in str(error.value), key
        assert rest in str(error.value), key


@everyone
def test_every_array_of_another_shape_is_named_with_both_shapes(name):
    state = trained_state(name)
    fresh = learner(name, 2)
    for key, array in state.items():
        if "." not in key or key.endswith("optim.step"):
            continue
        with pytest.raises(CheckpointError) as error:
            fresh.load_state_dict({**state, key: np.zeros((9, 9, 9), array.dtype)})
        for word in (key, "(9, 9, 9)", str(array.shape)):
            assert word in str(error.value), key


@everyone
def test_an_array_nobody_asked_for_is_named_with_a_guess_at_what_was_meant(name):
    state, fresh = trained_state(name), learner(name, 2)
    for prefix in {key.partition(".")[0] for key in networks(state) if "." in key}:
        own = next(key for key in state if key.startswith(prefix + "."))
        with pytest.raises(CheckpointError) as error:
            fresh.load_state_dict({**state, own + "s": np.zeros(1)})
        for word in (prefix, own.removeprefix(prefix + ".") + "s", "did you mean"):
            assert word in str(error.value)


@everyone
@pytest.mark.parametrize("extra", ["bogus", "bogus.weight", "critique.head.weight"])
def test_an_array_of_no_part_of_the_learner_is_refused_unless_it_is_not_strict(name, extra):
    state, fresh = trained_state(name), learner(name, 2)
    before = digest(fresh.state_dict())
    with pytest.raises(CheckpointError, match=extra):
        fresh.load_state_dict({**state, extra: np.zeros(3)})
    assert digest(fresh.state_dict()) == before
    fresh.load_state_dict({**state, extra: np.zeros(3)}, strict=False)
    assert digest(fresh.state_dict()) == digest(state)


@everyone
def test_moments_of_an_unknown_weight_are_refused_unless_it_is_not_strict(name):
    state, fresh = trained_state(name), learner(name, 2)
    for prefix in {key.partition(".")[0] for key in optimisers(state)}:
        extra = {f"{prefix}.bogus.exp_avg": np.zeros(3)}
        with pytest.raises(CheckpointError, match="bogus"):
            fresh.load_state_dict(state | extra)
        fresh.load_state_dict(state | extra, strict=False)
        assert digest(fresh.state_dict()) == digest(state)


@everyone
def test_not_strict_takes_what_fits_and_leaves_the_rest(name):
    state = networks(trained_state(name))
    receiver = learner(name, 2, updates=2)
    before = receiver.state_dict()
    gone = [key for key in state if key.endswith("weight") or key == "steps"]
    left = {key: array for key, array in state.items() if key not in gone}
    receiver.load_state_dict({**left, "actor.unknown": np.zeros(3)}, strict=False, include_optim=False)
    assert digest(networks(receiver.state_dict())) == digest({**left, **{key: before[key] for key in gone}})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("actor.head.weight"), ["actor", "lacks head.weight"]),
        (lambda s: s.pop("targets.members.1.0.bias"), ["targets", "lacks members.1.0.bias"]),
        (lambda s: s.pop("steps"), ["steps", "lacks", "gradient steps"]),
        (lambda s: s.update({"actor.head.wieght": np.zeros(1)}), ["has head.wieght", "did you mean 'head.weight'"]),
        (lambda s: s.update({"actor.head.bias": np.zeros(9, np.float32)}), ["actor.head.bias", "(9,)", "(4,)"]),
        (lambda s: s.update({"optim.actor.head.bias.exp_avg": np.zeros(9)}), ["exp_avg", "(9,)", "(4,)"]),
    ],
)
def test_the_words_of_a_refusal(change, words):
    state = trained_state("sac")
    change(state)
    with pytest.raises(CheckpointError) as error:
        learner("sac", 2).load_state_dict(state)
    for word in words:
        assert word in str(error.value)


# Those whose state holds every network one needs, and nothing else: it may go on where they were.
KIN = {"ppo": {"impala"}, "sac": {"cql"}, "cql": {"sac"}}
MORE = {"ppo": {"appo"}, "impala": {"ppo", "appo"}}  # something else too, which must be waived


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_state_of_an_algorithm_with_other_networks_is_refused(kind):
    own = learner(kind, 2)
    for other in ALGORITHMS:
        if other == kind or other in KIN.get(kind, ()):
            own.load_state_dict(trained_state(other))
            continue
        with pytest.raises(CheckpointError):
            own.load_state_dict(trained_state(other))
        if other in MORE.get(kind, ()):
            own.load_state_dict(trained_state(other), strict=False)
            assert own.actor_arrays()["actor.head.bias"].tolist() == trained_state(other)["actor.head.bias"].tolist()


@everyone
def test_an_optimiser_state_of_another_network_is_refused(name):
    wide = {"algo.hidden": [24]}
    large = learner(name, 1, **wide)
    state = {**trained_state(name), **large.state_dict(include_optim=False)}
    with pytest.raises(CheckpointError):
        large.load_state_dict(state)


# --- traits ---

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
    spec = build(scenario_of(world, tiny("ppo"))).env.spec
    assert refuse_mismatch(Traits("whole", "rollout", **PPO_LIKE), spec, "policies.main") is None
    problem = refuse_mismatch(Traits("lame", "rollout", **{**PPO_LIKE, lacks: False}), spec, "policies.main")
    assert problem is not None
    for word in ("policies.main", "lame", spec.name, words):
        assert word in problem


def test_td3_is_refused_where_there_are_only_choices_and_dqn_chooses_from_a_table_where_there_are_axes():
    choices = build(scenario_of("probe_constant", tiny("ppo"))).env.spec
    axes = build(scenario_of("probe_target", tiny("ppo"))).env.spec
    assert refuse_mismatch(ALGORITHMS["td3"].traits, choices, "policies.main") is not None
    assert refuse_mismatch(ALGORITHMS["dqn"].traits, axes, "policies.main") is None
    assert learner("dqn").actor_spec().outputs == len(axes.action.table) == 4
