"""Peers of one test: free ports, threads for those who live, processes for those who die."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from slipstream.types import Arrays

TOKEN = "a token of this test"
LIMIT_S = 100.0  # no test of peers may take longer, whatever happens


def free_addresses(count: int) -> dict[str, str]:
    """Addresses of peers c0, c1, ... on ports that were free a moment ago."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = {f"c{index}": f"tcp://127.0.0.1:{server.getsockname()[1]}" for index, server in enumerate(servers)}
    for server in servers:
        server.close()
    return addresses


def some_arrays(seed: int) -> Arrays:
    """Arrays as a policy has them: two float types, a shape that no number of peers divides, and a counter."""
    rng = np.random.default_rng(seed)
    return {
        "weight": rng.normal(size=(31, 7)).astype(np.float32),
        "bias": rng.normal(size=3),
        "scalar": np.float32(rng.normal()).reshape(()),
        "steps": np.array([seed * 10, 5], np.int64),
    }


def floats(arrays: Arrays) -> Arrays:
    """Without counters, which no mean is taken of."""
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def at_once(work: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Do everything at the same time, each in a thread; what fails is raised here."""
    results: dict[str, Any] = {}
    errors: list[BaseException] = []

    def do(name: str, call: Callable[[], Any]) -> None:
        try:
            results[name] = call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=do, args=item, daemon=True) for item in work.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LIMIT_S
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    assert not any(thread.is_alive() for thread in threads), "somebody still waits after every deadline"
    if errors:
        raise errors[0]
    return results


def in_processes(
    target: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]], silent: str = ""
) -> dict[str, Any]:
    """What each process sent back, once all were ready; those that died are not among them, and none is left behind.

    `target` is given its end of a pipe first. It sends one thing when it is ready, waits for one, and sends its result.
    `silent` is not waited for.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "slipstream.federate.ring", "slipstream.federate.gossip"])
    pipes, processes = {}, {}
    results: dict[str, Any] = {}
    deadline = time.monotonic() + LIMIT_S
    try:
        for name, args in arguments.items():
            pipes[name], end = context.Pipe()
            processes[name] = context.Process(target=target, args=(end, name, *args), daemon=True)
            processes[name].start()
            end.close()
        for pipe in pipes.values():
            assert pipe.poll(max(deadline - time.monotonic(), 0.0)), "a process did not start"
            pipe.recv()
        for pipe in pipes.values():
            pipe.send("go")
        for name in pipes.keys() - {silent}:
            with contextlib.suppress(EOFError, ConnectionResetError):  # it died, as it was meant to
                if pipes[name].poll(max(deadline - time.monotonic(), 0.0)):
                    results[name] = pipes[name].recv()
    finally:
        for process in processes.values():
            process.kill()
            process.join()
            process.close()
        for pipe in pipes.values():
            pipe.close()
    return results
