"""DP-SGD on a client (Abadi et al. 2016): every row's gradient is clipped and noise is added to their sum, by Opacus.

It hides single rows of a client's replay, even from somebody who sees all its weights; `privacy` hides whole clients.
It needs a loss that is a sum over rows, each term depending on its own row and on weights that are already private, and
rows that are drawn independently. DQN's regression on uniform replay is such a loss; `refuse_algorithm` says why the
others are not. An n-step return spans n ticks and a tick is in n rows, so a row is hidden, but no tick or episode.

Our perceptrons run as one native pass, in which Opacus cannot see the layers. `PrivateGradients` therefore builds the
same network of plain torch layers over the same memory, and gives back gradients for FlatAdam to step along:

    index = private.draw(len(replay))
    optimiser.add_gradient(private.gradients(loss, x[index], action[index], target[index]))
    optimiser.step(learning_rate, None)

Ghost clipping finds the rows' norms without their gradients, which is what makes it affordable on a CPU.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FederationError
from slipstream.federate.privacy import Privacy, PrivacyReport, epsilon

if TYPE_CHECKING:
    from torch import Tensor, nn

RowLoss = Callable[..., "Tensor"]  # outputs [rows, outputs] and the columns of the rows -> [rows]

COVERED = ("dqn",)
_LAYER = re.compile(r"(?:torso\.(\d+)|head)\.(?:weight|bias)")


def refuse_algorithm(algorithm: str, prioritised: bool, normalised: bool) -> str | None:
    """Why DP-SGD would bound nothing for this learner; None if it works.

    Args:
        algorithm: Its name.
        prioritised: Whether rows are drawn by priority.
        normalised: Whether inputs are standardised by statistics of what was seen.
    """
    if algorithm not in COVERED:
        return (
            f"a row of {algorithm} is in other rows' gradients too (returns, advantages, critics learned with "
            f"actors), so clipping it bounds nothing; it covers {', '.join(COVERED)}, and federated.privacy covers all"
        )
    if prioritised:
        return (
            "rows drawn by priority are not drawn independently of what they hold; set algo.replay.prioritised to null"
        )
    if normalised:
        return (
            "input statistics carry every row into the gradients of all others; set algo.normalize_observation to false"
        )
    return None


class PrivateGradients:
    """Noised gradients of a perceptron, the sampling of rows, and the privacy spent."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        activation: str,
        privacy: Privacy,
        batch_size: int,
        rng: np.random.Generator | None = None,
    ) -> None:
        """Gradients of the network with these weights.

        Args:
            parameters: By name, torso.0.weight … head.bias; the network reads them where they are, so it follows them.
            activation: Between layers, by its name in a scenario.
            privacy: The norm a row's gradient is clipped to, the noise, and the δ of reports.
            batch_size: Rows expected in a draw; gradients are divided by it, however many come.
            rng: None draws from the system's entropy, as privacy needs.
        """
        try:
            from opacus.grad_sample import GradSampleModuleFastGradientClipping
            from opacus.optimizers import DPOptimizerFastGradientClipping
        except ImportError:
            raise FederationError("DP-SGD needs opacus: pip install 'slipstream[privacy]'") from None
        import torch

        self.privacy, self.batch_size = privacy, batch_size
        self.steps, self.q = 0, 0.0
        self._rng = rng or np.random.default_rng(secrets.randbits(256))
        network = perceptron(parameters, activation)
        weights = dict(network.named_parameters())
        self._weights = [weights[name] for name in parameters]
        self._network = GradSampleModuleFastGradientClipping(network, max_grad_norm=privacy.clip_norm)
        self._optimiser = DPOptimizerFastGradientClipping(  # only clips and adds noise: it is never asked for a step
            torch.optim.SGD(self._weights, lr=0.0),
            noise_multiplier=privacy.noise_multiplier,
            max_grad_norm=privacy.clip_norm,
            expected_batch_size=batch_size,
            generator=torch.Generator().manual_seed(int(self._rng.integers(2**63))),
            secure_mode=True,  # four draws for each number: the last digits of one tell of what it was added to
        )

    def draw(self, rows: int) -> NDArray[np.int64]:
        """Rows of a replay of this size, each with probability batch_size / rows: seldom exactly batch_size of them."""
        if rows < 1:
            raise FederationError(f"DP-SGD: {rows} rows are there to draw from; learning begins with the first")
        q = min(1.0, self.batch_size / rows)
        self.q = max(self.q, q)
        return self._rng.choice(rows, self._rng.binomial(rows, q), replace=False, shuffle=False)

    def gradients(self, loss: RowLoss, x: Tensor, *columns: Tensor) -> list[Tensor]:
        """Clipped, summed, noised and divided by the expected number of rows, in the order of the parameters."""
        from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

        if self.q == 0:
            raise FederationError("DP-SGD: rows must come from draw(), whose rate is what the report counts with")
        if len(x):
            x = x.detach().requires_grad_()  # hooks on the first layer fire with a warning otherwise
            row_losses = loss(self._network(x), *columns)
            if row_losses.shape != x.shape[:1]:
                raise FederationError(
                    f"DP-SGD: the loss gave {tuple(row_losses.shape)} for {len(x)} rows; one each is due"
                )
            DPTensorFastGradientClipping(self._network, self._optimiser, row_losses).backward()
        else:  # a draw may be empty, and then there is noise alone
            for weight in self._weights:
                weight.grad = weight.detach().new_zeros(weight.shape)
        self._optimiser.pre_step()
        self.steps += 1
        grads = [weight.grad.clone() for weight in self._weights if weight.grad is not None]
        self._optimiser.zero_grad()
        return grads

    def spent(self) -> PrivacyReport:
        """The privacy spent by the steps so far, for the largest sampling rate among them."""
        sigma, delta = self.privacy.noise_multiplier, self.privacy.delta
        return PrivacyReport(epsilon(self.q, sigma, self.steps, delta), delta, self.q, sigma, self.steps, of="row")


def perceptron(parameters: Mapping[str, Tensor], activation: str) -> nn.Module:
    """The network of plain layers that these named weights are of, over their own memory."""
    from torch import nn

    hidden = sorted({int(match[1]) for name in parameters if (match := _LAYER.fullmatch(name)) and match[1]})
    layers = [*(f"torso.{number}" for number in hidden), "head"]
    expected = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    if parameters.keys() != expected or hidden != list(range(0, 2 * len(hidden), 2)):
        odd = ", ".join(sorted(parameters.keys() ^ expected)[:4]) or f"its layers {', '.join(layers)}"
        raise FederationError(f"DP-SGD covers perceptrons, and this network is another: it differs in {odd}")

    def linear(layer: str) -> nn.Linear:
        weight, bias = parameters[f"{layer}.weight"].detach(), parameters[f"{layer}.bias"].detach()
        made = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        made.weight, made.bias = nn.Parameter(weight), nn.Parameter(bias)
        return made

    kinds: dict[str, Callable[[], nn.Module]] = {
        "tanh": nn.Tanh,
        "relu": nn.ReLU,
        "elu": nn.ELU,
        "silu": nn.SiLU,
        "gelu": partial(nn.GELU, approximate="tanh"),
    }
    between = kinds[activation]
    torso = nn.Sequential(*(module for layer in layers[:-1] for module in (linear(layer), between())))
    return nn.Sequential(OrderedDict(torso=torso, head=linear("head")))
