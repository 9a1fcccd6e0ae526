"""Processes on the nodes of a Ray cluster: replicas of a federation, and runs of a sweep.

An actor starts, on some node, the process that would be started here; folders must be the same files on every node.
Where an actor is lost, with its node or without, its process ends too, and its supervisor starts it again from its last
checkpoint.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from slipstream.runtime.process import CLOSE_S, Ended, launch_here

LOST = Ended(-signal.SIGKILL)  # of one whose actor is gone


class NodeProcess:
    """Keeps a process on its node."""

    def __init__(self, folder: str, module: str, words: Sequence[str], log: str, variables: Mapping[str, str]) -> None:
        os.chdir(folder)  # words may name files as the person who typed them sees them
        self._process = launch_here(module, words, Path(log), variables)

    @ray.method(concurrency_group="waiting")  # type: ignore[untyped-decorator]  # the others do not queue behind it
    def wait(self) -> Ended:
        """How it ended, once it has."""
        self._process.is_over(None)
        return self._process.ended()

    def stop(self) -> None:
        """Ask it to end."""
        self._process.stop()

    def kill(self) -> None:
        """End it."""
        self._process.kill()


ACTOR: Any = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, concurrency_groups={"waiting": 1})(NodeProcess)


class OnNode:
    """A process on some node; satisfies `Running`."""

    def __init__(self, module: str, words: Sequence[str], log: Path, variables: Mapping[str, str]) -> None:
        anywhere = ACTOR.options(scheduling_strategy="SPREAD")
        self._actor = anywhere.remote(os.getcwd(), module, list(words), str(log), dict(variables))
        self._waiting = self._actor.wait.remote()
        self._ended: Ended | None = None

    def is_over(self, timeout_s: float | None = 0.0) -> bool:
        """Whether it has ended."""
        if self._ended is None:
            if not ray.wait([self._waiting], timeout=timeout_s)[0]:
                return False
            try:
                self._ended = Ended(*ray.get(self._waiting))
            except RayError:
                self._ended = LOST
            self.close()
        return True

    def ended(self) -> Ended:
        """How it ended."""
        return self._ended or Ended()

    def stop(self) -> None:
        """Ask it to end."""
        self._actor.stop.remote()

    def kill(self) -> None:
        """End it."""
        self._actor.kill.remote()
        self.is_over(CLOSE_S)
        self.close()

    def close(self) -> None:
        """Give the actor up."""
        with suppress(RayError):
            ray.kill(self._actor)


def launch_on_node(module: str, words: Sequence[str], log: Path, variables: Mapping[str, str]) -> OnNode:
    """Start a process on some node, as soon as one has a CPU for it; satisfies `Launch`."""
    return OnNode(module, words, log, variables)
