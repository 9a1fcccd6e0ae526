"""What a coordinator and its clients say to each other: framed, versioned messages without pickle.

A frame (runtime/frames.py) has one of the structs below as its body, and data: an update's file, or an aggregate's.
Every request gets one answer. That to Await and Submit comes when the round is over, for those who wait; or at once,
when there is a reason why not.
"""

from __future__ import annotations

import msgspec

from slipstream.federate.rounds import RoundRecord, RoundRules
from slipstream.runtime.frames import Frames, MessageSet

FRAMES = Frames(b"SF", 1, "a Slipstream coordinator")
MAX_REQUEST = 1 << 12  # bytes of a body
MAX_ANSWER = 1 << 22  # a record of many clients


class CoordinatorRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="ask"):
    """What a client asks for."""


class EnterFederation(CoordinatorRequest, frozen=True, tag="enter"):
    """The first message: who is there; answered by Welcome."""

    client: str
    token: str = ""


class CatchUp(CoordinatorRequest, frozen=True, tag="catch_up"):
    """Where do you stand? Answered by Stands, with the aggregate unless it is `base`."""

    base: str


class Await(CoordinatorRequest, frozen=True, tag="await"):
    """What becomes of this update of mine? Answered by Ended; by Send where it is not known."""

    nonce: str
    base: str
    patient: bool = True


class Submit(CoordinatorRequest, frozen=True, tag="submit"):
    """Here it is; answered by Ended, Refused, or Send where a new round has begun meanwhile."""

    nonce: str
    base: str
    round: int
    patient: bool = True


class Leave(CoordinatorRequest, frozen=True, tag="leave"):
    """No more updates will come from me; answered by Kept."""


Ask = EnterFederation | CatchUp | Await | Submit | Leave


class CoordinatorAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say"):
    """What the coordinator says."""


class Welcome(CoordinatorAnswer, frozen=True, tag="welcome"):
    """By which rules rounds go here."""

    rules: RoundRules


class Stands(CoordinatorAnswer, frozen=True, tag="stands"):
    """The current round, and the aggregate to go on from."""

    round: int
    base: str


class Send(CoordinatorAnswer, frozen=True, tag="send"):
    """Your update is wanted, for this round."""

    round: int


class Kept(CoordinatorAnswer, frozen=True, tag="kept"):
    """It is noted, and there is nothing to wait for; or those who asked do not wait."""


class RoundEnded(CoordinatorAnswer, frozen=True, tag="ended"):
    """A round is over; where things stand now."""

    record: RoundRecord
    round: int
    base: str


class CoordinatorRefusal(CoordinatorAnswer, frozen=True, tag="refused"):
    """It does not count, and why."""

    round: int
    reason: str


Say = Welcome | Stands | Send | Kept | RoundEnded | CoordinatorRefusal

REQUESTS: MessageSet[Ask] = MessageSet(FRAMES, MAX_REQUEST, msgspec.msgpack.Decoder(Ask))
ANSWERS: MessageSet[Say] = MessageSet(FRAMES, MAX_ANSWER, msgspec.msgpack.Decoder(Say))
