"""Behaviour cloning in plain torch: what imitation alone gets out of a dataset, beside which offline learners stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from players import Chosen, chosen
from torch import Tensor, nn

STEPS, BATCH, LEARNING_RATE, HIDDEN = 20_000, 256, 1e-3, 256


class Cloned:
    """A network that answers with the mean recorded action, as a player."""

    def __init__(self, network: nn.Module, mean: Tensor, std: Tensor) -> None:
        self.network, self.mean, self.std = network, mean, std

    def act(self, obs: Mapping[str, np.ndarray[Any, Any]], mask: object, noise: object) -> Chosen:
        (rows,) = obs.values()
        with torch.no_grad():
            return chosen(self.network((torch.from_numpy(rows) - self.mean) / self.std).numpy())


def clone(obs: np.ndarray[Any, Any], action: np.ndarray[Any, Any], seed: int, steps: int = STEPS) -> Cloned:
    """Least squares from observations [N, F] to continuous actions [N, K] in -1..1."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    draws = torch.Generator().manual_seed(seed)
    inputs, targets = torch.from_numpy(obs), torch.from_numpy(action)
    mean, std = inputs.mean(0), inputs.std(0) + 1e-6
    inputs = (inputs - mean) / std
    network = nn.Sequential(
        nn.Linear(inputs.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
        nn.Linear(HIDDEN, targets.shape[1]), nn.Tanh(),
    )  # fmt: skip
    optimiser = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, fused=True)
    for _ in range(steps):
        rows = torch.randint(len(inputs), (BATCH,), generator=draws)
        loss = (network(inputs[rows]) - targets[rows]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return Cloned(network, mean, std)
