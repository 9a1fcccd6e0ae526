"""Faults of the replay service: killed, started and ended again and again, sent what no client sends.

Fake clients make rows in which every number says who made the row and which of theirs it is, so that what is lost, torn
or there twice can be seen. The tests use the same clients, and the same faults fewer times.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from slipstream.data.transitions import Transitions
from slipstream.replay.buffer import Prioritised
from slipstream.replay.client import ServedReplay
from slipstream.replay.link import ClientSettings, ask
from slipstream.replay.messages import (
    MAX_REQUEST,
    REQUESTS,
    AskStatistics,
    Close,
    Enqueue,
    EnterReplay,
    Snapshot,
    Stats,
)
from slipstream.replay.process import serve
from slipstream.replay.service import ServiceLimits
from slipstream.replay.sharing import Flow, Limit, may_add, may_draw, refuse_deadlock
from slipstream.runtime.address import Address, connect, parse_address
from slipstream.runtime.frames import HEAD, MAGIC, VERSION

# A child of the fork server has imported everything already: it serves after a few milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["slipstream.replay.process"])


# --- a service in a process of its own, and fake clients ---


def _serve(address: str, limits: ServiceLimits, folder: Path | None, line: Connection) -> None:
    serve(address, limits, folder, line.fileno(), lambda text: line.send(text) if "replay service at" in text else None)


class Process:
    """A service that can be killed and started again."""

    def __init__(
        self, folder: Path, *, keep: bool = False, every_s: float = 0.05, tcp: bool = False, memory: int = 1 << 28
    ) -> None:
        self.token = "a token that nobody guesses" if tcp else ""
        self._asked = "tcp://127.0.0.1:0" if tcp else f"ipc://{folder / 'r.sock'}"
        self._folder = folder / "snapshot" if keep else None
        self._limits = ServiceLimits(token=self.token, snapshot_s=every_s, enter_s=1.0, frame_s=1.0, memory=memory)
        self.start()

    def start(self) -> None:
        self.line, theirs = CONTEXT.Pipe()
        self.child = CONTEXT.Process(target=_serve, args=(self._asked, self._limits, self._folder, theirs))
        self.child.start()
        self.is_gone = False
        theirs.close()
        said = self.line.recv()
        self.address = said.split(" at ")[1].split(",")[0].strip()

    def kill(self) -> None:
        if not self.is_gone:
            self.child.kill()
            self._reap()

    def stats(self, check: bool = False) -> Stats:
        answer = ask(self.address, self.token, AskStatistics(check))
        assert isinstance(answer, Stats)
        return answer

    def close(self) -> None:
        if not self.is_gone:
            ask(self.address, self.token, Close())
            self._reap()

    def _reap(self) -> None:
        self.child.join(10)
        assert not self.child.is_alive()
        self.child.close()
        self.line.close()
        self.is_gone = True


@contextlib.contextmanager
def service(folder: Path, **options: Any) -> Iterator[Process]:
    """A service until the end of the block."""
    process = Process(folder, **options)
    try:
        yield process
    except BaseException:
        process.kill()
        raise
    process.close()


def made_by(who: int, first: int, count: int, width: int = 4) -> Transitions:
    """Rows in which every number says who made the row and which of theirs it is."""
    number = np.arange(first, first + count)
    obs = np.repeat((number * 2).astype(np.float32)[:, None], width, 1)
    return Transitions(
        obs={"obs": obs},
        action=np.full(count, who, np.int32),
        mask=None,
        reward=number.astype(np.float32),
        discount=(number % 7).astype(np.float32),
        next_obs={"obs": obs + 1},
        next_mask=None,
    )


def is_whole(rows: Transitions) -> bool:
    """Whether every field of a row is of the same row."""
    number = rows.reward.astype(np.float64)
    return bool(
        (rows.obs["obs"] == (2 * number)[:, None]).all()
        and (rows.next_obs["obs"] == (2 * number + 1)[:, None]).all()
        and (rows.discount == number % 7).all()
    )


def client(
    process: Process,
    name: str = "a",
    *,
    capacity: int = 1000,
    seed: int = 1,
    prioritised: Prioritised | None = None,
    batch: int = 64,
    **service: Any,
) -> ServedReplay:
    """A fake client."""
    options = {"table": "t", "timeout_s": 10.0, "chunk_rows": 64, "token": process.token, **service}
    where = ClientSettings(address=process.address, client=name, **options)
    return ServedReplay(made_by(0, 0, 0), capacity, seed, prioritised, batch, where)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that must come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


# --- what is counted ---


class Held(NamedTuple):
    """What a process holds of the machine."""

    descriptors: int
    mappings: int  # of shared memory
    threads: int
    children: int


def held() -> Held:
    """By this process; children that have ended do not count."""
    here = psutil.Process()
    maps = Path("/proc/self/maps").read_text()
    mappings = sum("memfd:" in line or "/dev/shm" in line for line in maps.splitlines())
    return Held(here.num_fds(), mappings, threading.active_count(), len(here.children(recursive=True)))


# --- kills ---


class ServiceKills(NamedTuple):
    """What was found after every kill of a service."""

    back_s: list[float]  # from kill to the next draw
    lost: int  # rows of all that were sent
    sent: int
    widest_gap: float  # between a tree's total and the sum of its leaves
    faults: list[str]


def kill_service(folder: Path, kills: int, rng: np.random.Generator) -> ServiceKills:
    """Kill a service that two clients fill and draw from; look after each restart at what is there."""
    faults: list[str] = []
    back_s, widest, draws = [], 0.0, 0
    with service(folder, keep=True) as process:
        options = {"capacity": 2000, "prioritised": Prioritised(), "mixing": "local", "timeout_s": 60.0}
        clients = [client(process, f"c{who}", **options) for who in range(2)]
        sent = [0, 0]

        def work(who: int) -> None:
            nonlocal draws
            count = int(rng.integers(1, 100))
            clients[who].add(made_by(who, sent[who], count))
            sent[who] += count
            drawn = clients[who].sample(64, draws)
            draws += 1
            if not (is_whole(drawn.rows) and (drawn.rows.action == who).all()):
                faults.append(f"a drawn row is not whole, or another's, after {sent[who]} rows")
            clients[who].update_priorities(drawn.index.copy(), rng.normal(size=64))

        for kill in range(kills):
            for _ in range(int(rng.integers(2, 10))):
                work(int(rng.integers(2)))
            work(0)
            work(1)
            kept = None
            if kill % 2:
                ask(process.address, "", Snapshot())
                kept = [each.total_added for each in clients]
            process.kill()
            began = time.monotonic()
            restarter = threading.Timer(float(rng.uniform(0.0, 0.1)), process.start)
            restarter.start()
            for each in clients:
                each.sample(64, draws)
                draws += 1
            back_s.append(time.monotonic() - began)
            restarter.join()
            for each in clients:
                each.settle()
            if kept is not None and kept != [each.total_added for each in clients]:
                faults.append(f"kill {kill}: something that was saved is lost")
            table = process.stats(check=True).tables["t"]
            widest = max(widest, table.priority_gap)
            faults += _audit(clients, sent, {lane.client: (lane.added, lane.lost) for lane in table.lanes}, kill)
        events = [event["what"] for each in clients for event in each._link.events]
        if events.count("reconnected") < kills or set(events) != {"reconnected"}:
            faults.append(f"{len(events)} events after {kills} kills: {sorted(set(events))}")
        lost = sum(each.lost for each in clients)
        for each in clients:
            each.close()
    if widest >= 1e-9:
        faults.append(f"a tree's total is {widest:.2g} off the sum of its leaves")
    return ServiceKills(back_s, lost, sum(sent), widest, faults)


def _audit(clients: list[ServedReplay], sent: list[int], lanes: dict[str, tuple[int, int]], kill: int) -> Iterator[str]:
    """Every row that was sent is there once or counted as lost, in order, and the newest is there."""
    for who, each in enumerate(clients):
        added, lost = lanes[f"c{who}"]
        if added + lost != sent[who]:
            yield f"kill {kill}: {added} rows taken and {lost} lost of {sent[who]}"
        numbers = each.read(max(0, added - 2000), added)["reward"]
        if not (np.diff(numbers) > 0).all():
            yield f"kill {kill}: a row is there twice, or out of order"
        if numbers[-1] != sent[who] - 1:
            yield f"kill {kill}: the newest chunk was not sent again"


def cycle_service(folder: Path, cycles: int) -> list[str]:
    """Start, use and end a service again and again, half of the times by a kill; what grows is a fault."""
    before = None
    for cycle in range(cycles + 1):
        process = Process(folder)
        served = client(process)
        served.add(made_by(0, 0, 100))
        served.sample(64, 0)
        if cycle % 2:
            process.kill()
            served.close()
        else:
            served.close()
            process.close()
        del served, process
        before = before or held()  # after the first, which has started the fork server
    after = held()
    return [] if after == before else [f"{before} was held before {cycles} cycles and {after} after them"]


# --- hostile bytes ---


def hostile(rng: np.random.Generator) -> bytes:
    """Bytes that no client sends, most of them nearly right."""
    kind = int(rng.integers(6))
    noise = rng.bytes(int(rng.integers(1, 400)))
    if kind == 0:
        return noise
    if kind == 1:  # lengths that would fill the memory
        lengths = int(rng.integers(MAX_REQUEST + 1, 2**32)), int(rng.integers(2**32))
        return HEAD.pack(MAGIC, VERSION, REQUESTS.protocol, *lengths) + noise
    if kind == 2:
        return HEAD.pack(MAGIC, VERSION, REQUESTS.protocol, len(noise), 0) + noise
    whole = REQUESTS.frame(EnterReplay("x" * int(rng.integers(0, 200)), rng.bytes(8).hex())) + REQUESTS.frame(
        Enqueue(0, 10**6, -8)
    )
    if kind == 3:  # half a message
        return whole[: int(rng.integers(1, len(whole)))]
    if kind == 4:  # a message with a byte changed
        at = int(rng.integers(len(whole)))
        return whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :]
    return whole + noise


class Siege(NamedTuple):
    """What a service did while it was sent hostile bytes."""

    draws_s: list[float]  # an honest client's, meanwhile
    dropped: int  # connections it ended
    grown: int  # bytes of memory since the first tenth
    faults: list[str]


def _connected(address: Address) -> socket.socket:
    """A connection, also where so many are waiting that the system refuses more for a moment."""
    while True:
        try:
            return connect(address, 5.0)
        except BlockingIOError:
            time.sleep(0.01)


def besiege(folder: Path, messages: int, rng: np.random.Generator, *, tcp: bool) -> Siege:
    """Send hostile bytes, each over a connection of its own, some slowly; an honest client is served meanwhile."""
    faults: list[str] = []
    draws_s: list[float] = []
    slow: list[socket.socket] = []  # they send a byte now and then, and never a whole message
    with service(folder, tcp=tcp) as process:
        honest = client(process)
        honest.add(made_by(1, 0, 64))
        honest.sample(64, 0)
        served, address = psutil.Process(process.child.pid), parse_address(process.address)
        memory = served.memory_info().rss
        for case in range(messages):
            link = _connected(address)
            with contextlib.suppress(OSError):  # the service may hang up at any time
                link.sendall(hostile(rng))
                if case % 3 == 0:
                    link.shutdown(socket.SHUT_WR)
                    while link.recv(1 << 16):
                        pass
            if case % 25 == 7 and len(slow) < 50:
                slow.append(link)
            else:
                link.close()
            if case % 50 == 0:
                for each in slow:
                    with contextlib.suppress(OSError):
                        each.sendall(b"\0")
                began = time.monotonic()
                if not is_whole(honest.sample(64, case).rows):
                    faults.append(f"after {case} messages an honest client drew a broken row")
                draws_s.append(time.monotonic() - began)
            if case == messages // 10:
                memory = served.memory_info().rss
        for each in slow:
            each.close()
        until(lambda: process.stats().clients == 2, 30.0)
        grown, dropped = served.memory_info().rss - memory, process.stats().dropped
        if grown > 8 << 20:
            faults.append(f"its memory has grown by {grown:,} bytes")
        if served.num_fds() > 30:
            faults.append(f"it holds {served.num_fds()} descriptors")
        honest.close()
    return Siege(draws_s, dropped, grown, faults)


# --- the rate limiter ---


def operate_limiter(operations: int, spi: float, rng: np.random.Generator) -> list[str]:
    """Random chunks and batches through the limiter: somebody may always go on, and the balance stays in its band."""
    chunk, batch, min_size = 16, 64, 100
    tolerance = max((spi * chunk + batch) / 2, spi * (chunk - 1))
    limit = Limit(min_size, spi, tolerance)
    refuse_deadlock(limit, 1000, chunk, batch)
    flow, wants_add = Flow(), rng.random(operations) < 0.5
    rows_added, rows_drawn = rng.integers(1, chunk + 1, operations), rng.integers(1, batch + 1, operations)
    for adds, n, b in zip(wants_add.tolist(), rows_added.tolist(), rows_drawn.tolist(), strict=True):
        can_add, can_draw = may_add(limit, flow, n), may_draw(limit, flow, b)
        if not can_add and not can_draw:
            return [f"{limit}: stuck after {flow.added} added and {flow.drawn} drawn"]
        added = can_add and (adds or not can_draw)
        flow = Flow(flow.added + n, flow.drawn) if added else Flow(flow.added, flow.drawn + b)
        if flow.added >= min_size and abs(spi * (flow.added - min_size) - flow.drawn) > tolerance:
            return [f"{limit}: the balance left its band after {flow.added} added and {flow.drawn} drawn"]
    return []
