"""A ring's meeting, and what its members do once they have met: scatter, merge, gather by a process group of gloo."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FederationError
from slipstream.federate.blocks import Clients
from slipstream.federate.peer_links import Call, Calls, Hello, PeerSay, PeerWait, Roster, Watch, why
from slipstream.federate.peers import describe, unpack, why_differ, why_not_finite
from slipstream.federate.rounds import Patience
from slipstream.runtime.frames import WireError
from slipstream.runtime.link import is_open
from slipstream.types import Arrays

REFUSED = why(ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)))
Merge = Callable[[Clients, Mapping[str, float]], Arrays]  # parts of all members and their claimed weights


class RingMeeting:
    """Who has come to a meeting."""

    def __init__(
        self,
        hello: Hello,
        refusals: Mapping[str, str],
        watches: Mapping[str, Watch],
        waits: dict[str, float],
        patient: Patience,
    ) -> None:
        self.joined: dict[str, Call] = {}
        self.gone: dict[str, str] = {}
        self.latest = max(waits.values(), default=time.monotonic())
        self._hello, self._refusals, self._waits, self._patient = hello, refusals, waits, patient
        self._watches = watches
        for watch in watches.values():
            watch.begin(met=True)  # one who has not begun is not waited for either: there will be another meeting

    def is_over(self) -> bool:
        """Whether all have come who may come; who has gone is not waited for."""
        now = time.monotonic()
        for name, watch in self._watches.items():
            if name not in self.joined and now < self._waits[name] and watch.has_gone():
                self._waits[name] = 0.0
                self.gone.setdefault(name, REFUSED)
        all_came = all(name in self.joined or now >= until for name, until in self._waits.items())
        return all_came or not self._patient()

    def max_data(self, call: Call) -> int:
        """Nobody sends arrays to a meeting."""
        return 0

    def answer(self, calls: Calls, call: Call, said: PeerSay, data: bytes) -> None:
        """Let somebody in, who then waits for the roster, or say why not."""
        if not isinstance(said, Hello):
            raise WireError(f"a {type(said).__name__} where a hello was expected")
        reason = self._refusals.get(said.id) or why_differ(self._hello.records, said.records)
        if reason is None and not (math.isfinite(said.weight) and said.weight >= 0):
            reason = f"a weight of {said.weight}"
        if reason is not None:
            self.gone[said.id] = f"refused: {reason}"
            if said.id in self._waits:
                self._waits[said.id] = 0.0
            raise WireError(reason)
        calls.answer(call, PeerWait(max(self.latest - time.monotonic(), 0.0)))
        if not is_open(call.link):  # one that was given up long ago must not take the place of a later one
            raise ConnectionResetError
        call.hello = said
        before, self.joined[said.id] = self.joined.get(said.id), call
        if before is not None and before is not call:  # it has called again, and waits for this call's answer alone
            with contextlib.suppress(OSError):
                before.link.shutdown(socket.SHUT_RDWR)

    def refused(self, call: Call, reason: str) -> None:
        """Who is refused is not let in."""

    def ended(self, call: Call) -> None:
        """Who has gone has not come."""
        if self.joined.get(call.name) is call:
            del self.joined[call.name]


class MeetingResult(NamedTuple):
    """What a meeting decided."""

    roster: Roster
    host: str  # of the leader
    store: socket.socket | None  # where members find each other: it listens at the leader's
    absent: dict[str, str]


class MeetingGroup:
    """A process group of one meeting, apart from what else the process does with torch.distributed."""

    def __init__(self, seen: MeetingResult, me: str, host: str, step_s: float) -> None:
        import torch.distributed

        dist: Any = torch.distributed  # its stubs leave out what is used here
        self._members, self._weights = seen.roster.members, seen.roster.weights
        self._rank, self._size = self._members.index(me), len(self._members)
        self._step_s = step_s
        self._culprits: set[str] = set()
        limit = timedelta(seconds=step_s)
        self._store = dist.TCPStore(
            seen.host,
            seen.roster.port,
            is_master=seen.store is not None,
            timeout=limit,
            wait_for_workers=False,
            master_listen_fd=None if seen.store is None else seen.store.detach(),
        )
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = limit
        store = dist.PrefixStore(seen.roster.generation, self._store)
        self._group: Any = dist.ProcessGroupGloo(store, self._rank, self._size, options)

    def reduce(self, arrays: Arrays, merge: Merge) -> tuple[Arrays, str]:
        """The merged arrays, and why they are none where somebody's numbers made that impossible."""
        deadline = time.monotonic() + self._step_s
        records = describe(arrays)
        merged: Arrays = {}
        fault = ""
        for dtype in sorted({record.dtype for record in records}):
            same = tuple(record for record in records if record.dtype == dtype)
            vectors = [arrays[record.name].reshape(-1) for record in same]
            parts = self._scatter(vectors, deadline)
            try:
                own = self._merge_part(parts, merge)
            except FederationError as error:
                fault = str(error)
                own = np.full(parts.shape[1], np.nan if parts.dtype.kind == "f" else 0, parts.dtype)
            merged |= unpack(self._gather(own, deadline).view(np.uint8), same)
        return {name: merged[name] for name in arrays}, fault or why_not_finite(merged) or ""

    def agree(self) -> tuple[str, ...]:
        """Wait until all members have the result; returns those whose numbers were not finite, by all accounts."""
        deadline = time.monotonic() + self._step_s
        votes = np.zeros((self._size, self._size), np.uint8)
        votes[self._rank] = [name in self._culprits for name in self._members]
        self._swap(np.broadcast_to(votes[self._rank], votes.shape).copy(), votes, deadline)
        return tuple(name for name, count in zip(self._members, votes.sum(0), strict=True) if count)

    def _scatter(self, vectors: Sequence[NDArray[Any]], deadline: float) -> NDArray[Any]:
        """The part of all numbers that is this member's to merge, of all members: one row each."""
        count = sum(vector.size for vector in vectors)
        padded = np.zeros((self._size, -(-count // self._size)), vectors[0].dtype)
        np.concatenate(vectors, out=padded.reshape(-1)[:count])
        parts = np.empty_like(padded)
        parts[self._rank] = padded[self._rank]
        self._swap(padded, parts, deadline)
        return parts

    def _merge_part(self, parts: NDArray[Any], merge: Merge) -> NDArray[Any]:
        if parts.dtype.kind != "f":
            return np.asarray(parts.max(axis=0))
        self._culprits |= {name for name, part in zip(self._members, parts, strict=True) if not np.isfinite(part).all()}
        if self._culprits:
            raise FederationError(f"{', '.join(sorted(self._culprits))} sent NaN or infinity")
        clients = {name: {"part": part} for name, part in zip(self._members, parts, strict=True)}
        return merge(clients, dict(zip(self._members, self._weights, strict=True)))["part"]

    def _gather(self, own: NDArray[Any], deadline: float) -> NDArray[Any]:
        """All merged parts: each travels around the ring, handed on by every member but the last."""
        parts = np.empty((self._size, own.size), own.dtype)
        parts[self._rank] = own
        before, behind = (self._rank - 1) % self._size, (self._rank + 1) % self._size
        for step in range(self._size - 1):
            there = self._group.recv([_bytes(parts[(self._rank - step - 1) % self._size])], before, 0)
            gone = self._group.send([_bytes(parts[(self._rank - step) % self._size])], behind, 0)
            self._finish([there, gone], deadline)
        return parts.reshape(-1)

    def _swap(self, out: NDArray[Any], back: NDArray[Any], deadline: float) -> None:
        """Send row i of `out` to member i and receive its row for this one into row i of `back`."""
        works = []
        for step in range(1, self._size):
            to, of = (self._rank + step) % self._size, (self._rank - step) % self._size
            works += [self._group.recv([_bytes(back[of])], of, 0), self._group.send([_bytes(out[to])], to, 0)]
        self._finish(works, deadline)

    def _finish(self, works: Sequence[Any], deadline: float) -> None:
        for work in works:
            work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))


def _bytes(row: NDArray[Any]) -> Any:
    """A row as a tensor over the same memory; gloo moves bytes, whatever they mean."""
    import torch

    return torch.from_numpy(row.view(np.uint8))
