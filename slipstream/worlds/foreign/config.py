"""Worlds of other libraries: named here, imported only when the world is built."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from slipstream.config.base import OwnCode, OwnName
from slipstream.config.world import WorldConfig

MAKER = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?$"
# [module:][namespace/]name[-version] with a namespace, or with a version.
REGISTERED = r"^(([A-Za-z_][\w.]*:)?\w+/[\w.]+(-v\d+)?|([A-Za-z_][\w.]*:)?[\w.]+-v\d+)$"
Wrappers = tuple[OwnCode, ...]
WRAPPERS = (
    "Wrappers put around every environment, the innermost first; each is given the environment, for example "
    "gymnasium.wrappers:AtariPreprocessing."
)


class GymnasiumConfig(WorldConfig):
    """Any Gymnasium environment, by the id it is registered under."""

    is_native: ClassVar[bool] = False

    kind: Literal["gymnasium"] = Field("gymnasium", description="A Gymnasium environment.")
    id: str = Field(
        min_length=1,
        max_length=256,
        description="Environment id as in gymnasium.make, for example CartPole-v1 or package.module:Name-v0.",
    )
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="Keyword arguments for gymnasium.make (plain values only)."
    )
    max_episode_steps: int | None = Field(
        None,
        ge=1,
        description="Truncate episodes after this many steps; null: as the environment does, and evaluation episodes "
        "of one without a limit after 10,000.",
    )
    wrappers: Wrappers = Field((), description=WRAPPERS)

    def gymnasium_id(self) -> str:
        """Its id."""
        return self.id

    def can_be_made_anywhere(self) -> bool:
        """Gymnasium's own environments, and those whose id names their module; others may be registered here alone."""
        import gymnasium

        known = gymnasium.registry.get(self.id)
        return ":" in self.id or (known is not None and str(known.entry_point).startswith("gymnasium."))


class PettingZooConfig(WorldConfig):
    """Any PettingZoo environment, parallel or turn by turn (AEC): by what makes it in Python, or by a registered id."""

    is_native: ClassVar[bool] = False

    kind: Literal["pettingzoo"] = Field("pettingzoo", description="A PettingZoo environment.")
    env: str = Field(
        pattern=MAKER + "|" + REGISTERED,
        max_length=256,
        description="package.module:function making a ParallelEnv or an AECEnv; package.module that has parallel_env "
        "or env; or an id of PettingZoo's registry, such as classic/connect_four_v3 (yours: module:Name-v0).",
    )
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="Keyword arguments for that function (plain values only)."
    )
    max_episode_steps: int | None = Field(
        None,
        ge=1,
        description="Truncate episodes after this many steps; null: as the environment does, and evaluation episodes "
        "of one without a limit after 10,000.",
    )
    wrappers: Wrappers = Field((), description=WRAPPERS)

    @property
    def is_registered(self) -> bool:
        """Whether `env` is an id of PettingZoo's registry."""
        return re.fullmatch(REGISTERED, self.env) is not None


class VectorConfig(WorldConfig):
    """An environment that is vectorised already: a gymnasium.vector.VectorEnv."""

    is_native: ClassVar[bool] = False

    kind: Literal["vector"] = Field("vector", description="A vectorised environment.")
    make: OwnName = Field(
        description="module:function that makes a gymnasium.vector.VectorEnv; it is called with the number of "
        "environments. The module may be a file in the current folder."
    )
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="Keyword arguments for that function (plain values only)."
    )
    max_episode_steps: int | None = Field(
        None,
        ge=1,
        description="Truncate episodes after this many steps, where the environment is made with autoreset_mode "
        "DISABLED; null: as the environment does.",
    )
