"""What a placement leads to, as far as a player can know: from an observation alone to those that may follow.

The bottle, the pill and the next one are all seen; the one after that is not, so what follows is nine observations, one
for every pill it could be. The game is played on by the engine, where the pill falls as slowly as a game's first, and
nothing is held: neither is shown exactly. A placement then takes a frame more than in the game now and then (62 of
70,570 placements of games that went on for up to 461 pills).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import ScenarioError
from slipstream.spec import WorldSpec
from slipstream.types import U8
from slipstream.worlds.drmario.config import FRAMES_PER_SECOND, SPEEDS, DrMarioConfig
from slipstream.worlds.drmario.engine import Engine, Terminal
from slipstream.worlds.drmario.position import (
    COLOUR_NAMES,
    EMPTY,
    HALF_TIME_S,
    UNREACHABLE,
    VIRUS,
    PlacementPlan,
    Position,
    aux,
    costs,
    pills,
    plan_engine,
    plan_position,
    planes,
    position_of,
    speed_ups,
    threshold,
)


class Outcome(NamedTuple):
    """After so many ticks the episode is over, or it goes on with one of several observations, all equally likely."""

    ticks: int
    success: bool | None  # None: it goes on
    obs: Mapping[str, NDArray[Any]]  # blocks [continuations, ...]; empty where it is over


# Of one agent's observation (blocks without a leading axis) and the choices that are looked at.
Look = Callable[[Mapping[str, NDArray[Any]], Sequence[int]], list[Outcome]]


Row = Mapping[str, NDArray[Any]]

IDS, SINGLE = 9, 0x80
NEEDED = ("colour", "virus", "joined")
_HALVES = {"joined_up": 0x50, "joined_down": 0x40, "joined_left": 0x70, "joined_right": 0x60}


class SeenPosition(NamedTuple):
    """A position as an observation shows it."""

    board: U8  # [16, 8]
    pill: int  # id, three times the first colour plus the second
    preview: int
    speed: int
    level: int
    viruses_at_first: int
    pills_used: int
    odd: bool  # the next frame
    frames_left: int | None  # until a success comes too late; None: no limit is shown


def look_ahead(config: DrMarioConfig, spec: WorldSpec) -> Look:
    """What looks ahead in this world; it must show the bottle with how halves are joined, and be for one player."""
    if config.players != 1 or config.actions != "placement" or not set(NEEDED) <= set(config.planes):
        raise ScenarioError(
            "looking ahead needs one player, placements, and planes that show how halves are joined; found players "
            f"{config.players}, actions {config.actions!r}, observation {config.observation!r}"
        )

    def look(obs: Row, choices: Sequence[int]) -> list[Outcome]:
        seen = read(obs, config, spec)
        return [_follow(seen, choice, config, spec) for choice in choices]

    return look


def read(obs: Row, config: DrMarioConfig, spec: WorldSpec) -> SeenPosition:
    """What an observation says about the game."""
    names = {block.name: block.features for block in spec.obs}
    plane = dict(zip(names["planes"], obs["planes"], strict=True))
    number = dict(zip(names["aux"], obs["aux"].tolist(), strict=True))
    kind = np.where(plane["virus"] != 0, VIRUS, SINGLE)
    for joined, half in _HALVES.items():
        kind = np.where(plane[joined] != 0, half, kind)
    board = np.full((16, 8), EMPTY, np.uint8)
    for colour, name in enumerate(COLOUR_NAMES):
        here = plane[name] != 0
        board[here] = (kind | colour)[here]
    left, share = int(plane["virus"].sum()), number.get("time_left", 1.0)
    return SeenPosition(
        board=board,
        pill=int(obs["pills"][:IDS].argmax()),
        preview=int(obs["pills"][IDS:].argmax()),
        speed=next(k for k, name in enumerate(SPEEDS) if number[f"speed_{name}"]),
        level=round(20 * number["level"]),
        viruses_at_first=round(left / (1.0 - number["progress"])),
        pills_used=round(number["pills_used"] * config.max_pills),
        odd=number["odd_frame"] > 0,
        frames_left=None if share == 1.0 else round(FRAMES_PER_SECOND * HALF_TIME_S * share / (1.0 - share)),
    )


def _follow(seen: SeenPosition, choice: int, config: DrMarioConfig, spec: WorldSpec) -> Outcome:
    engine = Engine.from_state(
        level=seen.level, speed=seen.speed, board=seen.board, reserve=[0, seen.pill, seen.preview, *[0] * 125],
        frame_counter=int(seen.odd),
    )  # fmt: skip
    frames = engine.run(plan_engine(engine).script(choice))
    if not frames:  # it cannot be reached
        return Outcome(0, False, {})
    while not (engine.controllable or engine.terminal):
        engine.step()
        frames += 1
    left = None if seen.frames_left is None else seen.frames_left - frames
    late = left is not None and left < 0
    if engine.terminal or late:
        return Outcome(frames, engine.terminal == Terminal.CLEAR and not late, {})
    used = seen.pills_used + 1
    after = position_of(engine)._replace(
        threshold=threshold(seen.speed, speed_ups(used + 1)), frame_counter=(int(seen.odd) + frames) & 1
    )
    reach = plan_position(after)
    if used >= config.max_pills or reach.cost_to_lock.min() == UNREACHABLE:
        return Outcome(frames, False, {})  # cut off, or a pill that can go nowhere: as good as lost
    seen = seen._replace(frames_left=left)
    return Outcome(frames, None, _shown(after, reach, seen, used / config.max_pills, config, spec))


def _shown(
    position: Position,
    reach: PlacementPlan,
    seen: SeenPosition,
    pills_used: float,
    config: DrMarioConfig,
    spec: WorldSpec,
) -> dict[str, NDArray[Any]]:
    """The nine observations of a position whose next pill is not known."""
    numbers = aux(
        position, reach, speed=seen.speed, level=seen.level, viruses_at_first=seen.viruses_at_first,
        pills_used=pills_used, 
        seconds_left=None if seen.frames_left is None else seen.frames_left / FRAMES_PER_SECOND,
    )  # fmt: skip
    nine = np.stack([pills(position._replace(preview=divmod(pill, 3))) for pill in range(IDS)])
    shown: dict[str, NDArray[Any]] = {}
    for block in spec.obs:
        if block.name == "pills":
            shown["pills"] = nine
            continue
        if block.name == "planes":
            one: NDArray[Any] = np.stack(list(planes(position, config.planes, reach).values()))
        elif block.name == "aux":
            one = np.array([numbers[name] for name in block.features], np.float32)
        else:
            one = costs(reach)
        shown[block.name] = np.broadcast_to(one, (IDS, *one.shape))
    return shown
