"""Hyper-parameters of the learning algorithms, as pure data: one class each, told apart by `kind`."""

from typing import Annotated, get_args

from pydantic import Field

from slipstream.config.algos.learner import Schedule, schedule_at
from slipstream.config.algos.offpolicy import CqlConfig, DqnConfig, ReplayConfig, SacConfig, Td3Config
from slipstream.config.algos.onpolicy import AppoConfig, ImpalaConfig, PpoConfig, ReinforceConfig

AnyAlgo = PpoConfig | AppoConfig | ImpalaConfig | ReinforceConfig | SacConfig | Td3Config | DqnConfig | CqlConfig
KINDS: tuple[str, ...] = tuple(member.model_fields["kind"].default for member in get_args(AnyAlgo))
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
    "ReplayConfig",
    "SacConfig",
    "Schedule",
    "Td3Config",
    "schedule_at",
]
