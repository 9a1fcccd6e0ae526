"""What the replay service and its clients say to each other: framed, versioned messages without pickle.

A frame (frames.py) has one of the structs below as its body, and data: rows, where the two sides share no memory.
Every request gets one answer, in order; `ReplayWait` comes before it where the answer takes its time.

Rows, drawn batches and priorities stand in a window, memory that both sides see: shared on one host, elsewhere two
copies that the data of frames keep alike. A message says which part of the window it is about: `at` is an offset in
bytes. A client sends rows in chunks.

Some fields are called otherwise on the wire (`name=`), where those words are older than ours.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from slipstream.data.transitions import Transitions, from_fields, to_fields
from slipstream.replay.buffer import Field, Prioritised, batch_bytes, lay_out, record_bytes
from slipstream.replay.sharing import Limit, Mixing
from slipstream.runtime.frames import DTYPES, FieldRecord, MessageProtocol, MessageSet, WireError
from slipstream.runtime.memory import make_memory, open_memory
from slipstream.types import U8

MAX_REQUEST = 1 << 14  # bytes of a body
MAX_ANSWER = 1 << 20  # statistics of many lanes
MAX_NAME = 128
MAX_FIELDS = 64
MAX_DIMENSIONS = 8
MAX_NUMBERS = 1 << 24  # in one field of a row


class TableSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all rows of a table have in common; clients that say otherwise are refused."""

    fields: tuple[FieldRecord, ...]
    meaning: str  # what numbers do not show: discount, length of spans
    prioritised: tuple[float, float] | None  # alpha, eps
    limit: Limit


class LaneSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the rows of one policy of one client are kept."""

    client: str
    policy: str = msgspec.field(name="agent")  # as messages and snapshots have always named it
    capacity: int
    seed: int


# --- requests ---


class ReplayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="ask"):
    """What a client asks for."""


class EnterReplay(ReplayRequest, frozen=True, tag="enter"):
    """The first message: who is there."""

    client: str
    token: str = ""


class Join(ReplayRequest, frozen=True, tag="join"):
    """Use a table through a lane of one's own; answered by Joined, with a window."""

    table: str
    spec: TableSpec
    lane: LaneSpec
    chunk_rows: int = msgspec.field(name="block")  # of the largest enqueue
    batch: int  # rows of the largest draw
    weight: float = 1.0


class Enqueue(ReplayRequest, frozen=True, tag="enqueue"):
    """Add the records at `at`."""

    first: int  # rows that the client had sent before these, in its `sequence`
    rows: int
    at: int  # byte offset in the window


class Draw(ReplayRequest, frozen=True, tag="sample"):
    """Put a batch at `at`."""

    batch: int
    number: int = msgspec.field(name="draw")  # of the draw: keys its random numbers
    beta: float
    at: int
    mixing: Mixing
    strength: float = 0.0
    evenly: bool = False  # all rows of a lane alike, whatever their priorities


class UpdatePriorities(ReplayRequest, frozen=True, tag="update_priorities"):
    """TD errors of drawn rows: at `at` i64 indices, behind them f64 errors."""

    rows: int
    at: int


class ReportPerformance(ReplayRequest, frozen=True, tag="report"):
    """How well the client does, in a unit of its own that all clients of a table share."""

    performance: float


class Weigh(ReplayRequest, frozen=True, tag="weigh"):
    """How much lanes count in mixtures; an empty policy means all of the client's."""

    table: str
    client: str
    policy: str = msgspec.field(name="agent")
    weight: float


class Copy(ReplayRequest, frozen=True, tag="copy"):
    """Copy records, or f64 priorities by their places in the ring, between the lane and the window."""

    what: Literal["records", "priorities"]
    write: bool  # into the lane, whose counts stay as they are
    first: int  # of records: by their place in `total`, not in `sequence`
    rows: int
    at: int


class Reset(ReplayRequest, frozen=True, tag="reset"):
    """Make the lane one that took in `total` rows; the contents of those it holds are to follow."""

    total: int
    largest: float


class AskStatistics(ReplayRequest, frozen=True, tag="stats"):
    """Say how things stand."""

    check: bool = False  # add up every priority too, which takes a while


class Snapshot(ReplayRequest, frozen=True, tag="snapshot"):
    """Write everything to disk now."""


class Close(ReplayRequest, frozen=True, tag="close"):
    """End the service."""


AnyReplayRequest = (
    EnterReplay
    | Join
    | Enqueue
    | Draw
    | UpdatePriorities
    | ReportPerformance
    | Weigh
    | Copy
    | Reset
    | AskStatistics
    | Snapshot
    | Close
)


# --- answers ---


class ReplayAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say"):
    """What the service says."""


class Joined(ReplayAnswer, frozen=True, tag="joined"):
    """The window is there, and this is where the lane stands."""

    window: int  # bytes
    sequence: int  # rows that this client has sent: total + lost
    total: int  # rows that the lane took in; lost ones do not count
    lost: int  # rows that were sent and are not here: they came after the snapshot before a crash


class ReplayDone(ReplayAnswer, frozen=True, tag="done"):
    """It was done, and this is where the lane stands."""

    rows: int = 0  # that it holds
    total: int = 0  # as in Joined
    lost: int = 0
    largest: float = 1.0  # priority


class ReplayWait(ReplayAnswer, frozen=True, tag="wait"):
    """The answer will come when something happens that has not happened yet."""

    reason: str


class ReplayRefusal(ReplayAnswer, frozen=True, tag="refused", omit_defaults=True):
    """It was not done, and why."""

    reason: str
    in_use: bool = False  # another connection has the lane, which may be free in a moment


class LaneStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One lane."""

    client: str
    policy: str = msgspec.field(name="agent")
    rows: int
    capacity: int
    added: int
    drawn: int
    lost: int  # rows that were taken and forgotten when the service died
    weight: float
    performance: float | None
    connected: bool


class TableStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table."""

    rows: int
    capacity: int
    bytes: int
    added: int
    drawn: int
    sample_insert_ratio: float
    priority_gap: float | None  # |total of the tree - sum of its leaves| over the total, where that was asked for
    waits: tuple[str, ...]  # who waits for what
    lanes: tuple[LaneStats, ...]


class Stats(ReplayAnswer, frozen=True, tag="stats_are"):
    """How the service stands."""

    seconds: float  # since it started
    clients: int
    dropped: int  # connections that were ended for what they sent, or for being silent in mid-message
    snapshots: int
    snapshot_age_s: float | None
    tables: dict[str, TableStats]


AnyReplayAnswer = Joined | ReplayDone | ReplayWait | ReplayRefusal | Stats

REQUESTS: MessageSet[AnyReplayRequest]
REQUESTS = MessageSet(MessageProtocol.REPLAY, MAX_REQUEST, msgspec.msgpack.Decoder(AnyReplayRequest))
ANSWERS: MessageSet[AnyReplayAnswer]
ANSWERS = MessageSet(MessageProtocol.REPLAY, MAX_ANSWER, msgspec.msgpack.Decoder(AnyReplayAnswer))


def describe(fields: list[Field]) -> tuple[FieldRecord, ...]:
    """Fields as they travel."""
    return tuple(FieldRecord(field.name, field.dtype.name, field.shape) for field in fields)


def like(records: tuple[FieldRecord, ...]) -> Transitions:
    """Transitions without rows that have these fields; WireError for what no transitions look like."""
    names = [record.name for record in records]
    if len(records) > MAX_FIELDS or len(set(names)) != len(names) or not {"action", "reward", "discount"} <= set(names):
        raise WireError("these are not the fields of transitions")
    for record in records:
        sizes_fit = len(record.shape) <= MAX_DIMENSIONS and min(record.shape, default=0) >= 0
        sizes_fit = sizes_fit and math.prod(record.shape) <= MAX_NUMBERS
        if record.dtype not in DTYPES or not sizes_fit or len(record.name) > MAX_NAME:
            raise WireError(f"a field {record.name!r:.80} of type {record.dtype!r:.40}, which no transitions have")
    rows = from_fields({record.name: np.empty((0, *record.shape), record.dtype) for record in records})
    if describe(lay_out(to_fields(rows))) != records:
        raise WireError(f"fields in an order or of names that no transitions have: {', '.join(names)!r:.200}")
    return rows


def prioritised_of(spec: TableSpec) -> Prioritised | None:
    """How a table prioritises."""
    return None if spec.prioritised is None else Prioritised(*spec.prioritised)


# --- the window ---


SLOTS = 16  # chunks a client may write before the first is acknowledged
UPDATE_BYTES = 8 + 8  # an index and an error


class WindowLayout(NamedTuple):
    """What stands where in a window."""

    slot_bytes: int  # of one chunk; SLOTS of them come first
    spare_at: int  # where one more chunk stands, for what checkpoints read and write
    batch_at: int  # where a drawn batch stands
    update_at: int  # where indices and errors stand
    window_bytes: int


def lay_out_window(spec: TableSpec, chunk_rows: int, batch: int) -> WindowLayout:
    """The places of a window for chunks and batches of at most so many rows."""
    fields = lay_out(to_fields(like(spec.fields)))
    slot_bytes = chunk_rows * record_bytes(fields)
    batch_at = (SLOTS + 1) * slot_bytes
    update_at = batch_at + -(-batch_bytes(fields, batch) // 8) * 8
    return WindowLayout(slot_bytes, SLOTS * slot_bytes, batch_at, update_at, update_at + batch * UPDATE_BYTES)


def shared_window(size: int) -> tuple[int, U8]:
    """New shared memory, as a descriptor to pass on and as an array."""
    fd, memory = make_memory("slipstream-replay", size)
    return fd, np.frombuffer(memory, np.uint8)


def map_window(fd: int, size: int) -> U8:
    """The memory behind a descriptor; it is given back when the last array on it is gone."""
    return np.frombuffer(open_memory(fd, size), np.uint8)
