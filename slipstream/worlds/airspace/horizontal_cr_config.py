"""bluesky-gym's HorizontalCREnv-v0: one aircraft turns, five intruders fly straight into its way."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from slipstream.config.world import WorldConfig
from slipstream.worlds.airspace.config import Bonus, Penalty


class HorizontalCrConfig(WorldConfig):
    """The peer's task, like for like; the defaults are its figures."""

    kind: Literal["horizontal_cr"] = Field(
        "horizontal_cr", description="One aircraft finds its way through intruders; bluesky-gym's task."
    )
    num_intruders: int = Field(5, ge=1, le=255, description="Aircraft drawn into the agent's way at reset.")
    initial_speed_mps: float = Field(150.0, gt=0, description="Speed at reset; conflicts are drawn as if it were kept.")
    cruise_speed_mps: float = Field(
        89.0,
        gt=0,
        description="Speed everyone brakes to (the peer's aircraft are on the ground to BlueSky, which does so).",
    )
    braking_mps2: float = Field(2.0, gt=0, description="How fast they brake.")

    decision_s: float = Field(50.0, gt=0, description="Seconds between decisions; one step of the world.")
    substep_s: float = Field(5.0, gt=0, le=10, description="Seconds of one simulation step; divides decision_s.")
    max_episode_steps: int = Field(300, ge=1, description="Decisions after which an episode is cut off.")
    heading_step_deg: float = Field(45.0, ge=0, le=180, description="Heading change of a full action.")

    separation_nm: float = Field(5.0, gt=0, description="An intruder nearer than this is an intrusion.")
    waypoint_radius_km: float = Field(5.0, gt=0, description="The waypoint is reached within this distance.")

    reach_reward: Bonus = Field(1.0, description="Paid once, at the waypoint.")
    drift_penalty_per_rad: Penalty = Field(
        -0.1, description="Paid per decision and radian between heading and waypoint."
    )
    intrusion_penalty: Penalty = Field(-1.0, description="Paid per decision and intruder too close at its end.")

    @model_validator(mode="after")
    def _only_brakes(self) -> HorizontalCrConfig:
        if self.initial_speed_mps < self.cruise_speed_mps:
            raise ValueError(
                f"initial_speed_mps {self.initial_speed_mps:g} is below cruise_speed_mps {self.cruise_speed_mps:g}; "
                "aircraft only brake in this task"
            )
        return self
