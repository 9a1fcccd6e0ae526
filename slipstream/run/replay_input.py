"""Learning from a replay: slabs are added to it, and the learner is given draws from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from slipstream.algos.dqn import Dqn
from slipstream.algos.protocol import Algorithm, Arrays, Progress, ReplayAlgorithm, Stats
from slipstream.collect.merge import block_of
from slipstream.collect.slab import under
from slipstream.config.algos.offpolicy import ReplayLearnerConfig
from slipstream.config.algos.schedule import schedule_at
from slipstream.config.scenario import Scenario, shared_policies
from slipstream.data import checkpoint
from slipstream.data.arrays_file import content_hash, not_finite
from slipstream.data.chain import Chain
from slipstream.data.dataset_file import load_dataset
from slipstream.data.rollout import Rollout, allocate_rollout
from slipstream.data.transitions import Sample, Transitions, to_fields
from slipstream.errors import CheckpointError
from slipstream.federate.dpsgd import PrivateGradients
from slipstream.federate.privacy import Privacy, PrivacyReport
from slipstream.replay.buffer import Prioritised, Replay, ReplayStore
from slipstream.replay.client import ClientSettings, ServedReplay
from slipstream.replay.limiter import Limit
from slipstream.replay.process import OwnService, ReplayHost, read_token
from slipstream.run import folder as run_folder
from slipstream.run.learner_input import Feed, read_by_learners
from slipstream.run.parts.quarantine import Quarantine
from slipstream.spec import WorldSpec


class FollowedWeights:
    """A run that learns, whose weights another one acts with."""

    def __init__(self, run: Path, policy: str) -> None:
        self._checkpoints, self._policy = run / run_folder.CHECKPOINTS_FOLDER, policy
        self._last: Path | None = None

    def newer(self) -> Arrays | None:
        """The policy's state in the newest checkpoint; None where there is none that was not told of yet."""
        newest = next(iter(checkpoint.list_checkpoints(self._checkpoints)), None)
        if newest is None or newest == self._last:
            return None
        try:
            saved = checkpoint.load(newest)
        except CheckpointError:  # it was deleted for a newer one just now
            return None
        self._last = newest
        return under(saved.arrays, f"policy.{self._policy}.")


class ReplayFeed(Feed):
    """Adds each slab's finished decisions to a replay and gives the learner draws from it."""

    def __init__(
        self,
        learner: ReplayAlgorithm,
        config: ReplayLearnerConfig,
        replay: ReplayStore,
        chain: Chain | None,
        slab_steps: int,
        quarantine: Quarantine,
        dataset: str = "",
        own: ReplayHost | None = None,
        private: PrivateGradients | None = None,
        followed: FollowedWeights | None = None,
    ) -> None:
        """`chain` None: the replay is a dataset with this hash, or others', and nothing is added; `slab_steps` of all.

        `own` is a service that keeps the replay for this feed alone; `private` draws where single rows are hidden;
        `followed` has the weights of a run that learns, where this one only adds.
        """
        self._learner, self._config, self._chain, self._slab_steps = learner, config, chain, slab_steps
        self._quarantine = quarantine
        self._dataset = np.frombuffer(bytes.fromhex(dataset), np.uint8)
        self._store = replay
        self._served = replay if isinstance(replay, ServedReplay) else None
        self._own, self._private, self._followed = own, private, followed
        self._draws = 0
        self._owed = 0.0  # gradient steps, by the training intensity

    @property
    def replay(self) -> ReplayStore:
        """The rows it draws from."""
        return self._store

    def learn(self, rollout: Rollout | None, progress: Progress, blocks: Sequence[int] = ()) -> Stats:
        """Add what is new, then take the gradient steps that the steps of the worlds have earned.

        A slab with something that is not finite is set aside whole, with the spans that reach into it; the world goes
        on, but its steps earn no gradient steps.
        """
        rows, is_warm = 0, True
        if self._chain is not None and rollout is not None:
            arrays = read_by_learners(rollout)
            if names := not_finite(arrays):
                self._chain.forget()
                return self._quarantine.keep(arrays, names, progress)
            for new in _chained(self._chain, rollout, blocks):
                self._learner.observe(new)
                self._store.add(new)
                rows += len(new)
            if self._served is not None and (means := rollout.reward_means):
                self._served.report(means["r_total"])
            is_warm = progress.steps >= self._config.learning_starts
        role = self._config.replay.role
        if self._followed is not None and (weights := self._followed.newer()) is not None:
            self._learner.load_state_dict(weights, include_optim=False)
        is_due = is_warm and role != "add" and (role == "draw" or len(self._store) > 0)
        due = self._earn() if is_due else 0
        stats, last = self._descend(due, progress)
        size = {"rows": float(rows), "replay_size": float(len(self._store)), **self._telemetry()}
        return size | self._quarantine.judge(stats, last, progress)

    def _telemetry(self) -> Stats:
        """How full the replay is and how often rows are drawn; of a service also the waits and who is drawn from."""
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
        """Gradient steps due after a slab; what is left of one is owed."""
        self._owed += self._config.training_intensity * self._slab_steps
        due = int(self._owed)
        self._owed -= due
        return due

    def _descend(self, steps: int, progress: Progress) -> tuple[Stats, Arrays]:
        """Gradient steps, up to the first whose gradient is not finite; their mean stats and the last batch."""
        replay, config = self._store, self._config
        prioritised = config.replay.prioritised
        beta = 1.0 if prioritised is None else schedule_at(prioritised.beta, progress.fraction)
        said: dict[str, list[float | Tensor]] = {}
        batch: Arrays = {}
        for _ in range(steps):
            sample = self._draw(beta)
            self._draws += 1
            learned = self._learner.update(sample, progress)
            batch = to_fields(sample.rows)
            for name, value in learned.stats.items():
                said.setdefault(name, []).append(value)
            if not np.isfinite(learned.stats["grad_norm"]):
                break
            if prioritised is not None:
                replay.update_priorities(sample.index, learned.td_error.cpu().numpy())
        return dict(_means(said)) | ({"gradient_steps": float(steps)} if steps else {}), batch

    def _draw(self, beta: float) -> Sample:
        if self._private is None:
            return self._store.sample(self._config.batch_size, self._draws, beta)
        assert isinstance(self._store, Replay)
        return self._store.pick(self._private.draw(len(self._store)))

    def spent(self) -> PrivacyReport | None:
        """What the gradient steps so far have told of any one row; None where none is hidden."""
        return None if self._private is None or not self._private.steps else self._private.spent()

    def restart(self) -> None:
        """Forget spans that wait for the rest of an episode that was broken off."""
        if self._chain is not None:
            self._chain.forget()

    def state_arrays(self) -> Arrays:
        """Counters, unfinished spans, the replay's cursor and priorities; its rows are saved apart."""
        state: Arrays = {"draws": np.array(self._draws, np.int64), "owed": np.array(self._owed, np.float64)}
        state |= {f"replay.{name}": array for name, array in self._store.state_arrays().items()}
        if self._private is not None:
            state["private"] = np.array([self._private.steps, self._private.q], np.float64)
        if self._chain is None:
            state["dataset"] = self._dataset
        else:
            state |= {f"chain.{name}": array for name, array in self._chain.state_arrays().items()}
        return state

    def load_state(self, state: Arrays, is_exact: bool) -> None:
        """Go on; the replay's rows must follow. Spans that worlds could not be saved in the middle of are dropped."""
        if self._chain is None and not np.array_equal(state["dataset"], self._dataset):
            raise CheckpointError(
                f"{self._config.replay.dataset}: this is not the dataset this run has learned from; put that one back, "
                "or train anew"
            )
        self._draws, self._owed = int(state["draws"]), float(state["owed"])
        self._store.load_state(under(state, "replay."))
        if self._private is not None:
            self._private.steps, self._private.q = int(state["private"][0]), float(state["private"][1])
        if self._chain is not None and is_exact:
            self._chain.load_state(under(state, "chain."))

    def events(self) -> list[dict[str, Any]]:
        """Connections lost and made again."""
        if self._served is None:
            return []
        events, self._served.events = self._served.events, []
        return events

    def close(self) -> None:
        """Hang up, and end a service of one's own."""
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
    make_service: Callable[[], ReplayHost] | None,
) -> ReplayFeed:
    """The feed of an algorithm that learns from a replay: in memory, in a service, or a dataset."""
    seed = (scenario.seed * 1_000_003 + list(scenario.policies).index(policy)) % 2**63
    actor, settings = learner.actor_spec(), config.replay
    by_priority = settings.prioritised
    prioritised = None if by_priority is None else Prioritised(by_priority.alpha, by_priority.eps)
    worlds, choices = scenario.collect.num_worlds, actor.outputs if spec.masked and actor.discrete else 0
    like = allocate_rollout(spec, scenario.collect.rollout_length, worlds, agents, actor.discrete, choices)
    chain = Chain(like, config.gamma, settings.n_step)
    if settings.kind == "service":
        own = (make_service or OwnService)() if settings.address is None else None
        served = _served(scenario, policy, config, chain.empty, seed, prioritised, spec, own)
        adds = chain if settings.collects else None
        followed = None if settings.weights is None else FollowedWeights(Path(settings.weights), policy)
        return ReplayFeed(learner, config, served, adds, scenario.rollout_steps, quarantine, own=own, followed=followed)  # type: ignore[arg-type]
    private = _private(scenario, policy, learner, config)
    if settings.dataset is None:
        replay = Replay(chain.empty, settings.capacity, seed, prioritised)
        return ReplayFeed(learner, config, replay, chain, scenario.rollout_steps, quarantine, private=private)  # type: ignore[arg-type]
    rows = load_dataset(settings.dataset, spec, actor.discrete, config.gamma)
    replay = Replay(chain.empty, len(rows), seed, prioritised)
    replay.add(rows)
    learner.observe(rows)  # type: ignore[attr-defined]  # the statistics of all there is, once
    dataset, steps = content_hash(to_fields(rows)), scenario.rollout_steps
    return ReplayFeed(learner, config, replay, None, steps, quarantine, dataset, private=private)  # type: ignore[arg-type]


def _private(
    scenario: Scenario, policy: str, learner: Algorithm, config: ReplayLearnerConfig
) -> PrivateGradients | None:
    """Noised gradients for the learner, where the scenario hides single rows of a policy that is shared."""
    asked = scenario.federated.dp_sgd
    if asked is None or policy not in shared_policies(scenario):
        return None
    assert isinstance(learner, Dqn)  # others were refused
    weights = dict(learner.actor.named_parameters())
    private = PrivateGradients(weights, config.activation, Privacy(**asked.model_dump()), config.batch_size)
    learner.hide_rows(private)
    return private


def _chained(chain: Chain, rollout: Rollout, blocks: Sequence[int]) -> Iterator[Transitions]:
    """What a slab finishes: of all worlds at once, or block by block, where any may be there twice or not at all."""
    if not blocks:
        yield chain.extend(rollout)
    size = rollout.shape[1] // max(1, len(blocks))
    for place, first in enumerate(blocks):
        yield chain.extend_block(block_of(rollout, place * size, size), first)


def _served(
    scenario: Scenario,
    policy: str,
    config: ReplayLearnerConfig,
    like: Transitions,
    seed: int,
    prioritised: Prioritised | None,
    spec: WorldSpec,
    own: ReplayHost | None,
) -> ServedReplay:
    """An empty lane of a replay service; what an earlier run under the same name has left there is forgotten."""
    settings = config.replay
    sharing, limit = settings.sharing, settings.sharing.limit
    token = read_token(None if sharing.token_file is None else Path(sharing.token_file))
    service = ClientSettings(
        address=settings.address or "",
        table=sharing.table or f"{spec.name}/{policy}",
        client=sharing.client or f"{scenario.name}.{scenario.seed}{'.draw' if settings.role == 'draw' else ''}",
        agent=policy,
        token=own.token if own is not None else token,
        mixing=sharing.mixing,
        strength=sharing.follow_performance,
        weight=sharing.weight,
        limit=Limit(limit.min_size, limit.samples_per_insert, limit.tolerance),
        meaning=f"gamma {config.gamma!r}, spans of {settings.n_step}",
        timeout_s=sharing.timeout_s,
    )
    revive = None if own is None else own.revive
    try:
        served = ServedReplay(like, settings.capacity, seed, prioritised, config.batch_size, service, revive)
        served.clear()
    except BaseException:
        if own is not None:
            own.close()
        raise
    return served


def _means(said: dict[str, list[float | Tensor]]) -> Iterator[tuple[str, float]]:
    for name, values in said.items():
        yield name, float(np.mean([float(value) for value in values]))
