"""Takes part in the federation of a coordinator: connects, sends once, waits, and comes back when it is cut off."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TypeVar

from slipstream.data.arrays_file import read_content
from slipstream.errors import CheckpointError, FederationError
from slipstream.federate import rounds
from slipstream.federate.messages import (
    ANSWERS,
    Await,
    CatchUp,
    CoordinatorRefusal,
    CoordinatorRequest,
    EnterFederation,
    Kept,
    Leave,
    RoundEnded,
    Say,
    Send,
    Stands,
    Submit,
    Welcome,
)
from slipstream.federate.rounds import Model, Patience, RoundOutcome, RoundRules, always
from slipstream.federate.update import ClientUpdate, check_id
from slipstream.federate.update_file import update_chunks
from slipstream.runtime.address import Address, connect
from slipstream.runtime.frames import WireError
from slipstream.runtime.link import FramedLink, ImpatientError, left_s, pauses

LONGEST_PAUSE_S = 1.0  # between attempts to connect
T = TypeVar("T")


@dataclass(frozen=True)
class Coordinated:
    """Takes part through a coordinator; a connection is made for every exchange, and lost ones are made again."""

    address: Address
    client: str
    token: str
    timeouts: RoundRules  # how long to wait for a coordinator that cannot be asked
    max_bytes: int = (1 << 32) - 1  # of an aggregate

    def catch_up(self, base: str) -> Model:
        """Where the federation stands; FederationError if nobody answers."""
        until = time.monotonic() + self.timeouts.closing_s
        return self._until(until, lambda link: link.catch_up(base))

    def exchange(self, update: ClientUpdate, patient: Patience = always) -> RoundOutcome | None:
        """Take part in the current round and wait for its end, never past its deadline; None: it is not over."""
        check_id(update.client, "client id")
        until = time.monotonic() + self.timeouts.timeout_s + self.timeouts.closing_s
        try:
            return self._until(until, lambda link: link.exchange(update, patient))
        except ImpatientError:  # what it has sent counts
            return None
        except FederationError as error:
            model = Model(update.round, update.base, None)
            return RoundOutcome(update.round, "undecided", False, str(error), model)

    def close(self) -> None:
        """Nothing is held between rounds."""

    def leave(self, client: str) -> None:
        """Say that no more updates will come; a coordinator that does not answer finds out by its deadline."""
        until = time.monotonic() + self.timeouts.closing_s
        with contextlib.suppress(FederationError):
            self._until(until, lambda link: link.leave())

    def _until(self, until: float, talk: Callable[[CoordinatorLink], T]) -> T:
        """Talk to the coordinator, again from the start when it goes away, until everything was said."""
        for pause in pauses(LONGEST_PAUSE_S):
            try:
                with FramedLink(connect(self.address, left_s(until)), ANSWERS) as link:
                    return talk(CoordinatorLink(link, self, until))
            except (OSError, WireError) as error:
                if time.monotonic() + pause >= until or isinstance(error, WireError):
                    raise FederationError(f"the coordinator at {self.address} does not answer: {error}") from None
            time.sleep(pause)
        raise AssertionError("pauses do not end")


class CoordinatorLink:
    """A connection that has entered."""

    def __init__(self, link: FramedLink[Say], client: Coordinated, until: float) -> None:
        self._link, self._client, self._until = link, client, until
        answer, _ = self.call(EnterFederation(client.client, client.token))
        if not isinstance(answer, Welcome):
            raise WireError(
                answer.reason if isinstance(answer, CoordinatorRefusal) else "it answers as no coordinator does"
            )
        rules = answer.rules
        self._until = min(until, time.monotonic() + rules.timeout_s + rules.closing_s)

    def catch_up(self, base: str) -> Model:
        """Where the federation stands."""
        answer, data = self.call(CatchUp(base))
        if not isinstance(answer, Stands):
            raise WireError("it answers as no coordinator does")
        return self._model(answer.round, answer.base, base, data)

    def leave(self) -> None:
        """No more updates will come."""
        self.call(Leave())

    def exchange(self, update: ClientUpdate, patient: Patience) -> RoundOutcome | None:
        """Ask what became of the update, send it if it is not known, and wait."""
        aimed, waits = update.round, patient()
        self._link.patient = patient if waits else None  # who does not wait at all is answered at once
        answer, data = self.call(Await(update.nonce, update.base, waits))
        while isinstance(answer, Send):
            update = replace(update, round=max(aimed, answer.round))
            body = b"".join(update_chunks(update))
            answer, data = self.call(Submit(update.nonce, update.base, answer.round, waits), body)
        if isinstance(answer, Kept):
            return None
        if isinstance(answer, CoordinatorRefusal):
            return RoundOutcome(answer.round, "refused", False, answer.reason, self.catch_up(update.base))
        if not isinstance(answer, RoundEnded):
            raise WireError("it answers as no coordinator does")
        return rounds.outcome(answer.record, update, self._model(answer.round, answer.base, update.base, data))

    def _model(self, number: int, base: str, known: str, data: bytes) -> Model:
        if base in (known, ""):
            return Model(number, base, None)
        try:
            content = read_content(Path("the aggregate"), BytesIO(data), len(data))
        except CheckpointError as error:
            raise WireError(error.problem) from error
        if content.digest != base:
            raise WireError("the aggregate is another than the coordinator says")
        return Model(number, base, content.arrays)

    def call(self, request: CoordinatorRequest, data: bytes = b"") -> tuple[Say, bytes]:
        """An answer, and the data that came with it."""
        self._link.send(request, self._until, data)
        answer, size = self._link.receive(self._until, self._client.max_bytes)
        return answer, self._link.read(size, self._until)
