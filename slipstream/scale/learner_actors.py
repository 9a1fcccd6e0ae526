"""Learners in step as Ray actors: the code of a learner on this machine, on any node of a cluster."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import ray
from ray.exceptions import GetTimeoutError, RayError

from slipstream import __version__
from slipstream.config.records import from_json
from slipstream.errors import ScenarioError
from slipstream.run.data_parallel import CLOSE_S, LearnerJob, follow


class Learner:
    """A learner on a node."""

    def live(self, payload: bytes, version: str) -> None:
        """Do what the leader does until the end."""
        if version != __version__:
            raise ScenarioError(f"this node has Slipstream {__version__}, and the run {version}; install the same")
        follow(from_json(payload, LearnerJob), here=ray.util.get_node_ip_address())


ACTOR: Any = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(Learner)


class LearnerOnNode:
    """An actor as the leader sees it."""

    def __init__(self, job: LearnerJob) -> None:
        self._actor = ACTOR.remote()
        self._life = self._actor.live.remote(msgspec.json.encode(job), __version__)

    def why_ended(self) -> str | None:
        """How it ended, with its traceback."""
        try:
            ray.get(self._life, timeout=CLOSE_S)
        except GetTimeoutError:
            return None
        except RayError as error:
            return f"was lost: {error}"
        return "ended"

    def close(self) -> None:
        """Let it end, or end it."""
        with suppress(RayError):
            ray.get(self._life, timeout=CLOSE_S)
        with suppress(Exception):  # it may be gone, or Ray
            ray.kill(self._actor)
