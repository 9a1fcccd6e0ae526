"""Probe worlds: tiny native tasks with known answers that every learner must solve in seconds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slipstream.config.world import WorldConfig


class ProbeConfig(WorldConfig):
    """One of the tiny native worlds that learners are tested on."""

    kind: Literal["probe"] = Field("probe", description="A tiny native world with a known answer.")
    task: Literal[
        "constant",
        "delayed",
        "coordination",
        "leaver",
        "bandit",
        "duration",
        "alternating",
        "corridor",
        "target",
        "parts",
        "switches",
        "digit",
        "remember",
        "copy",
        "roles",
        "recall",
        "entities",
        "lock",
    ] = Field(description="Which probe world.")
    horizon: int = Field(8, ge=2, le=10_000, description="Steps in an episode (each task says how it uses it).")
    entities: int = Field(4, ge=1, le=64, description="Others at most, in the task entities.")
