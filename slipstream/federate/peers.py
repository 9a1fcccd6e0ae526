"""What peers without a coordinator agree on: who they are, who meets whom in a round, and which arrays they exchange.

A schedule is a pure function of the members, the round and a seed, so all peers know it without talking.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FederationError
from slipstream.federate.blocks import Rows, blocks, combine_arrays, flat, stray_number
from slipstream.federate.update import check_id
from slipstream.runtime.address import Address, parse_address
from slipstream.runtime.frames import DTYPES, FieldRecord
from slipstream.types import F64, U8, Arrays

SHORTEST_PATIENCE_S = 0.5

Kind = Literal["ring", "matching", "all"]


# --- who there is ---


class Member(NamedTuple):
    """A peer, and where it listens."""

    id: str
    address: Address


def parse_members(addresses: Mapping[str, str], me: str) -> tuple[Member, ...]:
    """All peers of a run in the order of their ids, from a mapping of id to address; `me` is one of them."""
    if me not in addresses:
        raise FederationError(f"this peer is {me!r:.80}, which is not among the peers {', '.join(sorted(addresses))}")
    members = tuple(
        Member(check_id(name, "peer"), parse_address(address)) for name, address in sorted(addresses.items())
    )
    places = [str(member.address) for member in members]
    for place in places:
        if places.count(place) > 1:
            sharing = [member.id for member in members if str(member.address) == place]
            raise FederationError(f"peers {', '.join(sharing)}: {place} is the address of each; give each its own")
    return members


def patience_s(timeout_s: float, misses: int) -> float:
    """How long to wait for a peer that was missing so many times in a row: half as long every time.

    A dead peer then costs the others little, and one that comes back is found again, since it is always asked.
    """
    return max(timeout_s * 0.5 ** min(misses, 16), min(timeout_s, SHORTEST_PATIENCE_S))


def count_misses(misses: Mapping[str, int], asked: Iterable[str], there: Iterable[str]) -> dict[str, int]:
    """Misses in a row after a round in which some were asked and some of them were there."""
    was_there = set(there)
    return {**misses, **{name: 0 if name in was_there else misses.get(name, 0) + 1 for name in asked}}


# --- who meets whom ---


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom a peer meets in a round.

    `ring`: both neighbours in the order of ids. `matching`: one partner, drawn anew for every round; with an odd number
    of peers one is left out. `all`: everybody.
    """

    kind: Kind = "matching"
    seed: int = 0


def partners(schedule: Schedule, ids: Sequence[str], number: int) -> dict[str, tuple[str, ...]]:
    """Whom each peer meets in a round, in the order of ids; the same for all who ask, in whatever order ids come."""
    names = sorted(ids)
    size = len(names)
    pairs: set[tuple[int, int]] = set()
    if schedule.kind == "all":
        pairs = {(a, b) for a in range(size) for b in range(a + 1, size)}
    elif schedule.kind == "ring":
        pairs = {(min(a, b), max(a, b)) for a in range(size) if (b := (a + 1) % size) != a}
    else:
        order = _draw_order(names, schedule.seed, number)
        pairs = {(min(a, b), max(a, b)) for a, b in zip(order[::2], order[1::2], strict=False)}
    met: dict[str, list[str]] = {name: [] for name in names}
    for a, b in sorted(pairs):
        met[names[a]].append(names[b])
        met[names[b]].append(names[a])
    return {name: tuple(sorted(others)) for name, others in met.items()}


def _draw_order(names: Sequence[str], seed: int, number: int) -> list[int]:
    """A permutation by hashes: the same on every machine and with every version of numpy."""
    keys = [hashlib.sha256(f"{seed}/{number}/{name}".encode()).digest() for name in names]
    return sorted(range(len(names)), key=keys.__getitem__)


def mixing_weights(me: str, expected: Sequence[str], there: Iterable[str]) -> dict[str, float]:
    """What the arrays of those who were there count for in this peer's next ones; whoever was not counts as oneself.

    Everybody who meets anybody has as many partners as they have, so the weights, 1 / (1 + partners), make a symmetric
    matrix with rows that sum to one: the mean over all peers stays what it is, and meetings bring them nearer to it.
    """
    shares = {other: Fraction(1, 1 + len(expected)) for other in there}
    shares[me] = 1 - sum(shares.values(), Fraction(0))
    return {name: float(shares[name]) for name in sorted(shares)}


def mix(own: Arrays, theirs: Mapping[str, Arrays], weights: Mapping[str, float], me: str) -> Arrays:
    """Weighted sums of floats in the order of ids; of whole numbers the largest."""
    held = {**theirs, me: own}
    return {name: _mix_one([(held[peer][name], weights[peer]) for peer in sorted(held)]) for name in own}


def _mix_one(parts: list[tuple[NDArray[Any], float]]) -> NDArray[Any]:
    arrays, weights = [part for part, _ in parts], [weight for _, weight in parts]
    if arrays[0].dtype.kind != "f":
        return np.asarray(np.max(np.stack(arrays), axis=0))
    return combine_arrays(arrays, lambda rows: _weighted(rows, weights))


def _weighted(rows: Rows, weights: list[float]) -> F64:
    total = np.zeros(rows[0].size)
    for row, weight in zip(rows, weights, strict=True):
        total += weight * row.astype(np.float64)
    return total


def distance(a: Arrays, b: Arrays) -> float:
    """Euclidean, over all floats."""
    total = 0.0
    for name in sorted(a):
        if a[name].dtype.kind == "f":
            x, y = flat([a[name], b[name]])
            for block in blocks(x.size):
                apart = x[block].astype(np.float64) - y[block]
                total += float(np.sum(np.square(apart, out=apart)))
    return float(np.sqrt(total))


# --- what they exchange ---

_FLOATS = ("float16", "float32", "float64")
_EXCHANGED = (*_FLOATS, *(dtype for dtype in DTYPES if dtype.startswith(("int", "uint"))))


def describe(arrays: Arrays) -> tuple[FieldRecord, ...]:
    """Names, types and shapes in the order of names; FederationError for arrays that peers cannot merge."""
    for name, array in arrays.items():
        if array.dtype.name not in _EXCHANGED:
            raise FederationError(
                f"{name} is {array.dtype.name}: peers merge {', '.join(_EXCHANGED)}; keep it out of the exchange"
            )
    return tuple(FieldRecord(name, arrays[name].dtype.name, arrays[name].shape) for name in sorted(arrays))


def why_differ(ours: tuple[FieldRecord, ...], theirs: tuple[FieldRecord, ...]) -> str | None:
    """The first difference between two layouts as a sentence; None where there is none."""
    if ours == theirs:
        return None
    here, there = ({record.name: record for record in records} for records in (ours, theirs))
    for name in sorted(here.keys() | there.keys()):
        a, b = here.get(name), there.get(name)
        if a != b:
            return f"{name!r:.80} is {_show(a)} here and {_show(b)} there"
    return "the arrays come in another order, or twice"


def _show(record: FieldRecord | None) -> str:
    return "nothing" if record is None else f"{record.dtype:.20}{list(record.shape)!s:.80}"


def size_of(records: tuple[FieldRecord, ...]) -> int:
    """Bytes of the data that such arrays make."""
    return sum(int(np.prod(record.shape, dtype=np.int64)) * np.dtype(record.dtype).itemsize for record in records)


def pack(arrays: Arrays) -> U8:
    """All arrays as bytes, in the order of names."""
    parts = [np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8) for name in sorted(arrays)]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def unpack(data: U8, records: tuple[FieldRecord, ...]) -> Arrays:
    """Arrays that share the memory of their bytes wherever these are aligned."""
    arrays: Arrays = {}
    at = 0
    for record in records:
        size = size_of((record,))
        part = data[at : at + size]
        aligned = part.ctypes.data % np.dtype(record.dtype).itemsize == 0
        arrays[record.name] = (part if aligned else part.copy()).view(record.dtype).reshape(record.shape)
        at += size
    return arrays


def why_not_finite(arrays: Arrays) -> str | None:
    """The first array with a NaN or an infinity, as a sentence."""
    for name in sorted(arrays):
        if arrays[name].dtype.kind == "f" and not np.isfinite(arrays[name]).all():
            return stray_number(name, arrays[name])
    return None


def digest(arrays: Arrays) -> str:
    """A hash of names, types, shapes and bits."""
    records = [[record.name, record.dtype, list(record.shape)] for record in describe(arrays)]
    state = hashlib.sha256(json.dumps(records).encode())
    for name in sorted(arrays):
        state.update(np.ascontiguousarray(arrays[name]).data)
    return state.hexdigest()
