"""Learners in step, as processes: one leads, the others do what it does with their own share of every batch.

The one that leads is the run's own. Whatever changes it (an update, statistics, a loaded state, a pull) is told to the
others first, with all that it is made of; then all do it at once, and meet wherever a gradient is summed
(`algos/adam.py`). So they hold the same weights without ever sending them, and a checkpoint is the leader's alone.

They meet in a group of torch.distributed (gloo), on loopback unless they are on several machines. Where one ends, the
sums of the others fail: the run ends with the reason, and is resumed from its checkpoint like any other.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from time import monotonic
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import Tensor

from slipstream.algos.adam import ALONE
from slipstream.algos.protocol import Algorithm, Progress
from slipstream.collect.slab import rollout_arrays, rollout_from
from slipstream.config.load import from_plain, to_json
from slipstream.config.records import from_json
from slipstream.config.scenario import Scenario
from slipstream.data.rollout import Rollout
from slipstream.data.transitions import Sample, Transitions, from_fields, to_fields
from slipstream.errors import ScenarioError, WorkerDied
from slipstream.nets.arithmetic import arithmetic
from slipstream.run.setup import arithmetic_of, complete, make_cast, make_training_worlds
from slipstream.runtime.address import address_towards
from slipstream.runtime.frames import HEAD, FieldRecord, MessageProtocol, MessageSet
from slipstream.runtime.place import CLOSE_S, LOOPBACK, Cluster, Ended, Job, Running, end_all
from slipstream.runtime.process import START_S, Here
from slipstream.types import Arrays

dist: Any = torch.distributed  # its stubs leave out what is used here
c10d: Any = torch._C._distributed_c10d  # where options of single operations are

STEP_S = 600.0  # longest part of an update between two sums
IDLE_S = 30 * 86_400.0  # between two updates the leader may collect, judge and wait for rounds as long as it likes

EVEN = "even/"  # before the names of an even draw's arrays

T = TypeVar("T")


class LearnerJob(msgspec.Struct, frozen=True):
    """All that a learner is told when it begins."""

    scenario: str  # JSON
    host: str  # where the leader is met
    port: int
    rank: int
    ranks: int


class GroupOrder(msgspec.Struct, frozen=True):
    """What all do next."""

    what: Literal["rollout", "sample", "observe", "load", "pull", "end"]
    policy: str = ""
    parts: tuple[FieldRecord, ...] = ()
    progress: tuple[float, int, int] = (0.0, 0, 0)
    options: dict[str, bool] = {}
    strength: float = 0.0


ORDERS = MessageSet(MessageProtocol.LEARNERS, 1 << 20, msgspec.msgpack.Decoder(GroupOrder))


class GroupError(RuntimeError):
    """The learners cannot reach each other: what gloo raises, whatever has happened."""


@contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise GroupError(str(error)) from error


class LearnerGroup:
    """One learner's side of the group; satisfies `algos.adam.Share`."""

    def __init__(self, job: LearnerJob, here: str, listener: socket.socket | None = None) -> None:
        """`here` is the address this learner is reached at; the leader's `listener` is where all meet."""
        self.rank, self.ranks = job.rank, job.ranks
        with _reached():
            self._store = dist.TCPStore(
                job.host,
                job.port,
                is_master=listener is not None,
                timeout=timedelta(seconds=START_S),
                wait_for_workers=False,
                master_listen_fd=None if listener is None else listener.detach(),
            )
            options = dist.ProcessGroupGloo._Options()
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=here)]
            options._timeout = timedelta(seconds=START_S)
            self._group = dist.ProcessGroupGloo(self._store, self.rank, self.ranks, options)

    def gather(self, mine: Tensor) -> Tensor:
        """[ranks, n]: everybody's vectors of one length, in the order of the learners."""
        here = mine.detach().to("cpu").contiguous()
        out = torch.empty((self.ranks, *here.shape), dtype=here.dtype)
        options = c10d.AllgatherOptions()
        options.timeout = timedelta(seconds=STEP_S)
        with _reached():
            self._group.allgather([list(out)], [here], options).wait()
        return out.to(mine.device)

    def tell(self, order: GroupOrder, arrays: Mapping[str, NDArray[Any]], limit_s: float = STEP_S) -> None:
        """The leader's order, to all others."""
        parts = tuple(FieldRecord(name, array.dtype.str, array.shape) for name, array in arrays.items())
        data = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
        content = ORDERS.frame(msgspec.structs.replace(order, parts=parts), len(data)) + data
        self._broadcast(torch.tensor([len(content)]), limit_s)
        self._broadcast(torch.frombuffer(bytearray(content), dtype=torch.uint8), limit_s)

    def receive(self) -> tuple[GroupOrder, Arrays]:
        """The next order and its arrays."""
        (size,) = self._broadcast(torch.zeros(1, dtype=torch.int64), IDLE_S).tolist()
        content = self._broadcast(torch.empty(size, dtype=torch.uint8), STEP_S).numpy()
        at = HEAD.size + ORDERS.parse_head(content.data, size).body
        order, arrays = ORDERS.parse(content[HEAD.size : at].tobytes()), {}
        for part in order.parts:
            end = at + int(np.prod(part.shape)) * np.dtype(part.dtype).itemsize
            arrays[part.name] = content[at:end].copy().view(part.dtype).reshape(part.shape)
            at = end
        return order, arrays

    def _broadcast(self, tensor: Tensor, limit_s: float) -> Tensor:
        options = c10d.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = 0, 0, timedelta(seconds=limit_s)
        with _reached():
            self._group.broadcast([tensor], options).wait()
        return tensor


# --- the one that leads ---


class Leader:
    """The run's side: the others, and the group with them."""

    def __init__(self, scenario: Scenario, cluster: Cluster | None) -> None:
        host, place = (LOOPBACK, Here()) if cluster is None else (cluster.host, cluster)
        listener = socket.create_server((host, 0))
        port, ranks = listener.getsockname()[1], scenario.learners
        plain = to_json(scenario)
        jobs = [LearnerJob(plain, host, port, rank, ranks) for rank in range(ranks)]
        self.group: LearnerGroup | None = None
        self.learners: list[Algorithm] = []
        self._others: list[Running] = []
        try:
            for job in jobs[1:]:
                payload = msgspec.json.encode(job)
                self._others.append(
                    place.start(Job("slipstream.run.processes.data_parallel", payload=payload, output="kept"))
                )
            self.group = self.together(lambda: LearnerGroup(jobs[0], host, listener))
        except BaseException:
            self.close()
            raise

    def together(self, work: Callable[[], T]) -> T:
        """Do what all do; where one of them is gone, say which."""
        try:
            return work()
        except RuntimeError as error:  # the group's, or torch's: a learner may have died in the middle of anything
            deadline = monotonic() + CLOSE_S
            gone = [
                f"learner {rank} {_why(other.ended())}"
                for rank, other in enumerate(self._others, 1)
                if other.is_over(max(0.0, deadline - monotonic()))
            ]
            if not gone and not isinstance(error, GroupError):
                raise
            said = "; ".join(gone) or f"the learners lost each other ({error})"
            raise WorkerDied(f"{said}; continue from the last checkpoint with slipstream resume") from error

    def close(self) -> None:
        """End the others, and let go of the group."""
        if self.group is not None:
            with suppress(RuntimeError):
                self.group.tell(GroupOrder("end"), {}, CLOSE_S)  # nobody hears it who is in the middle of an update
        end_all(self._others)
        for other in self._others:
            other.close()
        for learner in self.learners:
            learner.set_share(ALONE)
        self.group = None


class ReplicatedLearner:
    """A learner whose every change the others in step make too; all else is its own."""

    def __init__(self, learner: Algorithm, policy: str, leader: Leader) -> None:
        assert leader.group is not None
        self._learner, self._policy, self._leader = learner, policy, leader
        leader.learners.append(learner)
        learner.set_share(leader.group)
        self.load_state_dict(learner.state_dict())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def update(self, batch: Rollout | Sample, progress: Progress) -> Any:
        """Learn from a slab or a draw."""
        is_draw = isinstance(batch, Sample)
        order = GroupOrder("sample" if is_draw else "rollout", self._policy, progress=_numbers(progress))
        arrays = rollout_arrays(batch) if isinstance(batch, Rollout) else _sample_arrays(batch)
        learner: Any = self._learner
        return self._all(order, arrays, lambda: learner.update(batch, progress))

    def observe(self, rows: Transitions) -> None:
        """Take new transitions into the input statistics."""
        learner: Any = self._learner
        self._all(GroupOrder("observe", self._policy), to_fields(rows), lambda: learner.observe(rows))

    def load_state_dict(self, state: Arrays, strict: bool = True, include_optim: bool = True) -> None:
        """Take over a saved state."""
        options = {"strict": strict, "include_optim": include_optim}
        self._learner.load_state_dict(state, **options)  # what is wrong with it is found out here
        self._all(GroupOrder("load", self._policy, options=options), state, lambda: None)

    def pull_towards(self, reference: Arrays, strength: float) -> None:
        """Stay near these weights."""
        order = GroupOrder("pull", self._policy, strength=strength)
        self._all(order, reference, lambda: self._learner.pull_towards(reference, strength))

    def _all(self, order: GroupOrder, arrays: Mapping[str, NDArray[Any]], work: Callable[[], T]) -> T:
        def together() -> T:
            assert self._leader.group is not None
            self._leader.group.tell(order, arrays)
            return work()

        return self._leader.together(together)


def refuse_uneven(scenario: Scenario) -> None:
    """A draw from replay is shared out evenly, or not at all."""
    for name, algo in scenario.learning.items():
        rows = algo.gradient_rows
        if algo.replay_config is not None and rows % scenario.learners:
            raise ScenarioError(
                f"learners: {scenario.learners} cannot share {algo.kind}'s batches of {rows} rows evenly "
                f"(policies.{name}); try algo.batch_size {rows // scenario.learners * scenario.learners}"
            )


def replicate(
    scenario: Scenario, learners: Mapping[str, Algorithm], cluster: Cluster | None = None
) -> tuple[Leader, dict[str, Any]]:
    """Start the other learners, on this machine or on a cluster, and have them do what these do."""
    refuse_uneven(scenario)
    leader = Leader(scenario, cluster)
    try:
        return leader, {name: ReplicatedLearner(learner, name, leader) for name, learner in learners.items()}
    except BaseException:
        leader.close()
        raise


# --- the others ---


def run_replica(job: LearnerJob) -> None:
    """Do what the leader does until it says that it was the end."""
    scenario = from_plain(json.loads(job.scenario))
    if scenario.device == "cuda":
        torch.cuda.set_device(job.rank % torch.cuda.device_count())  # a GPU each, where there are as many
    worlds = make_training_worlds(scenario, range(1))
    scenario = complete(scenario, worlds.spec)
    cast = make_cast(scenario, worlds.spec)
    blocks = {name: [block.name for block in record.world.obs] for name, record in cast.records.items()}
    worlds.close()
    group = LearnerGroup(job, address_towards(job.host))
    for learner in cast.learners.values():
        learner.set_share(group)
    while True:
        order, arrays = group.receive()
        if order.what == "end":
            return
        with arithmetic(arithmetic_of(scenario)):
            do(order, arrays, cast.learners[order.policy], blocks[order.policy])


def do(order: GroupOrder, arrays: Arrays, learner: Any, blocks: Sequence[str]) -> None:
    """Carry out one order."""
    progress = Progress(*order.progress)
    match order.what:
        case "rollout":
            learner.update(rollout_from(arrays), progress)
        case "sample":
            learner.update(_sample_from(arrays, blocks), progress)
        case "observe":
            learner.observe(from_fields(arrays, blocks))
        case "load":
            learner.load_state_dict(arrays, **order.options)
        case "pull":
            learner.pull_towards(arrays, order.strength)


def _why(ended: Ended) -> str:
    return f"{ended}" + (f":\n{ended.trace.strip()}\n" if ended.trace else "")


def _numbers(progress: Progress) -> tuple[float, int, int]:
    return progress.fraction, progress.update, progress.steps


def _sample_arrays(sample: Sample) -> Arrays:
    even = {} if sample.even is None else _sample_arrays(sample.even)
    return {**to_fields(sample.rows), "weight": sample.weight, **{EVEN + name: even[name] for name in even}}


def _sample_from(arrays: Arrays, blocks: Sequence[str]) -> Sample:
    even = {name.removeprefix(EVEN): arrays.pop(name) for name in list(arrays) if name.startswith(EVEN)}
    weight, rows = arrays.pop("weight"), from_fields(arrays, blocks)
    return Sample(rows, np.zeros(len(rows), np.int64), weight, even=_sample_from(even, blocks) if even else None)


if __name__ == "__main__":
    run_replica(from_json(sys.stdin.buffer.read(), LearnerJob))
