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
    AnyCoordinatorAnswer,
    Await,
    CatchUp,
    CoordinatorRefusal,
    CoordinatorRequest,
    EnterFederation,
    Kept,
    Leave,
    RoundEnded,
    Send,
    Stands,
    Submit,
    Welcome,
)
from slipstream.federate.rounds import Model, Patience, RoundLimits, RoundOutcome, always
from slipstream.federate.update import ClientUpdate, check_id, update_chunks
from slipstream.runtime.address import Address, connect
from slipstream.runtime.frames import WireError
from slipstream.runtime.link import FramedLink, ImpatientError, left_s, pauses

LONGEST_PAUSE_S = 1.0  # between attempts to connect
T = TypeVar("T")


@dataclass(frozen=True)
class CoordinatorTransport:
    """Takes part through a coordinator; a connection is made for every exchange, and lost ones are made again."""

    address: Address
    client: str
    token: str
    limits: RoundLimits  # for as long as the coordinator has not told its own
    max_bytes: int = (1 << 32) - 1  # of an aggregate

    def catch_up(self, base: str) -> Model:
        """Where the federation stands; FederationError if nobody answers."""
        deadline = time.monotonic() + self.limits.closing_s  # it answers nobody while it closes a round
        return self._retry_until(deadline, lambda link: link.catch_up(base))

    def exchange(self, update: ClientUpdate, patient: Patience = always) -> RoundOutcome | None:
        """Take part in the current round and wait for its end, never past its deadline; None: it is not over."""
        check_id(update.client, "client id")
        deadline = time.monotonic() + self.limits.timeout_s + self.limits.closing_s
        try:
            return self._retry_until(deadline, lambda link: link.exchange(update, patient))
        except ImpatientError:  # what it has sent counts
            return None
        except FederationError as error:
            model = Model(update.round, update.base, None)
            return RoundOutcome(update.round, "undecided", False, str(error), model)

    def close(self) -> None:
        """Nothing is held between rounds."""

    def leave(self, client: str) -> None:
        """Say that no more updates will come; a coordinator that does not answer finds out by its deadline."""
        deadline = time.monotonic() + self.limits.closing_s
        with contextlib.suppress(FederationError):
            self._retry_until(deadline, lambda link: link.leave())

    def _retry_until(self, deadline: float, talk: Callable[[CoordinatorLink], T]) -> T:
        """Talk to the coordinator, again from the start when it goes away, until everything was said."""
        for pause in pauses(LONGEST_PAUSE_S):
            try:
                with FramedLink(connect(self.address, left_s(deadline)), ANSWERS) as link:
                    return talk(CoordinatorLink(link, self, deadline))
            except (OSError, WireError) as error:
                if time.monotonic() + pause >= deadline or isinstance(error, WireError):
                    raise FederationError(f"the coordinator at {self.address} does not answer: {error}") from None
            time.sleep(pause)
        raise AssertionError("pauses do not end")


class CoordinatorLink:
    """A connection that has entered."""

    def __init__(
        self, link: FramedLink[AnyCoordinatorAnswer], transport: CoordinatorTransport, deadline: float
    ) -> None:
        self._link, self._transport, self._deadline = link, transport, deadline
        answer, _ = self.call(EnterFederation(transport.client, transport.token))
        if not isinstance(answer, Welcome):
            raise WireError(
                answer.reason if isinstance(answer, CoordinatorRefusal) else "it answers as no coordinator does"
            )
        limits = answer.limits  # the coordinator's: the shorter wait counts, theirs or this client's
        self._deadline = min(deadline, time.monotonic() + limits.timeout_s + limits.closing_s)

    def catch_up(self, base: str) -> Model:
        """Where the federation stands."""
        answer, data = self.call(CatchUp(base))
        if not isinstance(answer, Stands):
            raise WireError("it answers as no coordinator does")
        return self._model(answer.next_round, answer.newest, base, data)

    def leave(self) -> None:
        """No more updates will come."""
        self.call(Leave())

    def exchange(self, update: ClientUpdate, patient: Patience) -> RoundOutcome | None:
        """Ask what became of the update, send it if it is not known, and wait."""
        aimed, waits = update.round, patient()
        self._link.patient = patient if waits else None  # who does not wait at all is answered at once
        answer, data = self.call(Await(update.update_id, update.base, waits))
        while isinstance(answer, Send):
            # Rounds may have gone by; how far behind that leaves the update is for its base to say. One that is aimed
            # at a round to come is not brought back: it is refused.
            update = replace(update, round=max(aimed, answer.round))
            body = b"".join(update_chunks(update))
            answer, data = self.call(Submit(update.update_id, update.base, answer.round, waits), body)
        if isinstance(answer, Kept):
            return None
        if isinstance(answer, CoordinatorRefusal):
            return RoundOutcome(answer.round, "refused", False, answer.reason, self.catch_up(update.base))
        if not isinstance(answer, RoundEnded):
            raise WireError("it answers as no coordinator does")
        newest = self._model(answer.next_round, answer.newest, update.base, data)
        return rounds.outcome(answer.record, update, newest)

    def _model(self, number: int, newest: str, known: str, data: bytes) -> Model:
        if newest in (known, ""):
            return Model(number, newest, None)
        try:
            content = read_content(Path("the aggregate"), BytesIO(data), len(data))
        except CheckpointError as error:
            raise WireError(error.problem) from error
        if content.digest != newest:
            raise WireError("the aggregate is another than the coordinator says")
        return Model(number, newest, content.arrays)

    def call(self, request: CoordinatorRequest, data: bytes = b"") -> tuple[AnyCoordinatorAnswer, bytes]:
        """An answer, and the data that came with it."""
        self._link.send(request, self._deadline, data)
        answer, size = self._link.receive(self._deadline, self._transport.max_bytes)
        return answer, self._link.read(size, self._deadline)
