"""Learning from a replay: slabs are added to it, and the learner is given draws from it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from slipstream.algos.dqn import Dqn
from slipstream.algos.protocol import Algorithm, Progress, ReplayAlgorithm, Stats
from slipstream.collect.merge import block_of
from slipstream.collect.slab import under
from slipstream.config.algos.learner import schedule_at
from slipstream.config.algos.offpolicy import ReplayConfig, ReplayLearnerConfig
from slipstream.config.base import dotted
from slipstream.config.scenario import Scenario, shared_policies
from slipstream.data import checkpoint
from slipstream.data.arrays_file import content_hash, not_finite
from slipstream.data.dataset_file import load_dataset
from slipstream.data.rollout import Rollout, allocate_rollout
from slipstream.data.run_folder import CHECKPOINTS_FOLDER
from slipstream.data.transitions import Chain, Sample, Transitions, to_fields
from slipstream.errors import CheckpointError
from slipstream.federate.dpsgd import PrivateGradients
from slipstream.federate.privacy import Privacy, PrivacyReport
from slipstream.nets.actor import ActorSpec
from slipstream.replay.buffer import Prioritised, Replay, ReplayStore
from slipstream.replay.client import ServedReplay
from slipstream.replay.frames import FrameReplay, make_replay
from slipstream.replay.link import ClientSettings
from slipstream.replay.process import OwnService
from slipstream.replay.sequences import Links, Sequences, check_capacity
from slipstream.replay.sharing import Limit
from slipstream.run.learner_input import Feed, read_by_learners
from slipstream.run.parts.quarantine import Quarantine
from slipstream.runtime.address import read_token
from slipstream.runtime.place import Cluster
from slipstream.spec import WorldSpec
from slipstream.types import Arrays

if TYPE_CHECKING:
    from slipstream.replay.demonstrations import Demonstrations


class FollowedWeights:
    """The weights of another run, which this one acts with."""

    def __init__(self, run: Path, policy: str) -> None:
        self._checkpoints, self._policy = run / CHECKPOINTS_FOLDER, policy
        self._last: Path | None = None

    def newer(self) -> Arrays | None:
        """The policy's state in that run's newest checkpoint; None if it has not changed."""
        newest = next(iter(checkpoint.list_checkpoints(self._checkpoints)), None)
        if newest is None or newest == self._last:
            return None
        try:
            saved = checkpoint.load(newest)
        except CheckpointError:  # it was deleted for a newer one just now
            return None
        self._last = newest
        return under(saved.arrays, f"policy.{self._policy}.")


class InSequences(NamedTuple):
    """What a feed needs for a network with a memory."""

    links: Links  # of rows that are added
    sequences: Sequences  # that are drawn


class ReplayFeed(Feed):
    """Adds each slab's finished decisions to a replay buffer, and takes gradient steps on samples from it."""

    def __init__(
        self,
        learner: ReplayAlgorithm,
        config: ReplayLearnerConfig,
        replay: ReplayStore,
        chain: Chain | None,
        slab_steps: int,
        quarantine: Quarantine,
        dataset: str = "",
        own: OwnService | None = None,
        private: PrivateGradients | None = None,
        followed: FollowedWeights | None = None,
        memory: InSequences | None = None,
        demonstrations: Demonstrations | None = None,
    ) -> None:
        """`chain` None: nothing is added, because the replay is a dataset with the hash `dataset`, or others fill it.

        `slab_steps` are the environment steps of a slab, over all worlds. `own` is a service that keeps the replay for
        this feed alone; `private` draws the rows with DP-SGD; `followed` has the weights of a run that learns, where
        this one only adds; `memory` is for networks with one.
        """
        self._learner, self._config, self._chain, self._slab_steps = learner, config, chain, slab_steps
        self.quarantine = quarantine
        self._dataset = np.frombuffer(bytes.fromhex(dataset), np.uint8)
        self._store = replay
        self._served = replay if isinstance(replay, ServedReplay) else None
        self._own, self._private, self._followed, self._memory = own, private, followed, memory
        self._demonstrations = demonstrations
        self._draws = 0
        self._owed = 0.0  # gradient steps, by the training intensity

    @property
    def replay(self) -> ReplayStore:
        """The rows it draws from."""
        return self._store

    def learn(self, rollout: Rollout | None, progress: Progress, first_worlds: Sequence[int] = ()) -> Stats:
        """Add new transitions, then take the gradient steps that `training_intensity` asks for.

        A slab with NaN or infinity is quarantined as a whole, with the n-step spans that reach into it, and no
        gradient steps follow.
        """
        rows, is_warm = 0, True
        if self._chain is not None and rollout is not None:
            arrays = read_by_learners(rollout)
            if names := not_finite(arrays):
                self.restart()
                return self.quarantine.keep(arrays, names, progress)
            for new in _chained(self._chain, rollout, first_worlds):
                if self._memory is not None:
                    new = self._memory.links.link(new, self._chain.columns, self._chain.ended, self._store.total_added)
                self._learner.observe(new)
                self._store.add(new)
                rows += len(new)
            if self._served is not None and (means := rollout.reward_means):
                self._served.report(means["r_total"])
            is_warm = progress.steps >= self._config.learning_starts
        role = self._config.replay.role
        if self._followed is not None and (weights := self._followed.newer()) is not None:
            self._learner.load_state_dict(weights, include_optim=False)
        can_draw = role == "draw" or len(self._store if self._memory is None else self._memory.sequences) > 0
        is_due = is_warm and role != "add" and can_draw
        due = self._earn() if is_due else 0
        stats, last = self._descend(due, progress)
        size = {"rows": float(rows), "replay_size": float(len(self._store)), **self._telemetry()}
        return size | self.quarantine.check_update(stats, last, progress)

    def _telemetry(self) -> Stats:
        """Metrics: how full the replay is, samples per insert; of a service also waits and shares of clients.

        The shares are asked for now: that also sends what was held back, and waits until all that was sent is answered.
        """
        replay, served = self._store, self._served
        if self._chain is None and served is None:
            return {}
        row = {} if (spent := self.spent()) is None else {"privacy/epsilon": spent.epsilon, "privacy/q": spent.q}
        if self._chain is not None:
            row |= {
                "replay/fill": len(replay) / replay.capacity,
                "replay/sample_insert_ratio": self._draws * self._config.batch_size / max(replay.total_added, 1),
            }
        if served is not None:
            row |= {f"replay/wait_{what}_s": seconds for what, seconds in served.take_waits().items()}
            row |= {f"replay/share/{lane}": share for lane, share in served.lane_shares().items()}
        return row

    def _earn(self) -> int:
        """Gradient steps due after a slab; a remainder is kept for the next one."""
        self._owed += self._config.training_intensity * self._slab_steps
        due = int(self._owed)
        self._owed -= due
        return due

    def _descend(self, steps: int, progress: Progress) -> tuple[Stats, Arrays]:
        """Gradient steps, up to the first whose gradient is not finite; their mean stats and the last batch."""
        replay, config = self._store, self._config
        prioritised = config.replay.prioritised
        beta = 1.0 if prioritised is None else schedule_at(prioritised.beta, progress.fraction)
        stats: dict[str, list[float | Tensor]] = {}
        batch: Arrays = {}
        for _ in range(steps):
            sample = self._draw(beta, progress.fraction)
            self._draws += 1
            learned = self._learner.update(sample, progress)
            batch = to_fields(sample.rows)
            for name, value in learned.stats.items():
                stats.setdefault(name, []).append(value)
            if not np.isfinite(learned.stats["grad_norm"]):
                break
            if prioritised is not None and self._memory is not None:
                self._memory.sequences.update_priorities(sample, learned.td_error.cpu().numpy())
            elif prioritised is not None:
                own = sample.index >= 0  # recorded rows have no priority
                replay.update_priorities(sample.index[own], learned.td_error.cpu().numpy()[own])
        return dict(_means(stats)) | ({"gradient_steps": float(steps)} if steps else {}), batch

    def _draw(self, beta: float, fraction: float) -> Sample:
        """A batch; where draws are by priority, with an even one for the policy, if the learner wants that."""
        if self._private is not None:
            assert isinstance(self._store, (Replay, FrameReplay))
            return self._store.pick(self._private.draw(len(self._store)))
        even = None
        if self._config.replay.prioritised is not None and self._learner.wants_even_draw():
            even = self._sample(1.0, fraction, evenly=True)
            if self._served is not None:
                even = copy.deepcopy(even)  # the next draw writes to the same memory
        sample = self._sample(beta, fraction)
        return sample if even is None else replace(sample, even=even)

    def _sample(self, beta: float, fraction: float, evenly: bool = False) -> Sample:
        batch, number = self._config.batch_size, self._draws
        if self._demonstrations is not None:
            return self._demonstrations.draw(self._store, batch, number, beta, fraction, evenly)
        draw = self._store.sample if self._memory is None else self._memory.sequences.draw
        return draw(batch, number, beta, evenly)

    def spent(self) -> PrivacyReport | None:
        """The privacy spent by gradient steps so far; None without DP-SGD."""
        return None if self._private is None or not self._private.steps else self._private.spent()

    def restart(self) -> None:
        """Drop n-step spans and sequences of episodes that were cut off."""
        if self._chain is not None:
            self._chain.forget()
        if self._memory is not None:
            self._memory.links.forget()

    def state_arrays(self) -> Arrays:
        """Counters, unfinished n-step spans, position and priorities of the replay; its rows are saved separately."""
        state: Arrays = {"draws": np.array(self._draws, np.int64), "owed": np.array(self._owed, np.float64)}
        state |= {f"replay.{name}": array for name, array in self._store.state_arrays().items()}
        if self._private is not None:
            state["private"] = np.array([self._private.steps, self._private.q], np.float64)
        if self._demonstrations is not None:
            state["demonstrations"] = self._demonstrations.digest
        if self._chain is None:
            state["dataset"] = self._dataset
        else:
            state |= {f"chain.{name}": array for name, array in self._chain.state_arrays().items()}
        if self._memory is not None:
            state |= {f"links.{name}": array for name, array in self._memory.links.state_arrays().items()}
        return state

    def load_state(self, state: Arrays, is_exact: bool) -> None:
        """Load what `state_arrays` saved; the replay's rows follow. Without exact resume, open spans are dropped."""
        settings = self._config.replay
        if self._chain is None:
            _refuse_another(settings.dataset, self._dataset, state["dataset"])
        if self._demonstrations is not None and settings.demonstrations is not None:
            recorded = settings.demonstrations.path or settings.demonstrations.script
            _refuse_another(recorded, self._demonstrations.digest, state["demonstrations"])
        self._draws, self._owed = int(state["draws"]), float(state["owed"])
        self._store.load_state(under(state, "replay."))
        if self._private is not None:
            self._private.steps, self._private.q = int(state["private"][0]), float(state["private"][1])
        if self._memory is not None:
            self._memory.sequences.look_again()
        if self._chain is not None and is_exact:
            self._chain.load_state(under(state, "chain."))
            if self._memory is not None:
                self._memory.links.load_state(under(state, "links."))

    def events(self) -> list[dict[str, Any]]:
        """Lost and restored connections."""
        return [] if self._served is None else self._served.take_events()

    def close(self) -> None:
        """Disconnect, and end the service if it is this feed's own."""
        if self._served is not None:
            self._served.close()
        if self._own is not None:
            self._own.close()


def make_replay_feed(
    scenario: Scenario,
    policy: str,
    config: ReplayLearnerConfig,
    learner: Algorithm,
    agents: int,
    spec: WorldSpec,
    quarantine: Quarantine,
    cluster: Cluster | None,
) -> ReplayFeed:
    """The feed of an algorithm that learns from a replay: in memory, in a service, or a dataset."""
    seed = (scenario.seed * 1_000_003 + list(scenario.policies).index(policy)) % 2**63
    actor, settings = learner.actor_spec(), config.replay
    by_priority = settings.prioritised
    prioritised = None if by_priority is None else Prioritised(by_priority.alpha, by_priority.eps)
    worlds, choices = scenario.collect.num_worlds, actor.outputs if spec.masked and actor.discrete else 0
    ticks, memory = scenario.collect.rollout_length, actor.memory
    slab = allocate_rollout(spec, ticks, worlds, agents, actor.discrete, choices, memory)
    chain = Chain(slab, config.gamma, 1 if memory else settings.n_step)  # with a memory, n steps of a sequence drawn
    if settings.kind == "service":
        own = OwnService(cluster) if settings.address is None else None
        served = _served(scenario, policy, config, chain.empty, seed, prioritised, spec, own)
        adds = chain if settings.collects else None
        followed = None if settings.weights is None else FollowedWeights(Path(settings.weights), policy)
        return ReplayFeed(learner, config, served, adds, scenario.rollout_steps, quarantine, own=own, followed=followed)  # type: ignore[arg-type]
    private = _private(scenario, policy, learner, config)
    shown = None
    if settings.demonstrations is not None:
        from slipstream.run.demonstrations import load_demonstrations

        shown = load_demonstrations(scenario, policy, config, settings.demonstrations, learner, spec, chain.empty)
    if settings.dataset is None:
        assert settings.capacity is not None  # chosen by `setup.complete`
        store: Replay | FrameReplay
        if memory:
            links = _links(scenario, policy, settings, actor, worlds * agents)
            like = links.link(chain.empty, chain.columns, chain.ended, 0)
            store = Replay(like, settings.capacity, seed, prioritised)
            burn_in = actor.sequence // 2 if settings.burn_in is None else settings.burn_in
            drawn = InSequences(links, Sequences(store, burn_in))
        else:
            store, drawn = make_replay(chain.empty, settings.capacity, seed, prioritised), None
        steps = scenario.rollout_steps
        kept = {"private": private, "memory": drawn, "demonstrations": shown}
        return ReplayFeed(learner, config, store, chain, steps, quarantine, **kept)  # type: ignore[arg-type]
    rows = load_dataset(settings.dataset, spec, actor.discrete, config.gamma).rows
    replay = make_replay(chain.empty, len(rows), seed, prioritised)
    replay.add(rows)
    learner.observe(rows)  # type: ignore[attr-defined]  # the statistics of all there is, once
    dataset, steps = content_hash(to_fields(rows)), scenario.rollout_steps
    return ReplayFeed(learner, config, replay, None, steps, quarantine, dataset, private=private)  # type: ignore[arg-type]


def _refuse_another(path: str | None, here: NDArray[np.uint8], saved: NDArray[np.uint8]) -> None:
    """Refuse to go on from other recorded rows than those that a run has learned from."""
    if not np.array_equal(saved, here):
        now, before = (one.tobytes().hex() for one in (here, saved))
        raise CheckpointError(
            f"{path}: this dataset is {now:.12}, and this run has learned from {before:.12}; put that one back, or "
            "train anew"
        )


def _links(scenario: Scenario, policy: str, settings: ReplayConfig, actor: ActorSpec, columns: int) -> Links:
    """What puts rows into sequences; refused where the replay could hold none."""
    assert settings.capacity is not None  # chosen by `setup.complete`
    where = dotted((*scenario.algo_path(policy), "replay", "capacity"))
    check_capacity(settings.capacity, columns, actor.sequence, where)
    return Links(columns, actor.sequence)


def _private(
    scenario: Scenario, policy: str, learner: Algorithm, config: ReplayLearnerConfig
) -> PrivateGradients | None:
    """DP-SGD for the learner, if the scenario asks for it and the policy is shared."""
    asked = scenario.federated.dp_sgd
    if asked is None or policy not in shared_policies(scenario):
        return None
    assert isinstance(learner, Dqn)  # others were refused
    weights = dict(learner.actor.named_parameters())
    private = PrivateGradients(weights, config.activation, Privacy(**asked.model_dump()), config.batch_size)
    learner.hide_rows(private)
    return private


def _chained(chain: Chain, rollout: Rollout, first_worlds: Sequence[int]) -> Iterator[Transitions]:
    """Transitions that a slab finishes: of all worlds at once, or group by group.

    Groups of worlds come where workers collect at their own pace: then a slab may have one group twice and another not
    at all.
    """
    if not first_worlds:
        yield chain.extend(rollout)
    size = rollout.shape[1] // max(1, len(first_worlds))
    for place, first in enumerate(first_worlds):
        yield chain.extend_block(block_of(rollout, place * size, size), first)


def _served(
    scenario: Scenario,
    policy: str,
    config: ReplayLearnerConfig,
    like: Transitions,
    seed: int,
    prioritised: Prioritised | None,
    spec: WorldSpec,
    own: OwnService | None,
) -> ServedReplay:
    """An empty lane of a replay service; rows of an earlier run of the same name are dropped."""
    settings = config.replay
    sharing, limit = settings.sharing, settings.sharing.limit
    token = read_token(sharing.token_file)
    service = ClientSettings(
        address=settings.address or "",
        table=sharing.table or f"{spec.name}/{policy}",
        client=sharing.client or f"{scenario.name}.{scenario.seed}{'.draw' if settings.role == 'draw' else ''}",
        policy=policy,
        token=own.token if own is not None else token,
        mixing=sharing.mixing,
        strength=sharing.follow_performance,
        weight=sharing.weight,
        limit=Limit(limit.min_size, limit.samples_per_insert, limit.tolerance),
        meaning=f"gamma {config.gamma!r}, spans of {settings.n_step}",
        timeout_s=sharing.timeout_s,
    )
    revive = None if own is None else own.revive
    assert settings.capacity is not None  # chosen by `setup.complete`
    try:
        served = ServedReplay(like, settings.capacity, seed, prioritised, config.batch_size, service, revive)
        served.clear()
    except BaseException:
        if own is not None:
            own.close()
        raise
    return served


def _means(stats: dict[str, list[float | Tensor]]) -> Iterator[tuple[str, float]]:
    for name, values in stats.items():
        yield name, float(np.mean([float(value) for value in values]))
