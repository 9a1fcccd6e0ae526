"""A replay that holds frames once gives, saves and loads the very bytes that plain rows would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import build, digest, tiny

from slipstream import _core
from slipstream.config.load import load
from slipstream.data import checkpoint
from slipstream.data.rollout import allocate_rollout
from slipstream.data.transitions import Chain, Fields, Sample, Transitions, from_fields, to_fields
from slipstream.errors import ScenarioError, WorldContractError
from slipstream.replay import buffer, frames
from slipstream.replay.buffer import Prioritised, Replay
from slipstream.replay.frames import FrameReplay, image_fields, make_replay, usual_bytes
from slipstream.replay.segments import load_replay, save_replay
from slipstream.run import replay_input
from slipstream.run.session import train
from slipstream.run.setup import resolve, usual_capacity
from slipstream.spec import ActionSpec, ObsBlock, WorldSpec

ATARI = (84, 84)
STACK = 4


def rows_of(frame: np.ndarray, following: np.ndarray, seed: int = 0) -> Transitions:
    """Transitions with these images, a vector beside them, and numbers that tell rows apart."""
    count, rng = len(frame), np.random.default_rng(seed)
    fields: Fields = {
        "obs.frame": frame,
        "obs.speed": rng.normal(size=(count, 3)).astype(np.float32),
        "next_obs.frame": following,
        "next_obs.speed": rng.normal(size=(count, 3)).astype(np.float32),
        "action": rng.integers(0, 4, count).astype(np.int32),
        "reward": rng.normal(size=count).astype(np.float32),
        "discount": rng.normal(size=count).astype(np.float32),
    }
    return from_fields(fields)


def none_of(shape: tuple[int, ...], dtype: Any = np.uint8) -> Transitions:
    return rows_of(np.zeros((0, *shape), dtype), np.zeros((0, *shape), dtype))


def same(a: Fields, b: Fields) -> bool:
    return list(a) == list(b) and digest(a) == digest(b)


def same_sample(a: Sample, b: Sample) -> bool:
    beside = [(a.index, b.index), (a.weight, b.weight)]
    return same(to_fields(a.rows), to_fields(b.rows)) and all(np.array_equal(*pair) for pair in beside)


# --- the same bytes as plain rows ---


def of_few_frames(seed: int, count: int, shape: tuple[int, ...]) -> Transitions:
    """Images out of a handful of frames, some of which differ in the last byte only."""
    rng = np.random.default_rng(seed)
    height = shape[-2:]
    handful = rng.integers(0, 256, (3, *height), np.uint8).repeat(3, 0)
    handful[1::3, -1, -1] ^= 1
    stacked = len(shape) == 3
    pick = (
        (lambda: handful[rng.integers(0, 9, (count, shape[0]))])
        if stacked
        else lambda: handful[rng.integers(0, 9, count)]
    )
    return rows_of(pick(), pick(), seed)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from([(2, 32, 32), (3, 33, 32), (40, 30)]),
    capacity=st.integers(1, 12),
    slabs=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    prioritised=st.sampled_from([None, Prioritised()]),
)
def test_draws_reads_and_states_are_those_of_plain_rows(shape, capacity, slabs, prioritised):
    plain = Replay(none_of(shape), capacity, 5, prioritised)
    shared = make_replay(none_of(shape), capacity, 5, prioritised)
    assert isinstance(shared, FrameReplay)
    for draw, count in enumerate(slabs):
        rows = of_few_frames(draw, count, shape)
        plain.add(rows)
        shared.add(rows)
        assert (len(shared), shared.total_added) == (len(plain), plain.total_added)
        if not len(plain):
            continue
        drawn = plain.sample(7, draw, 0.5), shared.sample(7, draw, 0.5)
        assert same_sample(*drawn)
        for replay, sample in zip((plain, shared), drawn, strict=True):
            replay.update_priorities(sample.index, np.arange(7.0))
        newest = plain.total_added
        assert same(plain.read(newest - len(plain), newest), shared.read(newest - len(plain), newest))
        assert same_sample(plain.pick(np.arange(len(plain))), shared.pick(np.arange(len(plain))))
        assert digest(plain.state_arrays()) == digest(shared.state_arrays())
    assert shared.fields == plain.fields
    held = {bytes(f) for array in images_of(plain).values() for f in array}
    assert sum(pool.frames for pool in shared._pools.values()) == len(held)  # each once, and nothing that is not shown


def images_of(replay: Replay) -> Fields:
    """All frames that the rows held show."""
    rows = replay.read(replay.total_added - len(replay), replay.total_added)
    stacked = len(rows["obs.frame"].shape) == 4
    return {
        name: rows[name].reshape(-1, *rows[name].shape[2 if stacked else 1 :])
        for name in ("obs.frame", "next_obs.frame")
    }


def test_images_of_truths_and_several_sizes_side_by_side_come_back():
    rng = np.random.default_rng(0)
    fields = to_fields(
        rows_of(rng.integers(0, 2, (20, 40, 40)).astype(bool), rng.integers(0, 2, (20, 40, 40)).astype(bool))
    )
    for name in ("obs.wide", "next_obs.wide"):
        fields[name] = rng.integers(0, 256, (20, 2, 36, 40), np.uint8)
    rows = from_fields(fields)
    plain, shared = Replay(rows, 20, 1), make_replay(rows, 20, 1)
    for replay in (plain, shared):
        replay.add(rows)
    assert same(plain.read(0, 20), shared.read(0, 20))
    assert same_sample(plain.sample(9, 3), shared.sample(9, 3))


def test_what_is_drawn_stays_as_it_was_when_its_rows_are_overwritten():
    replay = make_replay(none_of((2, 32, 32)), 4, 1)
    replay.add(of_few_frames(1, 4, (2, 32, 32)))
    kept = replay.read(0, 4)
    before = digest(kept)
    replay.add(of_few_frames(2, 4, (2, 32, 32)))
    assert digest(kept) == before


# --- memory ---


class Stacked:
    """An environment's frames as FrameStack shows them: the newest at the end, the first repeated at a start."""

    def __init__(self, length: int) -> None:
        self._rng, self._length, self._tick = np.random.default_rng(3), length, 0

    def transitions(self, count: int) -> Transitions:
        now, after = [], []
        for _ in range(count):
            if self._tick % self._length == 0:
                self._stack = np.repeat(self._rng.integers(0, 256, (1, *ATARI), np.uint8), STACK, 0)
            now.append(self._stack)
            self._stack = np.concatenate([self._stack[1:], self._rng.integers(0, 256, (1, *ATARI), np.uint8)])
            after.append(self._stack)
            self._tick += 1
        return rows_of(np.stack(now), np.stack(after))


def test_a_transition_of_stacked_frames_takes_little_more_than_one_frame():
    capacity, world = 2000, Stacked(200)
    replay = make_replay(none_of((STACK, *ATARI)), capacity, 1, Prioritised())
    plain = 2 * STACK * 84 * 84
    for _ in range(50):  # the ring is overwritten, and what is free is used again
        replay.add(world.transitions(50))
    small = 100  # reward, action, …, and the priority
    assert replay.nbytes / capacity <= 1.1 * 84 * 84 + small < 0.15 * plain
    assert same_sample(replay.sample(8, 1), replay.sample(8, 1))


def test_frames_that_are_never_the_same_take_what_plain_rows_take():
    rng = np.random.default_rng(0)
    rows = rows_of(*rng.integers(0, 256, (2, 200, 2, 32, 32), np.uint8))
    replay = make_replay(rows, 100, 1)
    replay.add(rows)
    plain = Replay(rows, 100, 1)
    plain.add(rows)
    assert replay.nbytes <= 1.1 * plain.nbytes
    assert same(replay.read(100, 200), plain.read(100, 200))


@pytest.mark.parametrize(
    ("shape", "dtype", "found"),
    [
        ((84, 84), np.uint8, [1, 1]),
        ((4, 84, 84), np.uint8, [4, 4]),
        ((84, 84, 4), np.uint8, [1, 1]),  # the stack is the last axis: held whole
        ((4, 84, 84, 3), np.uint8, [4, 4]),
        ((3, 20, 20), np.uint8, [1, 1]),  # planes too small to keep books of
        ((40, 40), bool, [1, 1]),
        ((8, 8), np.uint8, []),
        ((84, 84), np.float32, []),
        ((7056,), np.uint8, []),
    ],
)
def test_what_is_shared(shape, dtype, found):
    like = none_of(shape, dtype)
    assert [images.frames for images in image_fields(buffer.lay_out(to_fields(like)))] == found
    assert isinstance(make_replay(like, 10, 1), FrameReplay if found else Replay)


def test_memory_that_is_not_there_is_refused_when_made_and_when_it_is_needed(monkeypatch):
    like = none_of((STACK, *ATARI))
    monkeypatch.setattr(buffer, "available_memory", lambda: 100 * 84 * 84)
    with pytest.raises(ScenarioError, match=r"1,000 transitions.*7,056 bytes"):
        make_replay(like, 1000, 1)
    replay = make_replay(like, 50, 1)
    with pytest.raises(ScenarioError, match="smaller capacity"):
        replay.add(Stacked(10).transitions(40))


def test_rows_of_another_shape_are_refused_and_change_nothing():
    replay = make_replay(none_of((2, 32, 32)), 4, 1)
    with pytest.raises(WorldContractError, match="frame"):
        replay.add(of_few_frames(1, 4, (2, 33, 32)))
    assert (len(replay), replay.total_added) == (0, 0)


# --- files ---


@pytest.mark.parametrize("prioritised", [None, Prioritised()])
def test_segments_of_plain_rows_load_and_those_of_shared_frames_are_the_same_files(tmp_path, prioritised):
    def filled(kind: Any) -> Any:
        replay = kind(none_of((2, 32, 32)), 30, 5, prioritised)
        for seed in range(4):
            replay.add(of_few_frames(seed, 13, (2, 32, 32)))
        return replay

    plain, shared = filled(Replay), filled(FrameReplay)
    records = [save_replay(tmp_path / name, replay, []) for name, replay in (("plain", plain), ("shared", shared))]
    assert records[0] == records[1]  # names, sizes and hashes
    for kind in (Replay, FrameReplay):
        again = kind(none_of((2, 32, 32)), 30, 5, prioritised)
        again.add(of_few_frames(9, 30, (2, 32, 32)))  # what it held is forgotten
        again.load_state(plain.state_arrays())
        load_replay(tmp_path / "plain", records[0], again)
        rows = of_few_frames(7, 11, (2, 32, 32))
        again.add(rows)
        other = filled(FrameReplay)
        other.add(rows)
        assert same_sample(again.sample(40, 3), other.sample(40, 3))


def test_spans_of_several_decisions_with_ends_of_both_kinds_are_the_same_rows():
    spec = WorldSpec(
        name="frames",
        agents=("a", "b"),
        roles=("a", "a"),
        obs=(ObsBlock("frame", "uint8", (2, 32, 32), 0.0, 255.0),),
        action=ActionSpec(discrete=True, size=3),
    )
    rng = np.random.default_rng(4)
    rollout = allocate_rollout(spec, 9, 3, 2, True, 0)
    chain = Chain(rollout, 0.9, 3)
    plain, shared = Replay(chain.empty, 40, 1, Prioritised()), make_replay(chain.empty, 40, 1, Prioritised())
    for _ in range(6):
        for obs in (rollout.obs, rollout.last_obs):
            obs["frame"][...] = rng.integers(0, 2, (*obs["frame"].shape[:-2], 1, 1))
        for ones in (rollout.decided, rollout.paid, rollout.duration):
            ones[...] = 1
        rollout.reward[...] = rng.normal(size=rollout.reward.shape)
        rollout.terminated[4] = 1
        rows = chain.extend(rollout)
        plain.add(rows)
        shared.add(rows)
        assert same_sample(plain.sample(16, 0), shared.sample(16, 0))


def test_a_run_learns_and_saves_the_same_bits_as_with_plain_rows(tmp_path, monkeypatch):
    changes = tiny("dqn", network={"kind": "conv", "channels": [4], "features": 16}) | {
        "algo.replay.prioritised": {},
        "algo.replay.n_step": 3,
    }

    def outcome(name: str) -> list[Any]:
        run = train(load("probe_digit", changes), out=tmp_path / name, models=tmp_path / "m").run
        saved = checkpoint.load_latest(run / "checkpoints").checkpoint
        files = {
            path.name: np.frombuffer(path.read_bytes(), np.uint8)
            for path in sorted(Path(run, "replay").rglob("*.safetensors"))
        }
        return [digest(saved.arrays), digest(files)]

    made: list[Any] = []
    monkeypatch.setattr(frames, "SMALLEST", 16)  # the digit's image is a small one
    monkeypatch.setattr(replay_input, "make_replay", lambda *args: made.append(make_replay(*args)) or made[-1])
    shared = outcome("shared")
    assert [type(replay) for replay in made] == [FrameReplay]
    monkeypatch.setattr(replay_input, "make_replay", Replay)
    assert outcome("plain") == shared


class Moving(gymnasium.Env):  # type: ignore[type-arg]
    """Noise of 40 x 40; an episode is cut after 40 steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (40, 40), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._tick = 0
        return self._frame(), {}

    def step(self, action: Any) -> Any:
        self._tick += 1
        return self._frame(), 1.0, False, self._tick == 40, {}

    def _frame(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (40, 40), np.uint8)


def test_stacks_of_a_gymnasium_wrapper_share_their_frames():
    gymnasium.register("TestsMoving-v0", Moving)
    stacked = {"target": "gymnasium.wrappers:FrameStackObservation", "kwargs": {"stack_size": 4}}
    world = {"kind": "gymnasium", "id": "TestsMoving-v0", "wrappers": [stacked]}
    changes = {"world": world, **tiny("dqn", network={"kind": "conv", "channels": [4], "features": 16})}
    changes |= {"algo.replay.capacity": 300, "collect.rollout_length": 64, "algo.training_intensity": 0.01}
    parts = build(resolve(load("cartpole", changes)))
    try:
        for _ in range(3):
            parts.advance()
        (feed,) = parts.feeds.values()
        replay = feed.replay
        assert isinstance(replay, FrameReplay)
        assert len(replay) == 300
        (pool,) = replay._pools.values()
        # A frame for each row; two more where an episode begins or ends, and three above the oldest row of 4 worlds.
        assert 300 <= pool.frames <= 300 + 2 * (300 // 40 + 4) + 4 * 4
    finally:
        parts.env.close()


# --- the pool ---


def test_a_pool_refuses_what_it_does_not_have():
    pool = _core.FramePool(8, 2)
    ids = np.zeros(2, np.uint32)
    pool.hold(np.arange(16, dtype=np.uint8), ids)
    assert ids.tolist() == [1, 2]
    with pytest.raises(ValueError, match="no frame 3"):
        pool.gather(np.array([3], np.uint32), np.zeros(8, np.uint8))
    with pytest.raises(ValueError, match="15 bytes"):
        pool.hold(np.zeros(15, np.uint8), ids)
    with pytest.raises(ValueError, match="at least 1 byte"):
        _core.FramePool(0, 1)
    out = np.ones(16, np.uint8)
    pool.gather(np.array([0, 2], np.uint32), out)
    assert out.tolist() == [0] * 8 + list(range(8, 16))
    pool.release(ids)
    assert pool.frames == 0


# --- how many rows fit ---


def one_after_the_other(count: int, shape: tuple[int, ...], new: int) -> Transitions:
    """Rows of one long episode, whose images have so many new planes along the first axis; 0: all is new."""
    rng = np.random.default_rng(0)
    if not new:
        images = rng.integers(0, 256, (count + 1, *shape), np.uint8)
        return rows_of(images[:-1], images[1:])
    planes = rng.integers(0, 256, (shape[0] + new * count, *shape[1:]), np.uint8)
    images = np.stack([planes[new * i : new * i + shape[0]] for i in range(count + 1)])
    return rows_of(images[:-1], images[1:])


@pytest.mark.parametrize(
    ("shape", "new"), [((4, 42, 42), 1), ((12, 42, 42), 3), ((3, 42, 42), 3), ((42, 42, 3), 0), ((42, 42), 0)]
)
def test_a_row_takes_the_bytes_by_which_the_usual_capacity_is_worked_out(shape, new):
    count = 64 * 8
    rows = one_after_the_other(count, shape, new)
    replay = make_replay(rows, count, 0)
    replay.add(rows)
    plain = Replay(none_of(shape), count, 0)
    block = ObsBlock("frame", "uint8", shape, 0.0, 255.0)
    rest = plain.stride - 2 * block.size  # the vector, the action and the numbers
    assert usual_bytes([block]) < 0.55 * 2 * block.size
    assert replay.nbytes / count == pytest.approx(usual_bytes([block]) + rest, rel=0.1)


def test_small_images_and_vectors_are_counted_twice_as_they_are_held():
    speed, board = ObsBlock("speed", "float32", (5,), -1.0, 1.0), ObsBlock("board", "uint8", (10, 10, 4), 0.0, 1.0)
    assert usual_bytes([speed, board]) == 2 * (20 + 400)


@pytest.mark.parametrize(("changes", "once"), [({}, True), ({"algo.replay.kind": "service"}, False)])
def test_the_usual_capacity_of_an_image_world_counts_frames_as_its_replay_holds_them(monkeypatch, changes, once):
    monkeypatch.setattr("slipstream.run.setup.available_memory", lambda: 40_000_000)
    stack = ObsBlock("frame", "uint8", (STACK, *ATARI), 0.0, 255.0)
    spec = WorldSpec("seen", ("a",), ("a",), (stack,), ActionSpec(discrete=True, size=6))
    scenario = load("gymnasium:CartPole-v1", {"algo": "dqn", "timesteps": 10**6, **changes}, preset="default")
    rows = usual_capacity(scenario, spec, scenario.algo)
    plain = 10_000_000 // (2 * stack.size)
    assert (rows > 7 * plain) == once
    assert once or plain - 1 <= rows <= plain
