"""Evaluators on other machines: each plays a part of every evaluation's episodes, and never trains.

Episode k is the same whoever plays it, so the parts side by side are the evaluation that the run itself would have
played. Where an evaluator is lost, or does not answer, the run plays that part, and another evaluator is begun.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future, wait
from time import monotonic

import msgspec

from slipstream.collect.episodes import Episodes, play
from slipstream.collect.memory import shares
from slipstream.collect.pool import Tell
from slipstream.collect.slab import under
from slipstream.config.load import from_plain, override, to_plain
from slipstream.config.scenario import Scenario
from slipstream.errors import ScenarioError
from slipstream.run.parts.evaluation import EpisodeRange
from slipstream.run.saved_cast import against
from slipstream.run.setup import Cast, make_cast, make_evaluation_worlds
from slipstream.runtime.place import Cluster, RemoteHandle, RemoteLostError, Reservation
from slipstream.runtime.process import START_S
from slipstream.types import Arrays

LOOK_S = 2.0  # between questions whether an evaluator is alive


class EvaluatorJob(msgspec.Struct, frozen=True):
    """All that an evaluator is told when it begins."""

    scenario: str  # JSON
    episodes: int  # at most, at a time


class RemoteEvaluator:
    """Worlds and policies of a scenario on a node; satisfies `RemoteObject`."""

    def __init__(self, job: EvaluatorJob) -> None:
        self._scenario = from_plain(json.loads(job.scenario))
        log = self._scenario.log.log_trajectories
        self._worlds = make_evaluation_worlds(self._scenario, job.episodes, reward_parts=log)
        self._cast = make_cast(self._scenario, self._worlds.spec)
        self._teams = against(self._scenario, self._worlds.spec, self._cast.teams)

    def call(self, request: EpisodeRange, arrays: Arrays | None) -> Episodes:
        """Play these episodes with these weights."""
        assert arrays is not None
        for name, learner in self._cast.learners.items():
            learner.load_state_dict(under(arrays, f"learner.{name}."), strict=False, include_optim=False)
        for name, selves in self._cast.past.items():
            selves.act_as(under(arrays, f"past.{name}."))
        self._worlds.phases = [request.phase] * self._worlds.num_worlds
        seed = self._scenario.evaluate.seed
        return play(self._worlds, self._teams, request.episodes, seed, request.first, request.record)

    def progress(self) -> tuple[str, int]:
        """It is there."""
        return "playing", 0


class RemoteEvaluators:
    """The run's side: who plays which episodes."""

    def __init__(self, cluster: Cluster, scenario: Scenario, cast: Cast, tell: Tell) -> None:
        self._cluster, self._cast, self._tell = cluster, cast, tell
        self._deadline_s = scenario.collect.deadline_s
        count = cluster.evaluators
        self._shares = [share for share in shares(scenario.evaluate.evaluation_duration, count) if len(share)]
        self._scenario = json.dumps(to_plain(override(scenario, {"device": "cpu"})))
        rooms = cluster.reserve(len(self._shares))
        if rooms is None:
            raise ScenarioError(
                f"--ray.evaluators: {len(self._shares)} evaluators need a CPU each, beside the workers', and the "
                f"cluster has {cluster.free_cpus():g} that are free; ask for fewer, or add nodes"
            )
        self._rooms: Reservation = rooms
        self._remote = [self._begin(index) for index in range(len(self._shares))]
        self._beginning: dict[int, Future[tuple[str, int]]] = {}  # those that replace others: done when they are there
        if wait([remote.progress() for remote in self._remote], timeout=START_S).not_done:
            self.close()
            raise ScenarioError(f"--ray.evaluators: not all evaluators have begun within {START_S:g} s")

    def play(self, whole: EpisodeRange) -> Sequence[tuple[EpisodeRange, Episodes | None]]:
        """The parts of an evaluation in order; None of one whose evaluator was lost."""
        weights = self._cluster.share(_acting_weights(self._cast))
        parts = [_part(whole, share) for share in self._shares]
        asked = [
            self._remote[index].call(part, weights) if self._has_begun(index) else None
            for index, part in enumerate(parts)
        ]
        return [(part, self._result(index, asked[index])) for index, part in enumerate(parts)]

    def close(self) -> None:
        """End them."""
        for remote in self._remote:
            remote.close()
        self._rooms.close()

    def _begin(self, index: int) -> RemoteHandle:
        return self._rooms.start(index, RemoteEvaluator, EvaluatorJob(self._scenario, len(self._shares[index])))

    def _has_begun(self, index: int) -> bool:
        """Whether it can play; one that replaces another needs seconds to begin, and nobody waits for it."""
        if index in self._beginning and self._beginning[index].done():
            del self._beginning[index]
        return index not in self._beginning

    def _result(self, index: int, asked: Future[Episodes] | None) -> Episodes | None:
        """What it has played, as long as it says that it is there."""
        if asked is None:
            return None
        said_at, sign = monotonic(), self._remote[index].progress()
        try:
            while wait([asked], timeout=LOOK_S).not_done:
                if sign.done():
                    sign.result()
                    said_at, sign = monotonic(), self._remote[index].progress()
                elif monotonic() - said_at > self._deadline_s:
                    raise TimeoutError(f"said nothing for {self._deadline_s:g} s")
            return asked.result()
        except (
            RemoteLostError,
            TimeoutError,
        ) as error:  # an error of our own code would come again here, and is raised
            self._tell("evaluator_lost", f"evaluator {index} {error}: its episodes are played here", evaluator=index)
            self._remote[index].close()
            self._remote[index] = self._begin(index)
            self._beginning[index] = self._remote[index].progress()
            return None


def _part(whole: EpisodeRange, share: range) -> EpisodeRange:
    record = max(0, min(len(share), whole.record - share.start))
    return EpisodeRange(whole.first + share.start, len(share), record, whole.phase)


def _acting_weights(cast: Cast) -> Arrays:
    """Everything that acts in an evaluation, and changes; more than acts while exploring, as averaged weights do."""
    weights: Arrays = {}
    for name, learner in cast.learners.items():
        state = learner.state_dict(include_optim=False)
        weights |= {f"learner.{name}.{key}": array for key, array in state.items()}
    for name, selves in cast.past.items():
        weights |= {f"past.{name}.{key}": array for key, array in selves.acting_arrays().items()}
    return weights
