"""The format of all messages, on sockets and in files: a head, a msgpack body, and data.

The head has sixteen bytes: `SL`, the version, the protocol, and the lengths of the body and of the data. Whoever speaks
an older version or another protocol is told so, and no length is believed before it is within bounds.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

import msgspec

from slipstream.errors import SlipstreamError

MAGIC = b"SL"
VERSION = 2  # 1: every protocol had letters of its own
HEAD = struct.Struct("<2sBBIQ")
MAX_BODY = (1 << 32) - 1  # what the head has room for
T = TypeVar("T")
Bytes = bytes | bytearray | memoryview

_encoder = msgspec.msgpack.Encoder()

DTYPES = ("float32", "float64", "int32", "int64", "uint8", "int8", "int16", "uint16", "uint32", "bool")


class WireError(SlipstreamError):
    """The other side sent what no Slipstream sends."""


class MessageProtocol(IntEnum):
    """Whose messages they are; the number stands in the head."""

    REPLAY = 1
    COORDINATOR = 2
    PEERS = 3
    SECURE_SUM = 4
    WORKERS = 5
    FORKS = 6
    REPORTS = 7  # of processes: that they can be used, and why they end
    LEARNERS = 8  # in step
    SLABS = 9

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


class FieldRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """An array that messages are about: its name, its type, and its shape (of a row, where it has rows)."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Head(NamedTuple):
    """Lengths of what follows."""

    body: int
    data: int


class MessageSet(NamedTuple, Generic[T]):
    """The messages that one side of a protocol may send; their owner declares them."""

    protocol: MessageProtocol
    max_body: int  # bytes
    decoder: msgspec.msgpack.Decoder[T]

    def frame(self, message: msgspec.Struct, data_bytes: int = 0) -> bytes:
        """A message of either side as bytes, without the data that follow it."""
        body = _encoder.encode(message)
        return HEAD.pack(MAGIC, VERSION, self.protocol, len(body), data_bytes) + body

    def parse_head(self, head: Bytes, max_data: int = 0) -> Head:
        """The lengths in a head, once they are within bounds; WireError otherwise."""
        magic, version, protocol, body, data = HEAD.unpack_from(head)
        if magic != MAGIC:
            raise WireError(f"{magic!r} begins no message of this Slipstream; is it an older one, or another program?")
        if version != VERSION:
            raise WireError(f"a message of version {version}; this Slipstream speaks version {VERSION}")
        if protocol != self.protocol:
            known = {int(one): str(one) for one in MessageProtocol}
            raise WireError(f"a message of protocol {known.get(protocol, protocol)}; this is {self.protocol}")
        if body > self.max_body or data > max_data:
            raise WireError(
                f"a message of {body:,} + {data:,} bytes; at most {self.max_body:,} + {max_data:,} are taken"
            )
        return Head(body, data)

    def parse(self, body: Bytes) -> T:
        """What a body says, or WireError."""
        try:
            return self.decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise WireError(f"a message that cannot be read: {error!s:.200}") from None

    def parse_whole(self, frame: Bytes) -> T:
        """What a frame without data says that was not cut up, as a file is. WireError if it is anything else."""
        if len(frame) < HEAD.size:
            raise WireError(f"{len(frame)} bytes are no message")
        head = self.parse_head(frame)
        if len(frame) != HEAD.size + head.body:
            raise WireError(f"a message of {head.body:,} bytes in {len(frame) - HEAD.size:,}")
        with memoryview(frame) as view:
            return self.parse(view[HEAD.size :])
