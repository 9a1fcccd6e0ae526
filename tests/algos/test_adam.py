"""Adam over one vector: torch's Adam beside it, steps that are not taken, and its state there and back."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from slipstream import _core
from slipstream.algos.adam import FlatAdam, flatten_parameters
from slipstream.errors import CheckpointError

EPS = 1e-5
SHAPES = ((1,), (7,), (9000,), (3, 5), (200, 200))  # the third is more than one task, the last more than one thread's


class Weights(nn.Module):
    """Parameters of these shapes, and a loss whose gradients are whatever is asked for."""

    def __init__(self, shapes=SHAPES, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.all = nn.ParameterList(nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes)

    def loss(self, grads: list[Tensor]) -> Tensor:
        return torch.stack([(p * g).sum() for p, g in zip(self.all, grads, strict=True)]).sum()

    def flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.all])


def gradients(step: int, shapes=SHAPES) -> list[Tensor]:
    """Drawn for this step; their size goes up and down, so that only some are clipped."""
    generator = torch.Generator().manual_seed(1000 + step)
    scale = 10.0 ** (step % 5 - 3)
    return [scale * torch.randn(shape, generator=generator) for shape in shapes]


def norm_of(grads: list[Tensor]) -> float:
    return float(torch.cat([g.flatten().double() for g in grads]).norm())


def make(seed: int = 0, eps: float = EPS) -> tuple[Weights, FlatAdam]:
    weights = Weights(seed=seed)
    return weights, FlatAdam({"actor": weights}, eps)


def bits(weights: Weights, adam: FlatAdam) -> list[bytes]:
    arrays = [weights.flat(), *adam.moments.values(), torch.tensor(adam.steps)]
    return [array.numpy().tobytes() for array in arrays]


@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("eps", [1e-8, EPS, 0.1])
def test_two_hundred_steps_are_those_of_torch(eps, max_norm):
    weights, adam = make(eps=eps)
    theirs = copy.deepcopy(weights)
    torch_adam = torch.optim.Adam(theirs.parameters(), eps=eps)
    for step in range(200):
        grads = gradients(step)
        rate = 1e-3 * (1 - step / 400)
        norm = adam.minimize(weights.loss(grads), rate, max_norm)
        for parameter, grad in zip(theirs.all, grads, strict=True):
            parameter.grad = grad.clone()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        torch_adam.param_groups[0]["lr"] = rate
        torch_adam.step()
        assert norm == pytest.approx(norm_of(grads), rel=1e-9)  # before clipping
    assert adam.steps == 200
    torch.testing.assert_close(weights.flat(), theirs.flat(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_the_steps_of_a_gpu_are_those_of_the_native_step(max_norm):
    (weights, adam), (twin, by_torch) = make(), make()
    for step in range(50):
        grads = gradients(step)
        norm = adam.minimize(weights.loss(grads), 1e-3, max_norm)
        assert by_torch._step_by_torch(tuple(grads), 1e-3, max_norm) == pytest.approx(norm, rel=1e-9)
    assert adam.steps == by_torch.steps == 50
    torch.testing.assert_close(weights.flat(), twin.flat(), atol=1e-6, rtol=0)
    for native, other in zip(adam.moments.values(), by_torch.moments.values(), strict=True):
        assert (native - other).abs().max() <= 1e-6 * other.abs().max()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("native", [True, False])
def test_a_gradient_that_is_not_finite_changes_no_bit(bad, native):
    weights, adam = make()
    adam.minimize(weights.loss(gradients(1)), 1e-3, None)
    before = bits(weights, adam)
    for piece in range(len(SHAPES)):
        for place in (0, -1):
            grads = gradients(2)
            grads[piece].view(-1)[place] = bad
            if native:
                norm = adam.minimize(weights.loss(grads), 1e-3, 1.0)
            else:
                norm = adam._step_by_torch(tuple(grads), 1e-3, 1.0)
            assert not np.isfinite(norm)
            assert bits(weights, adam) == before
    adam.minimize(weights.loss(gradients(2)), 1e-3, None)
    assert bits(weights, adam) != before


@pytest.mark.parametrize("native", [True, False])
def test_a_gradient_whose_square_float32_cannot_hold_is_clipped_like_any_other(native):
    (weights, adam), (twin, small) = make(), make()
    grads = gradients(1)
    huge = [g * 1e25 for g in grads]
    norm = adam.minimize(weights.loss(huge), 1e-3, 1.0) if native else adam._step_by_torch(tuple(huge), 1e-3, 1.0)
    assert norm == pytest.approx(1e25 * norm_of(grads), rel=1e-6)
    small.minimize(twin.loss(grads), 1e-3, 1.0)
    torch.testing.assert_close(weights.flat(), twin.flat(), atol=1e-6, rtol=0)


def test_gradients_in_another_order_of_memory_are_read_right():
    plain, turned = Weights(((30, 20),)), Weights(((30, 20),))
    grad = torch.randn(30, 20, generator=torch.Generator().manual_seed(1))
    one, two = FlatAdam({"a": plain}), FlatAdam({"a": turned})
    one.minimize((plain.all[0] * grad).sum(), 1e-3, None)
    two.minimize((turned.all[0].T * grad.T.contiguous()).sum(), 1e-3, None)
    assert bits(plain, one) == bits(turned, two)


def test_threads_change_no_bit():
    def after(threads: int) -> list[bytes]:
        _core.set_kernel_threads(threads)
        weights, adam = make()
        for step in range(10):
            adam.minimize(weights.loss(gradients(step)), 1e-3, 1.0)
        return bits(weights, adam)

    try:
        assert after(1) == after(2) == after(3)
    finally:
        _core.set_kernel_threads(1)


def test_saved_moments_go_on_bit_for_bit():
    weights, adam = make()
    for step in range(5):
        adam.minimize(weights.loss(gradients(step)), 1e-3, 1.0)
    saved = adam.arrays("optim")
    twin = copy.deepcopy(weights)
    other = FlatAdam({"actor": twin}, EPS)
    other.load(saved, "optim")
    assert bits(weights, adam) == bits(twin, other)
    for name, array in other.arrays("optim").items():
        assert array.tobytes() == saved[name].tobytes()
    for step in range(5, 8):
        adam.minimize(weights.loss(gradients(step)), 1e-3, 1.0)
        other.minimize(twin.loss(gradients(step)), 1e-3, 1.0)
    assert bits(weights, adam) == bits(twin, other)


def test_moments_are_saved_under_the_name_of_their_parameter():
    grads = [torch.full((2,), 1.0), torch.full((1, 3), 2.0)]
    weights = Weights(((2,), (1, 3)))
    adam = FlatAdam({"actor": weights})
    assert adam.arrays("optim") == {}
    adam.minimize(weights.loss(grads), 1e-3, None)
    saved = adam.arrays("optim")
    assert set(saved) == {"optim.step"} | {f"optim.actor.all.{i}.{m}" for i in "01" for m in ("exp_avg", "exp_avg_sq")}
    assert saved["optim.step"] == 1
    np.testing.assert_allclose(saved["optim.actor.all.0.exp_avg"], [0.1, 0.1], rtol=1e-6)
    np.testing.assert_allclose(saved["optim.actor.all.1.exp_avg"], [[0.2, 0.2, 0.2]], rtol=1e-6)
    np.testing.assert_allclose(saved["optim.actor.all.1.exp_avg_sq"], [[0.004, 0.004, 0.004]], rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "array"),
    [
        (
            lambda s: s.update({"optim.actor.all.4.exp_avg": np.zeros((200, 9), np.float32)}),
            r"all\.4\.exp_avg: .*\(200, 9\).*\(200, 200\)",
        ),
        (
            lambda s: s.update({"optim.actor.all.0.exp_avg_sq": np.zeros((), np.float32)}),
            r"\.0\.exp_avg_sq: .*\(\).*\(1,\)",
        ),
        (lambda s: s.pop("optim.actor.all.4.exp_avg_sq"), r"\.4\.exp_avg_sq: (?!.*shape)"),
    ],
)
def test_moments_that_do_not_fit_are_refused_by_name_and_nothing_is_changed(change, array):
    trained, adam = make()
    adam.minimize(trained.loss(gradients(1)), 1e-3, None)
    saved = adam.arrays("optim")
    change(saved)
    weights, other = make(seed=1)
    other.minimize(weights.loss(gradients(2)), 1e-3, None)
    before = bits(weights, other)
    with pytest.raises(CheckpointError, match=array):
        other.load(saved, "optim")
    assert bits(weights, other) == before


def test_parameters_become_views_of_one_vector():
    weights = Weights(((2,), (1, 3)))
    before = [p.detach().clone() for p in weights.all]
    vector = flatten_parameters(list(weights.all))
    assert torch.equal(vector, torch.cat([p.flatten() for p in before]))
    vector.mul_(2)
    for parameter, old in zip(weights.all, before, strict=True):
        assert torch.equal(parameter, 2 * old)


def test_several_modules_are_one_vector_in_their_order():
    actor, critic = Weights(((2,),)), Weights(((3,),), seed=1)
    adam = FlatAdam({"actor": actor, "critic": critic})
    assert torch.equal(adam.vector, torch.cat([actor.flat(), critic.flat()]))
    untouched = actor.flat()
    adam.minimize(critic.loss([torch.ones(3)]) + actor.loss([torch.zeros(2)]), 0.1, None)
    assert torch.equal(actor.flat(), untouched)
    assert torch.equal(adam.vector, torch.cat([actor.flat(), critic.flat()]))


def test_parameters_that_are_not_float32_are_refused():
    weights = Weights(((2,), (3,)))
    weights.all[1].data = weights.all[1].data.double()
    with pytest.raises(ValueError, match=r"torch\.float64 .*float32"):
        FlatAdam({"actor": weights})
    assert weights.all[0].dtype == torch.float32


def test_a_pull_is_the_gradient_of_half_the_squared_distance():
    weights, adam = make()
    theirs = copy.deepcopy(weights)
    torch_adam = torch.optim.Adam(theirs.parameters(), eps=EPS)
    generator = torch.Generator().manual_seed(7)
    anchor = {name: torch.randn(shape, generator=generator).numpy() for name, (_, shape) in adam.places.items()}
    adam.pull_towards({**anchor, "critic.of.another": np.zeros(3)}, 0.3)
    for step in range(50):
        grads = gradients(step)
        adam.minimize(weights.loss(grads), 1e-3, None)
        torch_adam.zero_grad()
        far = sum(((p - torch.from_numpy(a)) ** 2).sum() for p, a in zip(theirs.all, anchor.values(), strict=True))
        (theirs.loss(grads) + 0.15 * far).backward()
        torch_adam.step()
    assert torch.allclose(weights.flat(), theirs.flat(), atol=2e-6)


def test_without_strength_nothing_pulls():
    weights, adam = make()
    free, free_adam = make()
    adam.pull_towards({name: np.zeros(shape, np.float32) for name, (_, shape) in adam.places.items()}, 0.3)
    adam.pull_towards({}, 0.0)
    for step in range(5):
        adam.minimize(weights.loss(gradients(step)), 1e-3, 0.5)
        free_adam.minimize(free.loss(gradients(step)), 1e-3, 0.5)
    assert bits(weights, adam) == bits(free, free_adam)
