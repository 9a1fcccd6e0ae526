"""Federation in your own training loop: named arrays, a folder that all clients see, and `sync`.

shared = Shared("rounds", client="0", clients=2)
for round in range(10):
    ...                                              # train for a while
    arrays, outcome = shared.sync(model.state_dict())
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
shared.leave()
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from slipstream.data.arrays_file import content_hash
from slipstream.data.merge_rules import Rule
from slipstream.federate.aggregate import Base, MergeReport, MergeSettings, aggregate
from slipstream.federate.files import Files
from slipstream.federate.folder import federation_folder, join
from slipstream.federate.rounds import Federation, RoundLimits, RoundOutcome
from slipstream.federate.update import ClientUpdate
from slipstream.types import Arrays


class Synced(NamedTuple):
    """What a client continues with."""

    arrays: Arrays  # the aggregate; its own where there was none to take over
    outcome: RoundOutcome  # what became of the round: `state`, and `reason` where this client had no part in it


class Shared:
    """One client of a federation; each has one of its own, in a thread, process or machine that sees the folder."""

    def __init__(
        self,
        root: str | Path,
        client: str,
        clients: int,
        settings: MergeSettings | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        """All clients give the same `root`, `clients`, `settings` and `timeout_s`, and begin with the same weights."""
        how = settings or MergeSettings()

        def merge(updates: Sequence[ClientUpdate], base: Base | None) -> tuple[Arrays, MergeReport]:
            return aggregate(how, _array_rules(updates[0].arrays), updates, base)

        limits = RoundLimits(clients, quorum=clients // 2 + 1, timeout_s=timeout_s)
        words = msgspec.json.encode(how).decode()
        federation = Federation(federation_folder(Path(root), "shared"), limits, merge, words)
        join(federation)
        self._transport, self._client, self._base = Files(federation), client, ""

    def sync(self, arrays: Mapping[str, Any], **facts: float) -> Synced:
        """Send arrays or tensors and wait until the round is over: floats are merged, of counters the largest stays.

        `facts` are what rules may go by: `samples` for weights by samples, or what a rule of one's own asks for.
        """
        own = {name: np.array(one.numpy() if hasattr(one, "numpy") else one) for name, one in arrays.items()}
        model = self._transport.catch_up(self._base)
        update_id = hashlib.sha256(f"{self._base} {content_hash(own)}".encode()).hexdigest()[:32]
        update = ClientUpdate(self._client, model.round, self._base, update_id, own, facts=facts)
        outcome = self._transport.exchange(update)
        assert outcome is not None  # as it waits
        self._base = outcome.model.base
        return Synced(own if outcome.model.arrays is None else {**own, **_like(own, outcome.model.arrays)}, outcome)

    def leave(self) -> None:
        """Tell the others not to wait for this client any more."""
        self._transport.leave(self._client)


def _array_rules(arrays: Arrays) -> dict[str, Rule]:
    return {name: Rule("merge" if array.dtype.kind == "f" else "count") for name, array in arrays.items()}


def _like(own: Arrays, found: Arrays) -> Arrays:
    """The client's names only: an aggregate may hold the state of a server's optimiser too."""
    return {name: np.array(found[name]) for name in own}
