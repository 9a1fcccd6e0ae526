"""The racing world: which track, which cars, what they are after, what they see and what they are paid for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from slipstream.config.base import Config
from slipstream.config.world import WorldConfig
from slipstream.errors import suggest

Metres = Annotated[float, Field(gt=0)]
Task = Literal["time_trial", "head_to_head", "overtake", "gaplock", "convoy_lock"]
Physics = Literal["clean", "compat"]
SpawnKind = Literal["grid", "random", "sets"]
Vehicle = Literal["f1tenth", "limo", "f1fifth", "fullscale"]
Range = tuple[float, float]
Place = Annotated[
    tuple[float, float, float], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
]

# --- tracks ---


class OvalTrack(Config):
    """Two straights joined by half circles, driven counter-clockwise."""

    kind: Literal["oval"] = Field("oval", description="Two straights joined by half circles.")
    straight_m: float = Field(20.0, ge=0, description="Length of a straight.")
    radius_m: Metres = Field(5.0, description="Radius of the half circles, at the middle of the road.")
    width_m: Metres = Field(2.2, description="Width of the road.")
    resolution_m: Metres = Field(0.05, description="Metres per cell of the map.")


class CorridorTrack(Config):
    """A straight road, walled at both ends."""

    kind: Literal["corridor"] = Field("corridor", description="A straight road, walled at both ends.")
    length_m: Metres = Field(100.0, description="Length of the road.")
    width_m: Metres = Field(2.6, description="Width of the road.")
    resolution_m: Metres = Field(0.05, description="Metres per cell of the map.")


class CircuitTrack(Config):
    """A random circuit: one for all, or another in every episode."""

    kind: Literal["circuit"] = Field("circuit", description="A random circuit.")
    seed: int | None = Field(
        None,
        ge=0,
        lt=2**63,
        description="Seed of the circuit; null: a new circuit in every episode, drawn from the episode's seed.",
    )
    corners: int = Field(12, ge=3, le=64, description="Number of points that the road is drawn through.")
    radius_m: Metres = Field(14.0, description="Largest distance of these points from the middle, in metres.")
    roughness: float = Field(
        0.8,
        ge=0,
        le=1,
        description="How uneven the circuit is: 0 is a circle; with 1, points may lie anywhere up to the middle.",
    )
    width_m: Metres = Field(2.2, description="Largest width of the road.")
    narrowest_m: Metres | None = Field(
        None,
        description="Smallest width: each circuit's width is drawn from this to width_m; null: always width_m.",
    )
    tightest_m: float = Field(
        0.6, description="Smallest radius of the inner wall of a bend, in metres; below 0 that wall is a corner."
    )
    resolution_m: Metres = Field(0.1, description="Metres per cell of the map.")
    mirrored: bool = Field(False, description="Mirror half of the circuits, so that they are driven clockwise.")


class MapTrack(Config):
    """A map as ROS has it, with a centreline beside it."""

    kind: Literal["map"] = Field("map", description="A map file.")
    path: str = Field(min_length=1, description="Path of the map's YAML file, relative to the working directory.")


TrackConfig = Annotated[OvalTrack | CorridorTrack | CircuitTrack | MapTrack, Field(discriminator="kind")]

# --- drivers ---


class FollowGap(Config):
    """Follow-the-gap: steer to the middle of the widest free stretch of the scan, away from what is nearest."""

    view: float = Field(3.2, gt=0, description="Width of the sector ahead that is used, in radians.")
    cap_m: Metres = Field(10.0, description="Ranges are cut to this many metres.")
    window: int = Field(1, ge=1, description="Number of beams averaged into one.")
    half_width: float = Field(0.3, ge=0, description="Metres kept free to either side of the nearest return.")
    bubble: float = Field(0.0, ge=0, description="Radians kept free to either side of the nearest return, at least.")
    depth: float = Field(0.6, ge=0, le=1, description="Beams of a gap reach at least this fraction of the longest.")
    gap_m: float = Field(0.0, ge=0, description="Beams of a gap reach at least this far, in metres.")
    gain: float = Field(0.5, ge=0, description="Steering per radian to the middle of the gap.")
    smooth: float = Field(0.0, ge=0, lt=1, description="Fraction of the previous steering that is kept.")
    fast_mps: float = Field(5.0, ge=0, description="Speed straight on.")
    slow_mps: float = Field(3.0, ge=0, description="Speed when steering hard.")
    hard: float = Field(0.15, ge=0, description="Steering angle in radians at which slow_mps applies.")
    careful: bool = Field(False, description="Slow down for what is near ahead; fast_mps only beyond 6 m.")


class PurePursuit(Config):
    """Pure pursuit: steer onto the circle that meets the line a little ahead (Coulter 1992)."""

    ahead_s: float = Field(0.2, ge=0, description="Distance of the aim point ahead, in seconds of travel.")
    ahead_min_m: Metres = Field(0.8, description="Smallest distance of the aim point ahead, in metres.")
    share: float = Field(0.9, gt=0, description="Fraction of the speeds of the ideal line.")


class Squeezer(Config):
    """Presses another car against a wall without touching it."""

    ahead_m: float = Field(0.6, description="Place that it takes ahead of the other car's middle, in metres.")
    wide_m: float = Field(0.6, ge=0, description="Sideways distance to the other car at first, in metres.")
    narrow_m: float = Field(0.4, ge=0, description="Sideways distance to the other car in the end, in metres.")
    close_s: float = Field(4.0, gt=0, description="Seconds in which it closes in from wide_m to narrow_m.")
    look_m: float = Field(0.5, ge=0, description="Distance beyond its place at which it aims, in metres.")
    gain: float = Field(1.5, ge=0, description="Extra speed per metre that it is behind its place, in m/s.")


class Blocker(Config):
    """Stays in front: along the line, as far aside as the car behind is."""

    watch_m: float = Field(4.0, ge=0, description="Distance behind at which it watches, in metres.")
    room_m: float = Field(0.6, ge=0, description="Largest distance aside, in metres.")
    share: float = Field(0.6, gt=0, description="Fraction of the speeds of the ideal line.")
    ahead_s: float = Field(0.35, ge=0, description="Distance of the aim point ahead, in seconds of travel.")
    ahead_min_m: Metres = Field(1.0, description="Smallest distance of the aim point ahead, in metres.")


# --- rewards ---


class RewardTerms(Config):
    """Weights of a reward's terms; a term is paid as its sentence says, times its weight."""

    lap: float | None = Field(None, description="When a lap is finished.")
    finish: float | None = Field(None, description="When all laps are finished.")
    win: float | None = Field(
        None, description="When it wins: first over the line, or past the others; minus this when it is beaten."
    )
    overtake: float | None = Field(None, description="Per place gained; minus this per place lost.")
    wall: float | None = Field(None, description="When it touches a wall.")
    contact: float | None = Field(None, description="When it touches another car.")
    target_crash: float | None = Field(None, description="When the target crashes without being touched.")
    target_finish: float | None = Field(None, description="When the target gets to the end of the road.")
    idle: float | None = Field(None, description="When it has given up (idle_mps, idle_after_s).")
    timeout: float | None = Field(None, description="When time runs out.")
    progress: float | None = Field(None, description="Per metre along the centreline.")
    gap: float | None = Field(None, description="Per metre gained on the nearest other car.")
    time: float | None = Field(None, description="Per second.")
    speed: float | None = Field(None, description="Per second at full speed.")
    reverse: float | None = Field(None, description="Per second backwards.")
    lateral: float | None = Field(None, description="Per second and metre beside the centreline.")
    heading: float | None = Field(None, description="Per second and radian off the centreline's heading.")
    steering: float | None = Field(None, description="Per unit that the steering axis changes.")
    pressure: float | None = Field(None, description="Per second within pressure_m of the nearest other car.")
    pocket: float | None = Field(
        None,
        description="Potential: 1 at the place ahead of and beside the other car that squeezes it, 0 far from it.",
    )
    squeeze: float | None = Field(
        None, description="Potential: distance of the other car from the middle of the road, in metres, at most 1."
    )
    close: float | None = Field(
        None, description="Potential: 0 at the place that squeezes the other car, -1 at 10 m or more from it."
    )


RewardPreset = Literal["race", "duel", "overtake", "attacker", "defender", "convoy_lock"]

REWARDS: dict[str, RewardTerms] = {
    "race": RewardTerms(progress=0.1, wall=-5.0, finish=1.0, time=-0.1, steering=-0.01),
    "duel": RewardTerms(progress=0.1, wall=-5.0, contact=-5.0, win=3.0, gap=0.1, steering=-0.01),
    # Nothing for driving along: following to the end would earn more than passing.
    "overtake": RewardTerms(win=5.0, gap=0.5, wall=-5.0, contact=-5.0, time=-0.1, steering=-0.01),
    "attacker": RewardTerms(
        target_crash=10.0, wall=-5.0, contact=-5.0, idle=-5.0, target_finish=-5.0, pocket=1.0, squeeze=2.0, close=5.0
    ),
    "defender": RewardTerms(progress=0.1, wall=-10.0, contact=-5.0, finish=5.0),
    # What convoy_lock's authors paid, without what is paid for being near: see docs/racing.md.
    "convoy_lock": RewardTerms(target_crash=60.0, wall=-10.0, contact=-10.0, idle=-35.0, timeout=-25.0, pocket=3.0),
}


class CarRewardConfig(Config):
    """What a car is paid for: a preset's terms, some of them changed."""

    preset: RewardPreset | None = Field(
        None, description="Named set of weights; null: the task's weights for this car."
    )
    overrides: RewardTerms = Field(default_factory=RewardTerms, description="Weights that differ from the preset's.")

    def weights(self, default: str) -> dict[str, float]:
        """Every term's weight."""
        preset = REWARDS[self.preset or default]
        changed = self.overrides.model_dump(exclude_none=True)
        return {name: changed.get(name, getattr(preset, name) or 0.0) for name in RewardTerms.model_fields}


# --- what a car sees, where it starts ---


class ObservationBlocks(Config):
    """What an observation is made of; null: as the preset has it."""

    scan: bool | None = Field(None, description="The laser scan.")
    speed: bool | None = Field(None, description="Own speed.")
    sway: bool | None = Field(None, description="Sideways speed and yaw rate.")
    steer: bool | None = Field(None, description="Angle of the front wheels.")
    line: bool | None = Field(None, description="Place and heading on the centreline, and points of it ahead.")
    target: bool | None = Field(None, description="The nearest other car: motion, place and heading, in own frame.")
    frame_stack: int | None = Field(
        None, ge=1, le=16, description="Number of latest frames shown, including the present one."
    )
    action_stack: int | None = Field(None, ge=0, le=16, description="Number of past actions shown.")
    others: int | None = Field(
        None,
        ge=0,
        le=15,
        description="Rows of so many other cars, the nearest first: motion, place and heading, in own frame; null: 0.",
    )


ObservationPreset = Literal["lidar", "gaplock", "centerline", "frenet", "full"]
OBSERVATIONS: dict[str, dict[str, bool | int]] = {
    "lidar": {"scan": True, "speed": True, "sway": True, "steer": True, "action_stack": 1},
    "gaplock": {"scan": True, "speed": True, "sway": True, "target": True, "action_stack": 0},
    "centerline": {"scan": True, "speed": True, "frame_stack": 4, "action_stack": 1},
    "frenet": {"speed": True, "sway": True, "steer": True, "line": True, "target": True, "action_stack": 1},
    "full": {
        "scan": True, "speed": True, "sway": True, "steer": True, "line": True, "target": True, "action_stack": 1,
    },
}  # fmt: skip


class ObservationConfig(Config):
    """What a driver sees: a preset, some of it changed."""

    preset: ObservationPreset = Field("lidar", description="A named observation; docs/racing.md lists them.")
    overrides: ObservationBlocks = Field(
        default_factory=ObservationBlocks, description="Blocks that differ from the preset's."
    )
    ahead_m: tuple[float, ...] = Field(
        (1.0, 2.0, 4.0, 6.0, 8.0, 10.0),
        min_length=1,
        max_length=32,
        description="Distances ahead at which the line is observed, in metres.",
    )

    def blocks(self, cars: int) -> dict[str, bool | int]:
        """Every block, and how much is stacked; who is alone has no target unless asked for one."""
        plain: dict[str, bool | int] = dict.fromkeys(("scan", "speed", "sway", "steer", "line", "target"), False)
        chosen = {**plain, "frame_stack": 1, "action_stack": 0, "others": 0, **OBSERVATIONS[self.preset]}
        if cars == 1:
            chosen["target"] = False
        return {**chosen, **self.overrides.model_dump(exclude_none=True)}


class LidarConfig(Config):
    """The laser scanner on every car."""

    beams: int = Field(108, ge=1, le=10_000, description="Number of beams, evenly spaced, from right to left.")
    fov_rad: float = Field(4.7, gt=0, le=6.2831853072, description="Field of view, in radians.")
    range_m: Metres = Field(10.0, description="Range in metres; anything farther is seen at this distance.")
    noise_m: float = Field(
        0.01, ge=0, description="Standard deviation of the range error of beams that hit a wall, in metres."
    )
    dropout: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Fraction of beams that do not return, drawn for every scan; they show range_m.",
    )
    mount_m: float = Field(0.0, description="Distance of the scanner ahead of the centre of gravity, in metres.")


class CarConfig(Config):
    """One car."""

    id: str = Field(min_length=1, max_length=64, description="Name of the car, unique in the race.")
    role: str = Field("car", min_length=1, description="Cars of one role share a policy by default.")
    vehicle: Vehicle = Field("f1tenth", description="Size, tyres and limits.")
    speed_min_mps: float = Field(0.0, description="Speed at action -1 on the speed axis.")
    speed_max_mps: float = Field(8.0, description="Speed at action 1 on the speed axis.")
    friction_scale: float = Field(1.0, gt=0, le=10, description="Factor on the grip of the vehicle's tyres.")
    mass_scale: float = Field(
        1.0, gt=0, le=10, description="Factor on the vehicle's mass; the load is at the centre of gravity."
    )
    reward: CarRewardConfig = Field(default_factory=CarRewardConfig, description="Its reward.")


class SpawnConfig(Config):
    """Where cars start."""

    kind: SpawnKind = Field(
        "grid",
        description="grid: one behind the other from start_m; random: anywhere along the line; sets: one of the sets.",
    )
    sets: dict[str, dict[str, Place]] = Field(
        default_factory=dict,
        description="Set name -> car id -> [metres along the centreline, metres left of it, radians against it].",
    )
    start_m: float = Field(0.0, description="Kind grid: place of the first car along the centreline, in metres.")
    gap_m: Metres = Field(1.5, description="Distance from one car to the next, in metres; not for sets.")
    stagger_m: float = Field(0.0, ge=0, description="Distance to the left and right of the line, in turn, in metres.")
    lateral_jitter_m: float = Field(
        0.0, ge=0, description="Largest random sideways shift of a car at reset, in metres."
    )
    yaw_jitter_rad: float = Field(0.0, ge=0, description="Largest random turn of a car at reset, in radians.")


class PhaseConfig(Config):
    """What is different in one phase of a curriculum; null: as the world has it."""

    name: str = Field(min_length=1, description="Name of the phase, in logs.")
    spawns: tuple[str, ...] | None = Field(None, min_length=1, description="Spawn sets to draw from.")
    start_speed_mps: Range | None = Field(None, description="Range that the start speed of all cars is drawn from.")
    lock_mps: float = Field(0.0, description="Speed at which the first car is held for lock_steps from the start.")
    lock_steps: int = Field(
        0,
        ge=0,
        description="Steps from the start for which the first car's speed is held at lock_mps; 0: it is not held.",
    )
    gain: float | None = Field(None, ge=0, description="follow_gap script: steering per radian (follow_gap.gain).")
    bubble: float | None = Field(None, ge=0, description="follow_gap script: radians kept free (follow_gap.bubble).")
    fast_mps: float | None = Field(
        None, ge=0, description="follow_gap script: speed straight on (follow_gap.fast_mps)."
    )


class RacingConfig(WorldConfig):
    """Cars on one track: alone against the clock, against each other, or one against another."""

    kind: Literal["racing"] = Field("racing", description="Racing cars.")
    task: Task = Field(
        "time_trial",
        description="time_trial: laps, alone; head_to_head: be first; overtake: the first car starts last and must "
        "lead; gaplock, convoy_lock: the first car makes the second crash without touching it.",
    )
    physics: Physics = Field(
        "clean",
        description="compat is f1tenth_gym's to the letter (scans too, but on circuits drawn for an episode those are "
        "exact); clean is without its faults (docs/racing.md).",
    )
    track: TrackConfig = Field(default_factory=OvalTrack, description="The track.")
    cars: tuple[CarConfig, ...] = Field(min_length=1, max_length=16, description="The cars.")
    lidar: LidarConfig = Field(default_factory=LidarConfig, description="The scanner on every car.")
    observation: ObservationConfig = Field(default_factory=ObservationConfig, description="What a driver sees.")
    spawn: SpawnConfig = Field(default_factory=SpawnConfig, description="Where cars start.")
    start_speed_mps: Range = Field((0.0, 0.0), description="Range that the start speed of all cars is drawn from.")
    phases: tuple[PhaseConfig, ...] = Field(
        (), description="Phases of a curriculum, easiest first; without a curriculum block, only the last is played."
    )

    ideal_line: Literal["centerline", "raceline"] = Field(
        "centerline", description="Line that the pure_pursuit and blocker scripts follow."
    )
    ideal_speed_mps: Metres = Field(8.0, description="Largest speed on the ideal line.")
    follow_gap: FollowGap = Field(default_factory=FollowGap, description="How the follow_gap script drives.")
    pure_pursuit: PurePursuit = Field(default_factory=PurePursuit, description="How the pure_pursuit script drives.")
    squeezer: Squeezer = Field(default_factory=Squeezer, description="How the squeezer script drives.")
    blocker: Blocker = Field(default_factory=Blocker, description="How the blocker script drives.")

    action_repeat: int = Field(4, ge=1, le=100, description="Physics steps of 0.01 s per decision.")
    max_episode_steps: int = Field(1500, ge=1, description="Decisions after which an episode is cut off.")
    steer_choices: int = Field(
        5, ge=1, le=101, description="Number of steering levels that a discrete policy chooses from."
    )
    speed_choices: int = Field(
        5, ge=1, le=101, description="Number of speed levels that a discrete policy chooses from."
    )
    laps: int = Field(1, ge=1, description="Laps of a circuit that finish a race.")
    finish_margin_m: float = Field(2.0, ge=0, description="An open road is finished this many metres before its end.")
    lead_m: float = Field(
        1.0, ge=0, description="overtake: lead over all others, in metres, that counts as having passed."
    )
    idle_mps: float = Field(
        0.05, ge=0, description="gaplock, convoy_lock: an attacker slower than this for idle_after_s has given up."
    )
    idle_after_s: float = Field(
        2.0,
        ge=0,
        description="gaplock, convoy_lock: seconds below idle_mps after which an attacker has given up; 0: never.",
    )
    pressure_m: Metres = Field(0.75, description="Distance in metres within which a car presses another.")
    pressed_s: float = Field(
        0.5, ge=0, description="convoy_lock: a crash counts if the target was pressed within this many seconds before."
    )
    border_m: Metres = Field(
        1.1, description="convoy_lock: a target this many metres beside the middle of the road is beaten."
    )

    def agents(self) -> tuple[tuple[str, str], ...]:
        """The cars."""
        return tuple((one.id, one.role) for one in self.cars)

    def phase_names(self) -> tuple[str, ...]:
        """Those listed."""
        return tuple(phase.name for phase in self.phases)

    def only_phase(self, number: int) -> RacingConfig:
        """The same race with no phase but this one."""
        return self.model_copy(update={"phases": (self.phases[number],)})

    @model_validator(mode="after")
    def _names(self) -> RacingConfig:
        ids = [car.id for car in self.cars]
        twice = sorted({name for name in ids if ids.count(name) > 1})
        if twice:
            raise ValueError(f"cars: ids used more than once: {', '.join(twice)}")
        for name, places in self.spawn.sets.items():
            for car in places:
                if car not in ids:
                    raise ValueError(f"spawn set {name} places a car '{car}' that is not there{suggest(car, ids)}")
            missing = [car for car in ids if car not in places]
            if missing:
                raise ValueError(f"spawn set {name} has no place for {', '.join(missing)}")
        for phase in self.phases:
            for name in phase.spawns or ():
                if name not in self.spawn.sets:
                    raise ValueError(
                        f"phase {phase.name}: there is no spawn set '{name}'{suggest(name, list(self.spawn.sets))}"
                    )
        return self
