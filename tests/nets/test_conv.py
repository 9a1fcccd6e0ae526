"""Convolutions: against torch's own layers one by one, whatever the axes and bounds of the images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from slipstream.config.algos import DqnConfig, PpoConfig
from slipstream.config.algos.learner import ConvNetwork, MlpNetwork
from slipstream.errors import ScenarioError
from slipstream.nets.actor import act, make_actor
from slipstream.nets.conv import CONV, ImageResidual, ImageTorso
from slipstream.nets.inputs import VECTOR
from slipstream.nets.networks import ActionShape, make_networks
from slipstream.nets.runner import NetworkRunner
from slipstream.nets.torso import Network, TorsoSpec, usual_network
from slipstream.spec import ActionSpec, ObsBlock, WorldSpec

CPU = torch.device("cpu")


def image(name: str, *shape: int, high: float = 255.0) -> ObsBlock:
    """A block of pixels."""
    return ObsBlock(name, "uint8", shape, 0.0, high)


def world(*blocks: ObsBlock) -> WorldSpec:
    """A world that shows these, with three choices."""
    return WorldSpec("seen", ("a",), ("a",), blocks, ActionSpec(discrete=True, size=3))


def torso(config: ConvNetwork, *blocks: ObsBlock) -> ImageTorso:
    """The torso that a learner in such a world would have."""
    spec = world(*blocks)
    named = set(CONV.blocks(config, spec))
    images = tuple(block for block in blocks if block.name in named)
    vector = spec.obs_size - sum(block.size for block in images)
    made = TorsoSpec(vector, (), "relu", images, CONV.layout(config, spec))
    return CONV.torso(made, torch.Generator().manual_seed(3))


def pixels(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random bytes."""
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


SPEED = ObsBlock("speed", "float32", (2,), -1.0, 1.0)


def test_nature_is_three_layers_of_the_paper_and_one_that_joins_the_vector():
    net = torso(ConvNetwork(), image("screen", 4, 84, 84), SPEED)
    screen, speed = pixels(5, 4, 84, 84), torch.randn(5, 2)
    first, second, third = (layer for layer in net.images[0] if isinstance(layer, nn.Conv2d))
    x = torch.relu(functional.conv2d(screen.float() / 255, first.weight, first.bias, stride=4))
    x = torch.relu(functional.conv2d(x, second.weight, second.bias, stride=2))
    x = torch.relu(functional.conv2d(x, third.weight, third.bias))
    assert x.shape == (5, 64, 7, 7)
    joined = torch.relu(functional.linear(torch.cat([x.flatten(1), speed], 1), net.join.weight, net.join.bias))
    assert torch.allclose(net({"screen": screen, VECTOR: speed}), joined, atol=1e-5)
    assert net.features == 512


def test_impala_is_residual():
    net = torso(ConvNetwork(layers="impala", channels=(4, 6)), image("screen", 3, 20, 24))
    screen = pixels(2, 3, 20, 24)
    x = screen.float() / 255
    layers = list(net.images[0])
    for number in range(2):
        conv, pool, *residuals = layers[4 * number : 4 * number + 4]
        x = functional.max_pool2d(functional.conv2d(x, conv.weight, conv.bias, padding=1), 3, 2, 1)
        assert isinstance(pool, nn.MaxPool2d)
        for each in residuals:
            assert isinstance(each, ImageResidual)
            inner = functional.conv2d(torch.relu(x), each.first.weight, each.first.bias, padding=1)
            x = x + functional.conv2d(torch.relu(inner), each.second.weight, each.second.bias, padding=1)
    joined = torch.relu(functional.linear(torch.relu(x).flatten(1), net.join.weight, net.join.bias))
    assert torch.allclose(net({"screen": screen, VECTOR: torch.zeros(2, 0)}), joined, atol=1e-5)


def test_an_image_means_the_same_with_its_channels_first_last_or_unsaid():
    first = torso(ConvNetwork(), image("screen", 2, 12, 10))
    last = torso(ConvNetwork(), image("screen", 12, 10, 2))
    screen = pixels(3, 2, 12, 10)
    nothing = torch.zeros(3, 0)
    assert torch.allclose(
        first({"screen": screen, VECTOR: nothing}), last({"screen": screen.permute(0, 2, 3, 1), VECTOR: nothing})
    )
    grey, one = torso(ConvNetwork(), image("screen", 12, 10)), torso(ConvNetwork(), image("screen", 1, 12, 10))
    assert torch.equal(grey({"screen": screen[:, 0], VECTOR: nothing}), one({"screen": screen[:, :1], VECTOR: nothing}))


def test_pixels_are_scaled_by_the_bounds_that_the_world_tells():
    bits, bytes_ = torso(ConvNetwork(), image("screen", 9, 9, high=1.0)), torso(ConvNetwork(), image("screen", 9, 9))
    screen = (pixels(4, 9, 9) > 127).to(torch.uint8)
    nothing = torch.zeros(4, 0)
    of_bits = bits({"screen": screen, VECTOR: nothing})
    assert torch.allclose(of_bits, bytes_({"screen": screen * 255, VECTOR: nothing}), atol=1e-6)
    assert not torch.allclose(of_bits, bytes_({"screen": screen, VECTOR: nothing}), atol=1e-2)


def test_several_images_of_different_sizes_are_all_seen():
    net = torso(ConvNetwork(), image("left", 10, 10), SPEED, image("right", 3, 12, 8))
    inputs = {"left": pixels(2, 10, 10), "right": pixels(2, 3, 12, 8), VECTOR: torch.randn(2, 2)}
    out = net(inputs)
    for name in inputs:
        changed = {**inputs, name: inputs[name] + 1}
        assert not torch.equal(net(changed), out), name


@pytest.mark.parametrize(
    ("shape", "layers"), [((4, 84, 84), "nature"), ((36, 36, 3), "nature"), ((10, 10, 6), "small"), ((35, 84), "small")]
)
def test_layers_are_chosen_by_the_size_of_the_images(shape, layers):
    layout = CONV.layout(ConvNetwork(), world(image("screen", *shape)))
    assert layout["layers"] == layers


def test_images_bring_convolutions_and_everything_else_a_perceptron():
    assert usual_network(world(image("screen", 4, 84, 84))) == ConvNetwork()
    assert usual_network(world(SPEED)) == MlpNetwork()
    named_planes = ObsBlock("planes", "uint8", (2, 8, 8), 0.0, 1.0, ("red", "blue"))
    assert usual_network(world(named_planes)) == MlpNetwork()


def test_a_world_without_images_is_refused():
    with pytest.raises(ScenarioError, match=r"algo\.network.*speed \(float32\[2\]\)"):
        make_networks(PpoConfig(network=ConvNetwork()), world(SPEED), ActionShape(3, True), 0, CPU)


def test_layers_that_images_are_too_small_for_are_refused():
    with pytest.raises(ScenarioError, match=r"algo\.network\.layers.*36.*\[10, 10\]"):
        CONV.layout(ConvNetwork(layers="nature"), world(image("screen", 10, 10)))
    with pytest.raises(ScenarioError, match=r"algo\.network\.layers.*9.*\[8, 8\]"):
        CONV.layout(ConvNetwork(channels=(4, 4, 4, 4)), world(image("screen", 8, 8)))


def test_actor_and_critic_share_their_torso_unless_asked_not_to():
    spec = world(image("screen", 10, 10))
    for shared, config in ((True, PpoConfig()), (False, PpoConfig(shared_torso=False))):
        networks = make_networks(config, spec, ActionShape(3, True), 0, CPU)
        critic = networks.value_critic(networks.actor(), config.shared_torso)
        assert (critic.torso is None) == shared


@pytest.mark.parametrize("head", ["distribution", "values", "squashed", "point"])
def test_gradients_of_every_heads_outputs_are_those_of_autograd(head):
    spec = world(image("screen", 10, 10), SPEED)
    networks = make_networks(DqnConfig(), spec, ActionShape(3, True), 0, CPU)
    actor = networks.actor(head)
    assert actor.network is not None
    inputs = {"screen": pixels(6, 10, 10), VECTOR: torch.randn(6, 2)}
    forward = NetworkRunner(actor.network).forward(inputs)
    weights = torch.randn(forward.outputs[0].shape)
    found = forward.backward([weights])
    out = actor.torso(inputs, actor.head)
    expected = torch.autograd.grad((out * weights).sum(), list(actor.network.parameters()))
    flat = [torch.cat([grads.flatten() for grads in each]) for each in (found, expected)]
    assert torch.allclose(*flat, atol=1e-5)


def test_a_saved_policy_is_built_again_from_what_is_saved_with_it():
    networks = make_networks(PpoConfig(), world(image("screen", 10, 10, 4), SPEED), ActionShape(3, True), 5, CPU)
    actor = networks.actor()
    again = make_actor(actor.spec)
    again.load_state_dict(actor.state_dict())
    rng = np.random.default_rng(0)
    screen = rng.integers(0, 256, (7, 10, 10, 4), dtype=np.uint8)
    obs = {"screen": screen, "speed": rng.normal(size=(7, 2)).astype(np.float32)}
    assert np.array_equal(act(actor, obs, None, None, CPU).action, act(again, obs, None, None, CPU).action)


def test_a_torso_has_a_network_of_its_own_parameters():
    net = torso(ConvNetwork(), image("screen", 10, 10))
    assert len(Network(net).parameters()) == 4  # weights and biases of a convolution and of the layer that joins
