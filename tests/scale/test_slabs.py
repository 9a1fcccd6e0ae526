"""Slabs over ZeroMQ: they arrive whole and once, and only from those who hold the run's key."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
import zmq

from slipstream.runtime.slabs import SLABS, Gate, Sender, SlabName

MOST = 4_000_000
DEADLINE_S = 20.0


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate("127.0.0.1", MOST)
    yield made
    made.close()


def slab(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def arrives(gate: Gate, life: int, number: int, deadline_s: float = DEADLINE_S) -> bool:
    end = time.monotonic() + deadline_s
    while not gate.has(life, number) and time.monotonic() < end:
        time.sleep(0.005)
    return gate.has(life, number)


def test_slabs_of_several_workers_arrive_whole_and_somebody_is_told(gate):
    told = {1: threading.Event(), 2: threading.Event()}
    senders = {life: Sender(gate.door) for life in told}
    for life, event in told.items():
        gate.expect(life, event.set)
        for number in (1, 2):
            senders[life].send(life, number, slab(3_000_000, 10 * life + number))
    for life, event in told.items():
        assert event.wait(DEADLINE_S)
        for number in (1, 2):
            assert arrives(gate, life, number)
            assert np.array_equal(gate.take(life, number), slab(3_000_000, 10 * life + number))
            assert not gate.has(life, number)
        senders[life].close()


def test_a_slab_that_comes_twice_is_one_and_one_that_nobody_waits_for_is_dropped(gate):
    gate.expect(7, lambda: None)
    sender = Sender(gate.door)
    for life, number in ((8, 1), (7, 1), (7, 1), (7, 2)):
        sender.send(life, number, slab(100, number))
    assert arrives(gate, 7, 2)  # in order: the others have been before it
    assert not gate.has(8, 1)
    gate.take(7, 1)
    assert not gate.has(7, 1)
    gate.forget(7)
    assert not gate.has(7, 2)
    sender.close()


@pytest.mark.parametrize("kind", ["no key", "another key", "the run's key, another of its own"])
def test_who_lacks_the_key_sends_in_vain(kind, gate):
    gate.expect(1, lambda: None)
    context = zmq.Context()
    stranger = context.socket(zmq.PUSH)
    if kind != "no key":
        stranger.curve_serverkey = gate.door.key if kind.startswith("the run's") else zmq.curve_keypair()[0]
        stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
    stranger.connect(gate.door.address)
    stranger.send(SLABS.frame(SlabName(1, 1), 6) + b"forged")
    honest = Sender(gate.door)
    honest.send(1, 2, slab(10))
    assert arrives(gate, 1, 2)
    assert not arrives(gate, 1, 1, deadline_s=0.3)
    honest.close()
    stranger.close(linger=0)
    context.term()


def test_what_is_no_slab_or_too_large_is_dropped_and_others_go_on(gate):
    gate.expect(1, lambda: None)
    odd, large, honest = Sender(gate.door), Sender(gate.door), Sender(gate.door)
    odd._socket.send(b"short")
    odd._socket.send_multipart([b"two", b"frames"])
    large.send(1, 1, slab(MOST + 1))
    honest.send(1, 2, slab(10))
    assert arrives(gate, 1, 2)
    assert not arrives(gate, 1, 1, deadline_s=0.3)
    for sender in (odd, large, honest):
        sender.close()


def test_it_listens_where_it_says_and_leaves_nothing_behind():
    before = threading.active_count()
    gate = Gate("127.0.0.1", MOST)
    port = int(gate.door.address.rpartition(":")[2])
    mine = [c for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert [c.laddr.ip for c in mine if c.laddr.port == port] == ["127.0.0.1"]
    gate.close()
    mine = [c for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert port not in [c.laddr.port for c in mine]
    end = time.monotonic() + DEADLINE_S
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before
