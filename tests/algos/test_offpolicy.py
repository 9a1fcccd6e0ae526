"""What the learners from replay share: random first actions, targets that follow, noise, a draw as tensors.

And what all of them owe: an action does not depend on who else is in the batch, warm-up is uniform, threads change
nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learning import build, digest, hand_sample, hand_spec, scenario_of, set_layer, tiny
from scipy import stats

from slipstream import _core
from slipstream.algos.adam import FlatAdam, TargetNetwork
from slipstream.algos.offpolicy import Noise, coin, random_actions, rows_of
from slipstream.algos.protocol import Progress
from slipstream.algos.registry import ALGORITHMS
from slipstream.config.algos import CqlConfig, DqnConfig, SacConfig, Td3Config
from slipstream.nets.actor import Actor, ActorSpec
from slipstream.nets.inputs import VECTOR
from slipstream.nets.mlp import Mlp

CPU = torch.device("cpu")
UNLIKELY = 1e-4  # p-value below which a law is not believed
MASKS = np.array([[1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 1, 0], [0, 0, 1, 0]], np.uint8)


def uniform(rows: int, width: int, seed: int = 1) -> np.ndarray:
    """Noise as exploration gets it in a discrete world."""
    noise = np.empty((rows, 1, width), np.float32)
    _core.fill_uniform(noise, seed=seed, step=0)
    return noise[:, 0]


def normal(rows: int, width: int, seed: int = 1) -> np.ndarray:
    """Noise as exploration gets it in a continuous world."""
    noise = np.empty((rows, 1, width), np.float32)
    _core.fill_normal(noise, seed=seed, step=0)
    return noise[:, 0]


# --- random actions ---


@pytest.mark.parametrize("allowed", [None, *MASKS.tolist()])
def test_random_choices_are_uniform_over_what_is_allowed(allowed):
    noise = uniform(40_000, 4)
    mask = None if allowed is None else np.tile(np.array(allowed, np.uint8), (len(noise), 1))
    counts = np.bincount(random_actions(noise, mask, discrete=True), minlength=4)
    may = np.ones(4, bool) if allowed is None else np.array(allowed, bool)
    assert counts[~may].sum() == 0
    assert may.sum() == 1 or stats.chisquare(counts[may]).pvalue > UNLIKELY


@pytest.mark.parametrize("allowed", [None, *MASKS.tolist()])
def test_the_coin_is_uniform_and_says_nothing_about_the_choice(allowed):
    noise = uniform(40_000, 4, seed=2)
    mask = None if allowed is None else np.tile(np.array(allowed, np.uint8), (len(noise), 1))
    coins, choices = coin(noise, mask), random_actions(noise, mask, discrete=True)
    assert coins.min() > 0
    assert coins.max() < 1  # so that an epsilon of 0 never explores, and one of 1 always
    table = np.histogram2d(choices, coins, bins=(np.arange(5) - 0.5, np.linspace(0, 1, 11)))[0]
    table = table[table.sum(1) > 0]
    assert stats.chisquare(table.sum(0)).pvalue > UNLIKELY
    assert len(table) == 1 or stats.chi2_contingency(table).pvalue > UNLIKELY


def test_random_axes_are_uniform_and_independent():
    actions = random_actions(normal(40_000, 2), None, discrete=False)
    assert actions.dtype == np.float32
    assert np.abs(actions).max() <= 1
    table = np.histogram2d(*actions.T.astype(np.float64), bins=np.linspace(-1, 1, 9))[0]
    assert stats.chisquare(table.ravel()).pvalue > UNLIKELY


@given(
    st.lists(st.lists(st.booleans(), min_size=3, max_size=3).filter(any), min_size=1, max_size=20), st.integers(0, 9)
)
def test_no_noise_leads_to_a_masked_choice(allowed, seed):
    mask = np.array(allowed, np.uint8)
    chosen = random_actions(uniform(len(mask), 3, seed), mask, discrete=True)
    assert chosen.dtype == np.int32
    assert mask[np.arange(len(mask)), chosen].all()


# --- targets, noise, draws ---


def test_a_follower_goes_a_share_of_the_way_and_leaves_its_network_alone():
    network = Mlp((2, 3, 1), "tanh", 1.0, torch.Generator().manual_seed(1))
    source = FlatAdam({"network": network}).vector
    follower = TargetNetwork(network, source)
    start = torch.cat([p.flatten() for p in follower.network.parameters()]).clone()
    assert torch.equal(start, source)
    source.add_(torch.arange(len(source), dtype=torch.float32))
    moved = source.clone()
    follower.follow(0.25)
    now = torch.cat([p.flatten() for p in follower.network.parameters()])
    torch.testing.assert_close(now, start + 0.25 * (moved - start))
    assert torch.equal(source, moved)
    assert torch.equal(torch.cat([p.flatten() for p in network.parameters()]), moved)
    assert not any(p.requires_grad for p in follower.network.parameters())
    follower.follow(1.0)
    assert torch.equal(torch.cat([p.flatten() for p in follower.network.parameters()]), moved)
    x = torch.ones(4, 2)
    assert torch.equal(follower.network(x), network(x).detach())


def test_noise_is_keyed_by_seed_and_step_and_by_nothing_else():
    noise = Noise(5, axes=3)
    first = noise.draw(7, 2, 10, CPU).clone()
    noise.draw(8, 2, 10, CPU)
    noise.draw(7, 1, 4, CPU)
    assert torch.equal(noise.draw(7, 2, 10, CPU), first)
    assert torch.equal(Noise(5, 3).draw(7, 2, 10, CPU), first)
    for other in (Noise(6, 3).draw(7, 2, 10, CPU), noise.draw(8, 2, 10, CPU)):
        assert not torch.isclose(other, first).any()
    assert not torch.isclose(first[0], first[1]).any()


def test_noise_is_standard_normal():
    assert stats.kstest(Noise(5, 2).draw(0, 2, 5000, CPU).flatten().numpy(), "norm").pvalue > UNLIKELY


def test_a_draw_becomes_tensors_with_both_observations_standardised_alike():
    actor = Actor(ActorSpec(1, 3, True, (), "relu", normalize_observation=True), torch.Generator())
    actor.observe({"obs": torch.tensor([[1.0], [3.0]])})  # mean 2, deviation 1
    sample = hand_sample([2, 3], [0, 2], [1, -1], [0.9, 0], [4, 0], mask=[[1, 1, 0]] * 2, next_mask=[[0, 1, 1]] * 2)
    rows = rows_of(sample, actor, CPU)
    torch.testing.assert_close(rows.inputs[VECTOR], torch.tensor([[0.0], [1.0]]), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(rows.next_inputs[VECTOR], torch.tensor([[2.0], [-2.0]]), atol=1e-3, rtol=1e-3)
    assert rows.action.tolist() == [0, 2]
    assert rows.action.dtype == torch.int64
    assert rows.reward.tolist() == [1, -1]
    assert rows.discount.tolist() == pytest.approx([0.9, 0])
    assert rows.weight.tolist() == [1, 1]
    assert rows.mask is not None
    assert rows.mask.tolist() == [[1, 1, 0]] * 2
    assert rows.next_mask is not None
    assert rows.next_mask.tolist() == [[0, 1, 1]] * 2


# --- acting, for each of them ---

CHOICES, AXES = {"choices": 4}, {"axes": 3}
LEARNERS: dict[str, tuple[Any, dict[str, int]]] = {
    "sac": (SacConfig(hidden=(16,)), AXES),
    "sac-discrete": (SacConfig(hidden=(16,)), CHOICES),
    "td3": (Td3Config(hidden=(16,)), AXES),
    "dqn": (DqnConfig(hidden=(16,), epsilon=0.3), CHOICES),
    "qr-dqn": (DqnConfig(hidden=(16,), epsilon=0.3, dueling=True, values={"kind": "quantile"}), CHOICES),
    "cql": (CqlConfig(hidden=(16,)), AXES),
    "cql-discrete": (CqlConfig(hidden=(16,)), CHOICES),
}
WARM, COLD = Progress(0.0, 0, steps=999), Progress(0.5, 9, steps=1000)  # learning_starts is 1000


def make(name: str, **changes: Any) -> Any:
    config, shape = LEARNERS[name]
    learner = ALGORITHMS[config.kind](config.model_copy(update=changes), hand_spec(features=3, **shape), 5, CPU)
    with torch.no_grad():
        learner.actor.head.weight.mul_(20.0)  # away from the flat start
    return learner


def inputs(name: str, rows: int) -> tuple[dict[str, np.ndarray], np.ndarray | None, np.ndarray]:
    """Observations, masks and noise."""
    discrete = "choices" in LEARNERS[name][1]
    obs = {"obs": np.random.default_rng(3).normal(size=(rows, 3)).astype(np.float32)}
    mask = np.tile(MASKS, (rows // 4 + 1, 1))[:rows] if discrete else None
    return obs, mask, uniform(rows, 4) if discrete else normal(rows, 3)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_row_is_acted_on_with_the_same_bits_in_any_batch(name):
    learner = make(name)
    obs, mask, noise = inputs(name, 200)
    for progress, shaken in ((WARM, noise), (COLD, noise), (COLD, None)):
        learner.explore(progress)
        whole = learner.act(obs, mask, shaken)
        for width in (1, 2, 7, 33):
            for first in (0, 5, 200 - width):
                part = slice(first, first + width)
                some = learner.act(
                    {"obs": obs["obs"][part]},
                    None if mask is None else mask[part],
                    None if shaken is None else shaken[part],
                )
                assert some.action.dtype == whole.action.dtype == (np.float32 if mask is None else np.int32)
                assert some.action.tobytes() == whole.action[part].tobytes(), (width, first)
                assert some.logp.tobytes() == whole.logp[part].tobytes(), (width, first)


@pytest.mark.parametrize("name", LEARNERS)
def test_warm_up_acts_uniformly_and_ends_when_learning_starts(name):
    learner = make(name)
    obs, mask, noise = inputs(name, 400)
    expected = random_actions(noise, mask, discrete=mask is not None)
    before = learner.act(obs, mask, noise).action  # nobody has said how far the run is: it begins
    learner.explore(WARM)
    np.testing.assert_array_equal(before, expected)
    np.testing.assert_array_equal(learner.act(obs, mask, noise).action, expected)
    quiet = learner.act(obs, mask, None).action
    assert (quiet != expected).any()
    learner.explore(COLD)
    after = learner.act(obs, mask, noise).action
    assert (after != expected).any()
    np.testing.assert_array_equal(learner.act(obs, mask, None).action, quiet)
    if mask is not None:
        for chosen in (quiet, after):
            assert mask[np.arange(400), chosen].all()


@pytest.mark.parametrize("name", ["dqn", "qr-dqn"])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_a_share_epsilon_of_choices_is_random_and_the_rest_greedy(name, epsilon):
    learner = make(name, epsilon=epsilon)
    obs, _, noise = inputs(name, 20_000)
    learner.explore(COLD)
    chosen, greedy = learner.act(obs, None, noise).action, learner.act(obs, None, None).action
    explored = int((chosen != greedy).sum())
    share = epsilon * 3 / 4  # a random choice is the greedy one once in four
    assert abs(explored - 20_000 * share) <= 4 * np.sqrt(20_000 * share * (1 - share))


def test_epsilon_and_exploration_noise_follow_their_schedules():
    schedule = ((0.0, 1.0), (0.5, 0.2))
    dqn, td3 = make("dqn", epsilon=schedule), make("td3", exploration_noise=schedule)
    for fraction, expected in ((0.0, 1.0), (0.25, 0.6), (0.75, 0.2)):
        dqn.explore(Progress(fraction, 0, steps=5000))
        td3.explore(Progress(fraction, 0, steps=5000))
        assert dqn.epsilon == pytest.approx(expected)
        assert td3.deviation == pytest.approx(expected)


def test_td3_adds_noise_of_the_scheduled_size_and_stays_within_bounds():
    learner = make("td3", exploration_noise=0.5)
    obs, _, noise = inputs("td3", 50)
    learner.explore(COLD)
    quiet = learner.act(obs, None, None).action
    expected = np.clip(quiet + np.float32(0.5) * noise, -1, 1)
    np.testing.assert_array_equal(learner.act(obs, None, noise).action, expected)
    assert (np.abs(expected) == 1).any()


def test_sac_acts_by_its_distribution():
    learner = make("sac")
    set_layer(learner.actor.head, 0.0, [0.5] * 3 + [-100.0] * 3)  # mean 0.5, the smallest deviation: e^-5
    learner.explore(COLD)
    obs, _, noise = inputs("sac", 50)
    expected = np.tanh(0.5 + np.exp(-5) * noise)
    np.testing.assert_allclose(learner.act(obs, None, noise).action, expected, rtol=1e-5)
    np.testing.assert_allclose(learner.act(obs, None, None).action, np.full((50, 3), np.tanh(0.5)), rtol=1e-5)


# --- the same bits ---


@pytest.mark.parametrize("kind", ["sac", "td3", "dqn", "cql"])
def test_threads_do_not_change_a_bit(kind):
    def after(threads: int) -> str:
        _core.set_kernel_threads(threads)
        parts = build(scenario_of("probe_target", tiny(kind, hidden=[128, 128], batch_size=300)))
        for _ in range(3):
            parts.advance()
        return digest(parts.learner.state_dict())

    try:
        assert after(1) == after(2) == after(3)
    finally:
        _core.set_kernel_threads(1)


@pytest.mark.parametrize("kind", ["sac", "td3", "dqn", "cql"])
def test_learning_draws_nothing_from_global_random_numbers(kind):
    def after(seed: int) -> str:
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        parts = build(scenario_of("probe_target", tiny(kind)))
        for _ in range(3):
            parts.advance()
        return digest(parts.learner.state_dict())

    assert after(1) == after(2)


def test_a_learners_own_noise_is_not_the_exploration_noise_of_the_same_seed():
    own = Noise(7, 3).draw(5, 1, 4, torch.device("cpu")).numpy()
    exploring = np.empty((1, 4, 3), np.float32)
    _core.fill_normal(exploring, seed=7, step=5)
    assert not np.isclose(own, exploring).any()
