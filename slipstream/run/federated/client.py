"""A run as one client of a federation: when a round is due, what it sends, and what it goes on with."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from slipstream.algos.protocol import Algorithm
from slipstream.algos.registry import rules_for
from slipstream.collect.pool import Tell
from slipstream.collect.serial import Episode
from slipstream.config.federated import FederatedConfig
from slipstream.config.load import override
from slipstream.config.scenario import Scenario, shared_policies
from slipstream.data.arrays_file import content_hash
from slipstream.errors import CheckpointError, FederationError
from slipstream.federate.aggregate import adopt, outgoing
from slipstream.federate.moments import OPTIMISER
from slipstream.federate.privacy import Privacy, apply_changes, private_update, spent
from slipstream.federate.rounds import Model, Patience, RoundOutcome, always, never
from slipstream.federate.server_optim import carried_over
from slipstream.federate.update import ClientUpdate
from slipstream.run.federated.distillation import DISTILLED
from slipstream.run.federated.transports import transport_of
from slipstream.run.setup import Cast, make_cast
from slipstream.spec import WorldSpec
from slipstream.types import Arrays

MOST_TOLD = 3  # refusals in a sentence; all are in rounds.jsonl
ADAPTED = "adapted:"  # begins the names of arrays of policies that have adapted


class ClientState(msgspec.Struct, frozen=True):
    """Where a client stands; saved in checkpoints."""

    exchanges: int = 0  # intervals of episodes that have passed
    rounds: int = 0  # that this client has sent something for
    bases: dict[str, str] = {}  # hash of the aggregate each policy goes on from
    settled: tuple[str, ...] = ()  # policies whose round is over, where this run was parked before that of another
    steps: int = 0  # environment steps at the last exchange
    returns: tuple[float, int] = (0.0, 0)  # sum and number of episodes' returns since then
    adapted: bool = False  # the part of the interval in which a client adapts (maml) is over
    last_return: float | None = None  # mean of the interval before
    best_return: float | None = None  # over all clients, of any round
    row: dict[str, float] = {}  # metrics of the last exchange, for the next report
    # With client-level privacy: updates that have left this client (None: saved before this was counted), the last of
    # each policy by its id, and what ids and noise are made from, so that an update sent again is the same one.
    released: int | None = None
    sent: dict[str, str] = {}
    secret: str = ""


class ExchangeResult(NamedTuple):
    """What an exchange has come to."""

    parked: bool  # the round is not over, and this run does not wait for it
    best: bool  # the clients' mean return is the best so far


def begin_alike(scenario: Scenario, cast: Cast, spec: WorldSpec) -> None:
    """Give all clients the same first weights, whatever their seeds: means of unlike networks are no networks."""
    common = make_cast(override(scenario, {"seed": scenario.federated.init_seed}), spec)
    for policy in shared_policies(scenario):
        cast.learners[policy].load_state_dict(common.learners[policy].state_dict(include_optim=False))


class FederationClient:
    """Takes part in rounds, with one federation for every policy that is shared."""

    def __init__(
        self, scenario: Scenario, learners: Mapping[str, Algorithm], agents: Sequence[int], tell: Tell
    ) -> None:
        """`agents`: those whose rewards make an episode's return."""
        self._config, self._tell, self._agents = scenario.federated, tell, agents
        self._learners = {policy: learners[policy] for policy in shared_policies(scenario)}
        self._transports = {
            policy: transport_of(scenario, policy, rules_for(own.state_dict()))
            for policy, own in self._learners.items()
        }
        self.state = ClientState(released=0, secret=_new_secret(self._config))
        # What each policy goes on from: the last aggregate's weights, or the first ones.
        self._references = {policy: own.state_dict(include_optim=False) for policy, own in self._learners.items()}
        self._adapted: dict[str, Arrays] = {}  # by policy, where it had adapted to (maml)

    # --- what the loop calls ---

    def begin(self) -> None:
        """Before the first update of a new run: refuse a federation that does not stand where it was expected to."""
        self._references = {policy: own.state_dict(include_optim=False) for policy, own in self._learners.items()}
        wanted = self._config.first_round
        for policy, transport in self._transports.items():
            if wanted is not None and (found := transport.catch_up("").round) != wanted:
                raise FederationError(
                    f"federated.first_round: the federation of {policy} stands at round {found}, not {wanted}; is its "
                    "folder one of an earlier run?"
                )

    def watch(self, episodes: Sequence[Episode], ended: int) -> None:
        """Take note of episodes that an update has learned from; `ended` is how many there were in all."""
        total, count = self.state.returns
        for episode in episodes:
            total += sum(episode.returns[agent] for agent in self._agents)
        count += len(episodes)
        self.state = msgspec.structs.replace(self.state, returns=(total, count))
        if self._config.maml is None or self.state.adapted or self.is_due(ended):
            return
        left = (self.state.exchanges + 1) * self._config.interval - ended
        if count >= self._config.maml * (count + left):
            self._adapted = {policy: _weights(own.state_dict()) for policy, own in self._learners.items()}
            self.state = msgspec.structs.replace(self.state, adapted=True)

    def is_due(self, episodes: int) -> bool:
        """Whether enough episodes have ended, in all worlds and workers together, since the last exchange."""
        return episodes // self._config.interval > self.state.exchanges

    def exchange(self, episodes: int, steps: int, patient: Patience = always) -> ExchangeResult:
        """One round of every shared policy; afterwards the learners go on from what came of it.

        Who is not patient any longer is parked: it has to come back, as it is, for the end of the round.
        """
        total, count = self.state.returns
        mean_return = total / count if count else 0.0
        rise = 0.0 if self.state.last_return is None else mean_return - self.state.last_return
        facts = {"samples": float(steps - self.state.steps), "mean_return": mean_return, "reward_delta": rise}
        if self._config.dp_sgd is not None:
            facts = {}  # of the rows that are hidden in the weights, without any noise
        if self._config.maml is not None and not self.state.adapted:
            self._tell(
                "maml",
                f"federated.maml: the {self._config.interval} episodes of an interval have ended within one update, so "
                "there was nothing between adapting and learning, and all is sent; set a longer federated.interval",
            )
        bases, returns = dict(self.state.bases), [mean_return]
        row: dict[str, float] = {}
        began = time.monotonic()
        for policy in [policy for policy in self._learners if policy not in self.state.settled]:
            outcome = self._take_part(policy, bases.get(policy, ""), facts, never if self._config.park else patient)
            if outcome is None:
                return ExchangeResult(parked=True, best=False)
            bases[policy] = outcome.model.base
            settled = (*self.state.settled, policy)
            self.state = msgspec.structs.replace(self.state, bases=bases, settled=settled)
            returns += _mean_returns(outcome)
            row |= _row(outcome, policy if len(self._learners) > 1 else "")
        row["fed/round_time_s"] = time.monotonic() - began
        overall = sum(returns[1:]) / len(returns[1:]) if len(returns) > 1 else mean_return
        best = self.state.best_return is None or overall > self.state.best_return
        self.state = ClientState(
            exchanges=episodes // self._config.interval,
            rounds=self.state.rounds + 1,
            bases=bases,
            steps=steps,
            last_return=mean_return,
            best_return=overall if best else self.state.best_return,
            row=row,
            released=self.state.released,
            sent=self.state.sent,
            secret=self.state.secret,
        )
        return ExchangeResult(parked=False, best=best)

    def leave(self) -> None:
        """Say that no more updates will come, so that the others do not wait for them."""
        for transport in self._transports.values():
            transport.leave(self._config.client)

    def close(self) -> None:
        """Let go of ports: those who would meet this run find them closed."""
        for transport in self._transports.values():
            transport.close()

    def rows(self) -> dict[str, float]:
        """For the next report: the last exchange."""
        row, self.state = self.state.row, msgspec.structs.replace(self.state, row={})
        return row

    # --- one policy ---

    def _take_part(self, policy: str, base: str, facts: Mapping[str, float], patient: Patience) -> RoundOutcome | None:
        """One round of one policy: send it, and load what came of it; None where this run does not wait for the end."""
        config, learner = self._config, self._learners[policy]
        own = learner.state_dict()
        array_rules = rules_for(own)
        travels = outgoing(own, array_rules, config.optimizer_strategy)
        if self.state.adapted:
            learned = {name: own[name] for name in self._adapted[policy]}
            travels |= carried_over(self._start(policy, learned), self._adapted[policy], learned)
        transport = self._transports[policy]
        try:
            model = transport.catch_up(base)
        except FederationError as error:  # nobody answers, for now: the next round may find them there
            outcome = RoundOutcome(0, "undecided", False, str(error), Model(0, base, None))
            self._report(policy, outcome)
            return outcome
        update_id = _update_id(travels, base, self.state.secret)
        update = ClientUpdate(config.client, model.round, base, update_id, travels, _weight(config), facts)
        weights = [name for name, rule in array_rules.items() if rule.kind == "merge"]
        if config.privacy is not None:
            update = self._hidden(update, policy, weights)
        elif config.secure:
            update = replace(update, arrays={name: travels[name] for name in weights})
        result = transport.exchange(update, patient)
        if config.privacy is not None and (result is None or result.sent):
            self._count(policy, update_id)
        if result is None:
            return None
        if result.model.arrays is not None:
            taken = adopt(own, result.model.arrays, array_rules, config.optimizer_strategy, config.merge_mu)
            stays = {name: array for name, array in own.items() if array_rules[name].kind not in OPTIMISER}
            learner.load_state_dict(stays | taken)
            self._refer(policy, result.model.arrays)
        self._report(policy, result)
        return result

    def _hidden(self, update: ClientUpdate, policy: str, names: Sequence[str]) -> ClientUpdate:
        """The update as it may travel: the last aggregate, and a change that is clipped and has noise on it."""
        assert self._config.privacy is not None
        privacy, start = Privacy(**self._config.privacy.model_dump()), self._references[policy]
        # Of a sum that is all anybody sees, the fewest clients it can be of carry the noise together.
        share = self._config.needed if self._config.secure else 1
        noise = _noise(self.state.secret, policy, update.update_id)
        private = private_update(update, start, names, privacy, share, noise)
        moved = apply_changes(start, private.arrays)
        return replace(private, arrays={name: moved[name] for name in names})

    def _count(self, policy: str, update_id: str) -> None:
        """Say what has been spent, now that an update has left this client; one that is sent again costs nothing."""
        if self.state.sent.get(policy) == update_id:
            return
        assert self._config.privacy is not None
        released = (self.state.released or 0) + 1
        sent = {**self.state.sent, policy: update_id}
        self.state = msgspec.structs.replace(self.state, released=released, sent=sent)
        report = spent(Privacy(**self._config.privacy.model_dump()), released)
        self._tell("privacy", str(report), policy=policy, **msgspec.to_builtins(report))

    def _start(self, policy: str, like: Arrays) -> Arrays:
        """The weights that a policy went on from."""
        return {name: self._references[policy][name] for name in like}

    def _refer(self, policy: str, arrays: Arrays) -> None:
        """Go on from these weights: losses are pulled towards them, where that was asked for."""
        known = self._references[policy]
        self._references[policy] = {name: arrays.get(name, array) for name, array in known.items()}
        if self._config.proximal_mu:
            self._learners[policy].pull_towards(self._references[policy], self._config.proximal_mu)

    def _report(self, policy: str, outcome: RoundOutcome) -> None:
        what = {
            "closed": "is closed" if outcome.took_part else f"was closed without this run: {outcome.reason}",
            "failed": f"has failed, and nothing changes: {outcome.reason}",
            "not_held": f"was not held: {outcome.reason}",
            "refused": f"has refused this run's update: {outcome.reason}",
            "undecided": f"was not decided in time, and this run goes on alone until the next: {outcome.reason}",
        }[outcome.state]
        fields = {"policy": policy, "round": outcome.round, "state": outcome.state, "took_part": outcome.took_part}
        news = "".join(f"; {one}" for one in _news(outcome))
        self._tell("round", f"round {outcome.round} of {policy} {what}{news}", reason=outcome.reason, **fields)

    # --- saving ---

    def arrays(self) -> Arrays:
        """What must be saved beside `state`: the weights each policy went on from, and where it had adapted to."""
        adapted = {f"{ADAPTED}{policy}": arrays for policy, arrays in self._adapted.items() if self.state.adapted}
        saved = {**self._references, **adapted}
        return {f"{owner}.{name}": array for owner, arrays in saved.items() for name, array in arrays.items()}

    def load(self, state: ClientState, arrays: Arrays) -> None:
        """Go on as saved."""
        released = state.rounds * len(self._learners) if state.released is None else state.released
        secret = state.secret or _new_secret(self._config)
        self.state = msgspec.structs.replace(state, released=released, secret=secret)
        for policy, known in self._references.items():
            try:
                self._refer(policy, {name: arrays[f"{policy}.{name}"] for name in known})
                if state.adapted:
                    self._adapted[policy] = {name: arrays[f"{ADAPTED}{policy}.{name}"] for name in _weights(known)}
            except KeyError as error:
                raise CheckpointError(f"{error}: the checkpoint lacks this array of the federation") from None


# --- what is sent, and what is reported ---


def _weights(state: Arrays) -> Arrays:
    """The networks of a learner's state."""
    array_rules = rules_for(state)
    return {name: array for name, array in state.items() if array_rules[name].kind == "merge"}


def _weight(config: FederatedConfig) -> float:
    """What this client counts, where numbers were given."""
    if not isinstance(config.weights, Mapping):
        return 1.0
    return config.weights[config.client]


def _update_id(arrays: Arrays, base: str, secret: str = "") -> str:
    """The same for the same update, so that one sent again after a restart is still one.

    A hash of weights tells whoever can guess them that the guess was right; with a secret it tells nothing.
    """
    return hashlib.sha256(f"{secret}{base} {content_hash(arrays)}".encode()).hexdigest()[:32]


def _new_secret(config: FederatedConfig) -> str:
    return "" if config.privacy is None else secrets.token_hex(32)


def _noise(secret: str, policy: str, update_id: str) -> np.random.Generator:
    """The noise of one update: the same whenever it is sent, as the mean of several would tell what they hide."""
    return np.random.default_rng(int(hashlib.sha256(f"{secret} {policy} {update_id}".encode()).hexdigest(), 16))


def _news(outcome: RoundOutcome) -> Iterator[str]:
    """What else is known of a round that is over: another rule, refusals, excluded clients, what was distilled."""
    record = outcome.record
    if record is None:
        return
    report = record.report
    if report is not None and report.reason:
        yield f"by {report.used} instead of {report.asked}, because {report.reason}"
    for refusal in record.refusals[:MOST_TOLD]:
        yield f"client {refusal.client} was refused ({refusal.reason})"
    if excluded := [f"{one.client} until round {one.until}" for one in record.excluded]:
        yield f"excluded: {', '.join(excluded)}"
    if report is not None and report.distilled is not None:
        yield str(report.distilled)


def _row(outcome: RoundOutcome, policy: str) -> dict[str, float]:
    prefix = f"fed/{policy}/" if policy else "fed/"
    row = {"round": float(outcome.round), "took_part": float(outcome.took_part), **outcome.figures}
    record = outcome.record
    if record is not None:
        row["clients"] = float(len(record.participants))
        row["refused"] = float(sum(record.refused.values()))
        if record.report is not None:
            row["variance"] = record.report.variance
            if record.report.drift is not None:
                row["drift_l2"] = record.report.drift
            if (distilled := record.report.distilled) is not None:
                row["distilled"] = float(distilled.chosen == DISTILLED)
                row |= {f"{name}_return": score for name, score in distilled.scores.items() if score is not None}
    return {prefix + name: value for name, value in row.items()}


def _mean_returns(outcome: RoundOutcome) -> list[float]:
    participants = () if outcome.record is None else outcome.record.participants
    return [one.facts["mean_return"] for one in participants if "mean_return" in one.facts]
