"""Acting gives a row the same bits whatever came along with it."""

import numpy as np
import pytest
import torch

from slipstream import _core
from slipstream.nets.actor import Actor, ActorSpec, act

CPU = torch.device("cpu")
WIDTHS = (1, 7, 64, 1000)


def make_actor(discrete: bool, hidden: tuple[int, ...] = (64, 64), inputs: int = 33) -> Actor:
    spec = ActorSpec(inputs, 5, discrete, hidden, "tanh", normalize_observation=True)
    actor = Actor(spec, torch.Generator().manual_seed(7))
    assert actor.norm is not None
    actor.norm.update(torch.randn(500, inputs, generator=torch.Generator().manual_seed(8)) * 3 + 1)
    return actor


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("hidden", [(64, 64), (256, 256), (17,), (7, 9), ()])
def test_a_row_has_the_same_bits_in_any_batch_and_place(discrete, hidden):
    actor = make_actor(discrete, hidden)
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(1000, 33)).astype(np.float32)
    noise = rng.uniform(1e-6, 1 - 1e-6, size=(1000, 5)).astype(np.float32)
    mask = np.ones((1000, 5), np.uint8) if discrete else None
    whole = act(actor, {"obs": obs}, mask, noise, CPU)
    for width in WIDTHS:
        for first in (0, 3, 500, 1000 - width):
            rows = slice(first, min(first + width, 1000))
            part = act(actor, {"obs": obs[rows]}, None if mask is None else mask[rows], noise[rows], CPU)
            assert part.action.tobytes() == whole.action[rows].tobytes(), (width, first)
            assert part.logp.tobytes() == whole.logp[rows].tobytes(), (width, first)


def test_without_noise_the_most_likely_action_is_chosen():
    obs = np.random.default_rng(2).normal(size=(9, 33)).astype(np.float32)
    for discrete in (True, False):
        actor = make_actor(discrete)
        dist = actor({"obs": torch.from_numpy(obs)}, None)
        chosen = act(actor, {"obs": obs}, None, None, CPU)
        np.testing.assert_allclose(chosen.action, dist.mode().detach().numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(chosen.logp, dist.logp(dist.mode()).detach().numpy(), rtol=1e-5)


def test_types_are_those_of_the_worlds_buffers():
    obs = {"obs": np.zeros((3, 33), np.float32)}
    assert act(make_actor(True), obs, None, None, CPU).action.dtype == np.int32
    chosen = act(make_actor(False), obs, None, None, CPU)
    assert (chosen.action.dtype, chosen.action.shape, chosen.logp.shape) == (np.float32, (3, 5), (3,))


def test_masked_choices_are_never_taken_with_the_noise_of_the_core():
    actor = make_actor(True)
    mask = np.tile(np.array([0, 1, 0, 0, 1], np.uint8), (400, 1))
    obs = {"obs": np.random.default_rng(3).normal(size=(400, 33)).astype(np.float32)}
    noise = np.empty((100, 4, 5), np.float32)
    for step in range(50):
        _core.fill_uniform(noise, seed=1, step=step, first_world=0)
        assert noise.min() > 0
        assert noise.max() < 1
        chosen = act(actor, obs, mask, noise.reshape(400, 5), CPU)
        assert set(chosen.action.tolist()) <= {1, 4}
        assert np.isfinite(chosen.logp).all()
