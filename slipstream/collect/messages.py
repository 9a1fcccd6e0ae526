"""What a run and its workers say to each other: small messages over a local socket; bulk data is in shared memory."""

from __future__ import annotations

import socket

import msgspec

from slipstream.runtime import packets
from slipstream.runtime.frames import MessageProtocol, MessageSet

MAX_BYTES = 200_000
MAX_TRACE = 20_000  # characters of a traceback that are passed on: its end tells most


class Collect(msgspec.Struct, frozen=True, tag="collect"):
    """Collect a slab and put it in a slot."""

    number: int
    slot: int
    version: int | None  # of the weights to act with; None: the newest
    progress: tuple[float, int, int] = (0.0, 0, 0)  # where the run stands: fraction of the budget, updates, steps


class Restart(msgspec.Struct, frozen=True, tag="restart"):
    """Begin new episodes everywhere."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A slab is in its slot, and the worker's state after it."""

    number: int  # of the slab; -1: none, only the state
    slot: int
    version: int = -1  # of the weights that acted
    ticks: int = 0
    took_s: float = 0.0  # from order to slab


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The worker has built its worlds and gone on from the state that was left; where none was, one is in slot 0."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The worker gave up."""

    error: str
    trace: str


Message = Collect | Restart | Begun | Ready | Failed
Order = Collect | Restart

MESSAGES: MessageSet[Message] = MessageSet(MessageProtocol.WORKERS, MAX_BYTES, msgspec.msgpack.Decoder(Message))


class Channel:
    """One end of a local socket, for whole messages."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """For select."""
        return self._end.fileno()

    def send(self, message: Message) -> bool:
        """Say something; False where nobody is there any more."""
        try:
            packets.send(self._end, MESSAGES, message)
        except OSError:
            return False
        return True

    def receive(self) -> Message | None:
        """The next message; None where nobody is there any more, or stands still in the middle of a message."""
        try:
            return packets.receive(self._end, MESSAGES)[0]
        except ConnectionResetError:
            # It went with messages unread, of which the system tells once, before what it had said itself: a slab that
            # was delivered must not be taken for lost.
            return self.receive()
        except OSError:
            return None

    def close(self) -> None:
        """The other side hears of it."""
        self._end.close()
