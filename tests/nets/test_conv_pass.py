"""The native pass of convolutions: against torch's layers in float64, with the same bits in any batch."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from slipstream import _core, load_policy
from slipstream.config.algos.learner import ConvNetwork
from slipstream.nets.conv import CONV, ImageTorso
from slipstream.nets.conv_pass import ConvPass, ConvSizes, run_convolutions
from slipstream.nets.inputs import VECTOR, Inputs
from slipstream.nets.torso import TorsoSpec
from slipstream.spec import ActionSpec, ObsBlock, WorldSpec

SAVED = Path(__file__).parents[1] / "fixtures" / "images" / "conv"
NATURE = ConvSizes(4, 40, 44, True, 0.0, 1 / 255, ((8, 4, 32), (4, 2, 64), (3, 1, 64)))
SMALL = ConvSizes(6, 10, 10, False, 0.0, 1.0, ((3, 1, 16),))
ODD = ConvSizes(3, 17, 11, False, 7.0, 0.01, ((5, 2, 3), (2, 1, 18)))
GREY = ConvSizes(1, 9, 12, True, 0.0, 1 / 255, ((3, 1, 20), (3, 2, 5)))
ALL = pytest.mark.parametrize("sizes", [NATURE, SMALL, ODD, GREY], ids=["nature", "small", "odd", "grey"])


def drawn(sizes: ConvSizes, rows: int) -> tuple[Tensor, list[Tensor]]:
    """Images as this world shows them, and weights and biases for them."""
    generator = torch.Generator().manual_seed(5)
    shape = (sizes.channels, sizes.height, sizes.width)
    shown = shape if sizes.channels_first else (*shape[1:], shape[0])
    images = torch.randint(0, 256, (rows, *shown), dtype=torch.uint8, generator=generator)
    parameters, channels = [], sizes.channels
    for kernel, _, outputs in sizes.layers:
        parameters += [torch.randn(outputs, channels, kernel, kernel, generator=generator) / (kernel * channels**0.5)]
        parameters += [torch.randn(outputs, generator=generator)]
        channels = outputs
    return images, [each.requires_grad_() for each in parameters]


def in_torch(sizes: ConvSizes, images: Tensor, parameters: list[Tensor]) -> Tensor:
    """Torch's layers, in float64."""
    x = (images.double() - sizes.low) * sizes.scale
    x = x if sizes.channels_first else x.permute(0, 3, 1, 2)
    for (_, stride, _), weight, bias in zip(sizes.layers, parameters[::2], parameters[1::2], strict=True):
        x = torch.relu(functional.conv2d(x, weight.double(), bias.double(), stride))
    return x.flatten(1)


@ALL
def test_features_and_gradients_are_those_of_torchs_layers(sizes):
    images, parameters = drawn(sizes, 70)
    found, expected = run_convolutions(ConvPass(sizes), images, parameters), in_torch(sizes, images, parameters)
    assert torch.allclose(found.double(), expected, atol=1e-5 * expected.max().item())
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(6))
    slopes = torch.autograd.grad((found * weights).sum(), parameters)
    wanted = torch.autograd.grad((expected * weights.double()).sum(), parameters)
    for got, want in zip(slopes, wanted, strict=True):
        assert torch.allclose(got, want.to(got.dtype), atol=1e-5 * want.abs().max().item())


@ALL
def test_an_image_has_the_same_bits_in_any_batch_and_on_any_number_of_threads(sizes):
    images, parameters = drawn(sizes, 33)
    layout = ConvPass(sizes)
    together = run_convolutions(layout, images, parameters)
    alone = torch.cat([run_convolutions(layout, images[i : i + 1], parameters) for i in range(33)])
    assert torch.equal(together, alone)
    slopes = torch.autograd.grad(together.square().sum(), parameters)
    _core.set_kernel_threads(2)
    try:
        again = run_convolutions(layout, images, parameters)
        assert torch.equal(together, again)
        for one, two in zip(slopes, torch.autograd.grad(again.square().sum(), parameters), strict=True):
            assert torch.equal(one, two)
    finally:
        _core.set_kernel_threads(1)


def test_a_copy_of_a_network_runs_as_it_does():
    images, parameters = drawn(ODD, 3)
    layout = ConvPass(ODD)
    again = copy.deepcopy(layout)
    assert torch.equal(run_convolutions(layout, images, parameters), run_convolutions(again, images, parameters))


def test_images_that_are_not_what_was_said_are_refused():
    images, parameters = drawn(SMALL, 2)
    layout = ConvPass(SMALL)
    for wrong in (images.float(), images[:, :9], images.permute(0, 3, 1, 2)):
        with pytest.raises(ValueError, match=r"\(10, 10, 6\)"):
            run_convolutions(layout, wrong, parameters)


def test_a_convolution_without_a_place_in_its_image_is_refused():
    with pytest.raises(ValueError, match=r"5 pixels.*4 x 9"):
        ConvPass(ConvSizes(1, 4, 9, True, 0.0, 1.0, ((5, 1, 2),)))


def torso_and_inputs() -> tuple[ImageTorso, Inputs]:
    """Two images and a vector."""
    blocks = (ObsBlock("left", "uint8", (12, 10, 3), 0.0, 255.0), ObsBlock("right", "uint8", (9, 9), 0.0, 1.0))
    speed = ObsBlock("speed", "float32", (2,), -1.0, 1.0)
    spec = WorldSpec("seen", ("a",), ("a",), (*blocks, speed), ActionSpec(discrete=True, size=3))
    config = ConvNetwork(channels=(8, 4))
    torso = CONV.torso(TorsoSpec(2, (), "relu", blocks, CONV.layout(config, spec)), torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(1)
    bytes_ = {
        b.name: torch.randint(0, 2, (5, *b.shape), dtype=torch.uint8, generator=generator) * int(b.high) for b in blocks
    }
    return torso, {**bytes_, VECTOR: torch.randn(5, 2, generator=generator)}


def test_a_torso_without_autograd_has_the_outputs_and_gradients_of_the_graph():
    torso, inputs = torso_and_inputs()
    runner = torso.runner()
    assert runner is not None
    forward = runner.forward(inputs)
    vector = inputs[VECTOR].clone().requires_grad_()
    features = torso({**inputs, VECTOR: vector})
    assert torch.equal(forward.outputs[0], features)
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(2))
    *expected, by_vector = torch.autograd.grad((features * weights).sum(), [*torso.parameters(), vector])
    assert torch.equal(torch.cat(list(forward.backward((weights,)))), torch.cat([g.flatten() for g in expected]))
    assert torch.equal(forward.vector_grads((weights,))[0], by_vector)


def test_a_torso_is_the_same_network_with_the_same_gradients_where_torch_runs_it(monkeypatch):
    torso, inputs = torso_and_inputs()
    weights = torch.randn(5, torso.features, generator=torch.Generator().manual_seed(2))

    def ran() -> list[Tensor]:
        features = torso(inputs)
        return [features, *torch.autograd.grad((features * weights).sum(), list(torso.parameters()))]

    native = ran()
    monkeypatch.setattr("slipstream.nets.conv.runs_natively", lambda images: False)
    for one, other in zip(native, ran(), strict=True):
        assert torch.allclose(one, other, atol=1e-5 * float(other.detach().abs().max()))


def test_a_policy_saved_when_torch_ran_its_convolutions_answers_the_same():
    policy, recorded = load_policy(SAVED), json.loads((SAVED / "seen.json").read_text())
    seen = {
        block.name: torch.from_numpy(np.array(recorded["seen"][block.name], block.dtype))
        for block in policy.record.world.obs
    }
    with torch.no_grad():
        logits = policy.network(seen, None).logits
    np.testing.assert_allclose(logits, recorded["logits"], atol=2e-6)
