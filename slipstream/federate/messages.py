"""What a coordinator and its clients say to each other: framed, versioned messages without pickle.

A frame is a head of twelve bytes (b"SF", version, 0, length of the body, length of the data), a msgpack body (one of
the structs below), and data: an update's file, or an aggregate's. Lengths are checked before memory is taken.
Every request gets one answer. That to Await and Submit comes when the round is over, for those who wait; or at once,
when there is a reason why not.
"""

from __future__ import annotations

from typing import Any

import msgspec

from slipstream.data.wire import HEAD, Head, WireError
from slipstream.federate.rounds import Record, Rules

VERSION = 1
MAGIC = b"SF"
MAX_REQUEST = 1 << 12  # bytes of a body
MAX_ANSWER = 1 << 22  # a record of many clients


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="ask"):
    """What a client asks for."""


class Enter(Request, frozen=True, tag="enter"):
    """The first message: who is there; answered by Welcome."""

    client: str
    token: str = ""


class CatchUp(Request, frozen=True, tag="catch_up"):
    """Where do you stand? Answered by Stands, with the aggregate unless it is `base`."""

    base: str


class Await(Request, frozen=True, tag="await"):
    """What becomes of this update of mine? Answered by Ended; by Send where it is not known."""

    nonce: str
    base: str
    patient: bool = True


class Submit(Request, frozen=True, tag="submit"):
    """Here it is; answered by Ended, Refused, or Send where a new round has begun meanwhile."""

    nonce: str
    base: str
    round: int
    patient: bool = True


class Leave(Request, frozen=True, tag="leave"):
    """No more updates will come from me; answered by Kept."""


Ask = Enter | CatchUp | Await | Submit | Leave


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say"):
    """What the coordinator says."""


class Welcome(Answer, frozen=True, tag="welcome"):
    """By which rules rounds go here."""

    rules: Rules


class Stands(Answer, frozen=True, tag="stands"):
    """The current round, and the aggregate to go on from."""

    round: int
    base: str


class Send(Answer, frozen=True, tag="send"):
    """Your update is wanted, for this round."""

    round: int


class Kept(Answer, frozen=True, tag="kept"):
    """It is noted, and there is nothing to wait for; or those who asked do not wait."""


class Ended(Answer, frozen=True, tag="ended"):
    """A round is over; where things stand now."""

    record: Record
    round: int
    base: str


class Refused(Answer, frozen=True, tag="refused"):
    """It does not count, and why."""

    round: int
    reason: str


Say = Welcome | Stands | Send | Kept | Ended | Refused

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Ask)
_answers = msgspec.msgpack.Decoder(Say)


def frame(message: Request | Answer, data_bytes: int = 0) -> bytes:
    """A message as bytes, without the data that follow."""
    body = _encoder.encode(message)
    return HEAD.pack(MAGIC, VERSION, 0, len(body), data_bytes) + body


def parse_head(head: bytes | bytearray | memoryview, max_body: int, max_data: int) -> Head:
    """The lengths in a head, once they are within bounds; WireError otherwise."""
    magic, version, zero, body, data = HEAD.unpack_from(head)
    if magic != MAGIC or zero != 0:
        raise WireError("this is not the protocol of a Slipstream coordinator")
    if version != VERSION:
        raise WireError(f"version {version} of the coordinator's protocol; this Slipstream speaks version {VERSION}")
    if body > max_body or data > max_data:
        raise WireError(f"a message of {body:,} + {data:,} bytes; at most {max_body:,} + {max_data:,} are taken")
    return Head(body, data)


def parse_request(body: bytes | bytearray | memoryview) -> Ask:
    """A request, or WireError."""
    request: Ask = _parse(_requests, body)
    return request


def parse_answer(body: bytes | bytearray | memoryview) -> Say:
    """An answer, or WireError."""
    answer: Say = _parse(_answers, body)
    return answer


def _parse(decoder: Any, body: bytes | bytearray | memoryview) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"a message that cannot be read: {error!s:.200}") from None
