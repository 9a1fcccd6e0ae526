"""Worlds of other libraries: named here, imported only when the world is built."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from slipstream.config.world import WorldConfig


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
        description="Truncate episodes after this many steps; null: as the environment does.",
    )

    def gymnasium_id(self) -> str:
        """Its id."""
        return self.id


class PettingZooConfig(WorldConfig):
    """Any PettingZoo parallel environment, by the Python name of what makes it."""

    is_native: ClassVar[bool] = False

    kind: Literal["pettingzoo"] = Field("pettingzoo", description="A PettingZoo parallel environment.")
    env: str = Field(
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?$",
        max_length=256,
        description="package.module:function making a ParallelEnv, or package.module that has parallel_env.",
    )
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="Keyword arguments for that function (plain values only)."
    )
    max_episode_steps: int | None = Field(
        None,
        ge=1,
        description="Truncate episodes after this many steps; null: as the environment does.",
    )
