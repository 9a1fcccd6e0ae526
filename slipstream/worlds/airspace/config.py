"""The airspace world: who flies where, how they are judged, and what is random at reset."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from slipstream.config.base import Config
from slipstream.config.world import WorldConfig

AircraftType = Literal["A320", "A332", "B737", "B738", "B744", "CRJ2", "CRJ9", "E190"]
Preset = Literal["unified", "legacy"]
ObservationKind = Literal["own_frame", "legacy"]
TeamShare = Literal["responsibility", "neighbor", "equal"]
Latitude = Annotated[float, Field(ge=-80, le=80)]
Longitude = Annotated[float, Field(ge=-180, le=180)]
Heading = Annotated[float, Field(ge=-360, le=360)]
Jitter = Annotated[float, Field(ge=0)]
Bonus = Annotated[float, Field(ge=0)]
Penalty = Annotated[float, Field(le=0)]

DISTANCE_PENALTY_PER_NM = -0.2  # in the core: core/airspace/config.hpp
TRAINING_MARGIN_NM = 0.3
# Only a run writes all of these: a file that has them says everything there was to say when it was written.
OF_SAVED_FILES = frozenset({"deep_breach_nm", "drift_deadzone_deg", "team_gamma", "team_ema", "team_cap"})
ADDED = {
    "distance_penalty_per_nm": 0.0,
    "time_left": False,
    "training_margin_nm": 0.0,
}  # later, with what they were like before


class AircraftConfig(Config):
    """One aircraft: where it starts, how it flies, where it wants to go."""

    id: str = Field(min_length=1, max_length=64, description="Name of the aircraft, unique in the scene.")
    role: str = Field("aircraft", min_length=1, description="Aircraft of one role share a policy by default.")
    type: AircraftType = Field("A320", description="Aircraft type, which sets the speed envelope and the acceleration.")
    lat_deg: Latitude = Field(description="Start latitude, degrees north.")
    lon_deg: Longitude = Field(description="Start longitude, degrees east.")
    heading_deg: Heading = Field(description="Start heading, degrees clockwise from north.")
    cas_kt: float = Field(250.0, gt=0, description="Start calibrated airspeed, kt; within the type's envelope.")
    waypoint_lat_deg: Latitude = Field(description="Waypoint latitude, degrees north.")
    waypoint_lon_deg: Longitude = Field(description="Waypoint longitude, degrees east.")


class RandomSectorConfig(Config):
    """Traffic drawn anew at every reset: aircraft enter at the edge of a round sector and cross it."""

    num_aircraft: int = Field(ge=1, le=256, description="Aircraft of an episode, or the most that one has.")
    min_aircraft: int | None = Field(
        None,
        ge=1,
        le=256,
        description="Fewest aircraft of an episode; each draws its number, from this to num_aircraft, all equally "
        "likely. null: num_aircraft in every episode.",
    )
    types: tuple[AircraftType, ...] = Field(
        ("A320",), min_length=1, description="Aircraft types to draw from, equally likely."
    )
    density_per_nm2: float = Field(
        0.003, gt=0, description="Aircraft per square NM at the start; sets the sector's radius, in every episode anew."
    )
    conflict_share: float = Field(
        0.6, ge=0, le=1, description="Fraction of aircraft that are drawn on a conflict course with an earlier one."
    )
    conflict_cpa_nm: float = Field(
        3.0, ge=0, description="Largest distance at which such a pair passes if nobody acts, in NM."
    )
    conflict_after_s: float = Field(120.0, gt=0, description="Earliest time at which they meet, in seconds.")
    conflict_before_s: float = Field(400.0, gt=0, description="Latest time at which they meet, in seconds.")
    min_start_separation_nm: float = Field(
        8.0, gt=0, description="Smallest distance between any two aircraft at the start, in NM."
    )
    min_cas_kt: float = Field(230.0, gt=0, description="Slowest calibrated airspeed drawn.")
    max_cas_kt: float = Field(270.0, gt=0, description="Fastest calibrated airspeed drawn.")
    center_lat_deg: Latitude = Field(52.0, description="Latitude of the sector's centre.")
    center_lon_deg: Longitude = Field(4.0, description="Longitude of the sector's centre.")

    @model_validator(mode="after")
    def _a_range(self) -> RandomSectorConfig:
        if self.min_aircraft is not None and self.min_aircraft > self.num_aircraft:
            raise ValueError(f"min_aircraft {self.min_aircraft} is above num_aircraft {self.num_aircraft}")
        return self


class AirspaceConfig(WorldConfig):
    """Aircraft at one level, each flying to its waypoint, kept apart by the agents that steer them."""

    kind: Literal["airspace"] = Field("airspace", description="Air traffic at one level.")
    preset: Preset = Field(
        "unified",
        description="unified: separation every second, arrivals leave, true truncation. legacy: the published "
        "environment to the letter (10 s samples, rounded orders, no jitter, arrivals fly on).",
    )
    observation: ObservationKind | None = Field(
        None, description="own_frame is turned to own heading; null: own_frame, or legacy in preset legacy."
    )
    reward: Preset | None = Field(
        None, description="unified shapes with a potential, legacy is as published; null: as the preset."
    )

    aircraft: tuple[AircraftConfig, ...] = Field((), max_length=256, description="The aircraft.")
    random_sector: RandomSectorConfig | None = Field(None, description="Random traffic instead of a list of aircraft.")
    altitude_ft: float = Field(10_000.0, ge=0, le=36_000, description="Altitude of all aircraft, in ft.")
    wind_speed_kt: float = Field(0.0, ge=0, le=100, description="Wind speed, the same everywhere, in kt.")
    wind_from_deg: Heading = Field(0.0, description="Direction that the wind blows from, in degrees.")
    position_jitter_nm: Jitter = Field(
        1.0,
        description="Largest random shift of start positions north and east at reset, in NM; never too close together.",
    )
    heading_jitter_deg: Jitter = Field(5.0, description="Largest random turn of start headings at reset, in degrees.")
    speed_jitter_kt: Jitter = Field(5.0, description="Largest random change of start speeds at reset, in kt.")

    decision_s: float = Field(10.0, gt=0, description="Seconds between decisions; one step of the world.")
    substep_s: float = Field(
        1.0, gt=0, le=10, description="Seconds between checks of separation and waypoints; divides decision_s."
    )
    max_episode_steps: int = Field(150, ge=1, description="Decisions after which an episode is cut off.")
    time_left: bool | None = Field(
        None,
        description="Aircraft see how much of the episode's time is left, and running out of it is an end like any "
        "other (terminated). false: they do not see it, and are cut off (truncated). null: true where "
        "terminal_not_reached_penalty is paid for it, but not with the legacy observation.",
    )
    heading_step_deg: float = Field(18.0, ge=0, le=180, description="Heading change of a full action.")
    speed_step_kt: float = Field(10.0, ge=0, description="Airspeed change of a full action.")
    heading_deadband_deg: float | None = Field(
        None, ge=0, description="Smaller heading orders are ignored; null: 0, or 3 in preset legacy."
    )
    speed_deadband_kt: float | None = Field(
        None, ge=0, description="Smaller speed orders are ignored; null: 0, or 3 in preset legacy."
    )

    separation_nm: float = Field(5.0, gt=0, description="Separation minimum; below it separation is lost.")
    training_margin_nm: Bonus | None = Field(
        None,
        description="Added to separation_nm while training, because short ways pass close to the limit; null: "
        f"{TRAINING_MARGIN_NM:g}, or 0 in preset legacy.",
    )
    collision_nm: float = Field(3.0, gt=0, description="Pairs below this are counted as collisions (no reward).")
    waypoint_radius_nm: float = Field(1.0, gt=0, description="A waypoint is reached within this distance.")
    neighbor_topk: int = Field(3, ge=0, le=64, description="Number of nearest aircraft that an aircraft observes.")

    progress_reward_per_km: Bonus = Field(0.04, description="Paid per km nearer the waypoint.")
    time_penalty_per_sec: Penalty = Field(-0.0005, description="Paid per second of flight.")
    distance_penalty_per_nm: Penalty | None = Field(
        None,
        description="Paid per NM flown on the way to the waypoint, so that a detour costs something; null: "
        f"{DISTANCE_PENALTY_PER_NM:g}, or 0 in the legacy reward.",
    )
    reach_reward: Bonus = Field(10.0, description="Paid once, at the waypoint.")
    violation_entry_penalty: Penalty = Field(-25.0, description="Paid whenever own separation is newly lost.")
    violation_step_scale: Penalty = Field(
        -1.0, description="Paid per decision without separation, times the depth of the worst moment."
    )
    deep_breach_nm: float = Field(1.0, gt=0, description="Below this the depth counts up to 2.5 times.")
    drift_improve_gain: Bonus = Field(
        0.01,
        description="Weight per degree of heading error to the waypoint (a potential; a reward in legacy).",
    )
    drift_deadzone_deg: float = Field(8.0, ge=0, description="Heading error that does not count, in degrees.")
    action_cost_per_unit: Penalty = Field(-0.01, description="Paid per unit of either axis of the action.")
    terminal_not_reached_penalty: Penalty = Field(-10.0, description="Paid when time runs out before the waypoint.")
    team_coordination_weight: float = Field(
        0.6, ge=0, description="Weight of the team's potential, which grows with the least separation."
    )
    team_gamma: float = Field(0.99, ge=0, le=1, description="Discount inside the legacy team term.")
    team_ema: float = Field(0.05, ge=0, le=1, description="Rate of the legacy team term's moving average.")
    team_cap: float = Field(0.05, ge=0, description="Upper bound of the legacy team term's moving average.")
    team_share: TeamShare = Field("responsibility", description="How the legacy team term is shared among aircraft.")

    detect_alerts: bool = Field(
        False, description="Evaluations also report alerts, missed conflicts and collision risk."
    )

    @model_validator(mode="before")
    @classmethod
    def _as_it_was_saved(cls, data: Any) -> Any:
        """Worlds that were saved before a field was added stay as they were."""
        return {**ADDED, **data} if isinstance(data, dict) and data.keys() >= OF_SAVED_FILES else data

    def in_training(self) -> AirspaceConfig:
        """The same traffic with the margin; never so much that a random sector starts without separation."""
        margin = self.training_margin_nm
        if margin is None:
            margin = 0.0 if self.preset == "legacy" else TRAINING_MARGIN_NM
        wide = self.separation_nm + margin
        if self.random_sector is not None:
            wide = max(self.separation_nm, min(wide, self.random_sector.min_start_separation_nm))
        return self.model_copy(update={"separation_nm": wide, "training_margin_nm": 0.0})

    def analyses_evaluations(self) -> bool:
        """Where alerts are to be detected."""
        return self.detect_alerts

    def agents(self) -> tuple[tuple[str, str], ...]:
        """Those listed; random traffic has none before it is drawn."""
        return tuple((one.id, one.role) for one in self.aircraft)

    @model_validator(mode="after")
    def _one_source_of_traffic(self) -> AirspaceConfig:
        if (not self.aircraft) == (self.random_sector is None):
            raise ValueError("give either a list of aircraft or a random_sector")
        ids = [a.id for a in self.aircraft]
        twice = sorted({name for name in ids if ids.count(name) > 1})
        if twice:
            raise ValueError(f"aircraft: ids used more than once: {', '.join(twice)}")
        return self


class HorizontalCrConfig(WorldConfig):
    """The task of bluesky-gym's HorizontalCREnv-v0; the defaults are its values."""

    kind: Literal["horizontal_cr"] = Field(
        "horizontal_cr", description="One aircraft finds its way through intruders; bluesky-gym's task."
    )
    num_intruders: int = Field(
        5, ge=1, le=255, description="Number of aircraft that are drawn into the agent's way at reset."
    )
    initial_speed_mps: float = Field(150.0, gt=0, description="Speed at reset; conflicts are drawn as if it were kept.")
    cruise_speed_mps: float = Field(
        89.0,
        gt=0,
        description="Speed everyone brakes to (the peer's aircraft are on the ground to BlueSky, which does so).",
    )
    braking_mps2: float = Field(2.0, gt=0, description="Braking deceleration.")

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
