"""Dr. Mario: levels, phases, what players see, do and are paid for. docs/drmario.md tells the rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from slipstream.config.base import Config
from slipstream.config.world import WorldConfig

Level = Annotated[int, Field(ge=0, le=24)]
Speed = Literal["low", "medium", "high"]
SPEEDS: tuple[Speed, ...] = ("low", "medium", "high")
FRAMES_PER_SECOND = 60.0988
SEEDS = 32_767  # states a console can be in when a game begins


class GamesConfig(Config):
    """One phase of a curriculum: which games are played."""

    name: str = Field(min_length=1, description="For reports and `curriculum.start_phase`.")
    levels: tuple[Level, ...] = Field((0,), min_length=1, description="One is drawn for each game.")
    viruses: int | None = Field(
        None, ge=1, le=84, description="Viruses left in the bottle, drawn from the level's; null: all of them."
    )
    matches: int | None = Field(
        None, ge=1, le=100, description="An empty bottle, and so many matches to make; null: viruses are the goal."
    )
    max_seconds: float | None = Field(
        None, gt=0, le=36_000, description="A time goal: later than this does not count; null: only pills are counted."
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

    virus: float = Field(0.5, description="For all of a game's viruses (a phase's matches) together, as they go.")
    clear: float = Field(0.5, description="When the goal is reached.")
    top_out: float = Field(-1.0, description="When a pill does not fit in any more.")
    match: float = Field(0.0, description="Per cell cleared that is no virus.")
    pill: float = Field(0.0, description="Per pill that locks.")
    second: float = Field(0.0, description="Per second of the game.")
    garbage: float = Field(0.0, description="Two players: per piece sent.")
    win: float = Field(0.0, description="Two players: when the game is won, minus that when it is lost.")


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
    actions: Literal["placement", "controller"] = Field(
        "placement", description="One decision per pill: where it goes; or the buttons of every frame."
    )
    players: Literal[1, 2] = Field(1, description="Two players send each other garbage.")
    speed: Speed = Field("high", description="How fast pills fall at first.")
    levels: tuple[Level, ...] = Field((0,), min_length=1, description="One is drawn for each game.")
    phases: tuple[GamesConfig, ...] = Field(
        (),
        description="Instead of `levels`: what `curriculum` goes through; without one, the last.",
    )
    best_times: str | None = Field(
        None,
        min_length=1,
        description="The store of best times that phases take `time_floor_quantile` from: a file, or a run's folder, "
        "relative to where the command is run; null: what the run itself has cleared until then.",
    )
    max_pills: int = Field(400, ge=1, le=100_000, description="A game is cut off after so many pills.")
    first_seed: int = Field(1, ge=1, le=SEEDS, description="Games are drawn from the console's seeds from this one")
    last_seed: int = Field(SEEDS, ge=1, le=SEEDS, description="to this one.")
    seeds: Literal["registry"] | tuple[Annotated[int, Field(ge=1, le=SEEDS)], ...] = Field(
        (), description="Or from these; registry: from the 120 that `slipstream drmario seeds` lists."
    )
    observation: ObservationPreset | None = Field(
        None, description="Which planes are shown; null: as players and actions need them."
    )
    show_costs: bool = Field(True, description="Placements: show how many frames each takes.")
    reward: DrMarioRewardConfig = Field(default_factory=DrMarioRewardConfig, description="What players are paid for.")

    @property
    def keeps_best_times(self) -> bool:
        """True where phases take their time from what the run itself has cleared."""
        return self.best_times is None and any(phase.time_floor_quantile is not None for phase in self.phases)

    def phase_names(self) -> tuple[str, ...]:
        """Those listed."""
        return tuple(phase.name for phase in self.phases)

    def only_phase(self, number: int) -> DrMarioConfig:
        """The same games with no phase but this one."""
        return self.model_copy(update={"phases": (self.phases[number],)})

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
        if self.players == 2 and any(phase.matches for phase in self.phases):
            raise ValueError("phases with matches are for one player")
        if self.players == 2 and any(phase.time_floor_quantile is not None for phase in self.phases):
            raise ValueError("phases with time_floor_quantile are for one player: best times are")
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
