"""The replay service as a process: `serve` is its whole life, `OwnService` a child that lives no longer than a run."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from slipstream.errors import ScenarioError, SlipstreamError
from slipstream.replay.service import ReplayServer, ServiceLimits
from slipstream.replay.snapshot import Snapshots
from slipstream.runtime import signals
from slipstream.runtime.address import Address, listen, parse_address
from slipstream.runtime.process import START_S, Child, parent_pipe

SOCKET, TOKEN = "replay.sock", "token"
STOP_S = 10.0  # a child that is told to stop saves and goes within this


def serve(
    address: str,
    rules: ServiceLimits,
    folder: Path | None = None,
    watch: int | None = None,
    say: Callable[[str], None] = lambda text: None,
    on_ready: Callable[[Address], None] = lambda address: None,
) -> None:
    """Serve until a signal, a client's Close, or the end of what is watched; from the snapshot in `folder`."""
    snapshots = None if folder is None else Snapshots(folder)
    try:
        tables = {} if snapshots is None else snapshots.load()
        server, where = listen(parse_address(address), rules.token)
        service = ReplayServer(server, rules, tables, None if snapshots is None else snapshots.save, watch, say)

        def stop(number: int, frame: object) -> None:
            service.stopping = True

        if watch is None:
            signals.listen(stop)
        rows = sum(len(lane.replay) for table in tables.values() for lane in table.lanes)
        on_ready(where)
        say(f"replay service at {where}" + (f", with {rows:,} rows from {folder}" if rows else ""))
        try:
            service.run()
        finally:
            if where.path is not None:
                Path(where.path).unlink(missing_ok=True)
    finally:
        if snapshots is not None:
            snapshots.close()


def read_token(path: Path | None) -> str:
    """The word a file holds; nobody but its owner may read it."""
    if path is None:
        return ""
    token = path.read_text().strip()
    if path.stat().st_mode & 0o077:
        raise ScenarioError(f"{path}: others can read this token; chmod 600 it")
    if len(token) < 16:
        raise ScenarioError(f"{path}: a token has 16 characters or more; this one has {len(token)}")
    return token


class ReplayHost(Protocol):
    """Who keeps a service for one run."""

    token: str  # the word a client must know; of no use on a Unix socket

    def revive(self) -> str:
        """Start it, or start it again where it has died; returns where it listens now."""

    def close(self) -> None:
        """End it."""


class OwnService:
    """A service in a private folder, for one run: it ends when the run does, however that ends."""

    def __init__(self, snapshot_s: float = 10.0, host: str | None = None, token: str = "") -> None:
        """On a Unix socket, or where there is a `host` on a free TCP port of it, for those who know the token."""
        self._folder = Path(tempfile.mkdtemp(prefix="slipstream-replay-"))  # 0700
        self._snapshot_s, self._host, self.token = snapshot_s, host, token
        self._process: Child | None = None
        self.address = f"ipc://{self._folder / SOCKET}"
        if host is not None:
            (self._folder / TOKEN).touch(0o600)
            (self._folder / TOKEN).write_text(token)

    def revive(self) -> str:
        """Start it, or start it again where it has died."""
        if self._process is not None:
            if not self._process.is_over():
                return self.address
            self._process.close()
        ready, given = os.pipe()
        words = [str(self._folder), str(self._snapshot_s), str(given)]
        try:
            self._process = Child(
                "slipstream.replay.process",
                words if self._host is None else [*words, "--host", self._host],
                on_parent_end="notice",
                descriptors=[given],
            )
        finally:
            os.close(given)
        with open(ready, "rb") as pipe:
            # The path of a Unix socket is known before the service listens there.
            if self._host is not None and select.select([pipe], [], [], START_S)[0]:
                self.address = pipe.read().decode() or self.address
        return self.address

    @property
    def pid(self) -> int:
        """Of the process that serves now."""
        assert self._process is not None
        return self._process.pid

    def close(self) -> None:
        """End it and clear its folder away."""
        if self._process is not None:
            self._process.end(STOP_S)
        shutil.rmtree(self._folder, ignore_errors=True)


def main(argv: Sequence[str]) -> int:
    """The child of an `OwnService`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="private folder of the socket and the snapshots; cleared at the end")
    parser.add_argument("snapshot_s", type=float)
    parser.add_argument("ready", type=int, help="descriptor that gets the address once the service listens")
    parser.add_argument("--host", help="serve on a free port of it; the token is in the folder")
    args = parser.parse_args(argv)

    def on_ready(address: Address) -> None:
        with suppress(BrokenPipeError), open(args.ready, "w") as pipe:
            pipe.write(str(address))

    try:
        if args.host is None:
            address, token = f"ipc://{args.folder / SOCKET}", ""
        else:
            address, token = f"tcp://{args.host}:0", read_token(args.folder / TOKEN)
        rules = ServiceLimits(token=token, snapshot_s=args.snapshot_s)
        serve(address, rules, args.folder / "snapshot", parent_pipe(), on_ready=on_ready)
    except SlipstreamError as error:
        print(f"slipstream: replay service: {error}", file=sys.stderr)
        return 2
    shutil.rmtree(args.folder, ignore_errors=True)  # the run has ended, perhaps without the time to do it
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
