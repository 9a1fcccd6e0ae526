"""The format of all messages: a head with lengths, a msgpack body, and data; no length is believed unchecked.

A head has sixteen bytes: two that name the protocol, its version, 0, the length of the body and that of the data.
"""

from __future__ import annotations

import struct
from typing import Generic, NamedTuple, TypeVar

import msgspec

from slipstream.errors import SlipstreamError

HEAD = struct.Struct("<2sBBIQ")
T = TypeVar("T")
Bytes = bytes | bytearray | memoryview

_encoder = msgspec.msgpack.Encoder()

DTYPES = ("float32", "float64", "int32", "int64", "uint8", "int8", "int16", "uint16", "uint32", "bool")


class WireError(SlipstreamError):
    """The other side sent what no Slipstream sends."""


class FieldRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """An array that messages are about: its name, its type, and its shape (of a row, where it has rows)."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Head(NamedTuple):
    """Lengths of what follows."""

    body: int
    data: int


class Frames(NamedTuple):
    """The frames of one protocol."""

    magic: bytes
    version: int
    protocol: str  # whose it is, in errors

    def frame(self, message: msgspec.Struct, data_bytes: int = 0) -> bytes:
        """A message as bytes, without the data that follow it."""
        body = _encoder.encode(message)
        return HEAD.pack(self.magic, self.version, 0, len(body), data_bytes) + body

    def parse_head(self, head: Bytes, max_body: int, max_data: int) -> Head:
        """The lengths in a head, once they are within bounds; WireError otherwise."""
        magic, version, zero, body, data = HEAD.unpack_from(head)
        if magic != self.magic or zero != 0:
            raise WireError(f"this is not the protocol of {self.protocol}")
        if version != self.version:
            raise WireError(
                f"version {version} of the protocol of {self.protocol}; this Slipstream speaks version {self.version}"
            )
        if body > max_body or data > max_data:
            raise WireError(f"a message of {body:,} + {data:,} bytes; at most {max_body:,} + {max_data:,} are taken")
        return Head(body, data)


class MessageSet(NamedTuple, Generic[T]):
    """The messages that one side of a protocol may send; their owner declares them."""

    frames: Frames
    max_body: int  # bytes
    decoder: msgspec.msgpack.Decoder[T]

    def parse_head(self, head: Bytes, max_data: int = 0) -> Head:
        """The lengths in a head, once they are within bounds; WireError otherwise."""
        return self.frames.parse_head(head, self.max_body, max_data)

    def parse(self, body: Bytes) -> T:
        """What a body says, or WireError."""
        try:
            return self.decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise WireError(f"a message that cannot be read: {error!s:.200}") from None

    def parse_whole(self, frame: Bytes) -> T:
        """What a frame without data says that was not cut up: a file, or a packet. WireError if it is anything else."""
        if len(frame) < HEAD.size:
            raise WireError(f"{len(frame)} bytes are no message")
        head = self.parse_head(frame)
        if len(frame) != HEAD.size + head.body:
            raise WireError(f"a message of {head.body:,} bytes in {len(frame) - HEAD.size:,}")
        with memoryview(frame) as view:
            return self.parse(view[HEAD.size :])
