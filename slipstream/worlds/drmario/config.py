"""Dr. Mario: levels, phases, what players see, do and are paid for. docs/drmario.md tells the rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from slipstream.config.base import Config
from slipstream.config.world import NetworkConfig, WorldConfig

Level = Annotated[int, Field(ge=0, le=24)]
Actions = Literal["placement", "controller"]
Speed = Literal["low", "medium", "high"]
SPEEDS: tuple[Speed, ...] = ("low", "medium", "high")
FRAMES_PER_SECOND = 60.0988
SEEDS = 32_767  # states a console can be in when a game begins
# Only a run writes all of these: a file that has them says everything there was to say when it was written.
OF_SAVED_FILES = frozenset({"max_pills", "first_seed", "last_seed", "seeds", "observation", "show_costs"})


class GamesConfig(Config):
    """One phase of a curriculum: which games are played."""

    name: str = Field(min_length=1, description="Name of the phase, for reports and `curriculum.start_phase`.")
    levels: tuple[Level, ...] = Field((0,), min_length=1, description="Levels; one is drawn for each game.")
    viruses: int | None = Field(
        None,
        ge=1,
        le=84,
        description="Number of viruses left in the bottle, drawn from those of the level; null: all of them.",
    )
    matches: int | None = Field(
        None, ge=1, le=100, description="Matches to make in an empty bottle; null: clearing the viruses is the goal."
    )
    max_seconds: float | None = Field(
        None, gt=0, le=36_000, description="Time limit of a success, in seconds; null: none."
    )
    time_floor_quantile: float | None = Field(
        None,
        ge=0,
        le=1,
        description="A time goal from best times, fixed when a curriculum begins this phase: what so many of the seeds "
        "have been cleared in (0.1: the fastest tenth), on the slowest of its levels; at most `max_seconds`, which "
        "alone counts where a level has no best time yet. null: none.",
    )

    @model_validator(mode="after")
    def _one_goal(self) -> GamesConfig:
        if self.viruses is not None and self.matches is not None:
            raise ValueError(f"phase '{self.name}' asks for viruses and for matches; it has one goal")
        if self.time_floor_quantile is not None and (self.viruses is not None or self.matches is not None):
            raise ValueError(
                f"phase '{self.name}': time_floor_quantile is of whole levels; leave out viruses and matches"
            )
        return self


class DrMarioRewardConfig(Config):
    """What is paid, and when."""

    virus: float = Field(
        0.5, description="For all viruses of a game (or matches of a phase) together, paid in parts as they go."
    )
    clear: float = Field(0.5, description="When the goal is reached.")
    top_out: float = Field(-1.0, description="When the next pill no longer fits in.")
    match: float = Field(0.0, description="Per cleared cell that is not a virus.")
    pill: float = Field(0.0, description="Per pill that locks.")
    second: float = Field(0.0, description="Per second of the game.")
    garbage: float = Field(0.0, description="Two players: per piece sent.")
    win: float = Field(0.0, description="Two players: when the game is won; minus this when it is lost.")


ObservationPreset = Literal["bottle", "bottle_mask", "bottle_conn", "bottle_conn_mask", "extended", "versus"]
OBSERVATIONS: dict[str, tuple[str, ...]] = {
    "bottle": ("colour", "virus"),
    "bottle_mask": ("colour", "virus", "feasible"),
    "bottle_conn": ("colour", "virus", "joined"),
    "bottle_conn_mask": ("colour", "virus", "joined", "feasible"),
    "extended": ("joined", "virus_colour", "pill_colour", "falling"),
    "versus": ("colour", "virus", "joined", "opponent", "feasible"),
}


class DrMarioConfig(WorldConfig):
    """A game of Dr. Mario, for one player or two."""

    kind: Literal["drmario"] = Field("drmario", description="NES Dr. Mario, frame by frame.")
    actions: Actions = Field(
        "placement",
        description="placement: one decision per pill, where it goes; controller: the buttons of every frame.",
    )
    players: Literal[1, 2] = Field(1, description="Two players send each other garbage.")
    speed: Speed = Field("high", description="Speed at which pills fall at first.")
    levels: tuple[Level, ...] = Field((0,), min_length=1, description="Levels; one is drawn for each game.")
    phases: tuple[GamesConfig, ...] = Field(
        (),
        description="Phases of a curriculum, instead of `levels`; without a curriculum, the last is played.",
    )
    best_times: str | None = Field(
        None,
        min_length=1,
        description="The store of best times that phases take `time_floor_quantile` from: a file, or a run's folder, "
        "relative to where the command is run; null: what the run itself has cleared until then.",
    )
    max_pills: int = Field(400, ge=1, le=100_000, description="Pills after which a game is cut off.")
    first_seed: int = Field(1, ge=1, le=SEEDS, description="First of the console's seeds that games are drawn from.")
    last_seed: int = Field(SEEDS, ge=1, le=SEEDS, description="Last of the console's seeds that games are drawn from.")
    seeds: Literal["registry"] | tuple[Annotated[int, Field(ge=1, le=SEEDS)], ...] = Field(
        (),
        description="Seeds to draw from instead; registry: the 120 that `slipstream drmario seeds` lists.",
    )
    observation: ObservationPreset | None = Field(
        None, description="Which planes are observed; null: those that fit players and actions."
    )
    show_costs: bool = Field(True, description="Placements: also observe how many frames each takes.")
    time_left: bool | None = Field(
        None,
        description="Players see how much of their time is left, and running out of it is an end like any other "
        "(terminated). false: they do not see it, and are cut off (truncated). null: true where a phase has a time "
        "limit.",
    )
    reward: DrMarioRewardConfig = Field(default_factory=DrMarioRewardConfig, description="The reward.")

    @model_validator(mode="before")
    @classmethod
    def _as_it_was_saved(cls, data: Any) -> Any:
        """Worlds that were saved before there was a clock stay as they were."""
        return {"time_left": False, **data} if isinstance(data, dict) and data.keys() >= OF_SAVED_FILES else data

    @property
    def shows_time_left(self) -> bool:
        """Whether running out of time is part of the task, and so is shown."""
        timed = any(phase.max_seconds is not None or phase.time_floor_quantile is not None for phase in self.phases)
        return timed if self.time_left is None else self.time_left

    @property
    def keeps_best_times(self) -> bool:
        """True where phases take their time from what the run itself has cleared."""
        return self.best_times is None and any(phase.time_floor_quantile is not None for phase in self.phases)

    def phase_names(self) -> tuple[str, ...]:
        """Those listed."""
        return tuple(phase.name for phase in self.phases)

    def only_phase(self, number: int) -> DrMarioConfig:
        """The same games with no phase but this one."""
        return self.model_copy(update={"phases": (self.phases[number],), "time_left": self.shows_time_left})

    def curriculum_problems(self, order: str) -> Iterator[tuple[tuple[str, ...], str]]:
        """Phases that all begin at once cannot wait for each other's best times."""
        if self.keeps_best_times and order == "adaptive":
            yield (
                ("world", "phases"),
                "adaptive phases all begin at once, when the run has no best times to take time_floor_quantile from; "
                "name a store in world.best_times",
            )

    @model_validator(mode="after")
    def _fits_together(self) -> DrMarioConfig:
        if self.first_seed > self.last_seed:
            raise ValueError(f"first_seed {self.first_seed} comes after last_seed {self.last_seed}")
        planes = self.planes
        if "feasible" in planes and self.actions == "controller":
            raise ValueError(f"observation '{self.observation}' shows placements; a controller needs 'extended'")
        if "opponent" in planes and self.players == 1:
            raise ValueError("observation 'versus' shows the opponent's bottle; players is 1")
        for phase in self.phases if self.players == 2 else ():
            if phase.matches:
                raise ValueError(f"phases: '{phase.name}' counts matches, which is for one player; players is 2")
            if phase.time_floor_quantile is not None:
                raise ValueError(
                    f"phases: '{phase.name}' has time_floor_quantile, which is for one player; players is 2"
                )
        names = [phase.name for phase in self.phases]
        if len(set(names)) < len(names):
            raise ValueError(f"phases: two have the same name among {', '.join(names)}")
        return self

    @property
    def planes(self) -> tuple[str, ...]:
        """The groups of planes of an observation."""
        preset = self.observation
        if preset is None:
            preset = (
                "extended" if self.actions == "controller" else "versus" if self.players == 2 else "bottle_conn_mask"
            )
        return OBSERVATIONS[preset]


PlacementKind = Literal["candidates", "dense_map", "factorised", "cross_attention", "decoder", "board_attention"]


class PlacementNetwork(NetworkConfig):
    """A network that scores placements on a board; its critic looks at columns."""

    implementation: ClassVar[str] = "slipstream.worlds.drmario.networks:PLACEMENTS"
    reads_raw_inputs: ClassVar[bool] = True  # planes and one-hot pieces: standardised they would lose their meaning
    for_placements: ClassVar[bool] = True  # the choices are scored one by one: there is no critic of actions

    kind: PlacementKind = Field(
        description="candidates: a perceptron that scores every placement by itself; dense_map: convolutions and a "
        "logit for each side from every cell; factorised: convolutions, and logits of side, row and column added up; "
        "cross_attention: placements that look at convolved cells and at latents; decoder: placements that look at "
        "each other too; board_attention: cells that look at each other. Of these only candidates and the critics "
        "read `hidden`.",
    )
