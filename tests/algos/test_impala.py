"""IMPALA's loss by hand, and what IMPALA and APPO make of a rollout that an older policy collected."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
import torch
from learning import build, digest, scenario_of, tiny
from test_ppo_update import one_column, ppo, spec, value_of

from slipstream import _core
from slipstream.algos.appo import Appo
from slipstream.algos.impala import Impala, policy_loss
from slipstream.algos.protocol import Progress
from slipstream.collect.episodes import play
from slipstream.collect.pipeline import Pipeline
from slipstream.collect.serial import Collector
from slipstream.config.algos import AppoConfig, ImpalaConfig
from slipstream.data.rollout import Ends, Rollout, allocate_rollout
from slipstream.errors import ScenarioError
from slipstream.run import setup
from slipstream.run.sources import acting_copy
from slipstream.spec import ActionSpec, WorldSpec

GAMMA = 0.9
START = Progress(0.0, 0)
BOTH = pytest.mark.parametrize("kind", ["impala", "appo"])
Lagged = Impala | Appo


def make(kind: str, world: WorldSpec | None = None, **changes: Any) -> Lagged:
    settings = {
        "gamma": GAMMA,
        "hidden": (8,),
        "normalize_observation": False,
        "normalize_value": False,
        "minibatch_size": 4,
        **changes,
    }
    device = torch.device("cpu")
    if kind == "impala":
        return Impala(ImpalaConfig(**settings), world or spec(), 3, device)
    return Appo(AppoConfig(**settings), world or spec(), 3, device)


L = TypeVar("L", Impala, Appo)


def noisy(learner: L) -> L:
    """The learner with other weights, so that no choice is as likely as another (and a target network is another)."""
    with torch.no_grad():
        vector = learner.optimiser.vector
        vector += 0.3 * torch.randn(vector.shape, generator=torch.Generator().manual_seed(1))
    return learner


def logp_of(learner: Lagged, obs: float, action: int) -> float:
    with torch.no_grad():
        return float(learner.actor({"obs": torch.tensor([[obs]])}, None).logp(torch.tensor([action])))


def acted_on(learner: Lagged, slab: Rollout, log_ratios: list[float]) -> Rollout:
    """The slab as if a policy had collected it whose log-probabilities are lower by these."""
    for row, log_ratio in enumerate(log_ratios, start=1):
        own = logp_of(learner, row / 10, int(slab.action[row, 0, 0]))
        slab.logp[row] = own - log_ratio
    return slab


def targets(learner: Lagged, slab: Rollout) -> list[float]:
    return learner._prepare(slab).target.tolist()


# --- the loss ---


def test_the_loss_weights_by_the_clipped_ratio_and_no_gradient_flows_through_it():
    behaviour = torch.tensor([-1.0, -1.0, -1.0])
    logp = (behaviour + torch.tensor([math.log(0.5), 0.0, math.log(3.0)])).requires_grad_()
    advantage = torch.tensor([2.0, -1.0, 4.0])
    loss, kl, clipped = policy_loss(logp, behaviour, advantage, 1.5)
    rho = [0.5, 1.0, 1.5]
    assert float(loss.detach()) == pytest.approx(
        -np.mean([r * a * p for r, a, p in zip(rho, [2, -1, 4], logp.tolist(), strict=True)])
    )
    (grad,) = torch.autograd.grad(loss, logp)
    assert grad.tolist() == pytest.approx([-0.5 * 2 / 3, 1 / 3, -1.5 * 4 / 3])
    assert float(clipped) == pytest.approx(1 / 3)
    assert float(kl) == pytest.approx(np.mean([r - 1 - math.log(r) for r in (0.5, 1.0, 3.0)]), rel=1e-5)


# --- targets ---


@BOTH
@pytest.mark.parametrize("ratio", [0.5, 1.0, 4.0])
def test_a_truncated_episode_bootstraps_from_its_final_observation(kind, ratio):
    learner = make(kind, rho_clip=2.0)
    slab = acted_on(learner, one_column([1.0]), [math.log(ratio)])
    slab.truncated[1] = 1
    slab = replace(slab, ends=Ends(np.array([1]), {"obs": np.array([[-4.0]], np.float32)}, None, None))
    value, beyond = value_of(learner, 0.1), value_of(learner, -4.0)
    expected = value + min(ratio, 2.0) * (1.0 + GAMMA * beyond - value)
    assert targets(learner, slab) == pytest.approx([expected], rel=1e-5)


@BOTH
def test_a_terminated_episode_does_not_bootstrap(kind):
    learner = make(kind)
    slab = acted_on(learner, one_column([1.0]), [0.0])
    slab.terminated[1] = 1
    assert targets(learner, slab) == pytest.approx([1.0])


@BOTH
def test_the_end_of_a_slab_bootstraps_from_the_last_observation(kind):
    learner = make(kind)
    slab = acted_on(learner, one_column([1.0]), [0.0])
    assert targets(learner, slab) == pytest.approx([1.0 + GAMMA * value_of(learner, 5.0)], rel=1e-5)


@BOTH
def test_targets_over_durations_and_ratios_are_those_of_the_semi_markov_recursion(kind):
    learner = make(kind, vtrace_lambda=0.8, rho_clip=1.5, trace_clip=1.0)
    ratios = [0.5, 2.0, 0.7]
    slab = acted_on(learner, one_column([1.0, 2.0, 3.0], durations=[3, 1, 2]), [math.log(r) for r in ratios])
    v = [value_of(learner, row / 10) for row in (1, 2, 3)] + [value_of(learner, 5.0)]
    discount = [GAMMA**d for d in (3, 1, 2)]
    rho, c = [0.5, 1.5, 0.7], [0.8 * 0.5, 0.8 * 1.0, 0.8 * 0.7]
    delta = [rho[i] * (r + discount[i] * v[i + 1] - v[i]) for i, r in enumerate([1.0, 2.0, 3.0])]
    vs2 = v[2] + delta[2]
    vs1 = v[1] + delta[1] + discount[1] * c[1] * (vs2 - v[2])
    vs0 = v[0] + delta[0] + discount[0] * c[0] * (vs1 - v[1])
    assert targets(learner, slab) == pytest.approx([vs0, vs1, vs2], rel=1e-4)
    plain = [1.0 + discount[0] * vs1 - v[0], 2.0 + discount[1] * vs2 - v[1], 3.0 + discount[2] * v[3] - v[2]]
    weight = [1.0] * 3 if kind == "impala" else rho  # IMPALA takes ρ at every gradient step, APPO once
    expected = [w * a for w, a in zip(weight, plain, strict=True)]
    assert learner._prepare(slab).advantage.tolist() == pytest.approx(expected, rel=1e-4)


@BOTH
def test_forbidden_choices_have_no_share_in_the_ratio(kind):
    learner = make(kind)
    slab = acted_on(learner, one_column([1.0]), [0.0])
    slab = replace(slab, mask=np.array([1, 0], np.uint8) * np.ones((2, 1, 1, 2), np.uint8))
    slab.logp[1] = -0.25
    value = value_of(learner, 0.1)
    ratio = math.exp(0.25)  # the only choice left has probability 1
    expected = value + min(1.0, ratio) * (1.0 + GAMMA * value_of(learner, 5.0) - value)
    assert targets(learner, slab) == pytest.approx([expected], rel=1e-5)
    slab.logp[1] = 0.25
    expected = value + math.exp(-0.25) * (1.0 + GAMMA * value_of(learner, 5.0) - value)
    assert targets(learner, slab) == pytest.approx([expected], rel=1e-5)


# --- updates ---


@BOTH
def test_without_a_lag_one_step_is_the_step_of_ppo_with_undecayed_traces(kind):
    settings = {"epochs": 1, "minibatch_size": 6, "value_coef": 0.7, "entropy_coef": 0.3}
    settings |= {"normalize_value": True, "normalize_observation": True}
    learner, other = noisy(make(kind, **settings)), ppo(**settings, gae_lambda=1.0)
    other.load_state_dict({k: v for k, v in learner.state_dict().items() if "target_" not in k}, strict=False)
    for update in range(2):  # the second sees the statistics that the first has moved
        slab = acted_on(learner, one_column([1.0, -2.0, 3.0, 0.5, 1.5, -1.0]), [0.0] * 6)
        slab.terminated[3] = 1
        one, two = (x.update(slab, Progress(0.0, update)) for x in (learner, other))
        for key in ("grad_norm", "value_loss", "entropy", "explained_variance"):
            assert one[key] == pytest.approx(two[key], rel=1e-4)
    mine, theirs = learner.state_dict(include_optim=False), other.state_dict(include_optim=False)
    for name in mine.keys() & theirs.keys():
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-4, atol=1e-6)


@BOTH
def test_only_finished_decisions_of_the_team_enter_and_nothing_else_is_looked_at(kind):
    def after(rubbish: float) -> str:
        learner = make(kind, normalize_observation=True, normalize_value=True)
        slab = acted_on(learner, one_column([1.0, 2.0, 3.0, 4.0]), [0.1, 0.2, 0.3, 0.4])
        slab.decided[2] = slab.paid[2] = 0  # departed, or not its turn
        slab.terminated[1] = 1
        for array in (slab.obs["obs"], slab.logp, slab.reward):
            array[[0, 2]] = rubbish
        stats = learner.update(slab, START)
        assert stats["rows"] == 3
        return digest(learner.state_dict())

    assert after(0.0) == after(1e6)


@BOTH
def test_an_empty_rollout_changes_nothing(kind):
    learner, slab = make(kind, normalize_observation=True), one_column([1.0, 2.0])
    slab.decided[:] = 0
    before = digest(learner.state_dict())
    assert learner.update(slab, START) == {"rows": 0.0}
    assert digest(learner.state_dict()) == before


@BOTH
@pytest.mark.parametrize("place", ["reward", "obs", "logp"])
@pytest.mark.parametrize("normalised", [True, False])
def test_numbers_that_are_not_finite_never_reach_the_state(kind, place, normalised):
    learner = make(kind, normalize_value=normalised, normalize_observation=normalised)
    learner.update(one_column([1.0, 2.0, 3.0, 4.0]), START)
    slab = one_column([1.0, 2.0, 3.0, 4.0])
    poisoned = slab.obs["obs"] if place == "obs" else getattr(slab, place)
    poisoned[2] = float("nan")
    learner.update(slab, Progress(0.0, 1))
    assert all(np.isfinite(array).all() for array in learner.state_dict().values())


@BOTH
def test_schedules_are_read_at_the_fraction_of_the_budget_spent(kind):
    learner = make(kind, learning_rate=((0.0, 1e-3), (1.0, 0.0)), entropy_coef=((0.0, 0.1), (0.5, 0.0)))
    stats = learner.update(one_column([1.0] * 4), Progress(0.25, 7))
    assert stats["learning_rate"] == pytest.approx(7.5e-4)
    assert stats["entropy_coef"] == pytest.approx(0.05)


@BOTH
def test_minibatches_are_drawn_from_the_update_number_not_from_global_state(kind):
    def after(update: int, noise: int) -> str:
        torch.manual_seed(noise)
        np.random.seed(noise)  # noqa: NPY002
        learner = make(kind, epochs=2)
        learner.update(one_column([1.0, -2.0, 3.0, 0.5] * 3), Progress(0.0, update))
        return digest(learner.state_dict())

    assert after(5, noise=1) == after(5, noise=2)
    assert after(5, noise=1) != after(6, noise=1)


@BOTH
def test_gradients_are_clipped_to_the_norm_asked_for(kind):
    def moved(max_grad_norm: float | None) -> float:
        learner = make(kind, max_grad_norm=max_grad_norm, epochs=1)
        learner.update(one_column([50.0, -50.0, 30.0, -30.0]), START)
        return float(torch.linalg.vector_norm(learner.optimiser.moments["exp_avg"]))  # a tenth of the gradient

    assert moved(0.5) == pytest.approx(0.05, rel=1e-3)
    assert moved(None) > 1.0


@BOTH
def test_continuous_actions_move_towards_what_pays(kind):
    world = msgspec.structs.replace(spec(), action=ActionSpec(discrete=False, size=1, low=(-1.0,), high=(1.0,)))
    learner = make(kind, world, learning_rate=0.01, minibatch_size=64, epochs=4)
    slab = allocate_rollout(world, 64, 1, 1, discrete=False, choices=0)
    slab.decided[1:] = slab.paid[1:] = slab.terminated[1:] = slab.duration[1:] = 1
    obs = {"obs": np.zeros((64, 1), np.float32)}
    for update in range(30):
        noise = np.random.default_rng(update).normal(size=(64, 1)).astype(np.float32)
        acted = learner.act(obs, None, noise)
        slab.action[1:, 0, 0], slab.logp[1:, 0, 0] = acted.action, acted.logp
        slab.reward[1:, 0, 0] = -((acted.action[:, 0] - 0.6) ** 2)
        learner.update(slab, Progress(0.0, update))
    assert float(learner.act(obs, None, None).action[0, 0]) == pytest.approx(0.6, abs=0.15)


@BOTH
def test_threads_do_not_change_a_bit(kind):
    def after(threads: int) -> str:
        _core.set_kernel_threads(threads)
        parts = build(scenario_of("probe_coordination", tiny(kind, minibatch_size=64, hidden=[128, 128])))
        for _ in range(3):
            parts.advance()
        return digest(parts.learner.state_dict())

    try:
        assert after(1) == after(2)
    finally:
        _core.set_kernel_threads(1)


@BOTH
@pytest.mark.parametrize("shared", [True, False])
def test_learning_goes_on_exactly_after_a_round_trip_of_the_state(kind, shared):
    changes = {"shared_torso": shared} | ({"target_update": 3, "kl_coef": 0.1} if kind == "appo" else {})
    parts = build(scenario_of("probe_bandit", tiny(kind, **changes)))
    for _ in range(2):
        parts.advance()
    twin = build(parts.scenario)
    twin.learner.load_state_dict(parts.learner.state_dict())
    bare = parts.learner.state_dict(include_optim=False)
    assert not [name for name in bare if name.startswith("optim")]
    rollouts, _ = parts.collector.collect(2)
    for one in (parts.learner, twin.learner):
        one.update(rollouts["main"], Progress(0.5, 2))
    assert digest(parts.learner.state_dict()) == digest(twin.learner.state_dict())
    assert digest(parts.learner.actor_arrays()) == digest(
        {k: v for k, v in twin.learner.state_dict().items() if k.startswith("actor.")}
    )


# --- with a lag ---


def learned_with_lag(kind: str, task: str, lag: int) -> float:
    """Train a probe with every rollout `lag` updates old; the share of the best return that is missing."""
    scenario = scenario_of(f"probe_{task}", {"seed": 1, "algo.kind": kind})
    parts = build(scenario)
    teams = [acting_copy(team, parts.scenario, parts.env, parts.cast) for team in parts.cast.teams]
    ticks, steps = scenario.collect.rollout_length, scenario.rollout_steps
    collector = Collector(parts.env, teams, ticks, scenario.seed, {"main": 0.9}, parts.cast.shaping)
    with Pipeline(collector, "deterministic", lag=lag) as pipeline:
        pipeline.start(0, {"main": parts.learner.actor_arrays()})
        for update in range(scenario.timesteps // steps):
            slab = pipeline.take()
            parts.learner.update(slab.rollouts["main"], Progress(update * steps / scenario.timesteps, update))
            pipeline.publish(update + 1, {"main": parts.learner.actor_arrays()})
    worlds = setup.make_evaluation_worlds(scenario, 64)
    best = setup.scripted_team("best", tuple(range(worlds.spec.num_agents)), "best", worlds.spec, "script")
    mine, theirs = (play(worlds, teams, 64, seed=5).team_returns.mean() for teams in (parts.cast.teams, [best]))
    return float(1 - mine / theirs)


@BOTH
def test_a_probe_is_solved_from_rollouts_three_updates_old(kind):
    assert abs(learned_with_lag(kind, "corridor", 3)) < 0.03


@BOTH
def test_targets_are_what_the_learning_policy_would_earn_not_the_one_that_acted(kind):
    learner = make(kind, rho_clip=100.0)
    slab = allocate_rollout(spec(), 400, 1, 1, discrete=True, choices=0)
    slab.decided[1:] = slab.paid[1:] = slab.terminated[1:] = slab.duration[1:] = 1
    slab.action[1:41] = 1  # the one that acted chose 1 a tenth of the time
    slab.logp[1:] = np.where(slab.action[1:] == 1, np.log(0.1), np.log(0.9))
    slab.reward[1:] = np.where(slab.action[1:] == 1, 3.0, -1.0)  # it earned -0.6
    chance = math.exp(logp_of(learner, 0.0, 1))
    expected = 3.0 * chance - (1 - chance)
    assert abs(expected + 0.6) > 1
    assert np.mean(targets(learner, slab)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["impala", "appo"])
def test_noise_that_is_held_is_refused(kind):
    with pytest.raises(ScenarioError, match=r"algo.*exploration_hold"):
        scenario_of("probe_target", {"algo.kind": kind, "algo.exploration_hold": 4})
