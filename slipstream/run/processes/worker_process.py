"""What a worker is made of: its share of a scenario's worlds, and everybody who acts in them."""

from __future__ import annotations

import json
import socket
from threading import Event

import msgspec
import torch

from slipstream import _core
from slipstream.algos.protocol import Progress
from slipstream.collect.memory import ArrayLayout, BufferPlan, WeightStore, WorkerBuffers
from slipstream.collect.messages import Channel
from slipstream.collect.serial import Collector
from slipstream.collect.slab import under
from slipstream.collect.worker import WorkerParts, serve
from slipstream.config.load import from_plain
from slipstream.config.records import from_json
from slipstream.run.setup import gammas, make_cast, make_training_worlds
from slipstream.runtime.memory import open_memory
from slipstream.types import Arrays


class WorkerJob(msgspec.Struct, frozen=True):
    """All that a worker is told when it begins."""

    scenario: str  # JSON
    first_world: int
    worlds: int
    owner: int  # the number of this life, written on every slab
    buffers: BufferPlan
    store: ArrayLayout
    versions: int  # of weights that the store holds


def main(payload: bytes, descriptors: list[int]) -> None:
    """A worker process, with its channel, its buffers and the weights."""
    channel, buffers, store = descriptors
    use_one_thread()
    job = from_json(payload, WorkerJob)
    store_memory = open_memory(store, writable=False)
    work(job, socket.socket(fileno=channel), WorkerBuffers(open_memory(buffers), job.buffers), store_memory, Event())


def use_one_thread() -> None:
    """Be a process that is one worker: one thread, for other workers are the others, and memory that stays."""
    torch.set_num_threads(1)
    _core.set_kernel_threads(1)
    _core.keep_freed_memory()


def work(job: WorkerJob, end: socket.socket, buffers: WorkerBuffers, store_memory: object, stop: Event) -> None:
    """A worker's life, in a process or on a thread."""
    store = WeightStore(store_memory, job.store, job.versions)  # type: ignore[arg-type]
    serve(Channel(end), buffers, store, job.owner, lambda own: make_worker_parts(job, own), stop)


def make_worker_parts(job: WorkerJob, buffers: WorkerBuffers) -> WorkerParts:
    """Build worlds and policies; the learners act here and never learn."""
    scenario = from_plain(json.loads(job.scenario))
    worlds = make_training_worlds(scenario, range(job.first_world, job.first_world + job.worlds))
    worlds.phases = buffers.world_phases.tolist()  # before the first episodes begin
    cast = make_cast(scenario, worlds.spec)
    ticks = scenario.collect.rollout_length
    collector = Collector(worlds, cast.teams, ticks, scenario.seed, gammas(scenario), cast.shaping, job.first_world)

    def prepare(weights: Arrays, progress: tuple[float, int, int]) -> None:
        for name, learner in cast.learners.items():
            learner.load_state_dict(under(weights, f"learner.{name}."), strict=False, include_optim=False)
            learner.explore(Progress(*progress))
        for name, selves in cast.past.items():
            selves.act_as(under(weights, f"past.{name}."))

    return WorkerParts(collector, prepare)
