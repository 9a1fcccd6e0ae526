"""A game read from the console's 2,048 bytes of RAM, and how many cells each plane of an observation then has.

Addresses are facts of the NTSC cartridge (revision 0), as named by the public disassembly
(github.com/Nostaljipi/dr-mario-disassembly, defines/drmario_ram.asm and drmario_ram_zp.asm) and, where it has them, by
Data Crystal's RAM map of Dr. Mario (NES). Both agree on the bottles, the pill's cell and colours, the next pill, the
level, the viruses left and the frame counter. Where they do not, this module follows the disassembly:

- 0x030B: Data Crystal calls it a pill's speed from 0x26 to 0x85; it is the setting, 0 low, 1 medium, 2 high.
- 0x0312: Data Crystal counts frames left before a drop; it counts frames since the last one, upwards.
- the rotation: Data Crystal gives 0x00A5, the copy of whichever player is being played; player 1's own is 0x0325.
- drmc-rl's docs say that the rotation's lowest bit means horizontal; 0 and 2 lie, 1 and 3 stand.

No console was read here: tests write the RAM from our own engine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slipstream.errors import ScenarioError
from slipstream.types import U8
from slipstream.worlds.drmario.config import OBSERVATIONS, ObservationPreset
from slipstream.worlds.drmario.engine import HIGHEST_LEVEL, Pose, Seed, _board
from slipstream.worlds.drmario.position import MOST_SPEED_UPS, VIRUS, Position, plan_position, planes, threshold

RAM_SIZE = 0x800

# Of the console, and of whoever plays.
RNG, FRAME_COUNTER, MODE, HELD, PLAYERS, DEMO, RESERVE = 0x0017, 0x0043, 0x0046, 0x00F7, 0x0727, 0x0741, 0x0780
FIELD, FIELD_OF_SECOND = 0x0400, 0x0500
PLAYER, PLAYER_OF_SECOND = 0x0300, 0x0380
# Within a player's 48 bytes.
FIRST_COLOUR, SECOND_COLOUR, COLUMN, ROW, FAILED = 0x01, 0x02, 0x05, 0x06, 0x09
SPEED_UPS, SPEED, PILLS, SPEED_COUNTER, HOR_VELOCITY, LEVEL, ACTION = 0x0A, 0x0B, 0x10, 0x12, 0x13, 0x16, 0x17
NEXT_FIRST, NEXT_SECOND, VIRUSES, ROTATION = 0x1A, 0x1B, 0x24, 0x25

IN_LEVEL = 4  # the mode
FALLING, LOCKED = 0, 1  # actions: the pill is under control; it came to rest
_LIMITS = {
    FIRST_COLOUR: ("colour of the pill's first half", 2),
    SECOND_COLOUR: ("colour of the pill's second half", 2),
    COLUMN: ("column of the pill", 7),
    ROW: ("row of the pill", 15),
    SPEED_UPS: ("number of speed-ups", MOST_SPEED_UPS),
    SPEED: ("speed setting", 2),
    SPEED_COUNTER: ("number of frames since the pill last dropped", 70),
    HOR_VELOCITY: ("counter of a held direction", 15),
    LEVEL: ("level", HIGHEST_LEVEL),
    ACTION: ("next action", 6),
    NEXT_FIRST: ("colour of the next pill's first half", 2),
    NEXT_SECOND: ("colour of the next pill's second half", 2),
    ROTATION: ("rotation of the pill", 3),
}


class RamState(NamedTuple):
    """One player's game between two frames."""

    board: U8  # [16, 8], row 0 the top; without the falling pill
    pill: Pose
    colours: tuple[int, int]
    preview: tuple[int, int]
    level: int
    speed: int  # 0 low, 1 medium, 2 high
    speed_ups: int
    speed_counter: int
    hor_velocity: int
    held: int  # buttons of the last frame
    viruses: int  # left
    pills: int  # thrown, modulo 100; 2 while the first one is under control
    action: int  # of the next frame: FALLING, LOCKED, …
    failed: bool
    mode: int  # IN_LEVEL, or which screen is shown
    demo: bool
    players: int
    frame_counter: int  # as the last frame saw it
    rng: Seed
    reserve: U8  # [128] pills in order

    @property
    def controllable(self) -> bool:
        """Whether the next frame moves a pill as the buttons say."""
        return self.mode == IN_LEVEL and not self.demo and not self.failed and self.action == FALLING

    @property
    def position(self) -> Position:
        """What a planner and a policy need."""
        return Position(
            self.board, self.pill, self.colours, self.preview, threshold(self.speed, self.speed_ups),
            (self.frame_counter + 1) & 0xFF, self.speed_counter, self.hor_velocity, self.held,
        )  # fmt: skip


def checked_ram(ram: bytes | U8) -> bytes:
    """The console's RAM, if it is as long as that."""
    found = bytes(ram)
    if len(found) != RAM_SIZE:
        raise ScenarioError(
            f"RAM of {len(found)} bytes: a console has {RAM_SIZE}, from address 0; "
            "an emulator's save state or a dump with a header is something else"
        )
    return found


def state_from_ram(ram: bytes | U8, player: int = 0) -> RamState:
    """Read a player's game (0 or 1) from the console's 2,048 bytes, between two frames of a level."""
    ram = checked_ram(ram)
    if player not in (0, 1):
        raise ScenarioError(f"player {player}: a console has players 0 and 1")
    start = PLAYER_OF_SECOND if player else PLAYER
    field = FIELD_OF_SECOND if player else FIELD
    for offset, (meaning, most) in _LIMITS.items():
        if ram[start + offset] > most:
            raise _impossible(ram, start + offset, f"the {meaning} is 0 to {most}")
    if ram[start + COLUMN] == 7 and ram[start + ROTATION] % 2 == 0:
        raise _impossible(ram, start + COLUMN, "a pill that lies flat has its left half in columns 0 to 6")
    try:
        board = _board(ram[field : field + 128]).reshape(16, 8)
    except ScenarioError as error:
        raise ScenarioError(f"the bottle at {field:#06x}: {error}{_hint(ram)}") from None
    board.setflags(write=False)
    reserve = np.frombuffer(ram[RESERVE:], np.uint8)
    if reserve.max() > 8:
        at = RESERVE + int((reserve > 8).argmax())
        raise _impossible(ram, at, "a pill of the reserve is 0 to 8")

    def byte(offset: int) -> int:
        return ram[start + offset]

    return RamState(
        board=board,
        pill=(byte(ROW), byte(COLUMN), byte(ROTATION)),
        colours=(byte(FIRST_COLOUR), byte(SECOND_COLOUR)),
        preview=(byte(NEXT_FIRST), byte(NEXT_SECOND)),
        level=byte(LEVEL),
        speed=byte(SPEED),
        speed_ups=byte(SPEED_UPS),
        speed_counter=byte(SPEED_COUNTER),
        hor_velocity=byte(HOR_VELOCITY),
        held=ram[HELD + player],
        viruses=_decimal(ram, start + VIRUSES, "number of viruses left"),
        pills=_decimal(ram, start + PILLS, "number of pills"),
        action=byte(ACTION),
        failed=byte(FAILED) != 0,
        mode=ram[MODE],
        demo=ram[DEMO] != 0,
        players=ram[PLAYERS],
        frame_counter=ram[FRAME_COUNTER],
        rng=(ram[RNG], ram[RNG + 1]),
        reserve=reserve,
    )


def channel_counts(state: RamState, observation: ObservationPreset = "bottle_conn") -> dict[str, int]:
    """How many cells each plane has, by its name in the world's spec: what to compare a picture of the game with."""
    groups = [group for group in OBSERVATIONS[observation] if group != "opponent"]
    reach = plan_position(state.position) if state.controllable else None
    return {name: int(plane.sum()) for name, plane in planes(state.position, groups, reach).items()}


def viruses_on_board(state: RamState) -> int:
    """Cells that are viruses; the console's own count says the same while a level is played."""
    return int((state.board & 0xF0 == VIRUS).sum())


def _decimal(ram: bytes, address: int, meaning: str) -> int:
    """Two decimal digits, one in each half of the byte."""
    tens, ones = divmod(ram[address], 16)
    if tens > 9 or ones > 9:
        raise _impossible(ram, address, f"the {meaning} is two decimal digits")
    return 10 * tens + ones


def _impossible(ram: bytes, address: int, rule: str) -> ScenarioError:
    return ScenarioError(f"RAM at {address:#06x} is {ram[address]:#04x}, but {rule}{_hint(ram)}")


def _hint(ram: bytes) -> str:
    if ram[MODE] == IN_LEVEL:
        return "; is this Dr. Mario for the NES, revision 0?"
    return f"; no level is being played (the mode at {MODE:#06x} is {ram[MODE]}, in a level it is {IN_LEVEL})"
