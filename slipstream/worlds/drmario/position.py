"""What a player needs to know of a game to decide: where a pill can go and how soon, and all that is observed.

A position comes from an engine, a console's RAM or a picture.

`planes`, `pills` and `aux` say it in the form the native world shows (core/drmario/world.cpp); a test holds them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slipstream import _core
from slipstream.errors import ScenarioError
from slipstream.spec import WorldSpec
from slipstream.types import F32, U8, U16
from slipstream.worlds.drmario.config import SPEEDS, DrMarioConfig
from slipstream.worlds.drmario.engine import Engine, Pose, _board

UNREACHABLE = 0xFFFF
PLACEMENTS = 512
HALF_TIME_S = 30.0  # seconds left of which 0.5 is shown


class PlacementPlan(NamedTuple):
    """Fewest frames to lock at each placement, and the buttons that do it."""

    cost_to_lock: U16  # [512]; UNREACHABLE: it cannot be reached
    script: Callable[[int], bytes]  # one byte of buttons per frame; empty where it cannot be reached


def plan(
    board: ArrayLike,
    *,
    threshold: int,
    row: int = 15,
    col: int = 3,
    rot: int = 0,
    parity: int = 0,
    speed_counter: int = 0,
    hor_velocity: int = 0,
    held: int = 0,
    use_ab: bool = False,
) -> PlacementPlan:
    """Plan for a pill under control, exactly.

    A placement is o * 128 + 8 * r + c: the cell of the first half, r from the top; the second half is to the right
    (o = 0), below (1), to the left (2) or above (3).

    Args:
        board: uint8 [16, 8], row 0 the top.
        threshold: A row is lost when the speed counter exceeds it (`Engine.threshold`).
        row: Of the pill's lower left cell, from the bottom.
        col: Of that cell.
        rot: Rotation: 0 first half left, 1 below, 2 right, 3 above.
        parity: Lowest bit of the frame counter before the first frame; with 0 down acts on the first frame.
        speed_counter: Frames since the last row was lost.
        hor_velocity: The counter that repeats a held direction.
        held: Buttons held on the frame before.
        use_ab: Allow A and B on one frame, which is faster in rare cases.
    """
    if not (0 <= row <= 15 and 0 <= col <= 7 and 0 <= rot <= 3):
        raise ScenarioError(f"pill at row {row}, column {col}, rotation {rot}: they are 0 to 15, 0 to 7, 0 to 3")
    if not 0 <= threshold <= 69:
        raise ScenarioError(f"threshold {threshold}: the game's are 0 to 69 (Engine.threshold)")
    if not (0 <= speed_counter <= 70 and 0 <= hor_velocity <= 15 and 0 <= held <= 255):
        raise ScenarioError(
            f"speed_counter {speed_counter}, hor_velocity {hor_velocity}, held {held}: these are 0 to 70, 0 to 15 and "
            "0 to 255"
        )
    cells, pose, odd = _board(board), (row, col, rot), parity & 1 == 0
    state = (cells, pose, threshold, odd, speed_counter, hor_velocity, held, use_ab)
    return PlacementPlan(_core.drmario_plan(*state), lambda action: _core.drmario_script(*state, action))


def plan_engine(engine: Engine, *, use_ab: bool = False) -> PlacementPlan:
    """Plan for the pill a game has under control now."""
    row, col, rot = engine.pill
    return plan(
        engine.board,
        threshold=engine.threshold,
        row=row,
        col=col,
        rot=rot,
        parity=(engine.frame_counter - 1) & 1,
        speed_counter=engine.speed_counter,
        hor_velocity=engine.hor_velocity,
        held=engine.held,
        use_ab=use_ab,
    )


EMPTY, EMPTIED, VIRUS = 0xFF, 0xF0, 0xD0
COLOUR_NAMES = ("yellow", "red", "blue")
SPAWN: Pose = (15, 3, 0)
MIRRORED = 256  # from this placement on, a pill of one colour only repeats what is below it
# Frames without a drop, by speed: a setting begins at its base and moves on with every speed-up.
_THRESHOLDS: tuple[int, ...] = (
    *range(69, 19, -2), *range(19, 9, -1), 9, 9, 8, 8, 7, 7, 6, 6,
    *[5] * 12, *[4] * 5, *[3] * 5, *[2] * 5, *[1] * 10, 0,
)  # fmt: skip
_BASES = (15, 25, 31)
MOST_SPEED_UPS = 49
_JOINED = {"up": 0x50, "down": 0x40, "left": 0x70, "right": 0x60}  # the kind of half that is joined so
_SECOND = ("right", "below", "left", "above")
_COST_SCALE = 128.0
_HIGHEST_DISTINCT_LEVEL = 20


class Position(NamedTuple):
    """A pill under control, just before a frame, and the bottle it falls in."""

    board: U8  # [16, 8], row 0 the top; without the pill
    pill: Pose
    colours: tuple[int, int]
    preview: tuple[int, int]
    threshold: int
    frame_counter: int  # of the next frame: down acts where it is odd
    speed_counter: int = 0
    hor_velocity: int = 0
    held: int = 0


def position_of(engine: Engine) -> Position:
    """Of a game that has a pill under control."""
    return Position(
        engine.board, engine.pill, engine.colours, engine.preview, engine.threshold, engine.frame_counter,
        engine.speed_counter, engine.hor_velocity, engine.held,
    )  # fmt: skip


def plan_position(position: Position) -> PlacementPlan:
    """Where the pill can go; a placement that another one repeats counts as out of reach, as in the native world."""
    row, col, rot = position.pill
    reach = plan(
        position.board,
        threshold=position.threshold,
        row=row,
        col=col,
        rot=rot,
        parity=(position.frame_counter - 1) & 1,
        speed_counter=position.speed_counter,
        hor_velocity=position.hor_velocity,
        held=position.held,
    )
    if position.colours[0] == position.colours[1]:
        reach.cost_to_lock[MIRRORED:] = UNREACHABLE
    return reach


def threshold(speed: int, speed_ups: int) -> int:
    """A row is lost when more frames than this have passed since the last one."""
    return _THRESHOLDS[min(_BASES[speed] + speed_ups, len(_THRESHOLDS) - 1)]


def speed_ups(pill: int) -> int:
    """How often a game has become faster when its pill with this number, from 1, is under control."""
    return min((pill + 1) // 10, MOST_SPEED_UPS)


def pose_of(placement: int) -> Pose:
    """Where a pill lies that was placed so."""
    orientation, cell = divmod(placement, 128)
    top, column = divmod(cell, 8)
    return (
        (15 - top, column, 0), (14 - top, column, 3), (15 - top, column - 1, 2), (15 - top, column, 1),
    )[orientation]  # fmt: skip


def with_pill(board: U8, pill: Pose, colours: tuple[int, int]) -> U8:
    """The board with a pill in it; a half above the bottle is not shown."""
    (row, column, rot), shown = pill, board.copy()
    here, there = colours[::-1] if rot >= 2 else colours
    shown[15 - row, column] = (0x50 if rot % 2 else 0x60) | here
    if not rot % 2:
        shown[15 - row, column + 1] = 0x70 | there
    elif row < 15:
        shown[14 - row, column] = 0x40 | there
    return shown


# --- as the native world shows it ---


def planes(position: Position, groups: Sequence[str], reach: PlacementPlan | None) -> dict[str, U8]:
    """Planes [16, 8] of 0 and 1 by name, in the order of `OBSERVATIONS`; the opponent's bottle is not known here.

    Without `reach` no pill is under control.
    """
    board = position.board
    kind, colour = board & 0xF0, np.where(board < EMPTIED, board & 0x0F, 9)
    made: dict[str, NDArray[np.bool_]] = {}
    for group in groups:
        if group == "colour":
            made |= {name: colour == c for c, name in enumerate(COLOUR_NAMES)}
        elif group == "virus":
            made["virus"] = kind == VIRUS
        elif group == "joined":
            made |= {f"joined_{side}": kind == half for side, half in _JOINED.items()}
        elif group == "virus_colour":
            made |= {f"virus_{name}": (colour == c) & (kind == VIRUS) for c, name in enumerate(COLOUR_NAMES)}
        elif group == "pill_colour":
            made |= {f"pill_{name}": (colour == c) & (kind != VIRUS) for c, name in enumerate(COLOUR_NAMES)}
        elif group == "falling":
            alone = np.full((16, 8), EMPTY, np.uint8)
            alone = alone if reach is None else with_pill(alone, position.pill, position.colours)
            made |= {f"falling_{name}": (alone < EMPTIED) & (alone & 0x0F == c) for c, name in enumerate(COLOUR_NAMES)}
        elif group == "feasible":
            open_to = allowed(reach).reshape(4, 16, 8)
            made |= {f"second_{side}": open_to[o] for o, side in enumerate(_SECOND)}
    return {name: plane.astype(np.uint8) for name, plane in made.items()}


def observation(
    spec: WorldSpec,
    groups: Sequence[str],
    position: Position,
    reach: PlacementPlan | None,
    *,
    speed: int,
    level: int,
    viruses_at_first: int,
    pills_used: float,
) -> dict[str, NDArray[Any]]:
    """What one player is shown, block by block."""
    numbers = aux(
        position, reach, speed=speed, level=level, viruses_at_first=viruses_at_first, pills_used=pills_used
    )  # fmt: skip
    shown: dict[str, NDArray[Any]] = {}
    for block in spec.obs:
        if block.name == "planes":
            shown["planes"] = np.stack(list(planes(position, groups, reach).values()))
        elif block.name == "pills":
            shown["pills"] = pills(position)
        elif block.name == "aux":
            shown["aux"] = np.array([numbers[name] for name in block.features], np.float32)
        elif block.name == "costs":
            shown["costs"] = costs(reach)
    return shown


def pills(position: Position) -> U8:
    """This pill and the next, each one of nine ordered pairs: [18]."""
    shown = np.zeros(18, np.uint8)
    for block, (first, second) in enumerate((position.colours, position.preview)):
        shown[9 * block + 3 * first + second] = 1
    return shown


def allowed(reach: PlacementPlan | None) -> NDArray[np.bool_]:
    """Which placements can be reached: [512]; without a pill, none."""
    return np.zeros(PLACEMENTS, np.bool_) if reach is None else reach.cost_to_lock != UNREACHABLE


def costs(reach: PlacementPlan | None) -> F32:
    """Frames to each placement in parts of 128, at most 1: [4, 16, 8]."""
    frames = np.full(PLACEMENTS, UNREACHABLE) if reach is None else reach.cost_to_lock
    return np.minimum(frames / _COST_SCALE, 1.0).astype(np.float32).reshape(4, 16, 8)


def aux(
    position: Position,
    reach: PlacementPlan | None,
    *,
    speed: int,
    level: int,
    viruses_at_first: int,
    pills_used: float,
    seconds_left: float | None = None,
) -> dict[str, float]:
    """The native world's numbers by name; `pills_used` is a share of those a game may have. None: no time limit."""
    board = position.board
    taken, virus = board < EMPTIED, board & 0xF0 == VIRUS
    heights = np.where(taken.any(0), 16 - taken.argmax(0), 0)
    rows = np.flatnonzero(virus.any(1))
    most, left = 4.0 * (_HIGHEST_DISTINCT_LEVEL + 1), int(virus.sum())
    made = {f"speed_{name}": float(speed == k) for k, name in enumerate(SPEEDS)}
    made |= {"viruses": left / most}
    made |= {f"{name}_viruses": (virus & (board & 0x0F == c)).sum() / most for c, name in enumerate(COLOUR_NAMES)}
    made |= {
        "level": level / _HIGHEST_DISTINCT_LEVEL,
        "pills_used": pills_used,
        "max_height": heights.max() / 16,
        "occupied": taken.sum() / 128,
        "virus_height": (16 - rows[0]) / 16 if rows.size else 0.0,
        "options": allowed(reach).sum() / 128,
        "gravity": position.threshold / 69,
        "odd_frame": float(position.frame_counter & 1),
        "progress": 1.0 - left / viruses_at_first if viruses_at_first else 0.0,
        "matches_left": 0.0,
        "pill_row": position.pill[0] / 15,
        "time_left": 1.0 if seconds_left is None else seconds_left / (seconds_left + HALF_TIME_S),
    }
    made |= {f"height_{c}": heights[c] / 16 for c in range(8)}
    return {name: float(np.clip(value, 0.0, 1.0)) for name, value in made.items()}


def count_viruses(board: U8) -> int:
    """How many are in a bottle."""
    return int((board & 0xF0 == VIRUS).sum())


def pill_at_top(board: U8) -> tuple[int, int] | None:
    """Colours of the pill that has just come into the bottle; None: there is none.

    A pill looks the same whether it falls or lies. Where it appears none can lie unless the game is over.
    """
    row, column, _ = SPAWN
    left, right = board[15 - row, column : column + 2].tolist()
    return (left & 3, right & 3) if (left & 0xF0, right & 0xF0) == (0x60, 0x70) else None


# --- a policy of the native world, by what is seen ---

Policy = Callable[[Position, U16], int]  # a placement, of those whose frames are not 65535
Act = Callable[[dict[str, NDArray[Any]], U8], int]  # the same from the native world's observation and mask


def player(act: Act, config: DrMarioConfig, spec: WorldSpec, *, level: int, speed: int) -> Policy:
    """A policy of the native world that plays one game by what is seen of it, from its first pill on."""
    if config.actions != "placement" or config.players != 1:
        found = f"actions is {config.actions!r}, players is {config.players}"
        raise ScenarioError(f"over a wire, one player's placements are played; in this run {found}")
    viruses, used = None, 0

    def choose(position: Position, frames: U16) -> int:
        nonlocal viruses, used
        viruses = count_viruses(position.board) if viruses is None else viruses
        shown = observation(
            spec, config.planes, position, PlacementPlan(frames, lambda _: b""), speed=speed, level=level,
            viruses_at_first=viruses, pills_used=min(1.0, used / config.max_pills),
        )  # fmt: skip
        used += 1
        return act(shown, (frames != UNREACHABLE).astype(np.uint8))

    return choose
