"""Learners in step as Ray actors: the code of a learner on this machine, on any node of a cluster."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from slipstream import __version__
from slipstream.config.records import from_json
from slipstream.errors import ScenarioError
from slipstream.run.data_parallel import LearnerJob, follow
from slipstream.runtime.process import Ended


class Learner:
    """A learner on a node."""

    def live(self, payload: bytes, version: str) -> None:
        """Do what the leader does until the end."""
        if version != __version__:
            raise ScenarioError(f"this node has Slipstream {__version__}, and the run {version}; install the same")
        follow(from_json(payload, LearnerJob), here=ray.util.get_node_ip_address())


ACTOR: Any = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(Learner)


class LearnerOnNode:
    """An actor as the leader sees it; satisfies `Running`."""

    def __init__(self, job: LearnerJob) -> None:
        self._actor = ACTOR.remote()
        self._life = self._actor.live.remote(msgspec.json.encode(job), __version__)

    def is_over(self, timeout_s: float | None = 0.0) -> bool:
        """Whether it has ended."""
        return bool(ray.wait([self._life], timeout=timeout_s)[0])

    def ended(self) -> Ended:
        """How it ended, with its traceback."""
        try:
            ray.get(self._life, timeout=0.0)
        except RayError as error:
            return Ended(reason=f"was lost: {error}")
        return Ended()

    def stop(self) -> None:
        """The leader has told it to end: it does so after what it is doing."""

    def kill(self) -> None:
        """End it."""
        with suppress(Exception):  # it may be gone, or Ray
            ray.kill(self._actor)

    def close(self) -> None:
        """Give the actor up."""
        self.kill()
