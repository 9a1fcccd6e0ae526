"""What a run shares with its workers: layouts, slots, the board of weights, and states joined and split."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from learning import build, digest, scenario_of, tiny

from slipstream.collect.memory import BufferPlan, WeightStore, WorkerBuffers, layout_of, shares
from slipstream.collect.merge import beside, join_states, split_state
from slipstream.collect.messages import Channel, Collect, Ready
from slipstream.errors import WorldContractError
from slipstream.runtime.memory import make_memory, open_memory
from slipstream.runtime.packets import make_pair
from slipstream.worlds.registry import make_worlds, world_config
from slipstream.worlds.vec_env import EnvOptions


@pytest.fixture
def memory():
    made = []

    def make(size: int):
        descriptor, mapped = make_memory("test", size)
        made.append(descriptor)
        return descriptor, mapped

    yield make
    for descriptor in made:
        os.close(descriptor)


def test_arrays_laid_in_memory_are_seen_by_whoever_maps_it(memory):
    arrays = {"a": np.arange(5, dtype=np.int32), "b": np.full((2, 3), 0.5), "none": np.zeros((0, 4), np.uint8)}
    layout = layout_of(arrays)
    descriptor, mapped = memory(layout.size + 64)
    for name, view in layout.views(mapped, 64).items():
        view[...] = arrays[name]
    assert digest(layout.views(open_memory(descriptor, writable=False), 64)) == digest(arrays)


@pytest.mark.parametrize(("worlds", "workers"), [(4, 1), (4, 4), (7, 3), (1000, 8)])
def test_worlds_are_shared_out_in_order_and_evenly(worlds, workers):
    parts = shares(worlds, workers)
    assert [world for part in parts for world in part] == list(range(worlds))
    assert {len(part) for part in parts} <= {worlds // workers, -(-worlds // workers)}


def test_a_slab_is_ready_only_whole_and_only_as_the_one_that_was_asked_for(memory):
    plan = BufferPlan(2, {"main": layout_of({"x": np.zeros(3)})}, slots=2, extra_bytes=4096, state_bytes=4096)
    descriptor, mapped = memory(plan.size)
    mine, theirs = WorkerBuffers(mapped, plan), WorkerBuffers(open_memory(descriptor), plan)
    slot = mine.slots[1]
    theirs.slots[1].begin(owner=7, number=5, version=3)
    assert not slot.is_ready(7, 5)
    theirs.slots[1].rollouts["main"]["x"][:] = 1, 2, 3
    theirs.slots[1].finish({"steps": np.array(9)})
    assert slot.is_ready(7, 5)
    assert not slot.is_ready(6, 5)  # of a worker that was replaced
    assert not slot.is_ready(7, 4)
    assert slot.rollouts["main"]["x"].tolist() == [1, 2, 3]
    assert int(slot.extra()["steps"]) == 9
    slot.release()
    assert not theirs.slots[1].is_ready(7, 5)
    with pytest.raises(RuntimeError, match=r"^8\d+ bytes .* 4096$"):
        slot.finish({"x": np.zeros(1000)})


def test_a_reader_never_gets_weights_of_two_versions(memory):
    layout = layout_of({"w": np.zeros(20_000), "b": np.zeros(3)})
    descriptor, mapped = memory(WeightStore.size(layout, 2))
    writer, reader = WeightStore(mapped, layout, 2), WeightStore(open_memory(descriptor, writable=False), layout, 2)
    writer.write(0, {"w": np.zeros(20_000), "b": np.zeros(3)})
    done = threading.Event()

    def publish() -> None:
        for version in range(1, 400):
            writer.write(version, {"w": np.full(20_000, version), "b": np.full(3, version)})
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    seen = []
    while not done.is_set():
        version, weights = reader.read()
        assert (weights["w"] == version).all()
        assert (weights["b"] == version).all()
        seen.append(version)
    thread.join()
    assert seen == sorted(seen)
    assert reader.read(398)[0] == 398
    with pytest.raises(RuntimeError, match=r"397.*399"):
        reader.read(397)


@pytest.mark.parametrize("name", ["head_on", "probe_alternating", "drmario_level_0", "time_trial_oval"])
def test_a_snapshot_of_neighbours_is_that_of_a_batch_of_them_alone(name):
    config = world_config(name)
    whole = make_worlds(config, 5, EnvOptions(seed=3))
    parts = [make_worlds(config, count, EnvOptions(seed=3, first_world=first)) for first, count in ((0, 2), (2, 3))]
    for env in (whole, *parts):
        env.reset()
    for _ in range(7):
        for env in (whole, *parts):
            if env.action_mask is not None:
                env.actions[...] = env.action_mask.argmax(-1)
            env.step()
    snapshots = [env.snapshot() for env in parts]
    other = make_worlds(config, 5, EnvOptions(seed=99))
    other.reset()
    before = other.snapshot()
    assert other.join(snapshots, [2, 3]) == whole.snapshot()
    assert other.split(whole.snapshot(), [2, 3]) == snapshots
    assert other.snapshot() == before
    with pytest.raises(WorldContractError, match=f"^{other.spec.name}: .* 3, 2 worlds"):
        other.join(snapshots, [3, 2])
    assert other.snapshot() == before


def test_snapshots_of_foreign_worlds_are_joined_and_split():
    config = scenario_of("cartpole").world
    env = make_worlds(config, 3)
    env.reset()
    env.reset(np.array([0, 1, 0], np.uint8))
    parts = env.split(env.snapshot(), [1, 2])
    assert env.join(parts, [1, 2]) == env.snapshot()
    with pytest.raises(WorldContractError, match=r" 1 worlds of CartPole-v1 .* 2 worlds of CartPole-v1 "):
        env.join(parts, [2, 1])
    env.close()


@pytest.mark.parametrize("name", ["probe_alternating", "head_on"])
def test_rollouts_and_states_side_by_side_are_those_of_one_collector(name):
    cut_off = {"world.max_episode_steps": 5, "world.time_left": False} if name == "head_on" else {}
    changes = {**tiny("ppo"), **cut_off}
    scenario = scenario_of(name, {**changes, "collect.num_worlds": 5, "collect.rollout_length": 16})
    whole = build(scenario)
    rollouts, _ = whole.collector.collect(0)
    state = {**whole.collector.state_arrays(), "steps": np.array(16)}
    split = split_state(state, whole.env, shares(5, 3))
    assert digest(join_states(split, whole.env, shares(5, 3))) == digest(state)
    rollouts, _ = whole.collector.collect(0)  # what `state_arrays` used is written again
    rollout = rollouts["main"]
    left, right = (part_of(rollout, columns) for columns in (slice(0, 2), slice(2, 5)))
    merged = beside([left, right])
    assert merged.obs.keys() == rollout.obs.keys()
    if rollout.ends is not None:
        assert merged.ends is not None
        assert merged.ends.index.tolist() == rollout.ends.index.tolist()
    assert (name == "head_on") == (rollout.ends is not None)
    assert digest({"r": merged.reward, "v": merged.version, "l": merged.last_obs["obs"]}) == digest(
        {"r": rollout.reward, "v": rollout.version, "l": rollout.last_obs["obs"]}
    )


def part_of(rollout, columns: slice):
    """The slow obvious way: field by field."""
    from dataclasses import replace

    from slipstream.collect.merge import BY_WORLD
    from slipstream.collect.slab import rollout_arrays, rollout_from
    from slipstream.data.rollout import Ends

    arrays = rollout_arrays(replace(rollout, ends=None))
    cut = {
        name: array[columns] if name.split(".")[0] in BY_WORLD else array[:, columns] for name, array in arrays.items()
    }
    ends = None
    if rollout.ends is not None:
        agents = rollout.shape[2]
        row, world, agent = np.unravel_index(rollout.ends.index, rollout.shape)
        inside = (world >= columns.start) & (world < columns.stop)
        own = columns.stop - columns.start
        index = ((row * own + world - columns.start) * agents + agent)[inside]
        ends = Ends(index, {name: block[inside] for name, block in rollout.ends.obs.items()}, None, None)
        if rollout.ends.state is not None:
            ends = replace(ends, state=rollout.ends.state[inside])
    return replace(rollout_from(cut), ends=ends)


def test_what_was_said_before_a_death_is_heard_though_orders_lie_unread():
    """Of a slab that was delivered, or it would be collected again and its worker taken for one that delivers none."""
    mine, theirs = (Channel(end) for end in make_pair())
    for number in range(3):
        mine.send(Collect(number, 0, 0))
    assert theirs.receive() == Collect(0, 0, 0)
    theirs.send(Ready(0, 0))
    theirs.close()  # with two orders unread, as a killed worker's end is
    assert mine.receive() == Ready(0, 0)
    assert mine.receive() is None
    mine.close()
