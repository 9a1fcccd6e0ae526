"""A run as a client of a federation: episodes are counted after every update, weights exchanged when a round is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slipstream.collect.slab import Slab, under
from slipstream.collect.teams import judged_agents
from slipstream.config.records import from_value
from slipstream.config.stopping import Stop, StopKind
from slipstream.data.checkpoint import Checkpoint
from slipstream.run.federated.client import ClientState, FederationClient
from slipstream.run.parts import Part, Update

if TYPE_CHECKING:
    from slipstream.run.context import Run

PARKED = "a round of the federation is not over, and this run was asked not to wait for it"


class RoundCounter(Part):
    """The client of this run, and when its next round is due."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        agents = judged_agents(run.cast.teams)
        self.client = FederationClient(run.scenario, run.cast.learners, agents, run.announce)

    def begin(self) -> None:
        """Before the first update of a new run, see that the federation stands where it was expected to."""
        if self.run.is_new:
            self.client.begin()
        self._look(0)

    def after_collect(self, slab: Slab) -> None:
        """See whether a round will be due after this update."""
        self._look(len(slab.episodes))

    def _look(self, new: int) -> None:
        self.run.round_is_due = self.client.is_due(self.run.counters.episodes + new)

    def after_update(self, update: Update) -> None:
        """Count what it has learned from."""
        self.client.watch(update.slab.episodes, self.run.counters.episodes)

    def rows(self) -> dict[str, float]:
        """Of the last round."""
        return self.client.rows()

    def state(self) -> Checkpoint:
        """Where the client stands."""
        arrays = {f"federated.{key}": array for key, array in self.client.arrays().items()}
        return Checkpoint(arrays, {"federated": msgspec.to_builtins(self.client.state)})

    def load(self, saved: Checkpoint) -> None:
        """Go on as saved."""
        state = from_value(saved.meta["federated"], ClientState)
        self.client.load(state, under(saved.arrays, "federated."))

    def close(self) -> None:
        """Let go of connections."""
        self.client.close()


class Exchange(Part):
    """Exchanges weights with the other clients when a round is due."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        rounds = run.find(RoundCounter)
        assert rounds is not None
        self._client = rounds.client

    def begin(self) -> Stop | None:
        """Come back for the end of a round that was not over when the last session ended."""
        return self._exchange() if self.run.round_is_due else None

    def after_update(self, update: Update) -> Stop | None:
        """Take part in a round, then let the source act with what came of it."""
        if not self.run.round_is_due:
            return None
        stop = self._exchange()
        if stop is None and self.run.source is not None:
            self.run.source.publish(self.run.counters.updates)
        return stop

    def _exchange(self) -> Stop | None:
        """One round; why to stop, where this run does not wait for its end."""
        run, counters = self.run, self.run.counters
        with run.timed("federate"):
            result = self._client.exchange(counters.episodes, counters.steps, lambda: run.interruption is None)
        if result.parked:
            return run.interruption or Stop(StopKind.PARKED, PARKED)
        run.count(evaluated=-1)  # these are other weights
        for feed in run.feeds.values():
            feed.quarantine.trust()  # a bad batch must not bring back the weights from before the round
        if run.scenario.federated.checkpoint_after_sync:
            if result.best:
                run.saver.save_averaged()
            run.saver.save()
        return None

    def close(self) -> None:
        """Say that no more updates will come, so that the others do not wait for them."""
        if self.run.is_finished:
            self._client.leave()


class OnlyClient(Part):
    """Says that there is nobody to exchange weights with."""

    def begin(self) -> None:
        """Say it."""
        self.run.tell(
            "federated: this run is the only client, so every round is skipped; slipstream federate starts several"
        )
