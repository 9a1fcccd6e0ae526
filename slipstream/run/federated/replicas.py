"""Several runs of a scenario that learn together on one machine: planned, started, watched, revived, stopped.

Each replica is a process of its own, `slipstream train` with the variables of a manual launch, so what is done here can
be done by hand. One that dies goes on from its last checkpoint. Where fewer may run at a time than there are replicas,
each ends when a round is not over yet ("parked") and makes room for the next: the bits are those of all at once.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from slipstream.config.federated import TRANSPORTS, TransportName
from slipstream.config.records import from_json
from slipstream.data.disk import replace_file
from slipstream.data.run_folder import MAX_DEATHS, deaths_after, newest_checkpoint
from slipstream.errors import FederationError
from slipstream.runtime.place import Job, Place, Running, end_all
from slipstream.runtime.process import Here
from slipstream.runtime.signals import held

PARKED_CODE = 75  # exit code of a run that waits for others (EX_TEMPFAIL: try again later)
PLAN_FILE, ROUNDS, RUNS, LOGS, MODELS = "replicas.json", "rounds", "runs", "logs", "models"
LOOK_S = 0.5
FAREWELL_S = 30.0  # in which replicas save what they have when they are told to stop

State = Literal["waiting", "running", "parked", "finished", "failed"]


class Replica(msgspec.Struct, frozen=True):
    """One run of a federation."""

    name: str  # of its run folder
    client: str
    seed: int
    words: tuple[str, ...]  # after `slipstream train`
    variables: dict[str, str]
    exports: tuple[str, ...] = ()  # words of those who read it along, from its beginning as after a death

    def folder(self, root: Path) -> Path:
        """Its run folder."""
        return root / RUNS / self.name

    def command(self, root: Path) -> str:
        """What a person would type."""
        given = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.variables.items())
        return f"{given} slipstream train {shlex.join([*self.words, *self._where(root)])}"

    def verb(self, root: Path) -> list[str]:
        """What is run: from its beginning, or from its last checkpoint."""
        folder = self.folder(root)
        if newest_checkpoint(folder):
            return ["resume", str(folder), "--models", str(root / MODELS), *self.exports]
        return ["train", *self.words, *self._where(root)]

    def _where(self, root: Path) -> list[str]:
        where = ["--out", str(self.folder(root)), "--models", str(root / MODELS)]
        return ["--seed", str(self.seed), *where, *self.exports]


class ReplicaPlan(msgspec.Struct, frozen=True):
    """What is to be run; kept in the federation's folder, so that it can be gone on with."""

    max_parallel: int
    replicas: tuple[Replica, ...]
    coordinator: tuple[str, ...] = ()  # words after `slipstream federate serve`, where there is one


@dataclass
class ReplicaState:
    """A replica as it is now."""

    replica: Replica
    state: State = "waiting"
    process: Running | None = None
    deaths: int = 0
    saved: str = ""  # its newest checkpoint when it was started last
    starts: int = 0


Show = Callable[[Sequence[ReplicaState]], None]


def plan(
    words: Sequence[str],
    root: Path,
    *,
    repeat: int,
    max_parallel: int,
    seeds: Sequence[int],
    prefix: str,
    transport: TransportName = "files",
    exports: Sequence[str] = (),
    given: Mapping[str, str] = {},
) -> ReplicaPlan:
    """Replicas of `slipstream train WORDS`, which meet in the root's own folder, or by sockets in it.

    `given`: variables that every replica gets, where they say nothing else than what is settled here.
    """
    if max_parallel < 1:
        raise FederationError(f"--max-parallel {max_parallel}: at least one replica must run at a time")
    if repeat < 2:
        raise FederationError(f"--repeat {repeat}: a federation has at least two replicas")
    traits = TRANSPORTS[transport]
    if max_parallel < repeat and not traits.has_folder:
        raise FederationError(
            f"--max-parallel {max_parallel}: {repeat} replicas that meet by {transport} must all run at once; with "
            "--federated.transport files they may take turns"
        )
    parks = ["--federated.park"] if max_parallel < repeat else []
    settled = {"FED_ENABLED": "1", "FED_TOTAL_CLIENTS": str(repeat), "FED_ROOT": str(root / ROUNDS)}
    meeting = {**settled, **given, **settled}
    if traits.needs_address:
        meeting.setdefault("FED_ADDRESS", f"ipc://{root / 'coordinator.sock'}")
    if traits.needs_peers:
        own = ",".join(f"{index}=ipc://{root / f'{index}.sock'}" for index in range(repeat))
        meeting.setdefault("FED_PEERS", own)
    replicas = tuple(
        Replica(
            name=f"{prefix}{index}",
            client=str(index),
            seed=seed,
            words=(*words, *parks),
            variables={**meeting, "FED_CLIENT_ID": str(index)},
            exports=tuple(exports),
        )
        for index, seed in enumerate(seeds)
    )
    return ReplicaPlan(min(max_parallel, repeat), replicas, tuple(words) if traits.needs_address else ())


def write_plan(root: Path, what: ReplicaPlan) -> None:
    """Begin a federation's folder; one that is in use is refused."""
    if root.exists() and any(root.iterdir()):
        raise FederationError(f"{root}: is not empty; choose another --root, or go on with: slipstream federate {root}")
    for folder in (ROUNDS, RUNS, LOGS):
        (root / folder).mkdir(parents=True, exist_ok=True)
    replace_file(root / PLAN_FILE, msgspec.json.format(msgspec.json.encode(what), indent=1))


def read_plan(root: Path) -> ReplicaPlan:
    """What a folder's federation was to run."""
    try:
        return from_json((root / PLAN_FILE).read_bytes(), ReplicaPlan)
    except (OSError, msgspec.DecodeError) as error:
        raise FederationError(
            f"{root / PLAN_FILE}: cannot be read ({error}); is {root} a federation's folder?"
        ) from None


def supervise(root: Path, what: ReplicaPlan, show: Show, place: Place | None = None) -> list[ReplicaState]:
    """Run all replicas to their end, or until Ctrl+C; each has saved what it has by then. No place: on this machine."""
    watched = [ReplicaState(replica) for replica in what.replicas]
    coordinator: Running | None = None
    try:
        while any(one.state in ("waiting", "running", "parked") for one in watched):
            if what.coordinator and (coordinator is None or coordinator.is_over()):
                words, variables = ["federate", "serve", *what.coordinator], what.replicas[0].variables
                with held():
                    coordinator = Here().start(_job(words, root / LOGS / "coordinator.log", variables))
            for one in watched:
                _look_at(one, root)
            _start_some(watched, what.max_parallel, root, place or Here())
            show(watched)
            if all(one.state in ("finished", "failed") for one in watched):
                break
            time.sleep(LOOK_S)
    finally:
        running = [one.process for one in watched] + [coordinator]
        end_all([process for process in running if process is not None], FAREWELL_S)
    return watched


def _look_at(one: ReplicaState, root: Path) -> None:
    if one.process is None or not one.process.is_over():
        return
    code = one.process.ended().code
    one.process.close()
    one.process = None
    if code == 0:
        one.state = "finished"
        return
    if code == PARKED_CODE:
        one.state, one.deaths = "parked", 0
        return
    folder = one.replica.folder(root)
    one.deaths = deaths_after(folder, one.saved, one.deaths)
    one.state = "failed" if one.deaths >= MAX_DEATHS or code == 2 else "waiting"
    if one.state == "waiting" and not newest_checkpoint(folder):
        shutil.rmtree(folder, ignore_errors=True)  # it had saved nothing, and begins anew


def _start_some(watched: Sequence[ReplicaState], max_parallel: int, root: Path, place: Place) -> None:
    """Those that wait first, then parked ones; among these the ones that had the fewest turns, so that all get on."""
    running = sum(one.state == "running" for one in watched)
    ready = [one for one in watched if one.state in ("waiting", "parked")]
    for one in sorted(ready, key=lambda one: (one.state == "parked", one.starts))[: max(0, max_parallel - running)]:
        _start(one, root, place)


def _start(one: ReplicaState, root: Path, place: Place) -> None:
    one.saved = newest_checkpoint(one.replica.folder(root))
    one.starts += 1
    with held():  # or nobody would know of it
        log = root / LOGS / f"{one.replica.name}.log"
        one.process = place.start(_job(one.replica.verb(root), log, one.replica.variables))
    one.state = "running"


def _job(words: Sequence[str], log: Path, variables: Mapping[str, str]) -> Job:
    return Job("slipstream", tuple(words), variables=variables, output=log, on_parent_end="terminate")
