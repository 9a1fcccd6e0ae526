"""The planner once more in plain Python: breadth first over every state, by the rules as they are written down.

Nothing here is shared with the product. It takes seconds where the planner takes microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator

RIGHT, LEFT, DOWN, B, A = 1, 2, 4, 64, 128
UNREACHABLE = 0xFFFF

State = tuple[int, int, int, int, int, int]  # row, column, rotation, speed counter, horizontal velocity, held


def plan_plainly(
    board: list[int],
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
) -> list[int]:
    """Fewest frames to lock at each of 512 placements; the board is 128 bytes."""
    turns = [0, A, B, A | B] if use_ab else [0, A, B]
    inputs = [pad | turn for pad in (0, LEFT, RIGHT, DOWN) for turn in turns]
    costs = [UNREACHABLE] * 512
    here = {(row, col, rot, speed_counter, hor_velocity, held)}
    met: list[set[State]] = [set(), set()]
    frame = 0
    while here:
        frame += 1
        odd = (parity + frame) % 2 == 1
        found: set[State] = set()
        for state in here:
            for buttons in inputs:
                for after, locked in _frame(board, state, buttons, odd, threshold):
                    if locked:
                        placement = _placement(*after[:3])
                        if placement is not None:
                            costs[placement] = min(costs[placement], frame)
                    else:
                        found.add(after)
        here = found - met[frame % 2]
        met[frame % 2] |= here
    return costs


def _fits(board: list[int], row: int, col: int, rot: int) -> bool:
    parts = [(row, col), (row + 1, col)] if rot % 2 else [(row, col), (row, col + 1)]
    return all(
        r >= 0 and 0 <= c < 8 and (r > 15 or board[(15 - r) * 8 + c] >= 0xF0) for r, c in parts
    )  # fmt: skip


def _frame(board: list[int], state: State, buttons: int, odd: bool, threshold: int) -> Iterator[tuple[State, bool]]:
    row, col, rot, speed, velocity, held = state
    pressed = buttons & ~held
    if odd and buttons & 15 == DOWN:
        drops = True
    else:
        speed += 1
        drops = speed > threshold
    if drops:
        speed = 0
        if not _fits(board, row - 1, col, rot):
            yield (row, col, rot, 0, 0, 0), True
            return
        row -= 1
    if buttons & (LEFT | RIGHT):
        if pressed & (LEFT | RIGHT):
            velocity, tries = 0, True
        else:
            velocity, tries = velocity + 1, velocity + 1 >= 16
            velocity = 10 if tries else velocity
        step = 1 if buttons & RIGHT else -1
        at_wall = col == (7 if rot % 2 else 6) if step > 0 else col == 0
        if tries and not at_wall:
            if _fits(board, row, col + step, rot):
                col += step
            else:
                velocity = 15
    start = (col, rot)
    for button, by in ((A, -1), (B, 1)):
        if pressed & button:
            turned = (rot + by) % 4
            if _fits(board, row, col, turned):
                doubles = turned % 2 == 0 and buttons & LEFT and _fits(board, row, col - 1, turned)
                col, rot = (col - 1 if doubles else col), turned
            elif turned % 2 == 0 and _fits(board, row, col - 1, turned):
                col, rot = col - 1, turned
            else:
                col, rot = start
    yield (row, col, rot, speed, velocity, buttons), False


def _placement(row: int, col: int, rot: int) -> int | None:
    y = 15 - row
    if rot % 2 and y == 0:
        return None
    return {0: y * 8 + col, 1: 384 + y * 8 + col, 2: 256 + y * 8 + col + 1, 3: 128 + (y - 1) * 8 + col}[rot]
