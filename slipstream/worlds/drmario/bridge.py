"""A controller over a wire: the buttons of every frame for a device that holds a console's pad, and a loop that plays.

The protocol. Packets of four bytes, both ways: a mark (0xA5 to the device, 0x5A back), a sequence number, one byte, and
the CRC-8 (polynomial 0x07) of the three. To the device the byte is the buttons to hold from the console's next poll on,
in the console's own order (A 128, B 64, select 32, start 16, up 8, down 4, left 2, right 1). Back comes the same number
once the console has polled, with 0 for buttons that were new and 1 for a packet that repeats the last one and was not
played again. The sender waits for the answer before the next frame, and repeats itself where none comes. Whatever is
between packets is passed over: after noise, the next whole packet counts.

Frames are sent at 60.0988 a second by deadlines counted from the first, so that no error adds up; those that came too
late are counted. Any object with `read` and `write` is a wire: `open_serial("/dev/ttyACM0")`, or a `Loopback`, which is
a device and a console in one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from slipstream.errors import ScenarioError, SlipstreamError
from slipstream.types import U8
from slipstream.worlds.drmario.engine import Engine, Pose
from slipstream.worlds.drmario.position import (
    EMPTY,
    SPAWN,
    Policy,
    Position,
    allowed,
    pill_at_top,
    plan_position,
    pose_of,
    speed_ups,
    threshold,
    with_pill,
)

TO_DEVICE, TO_HOST = 0xA5, 0x5A
PACKET = 4  # bytes
TAKEN, REPEATED = 0, 1
RATE_HZ = 60.0988
POLL_S = 0.0005  # between looks at a wire that has nothing
LONGEST_WAIT = 1_200  # frames without a pill: the game is over


class BridgeError(SlipstreamError):
    """The wire or what is behind it does not do its part."""


class BridgeTimeoutError(BridgeError):
    """No answer came, however often it was asked."""


# --- packets ---


class Packet(NamedTuple):
    """A sequence number and one byte."""

    number: int
    value: int


def crc8(data: bytes) -> int:
    """Polynomial x^8 + x^2 + x + 1, from 0."""
    check = 0
    for byte in data:
        check ^= byte
        for _ in range(8):
            check = (check << 1) ^ (0x107 if check & 0x80 else 0)
    return check


def encode(mark: int, packet: Packet) -> bytes:
    """The four bytes of a packet."""
    body = bytes((mark, packet.number & 0xFF, packet.value & 0xFF))
    return body + bytes((crc8(body),))


class PacketDecoder:
    """Finds packets in bytes as they come, in any pieces."""

    def __init__(self, mark: int) -> None:
        self._mark, self._rest = mark, b""
        self.passed_over = 0  # bytes that belong to no packet

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that are whole now."""
        rest, at, found = self._rest + data, 0, []
        while len(rest) - at >= PACKET:
            mark, number, value, check = rest[at : at + PACKET]
            if mark == self._mark and crc8(rest[at : at + PACKET - 1]) == check:
                found.append(Packet(number, value))
                at += PACKET
            else:  # by one byte only: what looked like a mark may have been noise before the real one
                at += 1
                self.passed_over += 1
        self._rest = rest[at:]
        return found


# --- the sender ---


class Wire(Protocol):
    """A stream of bytes that does not block: an open serial line, a socket's file, a `Loopback`."""

    def read(self, size: int, /) -> bytes | None:
        """Up to so many bytes, those that are there; nothing where none are."""

    def write(self, data: bytes, /) -> int | None:
        """Returns how many bytes it took."""


class Clock(NamedTuple):
    """Seconds that never go back, and how to let some pass."""

    now: Callable[[], float]
    sleep: Callable[[float], None]


REAL_TIME = Clock(time.monotonic, time.sleep)


def virtual_time() -> Clock:
    """A clock that only sleeping moves, for a loopback that nobody wants to wait for."""
    passed = [0.0]

    def sleep(seconds: float) -> None:
        passed[0] += seconds

    return Clock(lambda: passed[0], sleep)


class WireTraffic(NamedTuple):
    """What went over a wire."""

    frames: int
    missed: int  # that were sent after their time
    latest_s: float  # the worst of them
    resent: int
    passed_over: int  # bytes that belonged to no answer


class Bridge:
    """Sends the buttons of one frame after the other, each at its time."""

    def __init__(
        self, wire: Wire, clock: Clock = REAL_TIME, *, answer_within_s: float = 0.008, attempts: int = 3
    ) -> None:
        self._wire, self._clock, self._within_s, self._attempts = wire, clock, answer_within_s, attempts
        self._answers = PacketDecoder(TO_HOST)
        self._start_s: float | None = None
        self._frames = self._missed = self._resent = 0
        self._latest_s = 0.0

    @property
    def traffic(self) -> WireTraffic:
        """So far."""
        return WireTraffic(self._frames, self._missed, self._latest_s, self._resent, self._answers.passed_over)

    def press(self, buttons: int) -> None:
        """Hold these buttons for the next frame; returns when the device says that the console has them."""
        self._wait()
        packet = Packet(self._frames & 0xFF, buttons)
        for attempt in range(self._attempts):
            self._resent += attempt > 0
            self._send(encode(TO_DEVICE, packet))
            if self._answered(packet.number):
                self._frames += 1
                return
        raise BridgeTimeoutError(
            f"frame {self._frames}: no answer to packet {packet.number} within {1000 * self._within_s:.0f} ms, "
            f"{self._attempts} times; is the device connected, and is the console on?"
        )

    def _wait(self) -> None:
        """Until the frame is due: so many periods after the first, whatever happened in between."""
        now = self._clock.now()
        if self._start_s is None:
            self._start_s = now
        early = self._start_s + self._frames / RATE_HZ - now
        if early >= 0.0:
            self._clock.sleep(early)
        else:
            self._missed += 1
            self._latest_s = max(self._latest_s, -early)

    def _send(self, data: bytes) -> None:
        start, size = self._clock.now(), len(data)
        while data := data[self._wire.write(data) or 0 :]:
            if self._clock.now() - start >= self._within_s:
                raise BridgeTimeoutError(
                    f"frame {self._frames}: the wire took {size - len(data)} of {size} bytes within "
                    f"{1000 * self._within_s:g} ms; is the device stuck?"
                )
            self._clock.sleep(POLL_S)

    def _answered(self, number: int) -> bool:
        start = self._clock.now()
        while True:
            for packet in self._answers.feed(self._wire.read(64) or b""):
                if packet.number == number:
                    return True
            if self._clock.now() - start >= self._within_s:
                return False
            self._clock.sleep(POLL_S)


@contextmanager
def open_serial(path: Path | str, baud: int = 115_200) -> Iterator[Wire]:
    """A serial line, raw and without blocking, by the standard library alone."""
    import termios
    import tty

    speed = getattr(termios, f"B{baud}", None)
    if speed is None:
        raise ScenarioError(f"{baud} baud is no speed of serial lines here; try 115200")
    line = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        if not os.isatty(line):
            raise BridgeError(f"{path} is no serial line; one looks like /dev/ttyACM0 or /dev/ttyUSB0")
        tty.setraw(line)
        settings = termios.tcgetattr(line)
        settings[4] = settings[5] = speed
        termios.tcsetattr(line, termios.TCSANOW, settings)
        termios.tcflush(line, termios.TCIOFLUSH)
        with open(line, "r+b", buffering=0, closefd=False) as wire:
            yield wire
    finally:
        os.close(line)


# --- a device that is a console ---


class Loopback:
    """Our engine at the other end of the wire: every new packet is one frame of the game."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.locked: list[Pose] = []  # where pills came to rest
        self._packets, self._last, self._answers = PacketDecoder(TO_DEVICE), -1, b""

    def write(self, data: bytes, /) -> int:
        """Play what the packets say."""
        for number, buttons in self._packets.feed(data):
            repeated = number == self._last
            if not repeated:
                frame = self.engine.step(buttons)
                if frame.locked is not None:
                    self.locked.append(frame.locked)
            self._last = number
            self._answers += encode(TO_HOST, Packet(number, REPEATED if repeated else TAKEN))
        return len(data)

    def read(self, size: int, /) -> bytes:
        """The answers."""
        taken, self._answers = self._answers[:size], self._answers[size:]
        return taken


# --- the loop: picture, state, policy, buttons ---


class Sight(NamedTuple):
    """What is to be seen of a game."""

    board: U8  # [16, 8], with the pill where it is
    preview: tuple[int, int]


Look = Callable[[], Sight]  # what is seen now


class Placed(NamedTuple):
    """A pill that was sent somewhere."""

    placement: int
    frames: int  # that its buttons took
    as_planned: bool  # it is seen to lie there


class Pad(Protocol):
    """What holds a console's buttons."""

    def press(self, buttons: int) -> None:
        """Hold these for the next frame; returns when the console has them."""


class ShadowGame:
    """A bridge to a console that nobody sees, and the same game played along here: what it must look like by now.

    Level, speed, seed and the first frame must be the console's; a frame that goes missing puts it out of step.
    """

    def __init__(self, bridge: Bridge, engine: Engine) -> None:
        self._bridge, self.engine = bridge, engine

    def press(self, buttons: int) -> None:
        """See Pad."""
        self._bridge.press(buttons)
        self.engine.step(buttons)


class _Console:
    """Passes frames, and counts them, until something is seen."""

    def __init__(self, bridge: Pad, look: Look, is_over: Callable[[Sight], bool], frame_counter: int) -> None:
        self._bridge, self._look, self._is_over = bridge, look, is_over
        self.counter = frame_counter

    def pass_frames(self, buttons: bytes) -> None:
        """One frame for every byte, with its buttons held."""
        for byte in buttons:
            self._bridge.press(byte)
            self.counter += 1

    def wait_for_pill(self, at_top: bool) -> Sight | None:
        """Wait until a pill is at the top, or none is; None where the game is over or nothing happens."""
        for _ in range(LONGEST_WAIT):
            sight = self._look()
            if self._is_over(sight):
                return None
            if (pill_at_top(sight.board) is not None) == at_top:
                return sight
            self.pass_frames(bytes(1))
        return None


def play(
    bridge: Pad,
    look: Look,
    policy: Policy,
    *,
    pills: int,
    speed: int,
    latency: int = 0,
    frame_counter: int = 1,
    is_over: Callable[[Sight], bool] = lambda _: False,
) -> list[Placed]:
    """Play pills by sight: wait until one is at the top, decide, press, and look where it lies.

    Gravity and counters cannot be seen: they follow from the speed setting and from the number of pills since the game
    began. Whether the console's frame counter is odd cannot be seen either; where two pills in a row do not land as
    planned, the other is assumed from then on. Between pills nothing is held, so a direction's counter does not matter.

    Args:
        bridge: To the console.
        look: What is seen now.
        policy: Chooses the placements.
        pills: How many to play from the game's first on; fewer are played where the game ends.
        speed: The game's setting: 0 low, 1 medium, 2 high.
        latency: Frames that what is seen is behind, at most 3.
        frame_counter: Of the console's next frame; only whether it is odd matters.
        is_over: Whether the game is seen to be over; otherwise it is when no pill comes for 20 seconds.
    """
    if not 0 <= latency <= 3:
        raise ScenarioError(
            f"a latency of {latency} frames: from 4 on, a pill that has landed may already have cleared"
        )
    console, astray, placed = _Console(bridge, look, is_over, frame_counter), 0, []
    for number in range(1, pills + 1):
        sight = console.wait_for_pill(at_top=True)
        if sight is None:
            break
        position = _position(sight, threshold(speed, speed_ups(number)), console.counter, latency)
        reach = plan_position(position)
        if allowed(reach).any():
            placement = policy(position, reach.cost_to_lock)
            script = reach.script(placement)
            console.pass_frames(script + bytes(latency))
            wanted = with_pill(position.board, pose_of(placement), position.colours)
            its_cells = wanted != position.board
            lies = np.array_equal(look().board[its_cells], wanted[its_cells])  # elsewhere a reader may err
            placed.append(Placed(placement, len(script), lies))
            astray = 0 if lies else astray + 1
            if astray == 2:
                console.counter, astray = console.counter + 1, 0
        if console.wait_for_pill(at_top=False) is None:
            break
    return placed


def _position(sight: Sight, gravity: int, counter: int, latency: int) -> Position:
    colours = pill_at_top(sight.board)
    if colours is None:
        raise BridgeError("there is no pill at the top of the bottle")
    board, (row, column, rotation) = sight.board.copy(), SPAWN
    board[15 - row, column : column + 2] = EMPTY
    lost, since = divmod(latency, gravity + 1)
    return Position(board, (row - lost, column, rotation), colours, sight.preview, gravity, counter & 0xFF, since)
