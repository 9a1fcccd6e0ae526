"""Collecting on a thread: which weights act, what is saved, and that nothing hangs or is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pytest
from learning import TINY, build, digest, python, scenario_of

from slipstream.algos.protocol import Progress
from slipstream.collect import pipeline as pipeline_module
from slipstream.collect.pipeline import Pipeline
from slipstream.collect.serial import Collector
from slipstream.collect.shaping import Shaping
from slipstream.collect.slab import Slab, slab_arrays, slab_from
from slipstream.collect.teams import Team
from slipstream.config.load import load
from slipstream.nets.actor import Acted
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions, VecEnv

TICKS = 6
SOON = 60.0  # seconds in which anything but a hang has happened


@dataclass
class Copy:
    """Acts on noise alone and writes its one weight down as the log-probability of what it did."""

    weight: float = -1.0
    nap: Callable[[], None] = lambda: None
    loads: list[float] = field(default_factory=list)

    def act(self, obs: Any, mask: Any, noise: Any) -> Acted:
        self.nap()
        allowed = noise if mask is None else np.where(mask != 0, noise, -1)
        return Acted(allowed.argmax(1).astype(np.int32), np.full(len(noise), self.weight, np.float32))

    def load(self, arrays: dict[str, Any]) -> None:
        self.weight = float(arrays["w"])
        self.loads.append(self.weight)


def collector_of(
    name: str = "probe_alternating", copy: Copy | None = None, ticks: int = TICKS, spy: Callable[[VecEnv], None] = id
) -> Collector:
    scenario = load(name)
    env = make_worlds(scenario.world, 3, EnvOptions(seed=7, tick_discount=0.9))
    spy(env)
    team = Team("main", tuple(range(env.spec.num_agents)), copy or Copy(), learns=True, discrete=True)
    return Collector(env, [team], ticks, 7, {"main": 0.9}, Shaping(1.0))


def weights(version: int) -> dict[str, dict[str, np.ndarray]]:
    return {"main": {"w": np.array(-0.5 * version - 1, np.float32)}}


def before_each_step(work: Callable[[], None]) -> Callable[[VecEnv], None]:
    def spy(env: VecEnv) -> None:
        step = env.step
        env.step = lambda active=None: (work(), step(active))[1]  # type: ignore[method-assign,func-returns-value]

    return spy


@contextmanager
def running(collector: Collector, mode: Any, **options: int) -> Iterator[Pipeline]:
    """A started pipeline; whatever the test does, no thread survives it."""
    threads = set(threading.enumerate())
    with Pipeline(collector, mode, **options) as pipeline:
        pipeline.start(0, weights(0))
        yield pipeline
    assert set(threading.enumerate()) <= threads


@pytest.fixture
def only_woken(monkeypatch):
    """Nobody looks by itself: who is not woken waits until pytest's limit."""
    monkeypatch.setattr(pipeline_module, "WATCH_S", 3600.0)


def eventually(fact: Callable[[], bool], within_s: float = SOON) -> None:
    deadline = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < deadline, "this did not happen in time"
        time.sleep(0.002)


def serial_slabs(count: int, version_of: Callable[[int], int], name: str = "probe_alternating") -> list[str]:
    """The same slabs without threads: load the weights, collect, one after the other."""
    copy = Copy()
    collector = collector_of(name, copy)
    told = []
    for i in range(count):
        copy.load(weights(version_of(i))["main"])
        rollouts, episodes = collector.collect(version_of(i))
        told.append(digest(slab_arrays(Slab(version_of(i), rollouts, episodes, {}, collector.passed))))
    return told


def learn(pipeline: Pipeline, updates: range, nap: Callable[[], None] = lambda: None) -> list[str]:
    """Take a slab, pretend to learn, publish; as many times as there are updates."""
    told = []
    for update in updates:
        slab = pipeline.take()
        nap()
        told.append(digest(slab_arrays(slab)))
        pipeline.publish(update + 1, weights(update + 1))
    return told


def random_nap(seed: int) -> Callable[[], None]:
    rng = np.random.default_rng(seed)
    return lambda: time.sleep(float(rng.choice([0, 0, 0, 0.004])))


# --- which weights act ---


@pytest.mark.parametrize("lag", [1, 2, 5])
def test_deterministic_slab_i_acts_with_version_i_minus_lag(lag):
    with running(collector_of(), "deterministic", lag=lag) as pipeline:
        for i in range(8):
            slab = pipeline.take()
            rollout, version = slab.rollouts["main"], max(0, i - lag)
            assert slab.version == version
            assert set(rollout.version[1:].ravel().tolist()) == {version}
            assert set(rollout.logp[1:].ravel().tolist()) == {float(weights(version)["main"]["w"])}
            pipeline.publish(i + 1, weights(i + 1))


@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_deterministic_slabs_are_those_of_a_serial_loop_whatever_the_threads_do(lag, seed):
    collector = collector_of(copy=Copy(nap=random_nap(seed)))
    with running(collector, "deterministic", lag=lag) as pipeline:
        told = learn(pipeline, range(10), random_nap(seed + 100))
    assert told == serial_slabs(10, lambda i: max(0, i - lag))


def test_deterministic_collecting_runs_ahead_as_far_as_the_lag_allows_and_no_further():
    collector = collector_of()
    with running(collector, "deterministic", lag=2) as pipeline:
        for update in range(3):
            eventually(lambda done=update: collector.steps == (done + 3) * TICKS)
            time.sleep(0.02)
            assert collector.steps == (update + 3) * TICKS
            learn(pipeline, range(update, update + 1))


def test_free_slabs_act_with_the_newest_weights_when_they_begin():
    collector = collector_of()
    with running(collector, "free", queue=2) as pipeline:
        eventually(lambda: collector.steps == 2 * TICKS)
        pipeline.publish(1, weights(1))
        pipeline.publish(2, weights(2))
        assert pipeline.take().version == 0
        eventually(lambda: collector.steps == 3 * TICKS)  # the third slab begins when there is room for it
        pipeline.publish(3, weights(3))
        versions = []
        for _ in range(4):
            slab = pipeline.take()
            versions.append(slab.version)
            rows = slab.rollouts["main"]
            assert set(rows.logp[1:].ravel().tolist()) == {float(weights(slab.version)["main"]["w"])}
            assert set(rows.version[1:].ravel().tolist()) == {slab.version}
        assert versions == [0, 2, 3, 3]


def test_free_collecting_waits_while_the_queue_is_full_and_is_told_when_it_is_not(only_woken):
    collector = collector_of()
    with running(collector, "free", queue=3) as pipeline:
        eventually(lambda: collector.steps == 3 * TICKS)
        time.sleep(0.05)
        assert collector.steps == 3 * TICKS
        pipeline.take()
        eventually(lambda: collector.steps == 4 * TICKS)


def test_a_slow_world_makes_the_learner_wait_and_nothing_else():
    collector = collector_of(spy=before_each_step(lambda: time.sleep(0.01)))
    with running(collector, "free", queue=2) as pipeline:
        assert learn(pipeline, range(3))[0] == serial_slabs(1, lambda i: 0)[0]


def test_what_is_published_is_copied():
    collector, mine = collector_of(), weights(1)
    with running(collector, "free", queue=1) as pipeline:
        eventually(lambda: collector.steps == TICKS)  # waits for room, and then loads version 1
        pipeline.publish(1, mine)
        mine["main"]["w"][...] = 99.0
        assert pipeline.take().version == 0
        assert float(pipeline.take().rollouts["main"].logp[1, 0, 0]) == float(weights(1)["main"]["w"])


@pytest.mark.parametrize("mode", ["free", "deterministic"])
def test_weights_are_kept_only_as_long_as_a_slab_may_need_them(mode):
    collector = collector_of()
    with running(collector, mode, lag=3) as pipeline:
        for update in range(12):
            learn(pipeline, range(update, update + 1))
            assert len(pipeline._published) <= (1 if mode == "free" else 4)


def test_a_slab_stays_as_it_was_while_later_ones_are_collected():
    with running(collector_of(), "free", queue=1) as pipeline:
        slab = pipeline.take()
        before = digest(slab_arrays(slab))
        learn(pipeline, range(1, 4))
        assert digest(slab_arrays(slab)) == before


def test_a_learner_may_not_act_on_the_collecting_thread():
    parts = build(scenario_of("probe_constant", TINY))
    with pytest.raises(TypeError, match=r"'main' .* Ppo,"):
        Pipeline(parts.collector, "free")


# --- saving ---


@pytest.mark.parametrize("name", ["probe_alternating", "probe_corridor"])
@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("updates", [0, 4])
def test_deterministic_resume_is_exact_and_what_is_saved_does_not_depend_on_timing(name, lag, updates):
    saved = []
    for seed in (0, 1):
        with running(collector_of(name, Copy(nap=random_nap(seed))), "deterministic", lag=lag) as pipeline:
            learn(pipeline, range(updates), random_nap(seed + 50))
            state = pipeline.state_arrays()
            saved.append({key: array.copy() for key, array in state.items()})
            ahead = learn(pipeline, range(updates, updates + 6))
    assert digest(saved[0]) == digest(saved[1])
    expected = serial_slabs(updates + 6, lambda i: max(0, i - lag), name)[updates:]
    assert ahead == expected  # saving did not disturb
    with Pipeline(collector_of(name), "deterministic", lag=lag) as pipeline:
        pipeline.load_state(saved[0])
        pipeline.start(updates, weights(updates))
        assert learn(pipeline, range(updates, updates + 6)) == expected
        later = digest(pipeline.state_arrays())
    with running(collector_of(name), "deterministic", lag=lag) as pipeline:
        learn(pipeline, range(updates + 6))
        assert digest(pipeline.state_arrays()) == later


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_free_saving_stops_at_a_slab_border_and_loses_nothing(taken):
    one_version = serial_slabs(taken + 8, lambda i: 0)

    def publish_nothing_new(pipeline: Pipeline, updates: range) -> list[str]:
        told = []
        for update in updates:
            told.append(replace(pipeline.take(), version=0))
            pipeline.publish(update + 1, weights(0))
        for slab in told:
            slab.rollouts["main"].version[:] = 0
        return [digest(slab_arrays(slab)) for slab in told]

    with running(collector_of(copy=Copy(nap=random_nap(taken))), "free", queue=3) as pipeline:
        first = publish_nothing_new(pipeline, range(taken))
        saved = {key: array.copy() for key, array in pipeline.state_arrays().items()}
        undisturbed = publish_nothing_new(pipeline, range(taken, taken + 4))
    with Pipeline(collector_of(), "free", queue=3) as pipeline:
        pipeline.load_state(saved)
        pipeline.start(taken, weights(0))
        assert first + publish_nothing_new(pipeline, range(taken, taken + 8)) == one_version
    assert first + undisturbed == one_version[: taken + 4]


def test_free_saving_waits_for_the_slab_at_work_only():
    collector = collector_of(spy=before_each_step(lambda: time.sleep(0.03)))
    with running(collector, "free", queue=100) as pipeline:
        eventually(lambda: collector.steps > 0)
        assert "slab.2.version" not in pipeline.state_arrays()


def test_a_state_saved_before_its_update_was_published_goes_on_with_that_update():
    """As after a round of a federation: the learner has other weights now, and nobody has acted with them."""
    expected = serial_slabs(7, lambda i: max(0, i - 2))
    with running(collector_of(), "deterministic", lag=2) as pipeline:
        learn(pipeline, range(3))
        pipeline.take()
        saved = {key: array.copy() for key, array in pipeline.state_arrays().items()}
    with Pipeline(collector_of(), "deterministic", lag=2) as pipeline:
        pipeline.load_state(saved)
        pipeline.start(4, weights(4))
        assert learn(pipeline, range(4, 7)) == expected[4:]
    other = Pipeline(collector_of(), "deterministic", lag=1)
    other.load_state(saved)
    with pytest.raises(ValueError, match=r" 2 slabs .*lag of 1 .* 1;"):
        other.start(4, weights(4))


def test_a_state_saved_with_another_lag_is_refused():
    with running(collector_of(), "deterministic", lag=2) as pipeline:
        state = pipeline.state_arrays()
    other = Pipeline(collector_of(), "deterministic", lag=1)
    other.load_state(state)
    with pytest.raises(ValueError, match=r" 3 slabs .*lag of 1 .* 2;"):
        other.start(0, weights(0))


ROUND_TRIPS = [("bandit", "mask"), ("coordination", "state"), ("constant", "ends"), ("alternating", "obs")]


@pytest.mark.parametrize(("task", "part"), ROUND_TRIPS)
@pytest.mark.parametrize("ticks", [1, 20])
def test_a_slab_comes_back_from_its_arrays_field_by_field(task, part, ticks):
    env = make_worlds(load(f"probe_{task}").world, 3, EnvOptions(seed=7))
    policies = ["a", "a.obs"][: env.spec.num_agents]  # names that begin alike
    teams = [Team(policy, (i,), Copy(), learns=True, discrete=True) for i, policy in enumerate(policies)]
    collector = Collector(env, teams, ticks, 7, dict.fromkeys(policies, 0.9), Shaping(1.0))
    rollouts, episodes = collector.collect(4)
    saved = slab_arrays(Slab(4, rollouts, episodes, {}, 60))
    back = slab_from(dict(sorted(saved.items())), policies, list(env.obs))
    assert back.ticks == 60
    assert (back.version, list(back.rollouts), back.episodes) == (4, policies, list(episodes))
    assert bool(episodes) == (ticks == 20)
    for policy in policies:
        assert_same(rollouts[policy], back.rollouts[policy])
        assert getattr(back.rollouts[policy], part) is not None or ticks == 1


def test_blocks_come_back_in_the_order_networks_read_them_in():
    env = make_worlds(load("drmario_level_0").world, 2, EnvOptions(seed=7))
    collector = Collector(env, [Team("a", (0,), Copy(), learns=True, discrete=True)], 3, 7, {"a": 0.9}, Shaping(1.0))
    rollouts, episodes = collector.collect(0)
    saved = dict(sorted(slab_arrays(Slab(0, rollouts, episodes, {})).items()))  # as a checkpoint keeps them
    back = slab_from(saved, ["a"], list(env.obs)).rollouts["a"]
    assert list(back.obs) == list(back.last_obs) == list(env.obs) != sorted(env.obs)


def assert_same(mine: Any, theirs: Any) -> None:
    assert type(mine) is type(theirs)
    for f in fields(mine):
        a, b = getattr(mine, f.name), getattr(theirs, f.name)
        if a is None or isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b)
            assert a is None or a.dtype == b.dtype
        elif isinstance(a, dict):
            assert list(a) == list(b)
            for key in a:
                np.testing.assert_array_equal(a[key], b[key])
        else:
            assert_same(a, b)


def test_a_learner_that_resumes_in_deterministic_mode_ends_with_the_same_weights():
    scenario = scenario_of("probe_coordination", TINY)

    @dataclass
    class Acting:
        network: Any

        def act(self, obs: Any, mask: Any, noise: Any) -> Acted:
            return self.network.act(obs, mask, noise)

        def load(self, arrays: Any) -> None:
            self.network.load_state_dict(arrays, strict=False, include_optim=False)

    def session(first: int, last: int, saved: Any = None) -> tuple[Any, Any]:
        parts, acting = build(scenario), build(scenario)
        (team,) = parts.cast.teams
        team = replace(team, player=Acting(acting.learner))
        collector = Collector(
            parts.env, [team], scenario.collect.rollout_length, scenario.seed, {"main": 0.9}, Shaping(1.0)
        )
        with Pipeline(collector, "deterministic", lag=2) as pipeline:
            if saved is not None:
                parts.learner.load_state_dict(saved[0])
                pipeline.load_state(saved[1])
            pipeline.start(first, {"main": parts.learner.actor_arrays()})
            for update in range(first, last):
                parts.learner.update(pipeline.take().rollouts["main"], Progress(0.0, update))
                pipeline.publish(update + 1, {"main": parts.learner.actor_arrays()})
            return parts.learner.state_dict(), pipeline.state_arrays()

    whole, halves = session(0, 8), session(4, 8, session(0, 4))
    assert digest(whole[0]) == digest(halves[0])
    assert digest(whole[1]) == digest(halves[1])
    assert digest(whole[0]) != digest(session(0, 7)[0])


# --- what goes wrong ---


class Fell(Exception):  # noqa: N818
    pass


def falling_after(ticks: int) -> Callable[[VecEnv], None]:
    left = [ticks]

    def work() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Fell("the world fell over")

    return before_each_step(work)


@pytest.mark.parametrize("mode", ["free", "deterministic"])
def test_an_error_in_the_collecting_thread_wakes_the_waiting_learner_with_its_traceback(mode, only_woken):
    collector = collector_of(ticks=50, spy=falling_after(30))
    with running(collector, mode) as pipeline:
        with pytest.raises(Fell) as caught:
            pipeline.take()
        names = [entry.name for entry in caught.traceback]
        assert "collect" in names  # of the collector, on its own thread
        assert "work" in names
        for call in (pipeline.take, lambda: pipeline.publish(1, weights(1)), pipeline.state_arrays):
            with pytest.raises(Fell):
                call()


def test_an_error_comes_before_slabs_that_were_collected_earlier():
    collector = collector_of(spy=falling_after(2 * TICKS + 1))
    with running(collector, "free", queue=3) as pipeline:
        eventually(lambda: pipeline._failure is not None)
        with pytest.raises(Fell):
            pipeline.take()


def test_a_copy_that_cannot_load_the_weights_is_the_learners_error():
    with running(collector_of(), "free") as pipeline:
        eventually(lambda: len(pipeline._slabs) == 2)
        pipeline.publish(1, {"main": {"v": np.zeros(1)}})
        with pytest.raises(KeyError, match="w"):  # noqa: PT012
            pipeline.take()
            pipeline.take()
            pipeline.take()


@pytest.mark.parametrize("moment", ["before it starts", "in mid-slab", "with a full queue", "after an error", "twice"])
def test_closing_never_hangs_gives_up_a_slab_and_leaves_no_thread(moment, only_woken):
    threads = set(threading.enumerate())
    slow = before_each_step(lambda: time.sleep(0.02))
    spy = {"in mid-slab": slow, "after an error": falling_after(3)}.get(moment, id)
    collector = collector_of(ticks=1000 if spy is slow else TICKS, spy=spy)
    pipeline = Pipeline(collector, "free", queue=1)
    if moment != "before it starts":
        pipeline.start(0, weights(0))
        eventually(lambda: collector.steps >= 3)
    if moment in ("with a full queue", "twice"):
        eventually(lambda: collector.steps == TICKS)
    pipeline.close()
    if moment == "twice":
        pipeline.close()
    assert collector.steps < 1000  # a slab in the middle is not collected to its end
    assert set(threading.enumerate()) <= threads
    if moment not in ("after an error", "before it starts"):
        with pytest.raises(RuntimeError, match=r" closed$"):
            pipeline.take()


def test_a_world_that_hangs_is_named_when_the_pipeline_cannot_be_closed():
    release = threading.Event()

    def never_returns() -> None:
        release.wait()

    pipeline = Pipeline(collector_of(spy=before_each_step(never_returns)), "free")
    pipeline.start(0, weights(0))
    try:
        with pytest.raises(TimeoutError, match="never_returns"):
            pipeline.close(timeout_s=0.1)
    finally:
        release.set()
    pipeline.close()


def test_ctrl_c_ends_the_wait_for_a_slab(request, only_woken):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    collector = collector_of(ticks=1000, spy=before_each_step(lambda: time.sleep(0.02)))
    with running(collector, "deterministic") as pipeline:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  the signal may come at any time from its start on
            timer.start()
            pipeline.take()
        assert collector.steps < 1000  # the slab was not awaited
        timer.join()


ABANDONED = """
import time
from types import SimpleNamespace
from slipstream.collect.pipeline import Pipeline
from slipstream.collect.serial import Collector
from slipstream.collect.shaping import Shaping
from slipstream.collect.teams import Team
from slipstream.config.load import load
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

class Copy:
    def act(self, obs, mask, noise):
        return SimpleNamespace(action=noise.argmax(1), logp=noise[:, 0])

    def load(self, arrays):
        pass

env = make_worlds(load("probe_constant").world, 64, EnvOptions(threads=2))
team = Team("main", (0,), Copy(), learns=True, discrete=True)
collector = Collector(env, [team], 10**5, 7, {"main": 0.9}, Shaping(1.0))
Pipeline(collector, "free").start(0, {"main": {}})
while collector.steps < 100:
    time.sleep(0.001)
"""


def test_a_program_that_forgets_to_close_ends_well(tmp_path):
    done = python("-c", ABANDONED, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
