"""Networks multiplied out in fewer bits or by a compiler learn the same, and say so where they cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learning import build, scenario_of, tiny

from slipstream.algos.adam import SCALE, FlatAdam
from slipstream.algos.protocol import Progress
from slipstream.collect.slab import copy_rollout
from slipstream.errors import ScenarioError
from slipstream.nets.arithmetic import Arithmetic, arithmetic
from slipstream.nets.mlp import Mlp
from slipstream.run.metrics import read_rows
from slipstream.run.session import train

BF16, FP16 = Arithmetic(torch.bfloat16), Arithmetic(torch.float16)


def net() -> Mlp:
    return Mlp((12, 64, 64, 3), "tanh", 1.0, torch.Generator().manual_seed(1))


def gradient(network: Mlp, x: torch.Tensor, how: Arithmetic) -> torch.Tensor:
    with arithmetic(how):
        out = network(x)
    assert out.dtype == torch.float32
    return torch.cat([g.flatten() for g in torch.autograd.grad(out.square().mean(), list(network.parameters()))])


@pytest.mark.parametrize(("how", "off"), [(BF16, 0.03), (FP16, 0.004), (Arithmetic(compiled=True), 1e-5)])
def test_gradients_are_those_of_float32_within_their_precision(how, off):
    network, x = net(), torch.randn(256, 12, generator=torch.Generator().manual_seed(2))
    exact = gradient(network, x, Arithmetic())
    near = gradient(network, x, how)
    assert float((near - exact).norm() / exact.norm()) < off
    assert not torch.equal(near, exact)  # it was another way


@pytest.mark.parametrize("kind", ["ppo", "sac"])
def test_an_update_in_bfloat16_goes_where_one_in_float32_does(kind):
    ways = []
    for how in (Arithmetic(), BF16):
        parts = build(scenario_of("probe_target", tiny(kind, batch_size=16) if kind == "sac" else tiny(kind)))
        with arithmetic(how):
            for _ in range(4):
                parts.advance()
        ways.append(parts.learner.state_dict(include_optim=False))
    start = build(scenario_of("probe_target", tiny(kind))).learner.state_dict(include_optim=False)
    names = [name for name in start if name.startswith("actor.") and name.endswith("weight")]
    moved = [np.concatenate([(way[n] - start[n]).ravel() for n in names]) for way in ways]
    assert moved[0] @ moved[1] > 0.95 * np.linalg.norm(moved[0]) * np.linalg.norm(moved[1])


def test_a_run_in_bfloat16_acts_in_float32_and_learns(tmp_path):
    scenario = scenario_of("probe_target", {"precision": "bfloat16"})
    result = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    rows = [row["env/return_mean"] for row in read_rows(result.run / "metrics.jsonl") if "env/return_mean" in row]
    assert rows[-1] > rows[0] + 1.0


def test_float16_on_a_cpu_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ScenarioError, match=r"^precision: float16 .*CPU.* bfloat16"):
        scenario_of("head_on", {"precision": "float16"})


def test_a_loss_that_leaves_float16_is_scaled_down_until_it_fits_and_nothing_is_lost():
    network, x = net(), torch.randn(64, 12, generator=torch.Generator().manual_seed(2))
    optimiser = FlatAdam({"net": network})
    before = optimiser.vector.clone()
    norms = []
    with arithmetic(FP16):
        for _ in range(40):
            norms.append(optimiser.minimize(1e3 * network(x).square().mean(), 1e-3, None))
            if norms[-1] > 0:
                break
            assert torch.equal(optimiser.vector, before)  # a step left out changes nothing
    assert 1 < len(norms) < 40
    assert np.isfinite(norms[-1])
    state = optimiser.arrays("optim")
    assert state["optim.loss_scale"][0] == SCALE / 2.0 ** (len(norms) - 1)
    again = FlatAdam({"net": net()})
    again.load(state, "optim")
    assert again.arrays("optim")["optim.loss_scale"].tolist() == state["optim.loss_scale"].tolist()


def test_a_gradient_that_is_no_number_at_any_scale_is_told():
    network, x = net(), torch.full((4, 12), torch.nan)
    optimiser = FlatAdam({"net": network})
    with arithmetic(FP16):
        norms = [optimiser.minimize(network(x).mean(), 1e-3, None) for _ in range(20)]
    assert norms[0] == 0.0
    assert np.isnan(norms[-1])


def test_the_update_of_a_slab_is_the_native_one_where_nothing_is_asked_for():
    parts = build(scenario_of("probe_target", tiny("ppo")))
    rollouts, _ = parts.collector.collect(0)
    slab = copy_rollout(rollouts["main"])
    other = build(scenario_of("probe_target", tiny("ppo")))
    with arithmetic(Arithmetic()):
        parts.learner.update(slab, Progress(0.0, 0))
    other.learner.update(slab, Progress(0.0, 0))
    for name, array in parts.learner.state_dict().items():
        np.testing.assert_array_equal(array, other.learner.state_dict()[name], err_msg=name)
