"""Where a service listens: ipc://PATH on this machine, tcp://HOST:PORT with a token."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from slipstream.errors import ScenarioError
from slipstream.runtime.platform import lock, socket_path_bytes


class Address(NamedTuple):
    """A path of a Unix socket, or a host and a port."""

    path: str | None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"ipc://{self.path}" if self.path is not None else f"tcp://{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """An address as a person writes it, or ScenarioError."""
    scheme, _, rest = text.partition("://")
    if scheme == "ipc" and rest:
        path = os.path.abspath(rest)
        if len(os.fsencode(path)) > (most := socket_path_bytes()):
            raise ScenarioError(f"{text}: a socket's path has at most {most} bytes; choose a shorter one")
        return Address(path)
    host, _, port = rest.rpartition(":")
    if scheme == "tcp" and host and port.isdecimal() and int(port) < 65536:
        return Address(None, host.strip("[]"), int(port))
    raise ScenarioError(f"{text}: an address is ipc://PATH or tcp://HOST:PORT")


def listen(address: Address, token: str) -> tuple[socket.socket, Address]:
    """A listening socket, and where it is (a port of 0 becomes a free one); nobody listens on TCP without a token."""
    if address.path is None:
        if not token:
            raise ScenarioError(f"{address}: anybody who reaches this port could use it; give a --token-file")
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        server = socket.create_server((address.host, address.port), family=family)
        address = address._replace(port=server.getsockname()[1])
    else:
        with _alone_in(os.path.dirname(address.path)):
            _refuse_taken(address)
            server = socket.socket(socket.AF_UNIX)
            os.fchmod(server.fileno(), 0o600)  # ours alone from its first moment; the umask is everybody's here
            server.bind(address.path)
            server.listen(64)
    server.setblocking(False)
    return server, address


@contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Others who want to listen in this folder wait: who finds a dead one's leavings must not clear a living one's."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def _refuse_taken(address: Address) -> None:
    """Clear what a killed service has left; one that lives stays."""
    assert address.path is not None
    if not os.path.exists(address.path):
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            os.unlink(address.path)
            return
        except OSError as error:
            raise ScenarioError(f"{address}: cannot be listened on: {error.strerror}") from None
    raise ScenarioError(f"{address}: another service is listening there")


def connect(address: Address, timeout_s: float) -> socket.socket:
    """A connected socket; OSError where nobody listens."""
    if address.path is None:
        link = socket.create_connection((address.host, address.port), timeout=timeout_s)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(timeout_s)
    try:
        link.connect(address.path)
    except OSError:
        link.close()
        raise
    return link


def read_token(path: Path | str | None) -> str:
    """The word a file holds; nobody but its owner may read it."""
    if path is None:
        return ""
    path = Path(path)
    token = path.read_text().strip()
    if path.stat().st_mode & 0o077:
        raise ScenarioError(f"{path}: others can read this token; chmod 600 it")
    if len(token) < 16:
        raise ScenarioError(f"{path}: a token has 16 characters or more; this one has {len(token)}")
    return token


def address_towards(host: str) -> str:
    """The address of this machine as another one sees it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.connect((host, 9))  # nothing is sent: the system only chooses the way
        return str(link.getsockname()[0])
