"""Where a pill can go, in how many frames, and with which buttons."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slipstream import _core
from slipstream.errors import ScenarioError
from slipstream.worlds.drmario.engine import Engine, _board

U16 = NDArray[np.uint16]
UNREACHABLE = 0xFFFF
PLACEMENTS = 512


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
