"""Federation through a folder that all clients see: no server, and any client may close a round.

A client writes its update beside the round's others and waits. When nobody is missing, or at the deadline, whoever gets
the lock first decides and aggregates; the others read the result. A killed closer loses the lock, and the next to look
finishes what it began (folder.py). Whatever goes wrong in one round, the client rejoins in the next: the number of the
round, and the aggregate to go on from, are read from the folder every time.

Whoever can write to the folder could delete it: this is for replicas of one owner. What they write is still not
trusted (update.py, defence.py), so a broken one harms nobody.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from slipstream.errors import FederationError
from slipstream.federate import closing, folder, rounds
from slipstream.federate.rounds import Federation, Model, Patience, RoundOutcome, always
from slipstream.federate.update import ClientUpdate, check_id

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.25


@dataclass(frozen=True)
class Files:
    """Takes part through the folder of a federation that was joined (`folder.join`)."""

    federation: Federation

    def catch_up(self, base: str) -> Model:
        """Where the federation stands; arrays if they are not those that `base` names."""
        return folder.model(self.federation, folder.standing(self.federation), base)

    def exchange(self, update: ClientUpdate, patient: Patience = always) -> RoundOutcome | None:
        """Take part in the current round and wait for its end, never past its deadline; None: it is not over."""
        check_id(update.client, "client id")
        check_id(update.update_id, "update id")
        began, limits = time.monotonic(), self.federation.limits
        try:
            filed = self._file(update, began, began + limits.timeout_s + limits.closing_s)
            if isinstance(filed, RoundOutcome):
                return filed
            return self._wait(replace(update, round=filed), began, patient)
        except (OSError, FederationError) as error:  # a full disk, a share that is away, a file that was damaged
            model = Model(update.round, update.base, None)
            return RoundOutcome(update.round, "undecided", False, str(error), model)

    def leave(self, client: str) -> None:
        """Say that no more updates will come; the others then do not wait for them."""
        folder.mark_left(self.federation, client)

    def close(self) -> None:
        """Nothing is held between rounds."""

    def _file(self, update: ClientUpdate, began: float, until: float) -> int | RoundOutcome:
        """Put the update into the current round, and say which it is; or what became of it instead."""
        federation, aimed = self.federation, update.round
        while True:
            where = folder.standing(federation)
            for record in where.closed:
                if rounds.is_participant(record, update.client, update.update_id):
                    return rounds.outcome(record, update, self.catch_up(update.base))
            # Rounds may have gone by; how far behind that leaves the update is for its base to say. One that is aimed
            # at a round to come is not brought back: it is refused.
            update = replace(update, round=max(aimed, where.round))
            temp = folder.write_update(federation, where.round, update)
            with folder.locked(federation, until) as is_mine:
                if not is_mine:
                    temp.unlink(missing_ok=True)
                    return self._undecided(update)
                if self._close(where.round, began) or folder.standing(federation).round != where.round:
                    temp.unlink(missing_ok=True)
                    continue  # the next round has come
                refusal = folder.file_update(federation, where, update, temp)
            if refusal is None or refusal.kind == "duplicate":
                return where.round
            return RoundOutcome(where.round, "refused", False, refusal.reason, self.catch_up(update.base))

    def _wait(self, update: ClientUpdate, began: float, patient: Patience) -> RoundOutcome | None:
        federation, number = self.federation, update.round
        looked_at: frozenset[str] = frozenset()
        while (record := folder.read_record(federation, number)) is None:
            due = folder.deadline(federation, number, began) or began + federation.limits.timeout_s
            now = time.monotonic()
            found = folder.not_waited_for(federation, number)
            is_full = len(found) >= federation.limits.clients and found != looked_at
            if is_full or now >= due or folder.is_closing(federation, number):
                with folder.locked(federation, now) as is_mine:
                    if is_mine:
                        looked_at = found
                        if closing.advance(federation, number, overdue=now >= due) is not None:
                            continue
            if not patient():
                return None
            if now > due + federation.limits.closing_s:
                return self._undecided(update)
            pause = min(max((now - began) / 16, FIRST_PAUSE_S), LONGEST_PAUSE_S)  # late by a sixteenth of the wait
            time.sleep(min(pause, max(due - now, FIRST_PAUSE_S)))
        return rounds.outcome(record, update, self.catch_up(update.base))

    def _close(self, number: int, began: float) -> bool:
        """Finish the current round first, if it is overdue or another was killed in closing it."""
        due = folder.deadline(self.federation, number, began)
        overdue = due is not None and time.monotonic() >= due
        if not overdue and not folder.is_closing(self.federation, number):
            return False
        return closing.advance(self.federation, number, overdue=overdue) is not None

    def _undecided(self, update: ClientUpdate) -> RoundOutcome:
        reason = f"whoever closes round {update.round} did not finish in time; is it stopped?"
        return RoundOutcome(update.round, "undecided", False, reason, self.catch_up(update.base))
