"""Running statistics against numpy on the whole data."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.config.algos import PpoConfig
from slipstream.nets.critic import SLOWEST, Critic
from slipstream.nets.inputs import CLIP, VECTOR, RunningNorm
from slipstream.nets.mlp import MlpTorso
from slipstream.nets.networks import ActionShape, make_networks
from slipstream.spec import ActionSpec, ObsBlock, WorldSpec


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6), seed=st.integers(0, 10_000))
def test_statistics_of_pieces_are_those_of_the_whole(sizes, seed):
    rng = np.random.default_rng(seed)
    pieces = [(rng.normal(size=(n, 3)) * [1, 100, 0.01] + [0, 1e3, -5]).astype(np.float32) for n in sizes]
    norm = RunningNorm(3)
    for piece in pieces:
        norm.update(torch.from_numpy(piece))
    whole = np.concatenate(pieces).astype(np.float64)
    assert float(norm.count) == len(whole)
    if len(whole) < 2:
        return
    np.testing.assert_allclose(norm.mean, whole.mean(0), rtol=1e-9)
    np.testing.assert_allclose((norm.m2 / norm.count).sqrt(), whole.std(0), rtol=1e-6)
    shown = norm(torch.from_numpy(whole.astype(np.float32))).numpy()
    # float32 cannot centre 1000 ± 100 better than this.
    np.testing.assert_allclose(shown, np.clip((whole - whole.mean(0)) / whole.std(0), -CLIP, CLIP), atol=1e-3)


def test_before_the_first_update_inputs_pass_unchanged():
    x = torch.tensor([[0.5, -3.0]])
    assert torch.equal(RunningNorm(2)(x), x)


def test_a_constant_feature_becomes_zero_and_is_never_blown_up():
    norm = RunningNorm(2)
    norm.update(torch.tensor([[7.0, 1.0], [7.0, 2.0], [7.0, 3.0]]))
    shown = norm(torch.tensor([[7.0, 2.0], [7.5, 2.0]]))
    assert shown[0].tolist() == [0.0, 0.0]
    assert shown[1, 0] == 0.5


def test_far_outliers_are_clipped():
    norm = RunningNorm(1)
    norm.update(torch.tensor([[-1.0], [1.0]]))
    assert norm(torch.tensor([[1e9], [-1e9]])).flatten().tolist() == [CLIP, -CLIP]


def critic(seed: int = 0) -> Critic:
    generator = torch.Generator().manual_seed(seed)
    torso = MlpTorso((4, 8), "tanh", None, generator)
    return Critic(torso, torso.features, generator)


def test_rescaling_leaves_every_value_as_it_was():
    net = critic()
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    before = net.value(None, {VECTOR: x})
    for scale, shift in [(100.0, 500.0), (0.01, -3.0), (1.0, 0.0)]:
        net.rescale(torch.randn(1000, generator=torch.Generator().manual_seed(2)) * scale + shift)
        torch.testing.assert_close(net.value(None, {VECTOR: x}), before, rtol=1e-4, atol=1e-3)


def test_the_first_batch_of_targets_sets_the_statistics_alone():
    net = critic()
    targets = torch.tensor([10.0, 14.0, 18.0, 22.0])
    net.rescale(targets)
    assert float(net.mean) == 16.0
    np.testing.assert_allclose(float(net.deviation), np.std([10, 14, 18, 22]), rtol=1e-12)
    standard = net.standardise(targets)
    np.testing.assert_allclose([float(standard.mean()), float(standard.std(correction=0))], [0, 1], atol=1e-6)


def test_later_batches_count_as_much_as_earlier_ones_until_the_slowest_rate():
    net = critic()
    for i in range(4):
        net.rescale(torch.full((8,), float(i)))
    np.testing.assert_allclose(float(net.mean), np.mean([0, 1, 2, 3]), rtol=1e-12)
    for _ in range(100):
        net.rescale(torch.zeros(8))
    mean = float(net.mean)
    net.rescale(torch.ones(8))
    np.testing.assert_allclose(float(net.mean), mean + SLOWEST * (1 - mean), rtol=1e-12)


def test_what_says_yes_or_no_is_read_as_it_is_and_numbers_beside_it_are_standardised():
    rng = np.random.default_rng(0)
    blocks = (
        ObsBlock("where", "float32", (2,), -1e3, 1e3),
        ObsBlock("state", "float32", (50,), 0.0, 1.0, one_hot=True),
        ObsBlock("speed", "float32", (1,), 0.0, 1.0),
    )
    spec = WorldSpec("seen", ("a",), ("a",), blocks, ActionSpec(discrete=True, size=3))
    actor = make_networks(
        PpoConfig(normalize_observation=True), spec, ActionShape(3, True), 0, torch.device("cpu")
    ).actor()
    for _ in range(3):
        where = rng.normal(40.0, 3.0, (200, 2)).astype(np.float32)
        state = np.eye(50, dtype=np.float32)[rng.integers(0, 50, 200)]
        speed = rng.uniform(0.0, 1.0, (200, 1)).astype(np.float32)
        obs = {name: torch.from_numpy(array) for name, array in (("where", where), ("state", state), ("speed", speed))}
        actor.observe(obs)
    shown = actor.inputs(obs)[VECTOR].numpy()
    np.testing.assert_array_equal(shown[:, 2:52], state)
    assert abs(shown[:, :2].mean()) < 0.2
    assert 0.8 < shown[:, :2].std() < 1.2
    assert 0.8 < shown[:, 52].std() < 1.2
