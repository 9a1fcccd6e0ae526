"""Evaluation on nodes: actors that each play a part of every evaluation's episodes, and never train.

Episode k is the same whoever plays it, so the parts side by side are the evaluation that the run itself would have
played. Where an actor is lost, or a node that does not answer, the run plays that part, and another actor is begun.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayError

from slipstream import __version__
from slipstream.collect.episodes import Episodes, play
from slipstream.collect.memory import Arrays, shares
from slipstream.collect.pool import Tell
from slipstream.collect.slab import under
from slipstream.config.load import from_plain, override, to_plain
from slipstream.config.scenario import Scenario
from slipstream.errors import ScenarioError
from slipstream.run.evaluation import EpisodeRange
from slipstream.run.saved_cast import against
from slipstream.run.setup import make_cast, make_evaluation_worlds
from slipstream.run.worker_process import settle

PLACE_S = 120.0  # in which a cluster that is large enough has begun all of them
LOOK_S = 2.0  # between questions whether somebody is alive


class Judge:
    """Worlds and policies of a scenario on a node."""

    def __init__(self, scenario: str, episodes: int, version: str) -> None:
        if version != __version__:
            raise ScenarioError(f"this node has Slipstream {__version__}, and the run {version}; install the same")
        settle()
        self._scenario = from_plain(json.loads(scenario))
        log = self._scenario.log.log_trajectories
        self._worlds = make_evaluation_worlds(self._scenario, episodes, reward_parts=log)
        self._cast = make_cast(self._scenario, self._worlds.spec)
        self._teams = against(self._scenario, self._worlds.spec, self._cast.teams)

    def play(self, weights: Arrays, part: EpisodeRange) -> Episodes:
        """Play these episodes with these weights."""
        for name, learner in self._cast.learners.items():
            learner.load_state_dict(under(weights, f"learner.{name}."), strict=False, include_optim=False)
        for name, selves in self._cast.past.items():
            selves.act_as(under(weights, f"past.{name}."))
        self._worlds.phases = [part.phase] * self._worlds.num_worlds
        seed = self._scenario.evaluate.seed
        return play(self._worlds, self._teams, part.episodes, seed, part.first, part.record)

    @ray.method(concurrency_group="signs")  # type: ignore[untyped-decorator]  # does not queue behind play
    def is_there(self) -> bool:
        """It is."""
        return True


ACTOR: Any = ray.remote(
    num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD", concurrency_groups={"signs": 1}
)(Judge)


class JudgesOnNodes:
    """So many of them on the cluster this process has joined; satisfies `train.evaluation.Judges`."""

    def __init__(self, count: int, scenario: Scenario, tell: Tell) -> None:
        self._tell, self._deadline_s = tell, scenario.collect.deadline_s
        self._parts = [part for part in shares(scenario.evaluate.evaluation_duration, count) if len(part)]
        self._scenario = json.dumps(to_plain(override(scenario, {"device": "cpu"})))
        self._actors = [self._begin(len(part)) for part in self._parts]
        self._beginning: dict[int, Any] = {}  # those that took somebody's place: what they say when they are there
        if len(ray.wait([actor.is_there.remote() for actor in self._actors], num_returns=len(self._actors),
                        timeout=PLACE_S)[0]) < len(self._actors):  # fmt: skip
            free = ray.available_resources().get("CPU", 0)
            self.close()
            raise ScenarioError(
                f"--ray.evaluators: {len(self._parts)} evaluators need a CPU each, beside the workers', and the "
                f"cluster has {free:g} that are free; ask for fewer, or add nodes"
            )

    def play(self, weights: Arrays, whole: EpisodeRange) -> Sequence[tuple[EpisodeRange, Episodes | None]]:
        """The parts of an evaluation in order; None of one whose player was lost."""
        stored = ray.put(weights)
        parts = [_part(whole, share) for share in self._parts]
        asked: list[Any] = [None] * len(parts)
        for i, part in enumerate(parts):
            if self._has_begun(i):
                asked[i] = self._actors[i].play.remote(stored, part)
        return [(part, self._result(i, asked[i])) for i, part in enumerate(parts)]

    def close(self) -> None:
        """End them."""
        for actor in self._actors:
            with suppress(Exception):  # it may be gone, or Ray
                ray.kill(actor)

    def _begin(self, episodes: int) -> Any:
        return ACTOR.remote(self._scenario, episodes, __version__)

    def _has_begun(self, judge: int) -> bool:
        """Whether it can play; one that took a lost one's place needs seconds to begin, and nobody waits for it."""
        if judge in self._beginning and ray.wait([self._beginning[judge]], timeout=0)[0]:
            del self._beginning[judge]
        return judge not in self._beginning

    def _result(self, judge: int, asked: Any) -> Episodes | None:
        """What it has played, as long as it says that it is there."""
        if asked is None:
            return None
        said_at, sign = monotonic(), self._actors[judge].is_there.remote()
        try:
            while not ray.wait([asked], timeout=LOOK_S)[0]:
                if ray.wait([sign], timeout=0)[0]:
                    ray.get(sign)
                    said_at, sign = monotonic(), self._actors[judge].is_there.remote()
                elif monotonic() - said_at > self._deadline_s:
                    raise TimeoutError(f"said nothing for {self._deadline_s:g} s")
            episodes: Episodes = ray.get(asked)
            return episodes
        except ray.exceptions.RayTaskError:
            raise  # our own code failed there: it would fail here
        except (RayError, TimeoutError) as error:
            why = type(error).__name__
            self._tell(
                "evaluator_lost", f"evaluator {judge} was lost ({why}): its episodes are played here", evaluator=judge
            )
            with suppress(Exception):
                ray.kill(self._actors[judge])
            self._actors[judge] = self._begin(len(self._parts[judge]))
            self._beginning[judge] = self._actors[judge].is_there.remote()
            return None


def _part(whole: EpisodeRange, share: range) -> EpisodeRange:
    record = max(0, min(len(share), whole.record - share.start))
    return EpisodeRange(whole.first + share.start, len(share), record, whole.phase)
