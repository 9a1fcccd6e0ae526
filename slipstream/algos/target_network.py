"""Target networks: copies that follow a network slowly."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

from torch import Tensor, nn

from slipstream.algos.adam import flatten_parameters

Module = TypeVar("Module", bound=nn.Module)


class TargetNetwork(Generic[Module]):
    """A copy of a network that follows it slowly: the target of a bootstrap, or an average that is evaluated."""

    def __init__(self, network: Module, vector: Tensor) -> None:
        """`vector` holds the network's parameters as one (FlatAdam's)."""
        self.network = copy.deepcopy(network).requires_grad_(False)
        self._source = vector
        self._vector = flatten_parameters(list(self.network.parameters()))

    def follow(self, share: float) -> None:
        """Move this share of the way to the network; 1 copies it."""
        self._vector.lerp_(self._source, share)
