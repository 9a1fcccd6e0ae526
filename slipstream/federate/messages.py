"""What a coordinator and its clients say to each other: framed, versioned messages without pickle.

A frame (runtime/frames.py) has one of the structs below as its body, and data: an update's file, or an aggregate's.
Every request gets one answer. That to Await and Submit comes when the round is over, for those who wait; or at once,
when there is a reason why not. A round of one client, over two connections:

    EnterFederation -> Welcome    CatchUp -> Stands                              (CoordinatorTransport.catch_up)
    EnterFederation -> Welcome    Await -> Send    Submit -> (wait) RoundEnded   (CoordinatorTransport.exchange)

Some fields are called otherwise on the wire (`name=`), where those words are older than ours.
"""

from __future__ import annotations

import msgspec

from slipstream.federate.rounds import RoundLimits, RoundRecord
from slipstream.runtime.frames import MessageProtocol, MessageSet

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
    """What becomes of this update of mine? Answered by RoundEnded; by Send where it is not known.

    Who is not `patient` is answered at once: by Kept where the round is not over.
    """

    update_id: str = msgspec.field(name="nonce")
    base: str  # hash of the aggregate that the update goes on from
    patient: bool = True


class Submit(CoordinatorRequest, frozen=True, tag="submit"):
    """Here it is. Answered as Await; by CoordinatorRefusal; by Send where a new round has begun meanwhile."""

    update_id: str = msgspec.field(name="nonce")
    base: str
    round: int
    patient: bool = True


class Leave(CoordinatorRequest, frozen=True, tag="leave"):
    """No more updates will come from me; answered by Kept."""


AnyCoordinatorRequest = EnterFederation | CatchUp | Await | Submit | Leave


class CoordinatorAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say"):
    """What the coordinator says."""


class Welcome(CoordinatorAnswer, frozen=True, tag="welcome"):
    """By which limits rounds go here."""

    limits: RoundLimits = msgspec.field(name="rules")


class Stands(CoordinatorAnswer, frozen=True, tag="stands"):
    """Where the federation stands. The newest aggregate's file follows as data, unless the client has it."""

    next_round: int = msgspec.field(name="round")  # the one that is open now
    newest: str = msgspec.field(name="base")  # hash of the aggregate to go on from


class Send(CoordinatorAnswer, frozen=True, tag="send"):
    """Your update is wanted, for this round."""

    round: int


class Kept(CoordinatorAnswer, frozen=True, tag="kept"):
    """It is noted, and there is nothing to wait for; or those who asked do not wait."""


class RoundEnded(CoordinatorAnswer, frozen=True, tag="ended"):
    """A round is over. The newest aggregate's file follows as data, unless the client has it."""

    record: RoundRecord  # of the round that is over
    next_round: int = msgspec.field(name="round")  # the one that is open now
    newest: str = msgspec.field(name="base")  # hash of the aggregate to go on from


class CoordinatorRefusal(CoordinatorAnswer, frozen=True, tag="refused"):
    """It does not count, and why."""

    round: int  # that it was refused in, which is open
    reason: str


AnyCoordinatorAnswer = Welcome | Stands | Send | Kept | RoundEnded | CoordinatorRefusal

REQUESTS: MessageSet[AnyCoordinatorRequest]
REQUESTS = MessageSet(MessageProtocol.COORDINATOR, MAX_REQUEST, msgspec.msgpack.Decoder(AnyCoordinatorRequest))
ANSWERS: MessageSet[AnyCoordinatorAnswer]
ANSWERS = MessageSet(MessageProtocol.COORDINATOR, MAX_ANSWER, msgspec.msgpack.Decoder(AnyCoordinatorAnswer))
