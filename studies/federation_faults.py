"""Faults of federation: clients, closers and coordinators are killed, files are sent twice, late, early, or by another.

``python studies/federation_faults.py --trials 100`` runs it; every trial is a line in
runs/studies/federation_faults/trials.jsonl. The tests run the same functions, fewer times. After every fault: the
round is over when its deadline is, its aggregate has the bits of a run in which exactly the same clients took part
and nothing happened, rounds.jsonl has it once, and below the quorum nothing has changed.

A process is killed before, or in the middle of, its k-th call of the file system: the calls of `os` are replaced in a
forked child, the product has no hook for it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from slipstream.data.arrays_file import content_hash
from slipstream.data.disk import replace_file
from slipstream.federate import closing, folder, rounds
from slipstream.federate.aggregate import Base, MergeReport
from slipstream.federate.coordinator import Coordinator
from slipstream.federate.coordinator_client import CoordinatorTransport
from slipstream.federate.files import Files
from slipstream.federate.rounds import Federation, RoundLimits, RoundOutcome, RoundRecord
from slipstream.federate.update import ClientUpdate
from slipstream.runtime import platform
from slipstream.runtime.address import Address, listen
from slipstream.types import Arrays

SYSCALLS = ("open", "write", "fsync", "rename", "mkdir", "unlink", "listdir", "ftruncate", "close")
IDS = ("a", "b", "c")
KILLED = 9
PATIENCE_S = 30.0  # for what takes milliseconds


class Trial(NamedTuple):
    """One fault, and what was broken by it."""

    kind: str
    at: int
    ended: bool  # the fault came too late: the process had done all it had to
    seconds: float  # from the fault to the end of the round
    faults: list[str]


# --- a small federation ---


def mean(updates: Sequence[ClientUpdate], base: Base | None) -> tuple[Arrays, MergeReport]:
    """The plain mean in float64, in the order of ids."""
    first = updates[0].arrays
    merged = {
        name: np.mean([update.arrays[name].astype(np.float64) for update in updates], axis=0).astype(array.dtype)
        for name, array in first.items()
    }
    ids = tuple(update.client for update in updates)
    shares = dict.fromkeys(ids, 1.0 / len(ids))
    return merged, MergeReport("mean", "mean", "", 0, 0, ids, ids, shares, variance=0.0, drift=None, delta_norms={})


def federation(root: Path, **rules: Any) -> Federation:
    """Three clients, of which two are a quorum."""
    own = RoundLimits(**{"clients": 3, "quorum": 2, "timeout_s": 60.0, "closing_s": PATIENCE_S, **rules})
    made = Federation(folder.federation_folder(root, "run"), own, mean, "mean")
    folder.join(made)
    return made


def update_of(client: str, number: int, base: str = "", update_id: str = "") -> ClientUpdate:
    """The only update that a client may send in a round."""
    rng = np.random.Generator(np.random.Philox(key=[ord(client[0]), number]))
    arrays: Arrays = {"net.weight": rng.normal(size=(16, 8)).astype(np.float32), "net.steps": np.array([number])}
    return ClientUpdate(client, number, base, update_id or f"{client}-{number}", arrays, 1.0, {"samples": 10.0})


def expected(number: int, clients: Sequence[str]) -> str:
    """The hash of the aggregate of just these clients."""
    return content_hash(mean([update_of(client, number) for client in sorted(clients)], None)[0])


class Stopped(Exception):  # noqa: N818
    """A closer that goes no further than the decision."""


def stop(updates: Sequence[ClientUpdate], base: Base | None) -> tuple[Arrays, MergeReport]:
    """An aggregator that its process does not survive."""
    raise Stopped


def file_now(made: Federation, update: ClientUpdate) -> rounds.Refusal | None:
    """Put an update into the current round without waiting for its end."""
    where = folder.standing(made)
    temp = folder.write_update(made, where.round, update)
    with folder.locked(made, time.monotonic() + PATIENCE_S) as is_mine:
        assert is_mine
        return folder.file_update(made, where, update, temp)


def close_now(made: Federation) -> RoundRecord | None:
    """Close the current round as one whose deadline has passed."""
    with folder.locked(made, time.monotonic() + PATIENCE_S) as is_mine:
        assert is_mine
        return closing.advance(made, folder.standing(made).round, overdue=True)


def expire(made: Federation, number: int) -> None:
    """Let the deadline of a round be past."""
    if folder.read_record(made, number) is None:
        opened = folder.RoundOpened(platform.boot_id(), time.monotonic() - made.limits.timeout_s)
        replace_file(folder.round_folder(made, number) / folder.OPENED, msgspec.json.encode(opened))


def wait_for(condition: Callable[[], bool]) -> None:
    """Until something is so, which should be soon."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("what was waited for did not come")
        time.sleep(0.002)


def start(work: Callable[[], object]) -> threading.Thread:
    """Work in a thread."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def all_exchange(talk: Callable[[str], RoundOutcome | None], clients: Sequence[str]) -> dict[str, RoundOutcome | None]:
    """Several clients at once."""
    outcomes: dict[str, RoundOutcome | None] = {}
    for thread in [start(lambda c=c: outcomes.update({c: talk(c)})) for c in clients]:
        thread.join()
    return outcomes


# --- a process that dies at its k-th call ---


def install(k: int, *, half: bool) -> None:
    """Replace the calls of `os` so that the k-th one ends this process; `half` of a write is written before."""
    calls = 0

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == k:
                if half and call.__name__ == "write":
                    call(args[0], bytes(args[1])[: len(args[1]) // 2])
                os._exit(KILLED)
            return call(*args, **kwargs)

        wrapped.__name__ = call.__name__
        return wrapped

    for name in SYSCALLS:
        setattr(os, name, wrap(getattr(os, name)))


def in_child(work: Callable[[], object]) -> int:
    """Run in a forked process; returns its id. It never comes back as a second copy of the caller."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def end_of(pid: int) -> int:
    """The exit code of a child."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# --- what has to hold after any fault ---


def broken(made: Federation, number: int, *, at_least: Sequence[str] = ()) -> list[str]:
    """Promises that a round did not keep."""
    record = folder.read_record(made, number)
    if record is None:
        return [f"round {number} is not over"]
    faults = []
    seated = [seat.client for seat in record.participants]
    if record.state == "closed":
        if record.aggregate != expected(number, seated):
            faults.append(f"the aggregate of {seated} has other bits")
        path = folder.round_folder(made, number) / folder.AGGREGATE
        base = folder.read_base(made, folder.standing(made))
        if path.exists() and (base is None or content_hash(base.arrays) != folder.standing(made).base):
            faults.append("the aggregate on the disk is another than the record's")
    missing = sorted(set(at_least) - set(seated))
    if missing:
        faults.append(f"{missing} sent their updates in time and did not take part ({record.reason})")
    lines = [json.loads(line)["round"] for line in (made.folder / folder.HISTORY).read_text().splitlines()]
    if lines != list(range(1, folder.standing(made).round)):
        faults.append(f"rounds.jsonl has rounds {lines}")
    return faults


# --- the faults ---


def closer_killed(root: Path, k: int, *, half: bool) -> Trial:
    """All updates are there, and the one that closes the round is killed at its k-th call; another takes over."""
    made = federation(root)
    for client in IDS:
        file_now(made, update_of(client, 1))

    def close() -> None:
        install(k, half=half)
        close_now(made)

    code = end_of(in_child(close))
    began = time.monotonic()
    outcome = Files(made).exchange(update_of("b", 1))
    faults = broken(made, 1, at_least=IDS)
    if outcome is None or outcome.state != "closed" or not outcome.took_part or outcome.model.base != expected(1, IDS):
        faults.append(f"b came back and was told {outcome}")
    faults += [f"the closer ended with code {code}"] * (code not in (0, KILLED))
    return Trial(
        "closer killed in a write" if half else "closer killed", k, code == 0, time.monotonic() - began, faults
    )


def client_killed(root: Path, k: int) -> Trial:
    """One of three clients is killed at its k-th call of a whole exchange; the others go on for two rounds."""
    made = federation(root)

    def take_part() -> None:
        install(k, half=k % 2 == 0)
        Files(made).exchange(update_of("c", 1))

    pid = in_child(take_part)
    told: dict[str, RoundOutcome | None] = {}
    others = [start(lambda c=c: told.update({c: Files(made).exchange(update_of(c, 1))})) for c in ("a", "b")]
    wait_for(lambda: folder.not_waited_for(made, 1) >= {"a", "b"})
    # With c's update, all are there and the round ends by itself; without it c is dead, and the deadline comes.
    code = end_of(pid)
    began = time.monotonic()
    expire(made, 1)
    for thread in others:
        thread.join()
    seconds = time.monotonic() - began
    faults = broken(made, 1, at_least=("a", "b"))
    faults += [f"{client} was told {one}" for client, one in told.items() if one is None or not one.took_part]
    # b has gone: a alone is below the quorum, and the model stays what it was.
    base = folder.standing(made).base
    lonely = start(lambda: told.update(a=Files(made).exchange(update_of("a", 2, base))))
    wait_for(lambda: folder.not_waited_for(made, 2) >= {"a"})
    expire(made, 2)
    lonely.join()
    second = told["a"]
    if second is None or second.state != "failed" or second.model != rounds.Model(3, base, None):
        faults.append(f"the lonely client was told {second}")
    faults += [f"the client ended with code {code}"] * (code not in (0, KILLED))
    return Trial("client killed", k, code == 0, seconds, faults)


def sent_again(root: Path, k: int) -> Trial:
    """Every client sends its update three times, and another process sends something else under its id."""
    made = federation(root)
    order = [(client, again) for client in IDS[:2] for again in range(4)]
    random.Random(k).shuffle(order)
    firsts: dict[str, ClientUpdate] = {}
    refused = 0
    for client, again in order:
        one = update_of(client, 1) if again < 3 else update_of("z", 1)
        update = one if again < 3 else ClientUpdate(client, 1, "", "other", one.arrays)
        first = firsts.setdefault(client, update)
        refusal = file_now(made, update)
        wanted = "duplicate" if first.update_id != update.update_id else ""
        refused += bool(wanted)
        assert (refusal.kind if refusal else "") == wanted
    outcome = Files(made).exchange(update_of("c", 1))
    record = folder.read_record(made, 1)
    faults = []
    clients = [firsts.get(client, update_of(client, 1)) for client in IDS]
    if record is None or record.aggregate != content_hash(mean(clients, None)[0]):
        faults.append("the aggregate is not that of the first update of each")
    elif record.refused != ({"duplicate": refused} if refused else {}):
        faults.append(f"{refused} duplicates were counted as {record.refused}")
    if outcome is None or not outcome.took_part:
        faults.append(f"c was told {outcome}")
    return Trial("sent again", k, True, 0.0, faults)


def strange_files(root: Path, k: int) -> Trial:
    """Files of an old round, of a round to come, and of another client stand in a round's folder."""
    made = federation(root)
    for client in IDS:
        file_now(made, update_of(client, 1))
    close_now(made)
    base = folder.standing(made).base
    old = folder.client_file(made, 1, "c")
    file_now(made, update_of("a", 2, base))
    file_now(made, update_of("b", 2, base))
    there = folder.client_file(made, 2, "c")
    kind = k % 3
    if kind == 0:
        shutil.copy(old, there)
    else:
        other = update_of("c", 5, base) if kind == 1 else update_of("a", 2, base)
        there.write_bytes(b"".join(bytes(chunk) for chunk in folder.update_chunks(other)))
    record = close_now(made)
    faults = broken(made, 2, at_least=("a", "b"))
    wanted = ("stale", "future", "malformed")[kind]
    if record is None or record.refused != {wanted: 1} or len(record.participants) != 2:
        faults.append(f"a {wanted} file was refused as {record and record.refused}")
    return Trial("strange files", k, True, 0.0, faults)


def coordinator_killed(root: Path, k: int) -> Trial:
    """The coordinator is killed at its k-th call, and started again by a supervisor; the clients notice nothing."""
    root.mkdir(parents=True, exist_ok=True)
    address = Address(str(root / "socket"))
    made = federation(root)

    def serve(at: int | None) -> None:
        server, _ = listen(address, "")
        if at is not None:
            install(at, half=at % 2 == 0)
        Coordinator(server, made, "").run()

    def supervise() -> None:
        end_of(in_child(lambda: serve(k)))
        serve(None)

    # The supervisor's children go with it: all of them are one process group.
    pid = in_child(lambda: (os.setpgid(0, 0), supervise()))
    began = time.monotonic()
    try:
        outcomes = all_exchange(
            lambda client: CoordinatorTransport(address, client, "", made.limits).exchange(update_of(client, 1)), IDS
        )
        seconds = time.monotonic() - began
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    faults = broken(made, 1, at_least=IDS)
    for client, outcome in outcomes.items():
        if outcome is None or not outcome.took_part or outcome.model.base != expected(1, IDS):
            faults.append(f"{client} was told {outcome}")
    return Trial("coordinator killed", k, False, seconds, faults)


FAULTS: dict[str, Callable[[Path, int], Trial]] = {
    "closer killed": lambda root, k: closer_killed(root, k, half=False),
    "closer killed in a write": lambda root, k: closer_killed(root, k, half=True),
    "client killed": client_killed,
    "sent again": sent_again,
    "strange files": strange_files,
    "coordinator killed": coordinator_killed,
}


# How many calls there are to be killed at, and a few more: the last trials show that nothing was left out.
CALLS = {"closer killed": 52, "closer killed in a write": 52, "client killed": 60, "coordinator killed": 115}


def points(kind: str, trials: int) -> list[int]:
    """At which calls a process is killed, evenly spread; for the other faults, seeds."""
    return [1 + k * CALLS.get(kind, trials) // trials for k in range(trials)]


def main() -> int:
    """Run every fault so many times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("runs/studies/federation_faults"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    total = 0
    with (args.out / "trials.jsonl").open("w") as out:
        for kind, fault in FAULTS.items():
            found = []
            for k in points(kind, args.trials):
                with tempfile.TemporaryDirectory() as root:
                    found.append(fault(Path(root), k))
                out.write(json.dumps(found[-1]._asdict()) + "\n")
                out.flush()
            bad = [trial for trial in found if trial.faults]
            total += len(bad)
            slowest = max(trial.seconds for trial in found)
            print(f"{kind:26} {len(found):4} trials, {len(bad)} broken, slowest end {slowest:.2f} s")
            for trial in bad[:3]:
                print(f"    at {trial.at}: {trial.faults}")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
