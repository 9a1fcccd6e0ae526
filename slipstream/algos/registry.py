"""Which class learns for which `kind` of config."""

from typing import Any, Protocol

import torch

from slipstream.algos.appo import Appo
from slipstream.algos.cql import Cql
from slipstream.algos.dqn import Dqn
from slipstream.algos.impala import Impala
from slipstream.algos.ppo import Ppo
from slipstream.algos.protocol import Algorithm, StateLayout, Traits
from slipstream.algos.reinforce import Reinforce
from slipstream.algos.sac import Sac
from slipstream.algos.td3 import Td3
from slipstream.spec import WorldSpec


class AlgorithmClass(Protocol):
    """A class of learners."""

    @property
    def traits(self) -> Traits:
        """What it learns from."""

    @property
    def layout(self) -> StateLayout:
        """The parts of its saved state."""

    def __call__(self, config: Any, spec: WorldSpec, seed: int, device: torch.device) -> Algorithm:
        """A new learner; `config` is of the algorithm's own class."""


ALGORITHMS: dict[str, AlgorithmClass] = {
    "ppo": Ppo,
    "appo": Appo,
    "impala": Impala,
    "reinforce": Reinforce,
    "sac": Sac,
    "td3": Td3,
    "dqn": Dqn,
    "cql": Cql,
}
