"""A Ray cluster that a run uses: one that is there, or one of its own on this machine that nobody else can reach.

Who is let in at Ray's ports runs code on its nodes, and a cluster lets in everybody unless it was given a token. So one
of our own listens on loopback only, without a dashboard, and whatever listens elsewhere is named.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from slipstream.errors import ScenarioError

if TYPE_CHECKING:
    from slipstream.scale.ray_place import RayCluster


class Listener(NamedTuple):
    """A port that is open."""

    process: str
    address: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        found = ipaddress.ip_address(self.address)
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        return (mapped or found).is_loopback


@contextmanager
def joined(
    address: str | None, workers: int, evaluators: int = 0, say: Callable[[str], None] = lambda sentence: None
) -> Iterator[RayCluster]:
    """The cluster at `address` ("auto": the one this machine is a node of); None: one of our own, with so many CPUs."""
    # Both are read when Ray is imported. The second makes Ray take 127.0.0.1 for this node's address and bind to it,
    # which on Linux an argument of ray.init does not.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address is None:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        for package in ("psutil", "zmq", "ray"):
            import_module(package)
    except ImportError as error:
        raise ScenarioError(f"--on ray: {error.name} is not installed; pip install 'slipstream[ray]'") from None
    import ray

    try:
        if address is None:
            cpus = max(os.cpu_count() or 1, workers + evaluators)
            ray.init("local", num_cpus=cpus, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        else:
            ray.init(address, logging_level="ERROR", log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ScenarioError(
            f"--ray.address {address}: {error}; is a cluster there (ray status), with the Python and Ray of this "
            "machine?"
        ) from None
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        cpus = int(sum(node["Resources"].get("CPU", 0) for node in nodes))
        from slipstream.scale.ray_place import RayCluster

        say(_sentence(address, nodes, cpus))
        yield RayCluster(ray.util.get_node_ip_address(), len(nodes), cpus, say, evaluators)
    finally:
        ray.shutdown()


def listeners() -> list[Listener]:
    """Every port that this process and those it has started listen on."""
    import psutil

    here = psutil.Process()
    found = set()
    for process in [here, *here.children(recursive=True)]:
        try:
            for socket in process.net_connections("inet"):
                if socket.status == psutil.CONN_LISTEN:
                    found.add(Listener(process.name(), socket.laddr.ip, socket.laddr.port))
        except psutil.NoSuchProcess:
            continue
    return sorted(found)


def _asks_for_token() -> bool:
    """Whether the cluster that was joined lets in only those who have its token."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"  # Ray sets it where it finds one


def _sentence(address: str | None, nodes: list[dict[str, object]], cpus: int) -> str:
    what = "one node of our own, reached from this machine only" if address is None else f"{len(nodes)} nodes"
    said = f"ray: {what}, {cpus} CPUs"
    if address is not None:
        where = ", ".join(sorted({f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}" for node in nodes}))
        token = "for those who have its token" if _asks_for_token() else "without a password"
        said += f"; it listens {token} on {where} and other ports: keep these in a network you trust"
    beyond = [each for each in listeners() if not each.is_loopback]
    if beyond:
        said += "; here: " + ", ".join(f"{each.process} on {each.address} port {each.port}" for each in beyond)
    return said
