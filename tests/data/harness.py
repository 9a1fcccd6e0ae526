"""A replay service in a process of its own, and fake clients whose rows say who made them and when."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.data.client import ServedReplay, Service, ask
from slipstream.data.replay import Prioritised
from slipstream.data.service import Rules
from slipstream.data.transitions import Transitions
from slipstream.data.wire import Close, Statistics, Stats
from slipstream.train.replay_service import serve

# A child of the fork server has imported everything already: it serves after a few milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["slipstream.train.replay_service"])


def _serve(address: str, rules: Rules, folder: Path | None, line: Connection) -> None:
    serve(address, rules, folder, line.fileno(), lambda text: line.send(text) if "replay service at" in text else None)


class Process:
    """A service that can be killed and started again."""

    def __init__(
        self, folder: Path, *, keep: bool = False, every_s: float = 0.05, tcp: bool = False, memory: int = 1 << 28
    ) -> None:
        self.token = "a token that nobody guesses" if tcp else ""
        self._asked = "tcp://127.0.0.1:0" if tcp else f"ipc://{folder / 'r.sock'}"
        self._folder = folder / "snapshot" if keep else None
        self._rules = Rules(token=self.token, snapshot_s=every_s, enter_s=1.0, frame_s=1.0, memory=memory)
        self.start()

    def start(self) -> None:
        self.line, theirs = CONTEXT.Pipe()
        self.child = CONTEXT.Process(target=_serve, args=(self._asked, self._rules, self._folder, theirs))
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
        answer = ask(self.address, self.token, Statistics(check))
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


def check_whole(rows: Transitions) -> None:
    """Every field of a row is of the same row."""
    number = rows.reward.astype(np.float64)
    assert (rows.obs["obs"] == (2 * number)[:, None]).all()
    assert (rows.next_obs["obs"] == (2 * number + 1)[:, None]).all()
    assert (rows.discount == number % 7).all()


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
    options = {"table": "t", "timeout_s": 10.0, "block": 64, "token": process.token, **service}
    where = Service(address=process.address, client=name, **options)
    return ServedReplay(made_by(0, 0, 0), capacity, seed, prioritised, batch, where)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def until(condition: Any, seconds: float = 10.0) -> None:
    """Wait for something that must come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
