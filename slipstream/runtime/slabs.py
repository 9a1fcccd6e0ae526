"""Slabs on their way from workers on other hosts to the run, over ZeroMQ.

Ray carries what is small: orders, answers, signs of life. A slab has megabytes, and goes from the worker's memory
straight to the run's, not through two object stores. Who connects must hold the key that the run gave its workers
(CurveZMQ, so that nobody on the way can read or change a slab either). A slab is known by its worker's life and its
number there: one that comes twice is the same one, and one that nobody waits for is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import NamedTuple

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray
from zmq.auth.thread import ThreadAuthenticator

from slipstream.runtime.frames import HEAD, MessageProtocol, MessageSet, WireError

Bytes = NDArray[np.uint8]

LOOK_MS = 200  # between looks whether it is over


class SlabName(msgspec.Struct, frozen=True):
    """Whose slab follows, and which."""

    life: int
    number: int


SLABS = MessageSet(MessageProtocol.SLABS, 64, msgspec.msgpack.Decoder(SlabName))


class Door(NamedTuple):
    """What a worker must know to send slabs to a run."""

    address: str  # tcp://HOST:PORT
    key: bytes  # the run's public key
    own_key: bytes  # the workers' public and secret key, which are drawn for this run
    own_secret: bytes


class Gate:
    """Where slabs come in."""

    def __init__(self, host: str, most_bytes: int) -> None:
        """Listen on a port of this address; larger messages than `most_bytes` end their connection."""
        key, secret = zmq.curve_keypair()
        own_key, own_secret = zmq.curve_keypair()
        self._context = zmq.Context()
        self._guard = ThreadAuthenticator(self._context)
        self._guard.start()
        self._guard.configure_curve_callback("*", credentials_provider=_Only(own_key))
        self._socket = self._context.socket(zmq.PULL)
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = key, secret
        self._socket.setsockopt(zmq.MAXMSGSIZE, most_bytes)
        self._socket.setsockopt(zmq.RCVHWM, 0)  # what may be on its way is bounded by the slots of the workers
        self._socket.setsockopt(zmq.IPV6, int(":" in host))
        port = self._socket.bind_to_random_port(f"tcp://{f'[{host}]' if ':' in host else host}")
        address = f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
        self.door = Door(address, key, own_key, own_secret)
        self._lock, self._stop = Lock(), Event()
        self._wake: dict[int, Callable[[], None]] = {}  # by life
        self._here: dict[tuple[int, int], Bytes] = {}
        self._thread = Thread(target=self._receive, name="slipstream-slabs", daemon=True)
        self._thread.start()

    def expect(self, life: int, wake: Callable[[], None]) -> None:
        """Let slabs of this life in, and say so when one has come."""
        with self._lock:
            self._wake[life] = wake

    def forget(self, life: int) -> None:
        """Nobody waits for slabs of this life any more."""
        with self._lock:
            self._wake.pop(life, None)
            self._here = {name: data for name, data in self._here.items() if name[0] != life}

    def has(self, life: int, number: int) -> bool:
        """Whether it has come."""
        return (life, number) in self._here

    def take(self, life: int, number: int) -> Bytes:
        """A slab that has come."""
        with self._lock:
            return self._here.pop((life, number))

    def close(self) -> None:
        """Listen no longer."""
        self._stop.set()
        self._thread.join()
        self._socket.close(linger=0)
        self._guard.stop()
        self._context.term()

    def _receive(self) -> None:
        while not self._stop.is_set():
            if not self._socket.poll(LOOK_MS):
                continue
            frame = np.frombuffer(self._socket.recv(copy=False).buffer, np.uint8)
            try:
                name, slab = _parse(frame)
            except WireError:
                continue
            with self._lock:
                wake = self._wake.get(name.life)
                if wake is not None:
                    self._here[name.life, name.number] = slab
            if wake is not None:
                wake()


class Sender:
    """A worker's way to the gate."""

    def __init__(self, door: Door) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.curve_serverkey = door.key
        self._socket.curve_publickey, self._socket.curve_secretkey = door.own_key, door.own_secret
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.IPV6, int("[" in door.address))
        self._socket.connect(door.address)

    def send(self, life: int, number: int, data: Bytes) -> None:
        """Send a slab; it goes out while the next is collected."""
        # One piece: where a second one is refused for its size, the first would have come, and be waited for.
        head = np.frombuffer(SLABS.frame(SlabName(life, number), len(data)), np.uint8)
        self._socket.send(np.concatenate([head, data]).data, copy=False)

    def close(self) -> None:
        """Send nothing any more, nor what has not gone out."""
        self._socket.close(linger=0)
        self._context.term()


def _parse(frame: Bytes) -> tuple[SlabName, Bytes]:
    """What came, and the bytes of the slab; WireError where it is no whole slab."""
    if len(frame) < HEAD.size:
        raise WireError(f"{len(frame)} bytes are no slab")
    head = SLABS.parse_head(frame.data, len(frame))
    end = HEAD.size + head.body
    if len(frame) != end + head.data:
        raise WireError(f"{len(frame)} bytes came where {end + head.data} were announced")
    return SLABS.parse(frame[HEAD.size : end].tobytes()), frame[end:]


class _Only:
    """Lets one key in; what ZeroMQ's authenticator asks."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._key
