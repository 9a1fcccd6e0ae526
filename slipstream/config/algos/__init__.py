"""Hyper-parameters of the learning algorithms, as pure data: one class each, told apart by `kind`."""

from typing import Annotated

from pydantic import Field

from slipstream.config.algos.offpolicy import CqlConfig, DqnConfig, ReplayConfig, SacConfig, Td3Config
from slipstream.config.algos.onpolicy import AppoConfig, ImpalaConfig, PpoConfig, ReinforceConfig
from slipstream.config.algos.schedule import Schedule, schedule_at

AnyAlgo = PpoConfig | AppoConfig | ImpalaConfig | ReinforceConfig | SacConfig | Td3Config | DqnConfig | CqlConfig
ReplayAlgo = SacConfig | Td3Config | DqnConfig | CqlConfig
KINDS = ("ppo", "appo", "impala", "reinforce", "sac", "td3", "dqn", "cql")
AlgoConfig = Annotated[AnyAlgo, Field(discriminator="kind", description="The learning algorithm and its settings.")]

__all__ = [
    "KINDS",
    "AlgoConfig",
    "AnyAlgo",
    "AppoConfig",
    "CqlConfig",
    "DqnConfig",
    "ImpalaConfig",
    "PpoConfig",
    "ReinforceConfig",
    "ReplayAlgo",
    "ReplayConfig",
    "SacConfig",
    "Schedule",
    "Td3Config",
    "schedule_at",
]
