"""Secure aggregation through a folder: whoever holds the lock plays the server of secure.py, and sees no more than one.

    round_00007/  keys_ID.msg    then key_list.msg    who hides behind whom
                  boxes_ID.msg   then delivered.msg   shares of secrets, locked for one reader each
                  masked_ID.msg  then survivors.msg   vectors under their masks; late ones stay hidden for good
                  unmask_ID.msg  then aggregate.safetensors and closed.json

A step is over when all who are expected have written, or at its deadline; the message that ends it says who counts,
and files that come later are never read. What the server would remember is worked out again from the files, so that any
client may end any step, and one that is killed is replaced. A client keeps its secrets in memory: killed in the
middle, it has dropped out of the round, and takes part in the next.

A model is float parameters only: no moments, no input statistics, no facts. What clients weigh travels inside the sum.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slipstream.data.arrays_file import content_hash
from slipstream.data.disk import replace_file
from slipstream.errors import FederationError
from slipstream.federate import closing, folder
from slipstream.federate.files import FIRST_PAUSE_S, LONGEST_PAUSE_S
from slipstream.federate.rounds import (
    VERSION,
    Federation,
    Model,
    Participant,
    Patience,
    RoundOutcome,
    RoundRecord,
    Standing,
    always,
    why_not_held,
)
from slipstream.federate.secure import (
    Inbox,
    KeyList,
    Message,
    SecureClient,
    Server,
    SumTerms,
    Survivors,
    decode,
    encode,
    pack,
    parse_file,
    unpack,
)
from slipstream.federate.update import ClientUpdate, check_id
from slipstream.runtime.frames import MAX_BODY, MessageProtocol, MessageSet
from slipstream.types import Arrays

# What clients write in each step, and what ends it.
STEPS = (("keys", "key_list.msg"), ("boxes", "delivered.msg"), ("masked", "survivors.msg"), ("unmask", folder.CLOSED))


class Delivered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ends the second step: everyone's inbox."""

    inboxes: dict[str, Inbox]


DELIVERED: MessageSet[Delivered]
DELIVERED = MessageSet(MessageProtocol.SECURE_SUM, MAX_BODY, msgspec.msgpack.Decoder(Delivered))


@dataclass(frozen=True)
class SecureFiles:
    """Takes part through the folder of a federation that was joined (`folder.join`)."""

    federation: Federation
    weigh: Callable[[ClientUpdate], float]  # what an update counts

    def catch_up(self, base: str) -> Model:
        """Where the federation stands; arrays if they are not those that `base` names."""
        return folder.model(self.federation, folder.standing(self.federation), base)

    def leave(self, client: str) -> None:
        """Say that no more updates will come; the others then do not wait for them."""
        folder.mark_left(self.federation, client)

    def close(self) -> None:
        """Nothing is held between rounds."""

    def exchange(self, update: ClientUpdate, patient: Patience = always) -> RoundOutcome | None:
        """Take part in the current round and wait for its end, never past the deadlines of its steps.

        Who leaves before it is over has left what it can be opened with in nobody's hands: the others go on as if it
        had died.
        """
        check_id(update.client, "client id")
        where = folder.standing(self.federation)
        try:
            if update.base != where.base:
                # Whatever it has changed cannot be told from what the others have: nobody looks at it alone.
                reason = "the others have gone on without it, and a change that is hidden cannot be brought up to date"
                return RoundOutcome(where.round, "refused", False, reason, self.catch_up(update.base), sent=False)
            terms = make_terms(self.federation, where, update.arrays)
            return self._go_through(SecureClient(terms, update.client), update, where, patient)
        except (OSError, FederationError) as error:  # a full disk, a share that is away, too few clients, a broken file
            model = Model(update.round, update.base, None)
            return RoundOutcome(update.round, "undecided", False, str(error), model)

    def _go_through(
        self, client: SecureClient, update: ClientUpdate, where: Standing, patient: Patience
    ) -> RoundOutcome | None:
        federation, number = self.federation, where.round
        open_round(federation, number, update.client)
        here, began, pause = folder.round_folder(federation, number), time.monotonic(), FIRST_PAUSE_S
        # The keys of one who was killed in this round stand there, and what belongs to them is lost.
        is_back = (here / f"keys_{update.client}.msg").exists()
        written: set[str] = set()
        limits = federation.limits
        latest = began + limits.timeout_s + 4 * limits.closing_s
        while (record := folder.read_record(federation, number)) is None:
            step = current_step(here)
            if not is_back and step not in written:
                written.add(step)
                message = self._own_message(client, update, here, step)
                if message is not None:
                    replace_file(here / f"{step}_{update.client}.msg", encode(message))
                pause = FIRST_PAUSE_S
            with folder.locked(federation, time.monotonic()) as is_mine:
                if is_mine and advance(federation, number, client.terms, update.arrays, began):
                    continue
            if not patient():
                return None
            if time.monotonic() > latest:
                raise FederationError(f"whoever closes round {number} did not finish in time; is it stopped?")
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE_S)
        counted = any(one.client == update.client for one in record.participants)
        took_part = counted and not is_back
        reason = record.reason or ("" if took_part else "it came too late, or was killed in this round")
        closed = record.state == "closed"
        model = self.catch_up(update.base)
        # Of what is not in a sum that was opened, nobody has seen anything.
        return RoundOutcome(number, record.state, took_part and closed, reason, model, record, sent=counted and closed)

    def _own_message(self, client: SecureClient, update: ClientUpdate, here: Path, step: str) -> Message | None:
        """What this client says in a step; None where it is not among those who are asked."""
        match step:
            case "keys":
                return client.keys
            case "boxes":
                return client.share(_key_list(here)) if client.client in _listed(here) else None
            case "masked":
                inbox = _read_delivered(here).inboxes.get(client.client)
                return None if inbox is None else client.mask(inbox, pack(update.arrays, self.weigh(update)))
            case _:
                there = _survivors(here)
                return client.unmask(there) if client.client in there.clients else None


# --- what the holder of the lock does ---


def make_terms(federation: Federation, where: Standing, arrays: Arrays) -> SumTerms:
    """What all clients of a round agree on: who has other arrays, or goes on from another aggregate, has others."""
    limits = federation.limits
    length = 1 + sum(array.size for array in arrays.values())
    session = f"{federation.folder.name} {where.round} {where.base}"
    return SumTerms(session, max(limits.quorum, limits.clients // 2 + 1), length)


def open_round(federation: Federation, number: int, client: str) -> None:
    """Begin a round, if nobody has; a client that had left is back."""
    with folder.locked(federation, time.monotonic() + federation.limits.closing_s) as is_mine:
        if not is_mine:
            raise FederationError(f"{federation.folder / folder.LOCK}: held by another for too long; is it stopped?")
        folder.open_round(federation, number, client)


def advance(federation: Federation, number: int, terms: SumTerms, like: Arrays, seen: float) -> bool:
    """End the current step of a round, which this one knows of since `seen`, if it is time; whether it was."""
    here = folder.round_folder(federation, number)
    if (here / folder.CLOSED).exists():
        return True
    step = current_step(here)
    came, overdue = senders(here, step), time.monotonic() >= _due(federation, number, here, step, seen)
    if not overdue and not is_complete(federation, here, step, came, terms):
        return False
    try:
        server = replay(here, step, terms)
        for message in _messages(here, step, came):
            with contextlib.suppress(FederationError):  # whoever writes nonsense has written nothing
                server.receive(message)
        if step == "unmask":
            opened = server.open_sum()
            mean, _ = unpack(opened.total, like)
            arrays = {name: value.astype(like[name].dtype) for name, value in mean.items()}
            _end(federation, number, opened.clients, arrays, "")
            return True
    except FederationError as error:
        _end(federation, number, (), None, str(error))
        return True
    try:
        ending = _close_step(server, step)
    except FederationError as error:
        _end(federation, number, (), None, str(error))
    else:
        replace_file(here / dict(STEPS)[step], ending)
    return True


def is_complete(federation: Federation, here: Path, step: str, came: Sequence[str], terms: SumTerms) -> bool:
    """Whether nothing more is to be waited for in a step."""
    if step == "unmask":  # the sum is the same whoever helps to open it
        return len(came) >= terms.threshold
    if step == "keys":
        return len(folder.who_left(federation) | set(came)) >= federation.limits.clients
    asked = _read_delivered(here).inboxes if step == "masked" else _listed(here)
    return set(asked) <= set(came)


def replay(here: Path, step: str, terms: SumTerms) -> Server:
    """A server as it is when this step is open, from the files of those who count in the steps before."""
    server = Server(terms)
    if step == "keys":
        return server
    for message in _messages(here, "keys", _listed(here)):
        server.receive(message)
    server.list_keys()
    if step == "boxes":
        return server
    for message in _messages(here, "boxes", sorted(_read_delivered(here).inboxes)):
        server.receive(message)
    server.deliver()
    if step == "masked":
        return server
    for message in _messages(here, "masked", _survivors(here).clients):
        server.receive(message)
    server.survivors()
    return server


def _close_step(server: Server, step: str) -> bytes:
    match step:
        case "keys":
            return encode(server.list_keys())
        case "boxes":
            return DELIVERED.frame(Delivered(server.deliver()))
        case _:
            return encode(server.survivors())


def _end(federation: Federation, number: int, clients: Sequence[str], arrays: Arrays | None, failure: str) -> None:
    """Write what came of a round."""
    where = folder.standing(federation)
    before = where.last.participants if where.last is not None else ()
    came = senders(folder.round_folder(federation, number), STEPS[0][0])
    left = folder.who_left(federation)
    not_held = why_not_held(federation.limits, left, came) if arrays is None else ""
    if arrays is not None:
        closing.write_aggregate(federation, number, arrays)
    closing.end_round(
        federation,
        RoundRecord(
            version=VERSION,
            round=number,
            state="closed" if arrays is not None else "not_held" if not_held else "failed",
            reason=not_held or failure,
            base=where.base,
            aggregate=content_hash(arrays) if arrays is not None else "",
            aggregator=federation.aggregator,
            participation=len(clients) / federation.limits.clients,
            participants=tuple(Participant(client, "", "", 1.0, {}, 0, 1.0, None, None) for client in clients),
            refusals=(),
            refused={},
            excluded=(),
            dropouts=tuple(sorted({one.client for one in before} - set(clients) - left)) if arrays is not None else (),
            duration_s=None,
            report=None,  # nobody has seen what it would tell
            left=tuple(sorted(left.difference(came))),
        ),
    )


# --- files ---


def current_step(here: Path) -> str:
    """The first step that has not ended."""
    return next((step for step, ending in STEPS if not os.path.lexists(here / ending)), STEPS[-1][0])


def senders(here: Path, step: str) -> list[str]:
    """Who has written in a step."""
    names = (name for name in os.listdir(here) if name.startswith(f"{step}_") and name.endswith(".msg"))
    return sorted(name.removeprefix(f"{step}_").removesuffix(".msg") for name in names)


def read_message(path: Path) -> Message:
    """What a file says."""
    return decode(folder.read_file(path) or b"")


def _messages(here: Path, step: str, clients: Sequence[str]) -> list[Message]:
    """What these clients have written in a step, under their own names; what is none is passed over."""
    found: list[Message] = []
    for client in clients:
        with contextlib.suppress(FederationError):
            message = read_message(here / f"{step}_{client}.msg")
            if getattr(message, "client", None) == client:
                found.append(message)
    return found


def _key_list(here: Path) -> KeyList:
    found = read_message(here / STEPS[0][1])
    if not isinstance(found, KeyList):
        raise FederationError(f"{here / STEPS[0][1]}: not a list of keys")
    return found


def _listed(here: Path) -> list[str]:
    return [keys.client for keys in _key_list(here).keys]


def _survivors(here: Path) -> Survivors:
    found = read_message(here / STEPS[2][1])
    if not isinstance(found, Survivors):
        raise FederationError(f"{here / STEPS[2][1]}: does not say whose vectors count")
    return found


def _read_delivered(here: Path) -> Delivered:
    return parse_file(folder.read_file(here / STEPS[1][1]) or b"", DELIVERED)


def _due(federation: Federation, number: int, here: Path, step: str, seen: float) -> float:
    """When a step ends at the latest: the first waits for everyone to come, the others for what takes seconds."""
    now, limits = time.monotonic(), federation.limits
    if step == "keys":
        return folder.deadline(federation, number, seen) or now + limits.timeout_s
    before = [ending for _, ending in STEPS][[name for name, _ in STEPS].index(step) - 1]
    age_s = max(0.0, time.time() - (here / before).stat().st_mtime)
    return now - age_s + limits.closing_s
