"""APPO's target network: when it is refreshed, what it decides, and that the policy stays near it.

What APPO shares with IMPALA is tested in test_impala.py, the surrogate in test_ppo_losses.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from learning import build, digest, scenario_of, tiny
from test_impala import START, acted_on, logp_of, make, noisy, value_of
from test_ppo_update import one_column

from slipstream.algos.appo import Appo
from slipstream.algos.protocol import Progress
from slipstream.algos.state import module_arrays
from slipstream.algos.surrogate import kl_penalty
from slipstream.data.rollout import Rollout
from slipstream.nets.inputs import VECTOR


def appo(**changes: object) -> Appo:
    learner = make("appo", **changes)
    assert isinstance(learner, Appo)
    return learner


def slab_of(learner: Appo, log_ratios: list[float]) -> Rollout:
    return acted_on(learner, one_column([1.0, -2.0, 3.0, 0.5]), log_ratios)


@pytest.mark.parametrize("every", [1, 3])
def test_the_target_network_is_refreshed_every_so_many_updates_before_it_is_used(every):
    learner = appo(target_update=every, normalize_observation=True, normalize_value=True)
    slab = slab_of(learner, [0.0] * 4)
    kept = ""
    for update in range(7):
        if update % every == 0:
            kept = digest({**module_arrays(learner.actor, "a"), **module_arrays(learner.critic, "c")})
        learner.update(slab, Progress(0.0, update))
        target = {**module_arrays(learner.target_actor, "a"), **module_arrays(learner.target_critic, "c")}
        assert digest(target) == kept
        assert digest(module_arrays(learner.actor, "a")) != digest(module_arrays(learner.target_actor, "a"))


def test_values_and_ratios_of_the_targets_are_the_target_networks():
    plain = appo()
    slab = slab_of(plain, [0.3, -0.4, 0.1, 0.0])
    expected = plain._prepare(slab)
    moved = noisy(appo())
    assert value_of(moved, 0.1) != pytest.approx(value_of(plain, 0.1), abs=1e-2)
    assert logp_of(moved, 0.1, 0) != pytest.approx(logp_of(plain, 0.1, 0), abs=1e-2)
    batch = moved._prepare(slab)
    torch.testing.assert_close(batch.target, expected.target)
    torch.testing.assert_close(batch.advantage, expected.advantage)
    torch.testing.assert_close(batch.logp, expected.logp)
    assert batch.logp.tolist() == pytest.approx([logp_of(plain, row / 10, 0) for row in (1, 2, 3, 4)], rel=1e-5)


def test_the_surrogate_is_taken_to_the_target_policy_and_weighted_by_its_distance_to_the_one_that_acted():
    learner = noisy(appo(clip_coef=0.2, entropy_coef=0.0, value_coef=0.0, minibatch_size=4, learning_rate=0.0))
    target = appo()
    slab = slab_of(target, [math.log(0.5), math.log(4.0), 0.0, 0.0])
    advantage = target._prepare(slab).advantage.tolist()  # with ρ = 0.5, 1, 1, 1
    # Refreshed before use unless it is not due: update 1 of target_update 2.
    learner.config = learner.config.model_copy(update={"target_update": 2})
    stats = learner.update(slab, Progress(0.0, 1))
    ratio = [math.exp(logp_of(learner, r / 10, 0) - logp_of(target, r / 10, 0)) for r in (1, 2, 3, 4)]
    assert min(ratio) < 0.8 or max(ratio) > 1.2
    terms = [min(q * a, min(max(q, 0.8), 1.2) * a) for q, a in zip(ratio, advantage, strict=True)]
    assert stats["policy_loss"] == pytest.approx(-np.mean(terms), rel=1e-4)
    assert stats["clip_fraction"] == pytest.approx(np.mean([abs(q - 1) > 0.2 for q in ratio]))


def test_inputs_are_standardised_as_the_learning_network_has_it():
    learner = appo(normalize_observation=True, target_update=100)
    slab = slab_of(learner, [0.0] * 4)
    learner.update(slab, START)
    batch = learner._prepare(slab)
    norm = learner.actor.norm
    assert norm is not None
    raw = torch.from_numpy(slab.obs["obs"][1:, 0, 0])
    torch.testing.assert_close(batch.inputs[VECTOR], norm(raw))
    assert batch.critic_inputs is batch.inputs
    assert not torch.allclose(batch.inputs[VECTOR], raw)


def test_the_kl_penalty_keeps_the_policy_near_its_target():
    def moved(kl_coef: float) -> float:
        learner = appo(kl_coef=kl_coef, epochs=20, learning_rate=0.02, clip_coef=10.0, target_update=100)
        learner.update(slab_of(learner, [0.0] * 4), START)
        x = {VECTOR: torch.tensor([[0.1], [0.2], [0.3], [0.4]])}
        with torch.no_grad():
            old, new = (a.distribution(x, None) for a in (learner.target_actor, learner.actor))
            return float(kl_penalty(old, new))

    assert moved(5.0) < 0.2 * moved(0.0)


def test_the_penalty_reported_is_the_kl_from_target_to_policy():
    learner = noisy(appo(kl_coef=0.5, minibatch_size=4, learning_rate=0.0, target_update=2))
    target = appo()
    stats = learner.update(slab_of(target, [0.0] * 4), Progress(0.0, 1))
    x = {VECTOR: torch.tensor([[0.1], [0.2], [0.3], [0.4]])}
    with torch.no_grad():
        old, new = (torch.log_softmax(a.head(a.torso(x)), 1) for a in (target.actor, learner.actor))
    assert stats["kl_penalty"] == pytest.approx(float((old.exp() * (old - new)).sum(1).mean()), rel=1e-4)


def test_a_target_that_is_not_refreshed_is_part_of_the_saved_state():
    parts, twin = (build(scenario_of("probe_bandit", {**tiny("appo", target_update=100), "seed": n})) for n in (1, 2))
    for _ in range(3):
        parts.advance()
    twin.learner.load_state_dict(parts.learner.state_dict())
    assert digest(module_arrays(twin.learner.target_actor, "")) == digest(module_arrays(parts.learner.target_actor, ""))
    assert digest(module_arrays(twin.learner.target_actor, "")) != digest(module_arrays(twin.learner.actor, ""))
