"""The replay service of a run as a named Ray actor: the process of a local one, on some node, reached by TCP.

The actor only starts that process and starts it again where it died, from its snapshot. Where the node is gone, another
actor begins with an empty replay elsewhere; the client sends again what it still has, and counts what is lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from slipstream.replay.process import OwnService

START_S = 120.0  # in which a node starts a process that imports numpy
CLOSE_S = 15.0


class Host:
    """Keeps the service's process on its node."""

    def __init__(self, token: str) -> None:
        self._own = OwnService(host=ray.util.get_node_ip_address(), token=token)

    def revive(self) -> str:
        """Start it where it is not there; where it listens."""
        return self._own.revive()

    def close(self) -> None:
        """End it."""
        self._own.close()


# It needs no CPU of its own in Ray's account, so that a cluster which is full of workers has room for it.
HOST: Any = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Host)


class ServiceOnNode:
    """A service on some node of the cluster this process has joined; satisfies `ReplayHost`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.token, self._say = secrets.token_hex(32), say
        self._actor: Any = None
        self._address = ""

    def revive(self) -> str:
        """Ask its actor for it; OSError where that is gone, and the next call begins another."""
        if self._actor is None:
            name = f"slipstream-replay-{secrets.token_hex(4)}"
            self._actor = HOST.options(name=name, scheduling_strategy="SPREAD").remote(self.token)
        try:
            address: str = ray.get(self._actor.revive.remote(), timeout=START_S)
        except RayError as error:
            self._end()
            raise OSError(f"the actor that keeps the replay service is gone ({type(error).__name__})") from None
        if address != self._address:
            self._say(f"replay service at {address}, for those who know its token")
        self._address = address
        return address

    def close(self) -> None:
        """End it."""
        if self._actor is not None:
            with suppress(RayError):
                ray.get(self._actor.close.remote(), timeout=CLOSE_S)
            self._end()

    def _end(self) -> None:
        with suppress(RayError):
            ray.kill(self._actor)
        self._actor = None
