"""Processes on the nodes of a Ray cluster: replicas of a federation, and runs of a sweep.

An actor starts, on some node, the process that would be started here; folders must be the same files on every node.
Where an actor is lost, with its node or without, its process ends too, and whoever supervises it begins it again from
its last checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from slipstream.run.replicas import begin_process, log_of, words_of
from slipstream.scale.pool import RunOrder

LOST = -signal.SIGKILL  # exit code of one whose actor is gone


class Child:
    """Keeps a process on its node."""

    def __init__(self, folder: str, words: Sequence[str], log: str, variables: Mapping[str, str]) -> None:
        os.chdir(folder)  # words may name files as the person who typed them sees them
        self._process = begin_process(words, Path(log), variables)

    @ray.method(concurrency_group="waiting")  # type: ignore[untyped-decorator]  # signals do not queue behind it
    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait()

    def send_signal(self, number: int) -> None:
        """Ask it something."""
        self._process.send_signal(number)


CHILD: Any = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, concurrency_groups={"waiting": 1})(Child)


class OnNode:
    """A process on some node; satisfies `Running`."""

    def __init__(self, words: Sequence[str], log: Path, variables: Mapping[str, str]) -> None:
        anywhere = CHILD.options(scheduling_strategy="SPREAD")
        self._actor = anywhere.remote(os.getcwd(), list(words), str(log), dict(variables))
        self._ended = self._actor.wait.remote()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not ray.wait([self._ended], timeout=timeout)[0]:
                raise subprocess.TimeoutExpired("a process on a node", timeout or 0.0)
            try:
                self.returncode = int(ray.get(self._ended))
            except RayError:
                self.returncode = LOST
            self._let_go()
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Ask it something; who is gone hears nothing."""
        self._actor.send_signal.remote(int(sig))

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.wait(5.0)
        self._let_go()

    def _let_go(self) -> None:
        with suppress(RayError):
            ray.kill(self._actor)


def replica_on_node(root: Path, name: str, verb: Sequence[str], variables: Mapping[str, str]) -> OnNode:
    """Begin `slipstream VERB` on some node; satisfies `Spawn`."""
    return OnNode(words_of(verb), log_of(root, name), variables)


class Nodes:
    """Where runs of a sweep begin; satisfies `Nest`."""

    def begin(self, order: RunOrder, log: Path) -> OnNode:
        """A run on some node, as soon as one has a CPU for it."""
        return OnNode(["-m", "slipstream.scale.trial", msgspec.json.encode(order).decode()], log, {})

    def close(self) -> None:
        """Nodes stay."""
