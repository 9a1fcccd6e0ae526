"""A worker's own loop: wait for an order, load the weights it names, collect a slab into the buffers, say so."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from threading import Event
from time import perf_counter
from typing import NamedTuple

import numpy as np

from slipstream.collect.memory import WeightStore, WorkerBuffers
from slipstream.collect.messages import MAX_TRACE, Begun, Channel, Collect, Failed, Message, Ready
from slipstream.collect.serial import CollectingStopped, Collector
from slipstream.collect.slab import episode_arrays, rollout_arrays
from slipstream.types import Arrays


class WorkerParts(NamedTuple):
    """What collects in a worker."""

    collector: Collector
    prepare: Callable[[Arrays, tuple[float, int, int]], None]  # weights by flat name, and where the run stands


def serve(
    channel: Channel,
    buffers: WorkerBuffers,
    store: WeightStore,
    owner: int,
    make: Callable[[WorkerBuffers], WorkerParts],
    stop: Event,
) -> None:
    """Work until the other side hangs up; whatever goes wrong is told it."""
    try:
        buffers.tell("starting")
        parts = make(buffers)
        try:
            _begin(parts.collector, buffers, owner)
            buffers.tell("waiting")  # before it is heard of: from then on a sign is expected
            channel.send(Begun())
            while (order := channel.receive()) is not None:
                channel.send(_fulfil(parts, buffers, store, owner, order, stop))
                buffers.tell("waiting")
        finally:
            parts.collector.env.close()
    except CollectingStopped:
        pass
    except BaseException as error:
        said, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
        channel.send(Failed(said[:MAX_TRACE], trace[-MAX_TRACE:]))
    finally:
        channel.close()


def _begin(collector: Collector, buffers: WorkerBuffers, owner: int) -> None:
    """Go on from the state that was left; where none was, leave the first one."""
    state = buffers.get_state()
    if state is not None:
        collector.load_state(state, int(state.pop("steps")))
        return
    buffers.slots[0].begin(owner, -1, -1)
    buffers.slots[0].finish(_state(collector))


def _fulfil(
    parts: WorkerParts, buffers: WorkerBuffers, store: WeightStore, owner: int, order: Message, stop: Event
) -> Ready:
    start = perf_counter()
    buffers.tell("loading")
    collector = parts.collector
    collector.env.phases = buffers.world_phases.tolist()
    if not isinstance(order, Collect):
        collector.restart()
        buffers.slots[0].begin(owner, -1, -1)
        buffers.slots[0].finish(_state(collector))
        return Ready(-1, 0)
    slot = buffers.slots[order.slot]
    version, weights = store.read(order.version)
    parts.prepare(weights, order.progress)
    slot.begin(owner, order.number, version)
    rollouts, episodes = collector.collect(version, stop, buffers.tell)
    buffers.tell("writing")
    extra = episode_arrays(episodes)
    for number, (policy, rollout) in enumerate(rollouts.items()):
        for name, array in rollout_arrays(replace(rollout, ends=None)).items():
            slot.rollouts[policy][name][...] = array
        if rollout.ends is not None:
            extra |= {f"ends.{number}.{name}": array for name, array in rollout_arrays(rollout.ends).items()}
    slot.finish(extra | _state(collector))  # last: saving a collector's state uses its rollouts
    return Ready(order.number, order.slot, version, collector.passed, perf_counter() - start)


def _state(collector: Collector) -> Arrays:
    """Another worker could go on from here."""
    state = {f"state.{name}": array for name, array in collector.state_arrays().items()}
    return state | {"state.steps": np.array(collector.steps, np.int64)}
