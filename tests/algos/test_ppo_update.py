"""What an update makes of a rollout: bootstraps, durations, rows that count, and the same bits on any threads."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from learning import TINY, build, digest, scenario_of

from slipstream import _core
from slipstream.algos.ppo import Ppo
from slipstream.algos.protocol import Progress
from slipstream.algos.rollout_batch import split
from slipstream.config.algos import PpoConfig
from slipstream.data.rollout import Ends, Rollout, allocate_rollout
from slipstream.nets.inputs import VECTOR
from slipstream.spec import ActionSpec, ObsBlock, WorldSpec

GAMMA, LAMBDA = 0.9, 0.8
START = Progress(0.0, 0)


def spec(features: int = 1, state_size: int = 0) -> WorldSpec:
    return WorldSpec(
        name="test/hand",
        agents=("a",),
        roles=("a",),
        obs=(ObsBlock("obs", "float32", (features,), -10.0, 10.0),),
        action=ActionSpec(discrete=True, size=2),
        state_size=state_size,
    )


def ppo(**changes: object) -> Ppo:
    settings = {
        "gamma": GAMMA,
        "gae_lambda": LAMBDA,
        "hidden": (8,),
        "normalize_observation": False,
        "normalize_value": False,
        "normalize_advantage": False,
        "minibatch_size": 4,
        **changes,
    }
    config = PpoConfig(**settings)  # type: ignore[arg-type]
    return Ppo(config, spec(state_size=2 if changes.get("centralised_critic") else 0), 3, torch.device("cpu"))


def value_of(learner: Ppo, obs: float) -> float:
    with torch.no_grad():
        return float(learner.critic.value(None, {VECTOR: torch.tensor([[obs]])}))


def one_column(rewards: list[float], durations: list[int] | None = None) -> Rollout:
    """A slab of one agent that decides on every row 1..T, obs = row / 10."""
    ticks = len(rewards)
    slab = allocate_rollout(spec(), ticks, 1, 1, discrete=True, choices=0)
    slab.decided[1:] = slab.paid[1:] = 1
    slab.reward[1:, 0, 0] = rewards
    slab.duration[1:, 0, 0] = durations or [1] * ticks
    slab.obs["obs"][:, 0, 0, 0] = np.arange(ticks + 1) / 10
    slab.last_obs["obs"][:] = 5.0
    slab.logp[:] = np.log(0.5)
    return slab


def prepared(learner: Ppo, slab: Rollout) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and targets of the rows that enter the batch."""
    batch, _ = learner._prepare(slab)
    return batch.advantage.numpy(), batch.target.numpy()


def test_a_truncated_episode_bootstraps_from_its_final_observation():
    learner, slab = ppo(), one_column([1.0])
    slab.truncated[1] = 1
    slab = replace(slab, ends=Ends(np.array([1]), {"obs": np.array([[-4.0]], np.float32)}, None, None))
    advantage, target = prepared(learner, slab)
    assert target.tolist() == pytest.approx([1.0 + GAMMA * value_of(learner, -4.0)], rel=1e-5)
    assert advantage.tolist() == pytest.approx([target[0] - value_of(learner, 0.1)], rel=1e-4)


def test_a_terminated_episode_does_not_bootstrap():
    learner, slab = ppo(), one_column([1.0])
    slab.terminated[1] = 1
    assert prepared(learner, slab)[1].tolist() == pytest.approx([1.0])


def test_the_end_of_a_slab_bootstraps_from_the_last_observation():
    learner, slab = ppo(), one_column([1.0])
    expected = 1.0 + GAMMA * value_of(learner, 5.0)
    assert prepared(learner, slab)[1].tolist() == pytest.approx([expected], rel=1e-5)


def test_advantages_over_durations_are_those_of_the_semi_markov_recursion():
    learner, slab = ppo(), one_column([1.0, 2.0, 3.0], durations=[3, 1, 2])
    v = [value_of(learner, row / 10) for row in (1, 2, 3)] + [value_of(learner, 5.0)]
    discount = [GAMMA**d for d in (3, 1, 2)]
    delta = [r + g * v[i + 1] - v[i] for i, (r, g) in enumerate(zip([1.0, 2.0, 3.0], discount, strict=True))]
    a2 = delta[2]
    a1 = delta[1] + discount[1] * LAMBDA * a2
    a0 = delta[0] + discount[0] * LAMBDA * a1
    assert prepared(learner, slab)[0].tolist() == pytest.approx([a0, a1, a2], rel=1e-4)


def test_only_finished_decisions_of_the_team_enter_the_batch():
    learner, slab = ppo(), one_column([1.0, 2.0, 3.0])
    slab.decided[2] = 0  # departed, or not its turn
    slab.paid[2] = 0
    slab.paid[3] = 0  # its outcome is not known yet
    batch, _ = learner._prepare(slab)
    assert batch.inputs[VECTOR].flatten().tolist() == pytest.approx([0.1])


def test_an_empty_rollout_changes_nothing():
    learner, slab = ppo(), one_column([1.0, 2.0])
    slab.decided[:] = 0
    before = digest(learner.state_dict())
    assert learner.update(slab, START) == {"rows": 0.0}
    assert digest(learner.state_dict()) == before


def test_a_centralised_critic_that_shares_the_actors_torso_sees_the_state_too():
    learner = ppo(centralised_critic=True, shared_torso=True)
    assert learner.critic.torso is None
    features = torch.zeros(2, learner.actor.torso.features)
    states = torch.tensor([[0.0, 0.0], [1.0, -2.0]])
    inputs = {VECTOR: torch.cat([states, torch.zeros(2, learner.actor.spec.inputs)], 1)}
    before, after = learner.critic(features, inputs).tolist()
    weights = learner.critic.head.weight[0, -2:].detach()
    assert after - before == pytest.approx(float(states[1] @ weights), abs=1e-6)
    assert float(weights.abs().sum()) > 0


def test_a_centralised_critic_sees_the_state_of_the_agents_own_world():
    learner = ppo(centralised_critic=True)
    world = spec(state_size=2)
    slab = allocate_rollout(world, 2, 3, 2, discrete=True, choices=0)
    rng = np.random.default_rng(0)
    assert slab.state is not None
    slab.state[:] = rng.normal(size=(3, 3, 1, 2))  # the same for the agents of a world
    slab.obs["obs"][:] = rng.normal(size=slab.obs["obs"].shape)
    slab.decided[1:] = slab.paid[1:] = slab.terminated[1:] = 1
    batch, _ = learner._prepare(slab)
    rows = [(r, n, a) for r in (1, 2) for n in range(3) for a in range(2)]
    expected = [[*slab.state[r, n, a], *slab.obs["obs"][r, n, a]] for r, n, a in rows]
    np.testing.assert_array_equal(batch.critic_inputs[VECTOR].numpy(), np.array(expected, np.float32))


def test_observation_statistics_count_every_decision_once():
    parts = build(scenario_of("probe_alternating", {**TINY, "collect.rollout_length": 4}))
    seen = []
    for _ in range(5):
        rollouts, _ = parts.collector.collect(0)
        rollout = rollouts["main"]
        fresh = rollout.decided[1:] != 0
        seen.append(rollout.obs["obs"][1:][fresh].astype(np.float64))
        parts.learner.update(rollout, START)
    whole = np.concatenate(seen)
    norm = parts.learner.actor.norm
    assert norm is not None
    assert float(norm.count) == len(whole)
    np.testing.assert_allclose(norm.mean.numpy(), whole.mean(0), atol=1e-12)


@pytest.mark.parametrize("place", ["reward", "obs", "logp"])
@pytest.mark.parametrize("normalised", [True, False])
def test_numbers_that_are_not_finite_never_reach_the_state(place, normalised):
    learner = ppo(normalize_value=normalised, normalize_observation=normalised)
    learner.update(one_column([1.0, 2.0, 3.0, 4.0]), START)
    slab = one_column([1.0, 2.0, 3.0, 4.0])
    poisoned = slab.obs["obs"] if place == "obs" else getattr(slab, place)
    poisoned[2] = float("nan")
    learner.update(slab, START)
    assert all(np.isfinite(array).all() for array in learner.state_dict().values())


def test_the_kl_coefficient_grows_and_shrinks_as_in_the_paper():
    learner = ppo(kl_coef=0.2, kl_target=0.01)
    learner._adapt_kl(0.021, 0.01)
    assert learner.kl_coef == pytest.approx(0.3)
    learner._adapt_kl(0.015, 0.01)
    assert learner.kl_coef == pytest.approx(0.3)
    learner._adapt_kl(0.004, 0.01)
    assert learner.kl_coef == pytest.approx(0.15)


def test_the_kl_coefficient_follows_the_last_epoch_and_not_the_mean_of_all():
    # Ten epochs of one minibatch move further each: the last KL is above the mean of all ten.
    slab = one_column([1.0, -2.0, 3.0, -4.0])
    learner = ppo(kl_coef=0.2, kl_target=1.0, epochs=10, learning_rate=0.02, clip_coef=10.0)
    adapted = []
    learner._adapt_kl = lambda kl, target: adapted.append(kl)
    mean = learner.update(slab, START)["approx_kl"]
    once = ppo(kl_coef=0.2, epochs=9, learning_rate=0.02, clip_coef=10.0)
    mean_before = once.update(slab, START)["approx_kl"]
    assert adapted[0] > mean
    assert adapted[0] == pytest.approx(10 * mean - 9 * mean_before, rel=1e-3)


def test_the_penalty_counts_how_far_the_deviation_moved_from_the_policy_that_acted():
    flying = msgspec.structs.replace(spec(), action=ActionSpec(discrete=False, size=1))
    config = PpoConfig(hidden=(8,), kl_coef=0.5, epochs=4, entropy_coef=1.0, learning_rate=0.05, minibatch_size=4)
    learner = Ppo(config, flying, 3, torch.device("cpu"))
    slab = allocate_rollout(flying, 8, 1, 1, discrete=False, choices=0)
    slab.decided[1:] = slab.paid[1:] = slab.duration[1:] = 1
    assert learner.actor.log_std is not None
    before = learner.actor.log_std.item()
    stats = learner.update(slab, START)
    assert learner.actor.log_std.item() > before + 0.1  # the entropy bonus widens it at each step
    assert stats["kl_penalty"] > 1e-3  # a mean over the steps


def test_kl_stop_ends_the_epochs_early():
    slab = one_column([5.0, -5.0, 3.0, -3.0])
    assert ppo(epochs=10, learning_rate=0.1).update(slab, START)["epochs"] == 10
    assert ppo(epochs=10, learning_rate=0.1, kl_stop=1e-4).update(slab, START)["epochs"] < 10


def test_schedules_are_read_at_the_fraction_of_the_budget_spent():
    learner = ppo(learning_rate=((0.0, 1e-3), (1.0, 0.0)), entropy_coef=((0.0, 0.1), (0.5, 0.0)))
    stats = learner.update(one_column([1.0] * 4), Progress(0.25, 7))
    assert stats["learning_rate"] == pytest.approx(7.5e-4)
    assert stats["entropy_coef"] == pytest.approx(0.05)


def test_minibatches_are_drawn_from_the_update_number_not_from_global_state():
    def after(update: int, noise: int) -> str:
        torch.manual_seed(noise)
        np.random.seed(noise)  # noqa: NPY002
        learner = ppo()
        learner.update(one_column([1.0, -2.0, 3.0, 0.5] * 3), Progress(0.0, update))
        return digest(learner.state_dict())

    assert after(5, noise=1) == after(5, noise=2)
    assert after(5, noise=1) != after(6, noise=1)


def test_threads_do_not_change_a_bit():
    def after(threads: int) -> str:
        _core.set_kernel_threads(threads)
        changes = {**TINY, "algo.minibatch_size": 64, "algo.hidden": [128, 128]}
        parts = build(scenario_of("probe_coordination", changes))
        for _ in range(3):
            parts.advance()
        return digest(parts.learner.state_dict())

    try:
        assert after(1) == after(2) == after(3)
    finally:
        _core.set_kernel_threads(1)


def test_pieces_cover_every_row_once_and_differ_by_at_most_one():
    for rows in range(1, 40):
        for pieces in range(1, 12):
            parts = split(rows, pieces)
            assert [i for p in parts for i in range(rows)[p]] == list(range(rows))
            sizes = [p.stop - p.start for p in parts]
            assert max(sizes) - min(sizes) <= 1
            assert len(parts) == min(rows, pieces)
