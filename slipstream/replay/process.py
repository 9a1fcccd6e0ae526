"""The replay service as a process: `serve` is its whole life, `OwnService` a child that lives no longer than a run."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from slipstream.config.records import from_json
from slipstream.errors import SlipstreamError
from slipstream.replay.service import ReplayServer, ServiceLimits
from slipstream.replay.snapshot import Snapshots
from slipstream.runtime import signals
from slipstream.runtime.address import Address, address_towards, listen, parse_address
from slipstream.runtime.place import Cluster, Job, RunningProcess, end_all
from slipstream.runtime.process import START_S, Here, announce, parent_pipe, report

SOCKET = "replay.sock"
STOP_S = 10.0  # a child that is told to stop saves and goes within this


def serve(
    address: str,
    limits: ServiceLimits,
    folder: Path | None = None,
    watch: int | None = None,
    log: Callable[[str], None] = lambda text: None,
    on_ready: Callable[[Address], None] = lambda address: None,
) -> None:
    """Serve until a signal, a client's Close, or the end of what is watched; from the snapshot in `folder`."""
    snapshots = None if folder is None else Snapshots(folder)
    try:
        tables = {} if snapshots is None else snapshots.load()
        server, where = listen(parse_address(address), limits.token)
        service = ReplayServer(server, limits, tables, None if snapshots is None else snapshots.save, watch, log)

        def stop(number: int, frame: object) -> None:
            service.stopping = True

        if watch is None:
            signals.listen(stop)
        rows = sum(len(lane.replay) for table in tables.values() for lane in table.lanes)
        on_ready(where)
        log(f"replay service at {where}" + (f", with {rows:,} rows from {folder}" if rows else ""))
        try:
            service.run()
        finally:
            if where.path is not None:
                Path(where.path).unlink(missing_ok=True)
    finally:
        if snapshots is not None:
            snapshots.close()


class ServiceJob(msgspec.Struct, frozen=True):
    """All that the process of an `OwnService` is told."""

    folder: str  # private, of the socket and the snapshots; cleared at the end
    snapshot_s: float
    towards: str = ""  # an address from which clients come by TCP; empty: they use the folder's socket
    token: str = ""  # the word a client must know; of no use on a Unix socket


class OwnService:
    """A service for one run, in a private folder of its machine: it ends when the run does, however that ends."""

    def __init__(self, cluster: Cluster | None = None, snapshot_s: float = 10.0) -> None:
        """On this machine, by a Unix socket; on a cluster it is on some node, by TCP for those who know its token."""
        self._cluster = cluster
        self._folder = Path(tempfile.mkdtemp(prefix="slipstream-replay-"))  # 0700
        self.token = "" if cluster is None else secrets.token_hex(32)
        self._job = ServiceJob(str(self._folder), snapshot_s, "" if cluster is None else cluster.host, self.token)
        self._process: RunningProcess | None = None
        self.address = f"ipc://{self._folder / SOCKET}"

    def revive(self) -> str:
        """Start it, or start it again where it has died; where it listens. OSError where no node has started it."""
        if self._process is not None and not self._process.is_over():
            return self.address
        place = self._cluster or Here()
        # A cluster which is full of workers has room for it.
        job = Job("slipstream.replay.process", payload=msgspec.json.encode(self._job), on_parent_end="notice",
                  name="slipstream-replay", cpus=0)  # fmt: skip
        before, self._process = self._process, place.start(job, self._process)
        if before is not None:
            before.close()
        if self._cluster is not None:  # the path of a Unix socket is known before the service listens there
            address = self._process.ready(START_S)
            if not address:
                raise OSError(f"the replay service could not be started on a node: it {self._process.ended()}")
            self.address = address
            self._cluster.say(f"replay service at {address}, for those who know its token")
        return self.address

    def close(self) -> None:
        """End it and clear its folder away."""
        if self._process is not None:
            end_all([self._process], STOP_S)
            self._process.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def main(job: ServiceJob) -> int:
    """The process of an `OwnService`."""
    folder = Path(job.folder)
    folder.mkdir(mode=0o700, exist_ok=True)  # on a node it is not there yet
    if job.towards:
        here = address_towards(job.towards)
        address = f"tcp://{f'[{here}]' if ':' in here else here}:0"
    else:
        address = f"ipc://{folder / SOCKET}"
    try:
        limits = ServiceLimits(token=job.token, snapshot_s=job.snapshot_s)
        on_ready = lambda address: announce(str(address))  # noqa: E731
        serve(address, limits, folder / "snapshot", parent_pipe(), on_ready=on_ready)
    except SlipstreamError as error:
        print(f"slipstream: replay service: {error}", file=sys.stderr)
        report(str(error))
        return 2
    shutil.rmtree(folder, ignore_errors=True)  # the run has ended, perhaps without the time to do it
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(from_json(sys.stdin.buffer.read(), ServiceJob)))
