"""Secure aggregation through a folder: whoever holds the lock plays the server of secure.py, and sees no more than one.

    round_00007/  keys_ID.msg    then key_list.msg    who hides behind whom
                  boxes_ID.msg   then delivered.msg   shares of secrets, locked for one reader each
                  masked_ID.msg  then survivors.msg   vectors under their masks; late ones stay hidden for good
                  unmask_ID.msg  then aggregate.safetensors and closed.json

A phase is over when all who are expected have written, or at its deadline; the message that ends it says who counts,
and files that come later are never read. What the server would remember is worked out again from the files, so that any
client may end any phase, and one that is killed is replaced. A client keeps its secrets in memory: killed in the
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

from slipstream.config.records import from_msgpack
from slipstream.data.arrays_file import content_hash
from slipstream.data.disk import replace_file
from slipstream.errors import FederationError
from slipstream.federate import disk, folder
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
    unpack,
)
from slipstream.federate.update import Arrays, ClientUpdate, check_id

# What clients write in each phase, and what ends it.
PHASES = (("keys", "key_list.msg"), ("boxes", "delivered.msg"), ("masked", "survivors.msg"), ("unmask", folder.CLOSED))


class Delivered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ends the second phase: everyone's inbox."""

    inboxes: dict[str, Inbox]


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
        folder.mark_gone(self.federation, client)

    def close(self) -> None:
        """Nothing is held between rounds."""

    def exchange(self, update: ClientUpdate, patient: Patience = always) -> RoundOutcome | None:
        """Take part in the current round and wait for its end, never past the deadlines of its phases.

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
        spoken: set[str] = set()
        rules = federation.rules
        latest = began + rules.timeout_s + 4 * rules.closing_s
        while (record := folder.read_record(federation, number)) is None:
            phase = current_phase(here)
            if not is_back and phase not in spoken:
                spoken.add(phase)
                message = self._speak(client, update, here, phase)
                if message is not None:
                    replace_file(here / f"{phase}_{update.client}.msg", encode(message))
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
        counted = any(seat.client == update.client for seat in record.seats)
        took_part = counted and not is_back
        reason = record.reason or ("" if took_part else "it came too late, or was killed in this round")
        closed = record.state == "closed"
        model = self.catch_up(update.base)
        # Of what is not in a sum that was opened, nobody has seen anything.
        return RoundOutcome(number, record.state, took_part and closed, reason, model, record, sent=counted and closed)

    def _speak(self, client: SecureClient, update: ClientUpdate, here: Path, phase: str) -> Message | None:
        """What this client says in a phase; None where it is not among those who are asked."""
        match phase:
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
    rules = federation.rules
    length = 1 + sum(array.size for array in arrays.values())
    session = f"{federation.folder.name} {where.round} {where.base}"
    return SumTerms(session, max(rules.quorum, rules.clients // 2 + 1), length)


def open_round(federation: Federation, number: int, client: str) -> None:
    """Begin a round, if nobody has; whoever had left is back."""
    with folder.locked(federation, time.monotonic() + federation.rules.closing_s) as is_mine:
        if not is_mine:
            raise FederationError(f"{federation.folder / folder.LOCK}: held by another for too long; is it stopped?")
        folder.open_round(federation, number, client)


def advance(federation: Federation, number: int, terms: SumTerms, like: Arrays, seen: float) -> bool:
    """End the current phase of a round, which this one knows of since `seen`, if it is time; whether it was."""
    here = folder.round_folder(federation, number)
    if (here / folder.CLOSED).exists():
        return True
    phase = current_phase(here)
    came, overdue = senders(here, phase), time.monotonic() >= _due(federation, number, here, phase, seen)
    if not overdue and not is_complete(federation, here, phase, came, terms):
        return False
    try:
        server = replay(here, phase, terms)
        for message in _messages(here, phase, came):
            with contextlib.suppress(FederationError):  # whoever writes nonsense has written nothing
                server.receive(message)
        if phase == "unmask":
            opened = server.open_sum()
            mean, _ = unpack(opened.total, like)
            arrays = {name: value.astype(like[name].dtype) for name, value in mean.items()}
            _end(federation, number, opened.clients, arrays, "")
            return True
    except FederationError as error:
        _end(federation, number, (), None, str(error))
        return True
    try:
        ending = _close_phase(server, phase)
    except FederationError as error:
        _end(federation, number, (), None, str(error))
    else:
        replace_file(here / dict(PHASES)[phase], ending)
    return True


def is_complete(federation: Federation, here: Path, phase: str, came: Sequence[str], terms: SumTerms) -> bool:
    """Whether nothing more is to be waited for in a phase."""
    if phase == "unmask":  # the sum is the same whoever helps to open it
        return len(came) >= terms.threshold
    if phase == "keys":
        return len(folder.gone(federation) | set(came)) >= federation.rules.clients
    asked = _read_delivered(here).inboxes if phase == "masked" else _listed(here)
    return set(asked) <= set(came)


def replay(here: Path, phase: str, terms: SumTerms) -> Server:
    """A server as it is when this phase is open, from the files of those who count in the phases before."""
    server = Server(terms)
    if phase == "keys":
        return server
    for message in _messages(here, "keys", _listed(here)):
        server.receive(message)
    server.list_keys()
    if phase == "boxes":
        return server
    for message in _messages(here, "boxes", sorted(_read_delivered(here).inboxes)):
        server.receive(message)
    server.deliver()
    if phase == "masked":
        return server
    for message in _messages(here, "masked", _survivors(here).clients):
        server.receive(message)
    server.survivors()
    return server


def _close_phase(server: Server, phase: str) -> bytes:
    match phase:
        case "keys":
            return encode(server.list_keys())
        case "boxes":
            return msgspec.msgpack.encode(Delivered(server.deliver()))
        case _:
            return encode(server.survivors())


def _end(federation: Federation, number: int, clients: Sequence[str], arrays: Arrays | None, failure: str) -> None:
    """Write what came of a round."""
    where = folder.standing(federation)
    before = where.last.seats if where.last is not None else ()
    came = senders(folder.round_folder(federation, number), PHASES[0][0])
    gone = folder.gone(federation)
    finished = why_not_held(federation.rules, gone, came) if arrays is None else ""
    if arrays is not None:
        folder.write_aggregate(federation, number, arrays)
    folder.end_round(
        federation,
        RoundRecord(
            version=VERSION,
            round=number,
            state="closed" if arrays is not None else "not_held" if finished else "failed",
            reason=finished or failure,
            base=where.base,
            aggregate=content_hash(arrays) if arrays is not None else "",
            aggregator=federation.aggregator,
            participation=len(clients) / federation.rules.clients,
            seats=tuple(Participant(client, "", "", 1.0, {}, 0, 1.0, None, None) for client in clients),
            refusals=(),
            refused={},
            quarantine=(),
            dropouts=tuple(sorted({seat.client for seat in before} - set(clients) - gone))
            if arrays is not None
            else (),
            duration_s=None,
            report=None,  # nobody has seen what it would tell
            finished=tuple(sorted(gone.difference(came))),
        ),
    )


# --- files ---


def current_phase(here: Path) -> str:
    """The first phase that has not ended."""
    return next((phase for phase, ending in PHASES if not os.path.lexists(here / ending)), PHASES[-1][0])


def senders(here: Path, phase: str) -> list[str]:
    """Who has written in a phase."""
    names = (name for name in os.listdir(here) if name.startswith(f"{phase}_") and name.endswith(".msg"))
    return sorted(name.removeprefix(f"{phase}_").removesuffix(".msg") for name in names)


def read_message(path: Path) -> Message:
    """What a file says."""
    return decode(disk.read_file(path) or b"")


def _messages(here: Path, phase: str, clients: Sequence[str]) -> list[Message]:
    """What these clients have written in a phase, under their own names; what is none is passed over."""
    found: list[Message] = []
    for client in clients:
        with contextlib.suppress(FederationError):
            message = read_message(here / f"{phase}_{client}.msg")
            if getattr(message, "client", None) == client:
                found.append(message)
    return found


def _key_list(here: Path) -> KeyList:
    found = read_message(here / PHASES[0][1])
    if not isinstance(found, KeyList):
        raise FederationError(f"{here / PHASES[0][1]}: not a list of keys")
    return found


def _listed(here: Path) -> list[str]:
    return [keys.client for keys in _key_list(here).keys]


def _survivors(here: Path) -> Survivors:
    found = read_message(here / PHASES[2][1])
    if not isinstance(found, Survivors):
        raise FederationError(f"{here / PHASES[2][1]}: does not say whose vectors count")
    return found


def _read_delivered(here: Path) -> Delivered:
    try:
        return from_msgpack(disk.read_file(here / PHASES[1][1]) or b"", Delivered)
    except msgspec.MsgspecError as error:
        raise FederationError(f"{here / PHASES[1][1]}: damaged: {error!s:.200}") from error


def _due(federation: Federation, number: int, here: Path, phase: str, seen: float) -> float:
    """When a phase ends at the latest: the first waits for everyone to come, the others for what takes seconds."""
    now, rules = time.monotonic(), federation.rules
    if phase == "keys":
        return folder.deadline(federation, number, seen) or now + rules.timeout_s
    before = [ending for _, ending in PHASES][[name for name, _ in PHASES].index(phase) - 1]
    age_s = max(0.0, time.time() - (here / before).stat().st_mtime)
    return now - age_s + rules.closing_s
