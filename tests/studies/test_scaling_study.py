"""The scaling simulation against closed forms: bounds, conservation, and what must not get worse."""

import json
from dataclasses import replace
from itertools import pairwise
from math import ceil, inf

import pytest
import scaling
from scaling_measure import WORLDS
from scaling_model import Check, costs_of, here, line, mid, of
from scaling_page import PAGE, cost_table, worker_table, write_page
from scaling_sim import Clock, Collecting, Host, Link, bound, collect, gbit
from scaling_sim_shared import Meeting, Serving, meet, serve_replay, serving_bound

ONE = Collecting(
    workers=1,
    rows=100,
    collect_s=0.02,
    part_s=1e-3,
    update_row_s=1e-4,
    publish_s=1e-3,
    slab_bytes=1e5,
    weight_bytes=1e4,
)
OVERLAPS = ("none", "deterministic", "free")
LINKED = replace(ONE, link=gbit(1))


def least(design):
    return min(bound(design).values())


# --- the kernel ---


@pytest.mark.parametrize(("cores", "crowded", "ends"), [(1, 1.0, 6.0), (2, 1.0, 3.0), (2, 0.5, 6.0), (4, 1.0, 2.0)])
def test_jobs_share_cores_evenly(cores, crowded, ends):
    clock, ended = Clock(), []
    host = Host(clock, cores, crowded)

    def job():
        yield host.work(2.0)
        ended.append(clock.now)

    for _ in range(3):
        clock.start(job())
    clock.run(lambda: False)
    assert ended == [pytest.approx(ends)] * 3  # three jobs of 2 s; on four cores each has its own


def test_a_short_job_leaves_its_share_to_a_long_one():
    clock, ended = Clock(), {}
    host = Host(clock, 1)

    def job(name, seconds):
        yield host.work(seconds)
        ended[name] = clock.now

    clock.start(job("short", 1.0))
    clock.start(job("long", 3.0))
    clock.run(lambda: False)
    assert ended == {"short": pytest.approx(2.0), "long": pytest.approx(4.0)}


# --- workers and a learner ---


def test_one_worker_in_turn_is_the_sum_of_all_parts():
    took = 0.02 + 1e-3 + 100 * 1e-4 + 1e-3  # collect, hear and copy, learn, publish
    assert collect(ONE).per_s == pytest.approx(100 / took)


@pytest.mark.parametrize(("overlap", "prefetch"), [("deterministic", 1), ("free", 2)])
def test_one_worker_beside_the_learner_is_the_slower_of_the_two(overlap, prefetch):
    beside = replace(ONE, overlap=overlap, prefetch=prefetch)
    assert collect(beside).per_s == pytest.approx(100 / 0.02, rel=1e-6)
    assert collect(replace(beside, update_row_s=1e-3)).per_s == pytest.approx(100 / (0.1 + 2e-3), rel=1e-6)


def test_with_one_slot_a_free_worker_waits_until_its_slab_was_copied():
    assert collect(replace(ONE, overlap="free")).per_s == pytest.approx(100 / (0.02 + 1e-3), rel=1e-6)


@pytest.mark.parametrize("workers", [1, 2, 7, 100])
@pytest.mark.parametrize("link", [Link(), gbit(1), gbit(0.01)])
def test_in_turn_the_simulation_equals_the_closed_form(workers, link):
    design = replace(ONE, workers=workers, link=link, node_workers=4)
    assert collect(design).per_s == pytest.approx(bound(design)["taking turns"], rel=1e-9)


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("workers", [1, 3, 40])
@pytest.mark.parametrize("cores", [1, 2, inf])
def test_nothing_is_faster_than_the_bound(overlap, workers, cores):
    for design in (ONE, LINKED, replace(LINKED, update_row_s=1e-6), replace(ONE, wait_s=0.1)):
        design = replace(design, overlap=overlap, workers=workers, cores=cores)
        assert collect(design).per_s <= least(design) * (1 + 1e-9)


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"update_row_s": 1e-3}, "learner"),
        ({"link": Link(1e6)}, "link in"),
        ({"link": Link(1e7), "weight_bytes": 1e7, "node_workers": 1}, "link out"),
        ({"collect_s": 20.0}, "workers"),
    ],
)
def test_saturated_it_makes_what_the_narrowest_part_can_and_names_it(overlap, change, name):
    design = replace(ONE, overlap=overlap, workers=50, **change)
    found = collect(design, updates=40, warm=20)
    assert found.per_s == pytest.approx(least(design), rel=0.02)
    assert found.bottleneck == name


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_no_slab_is_lost_or_used_twice(overlap, jitter):
    design = replace(LINKED, workers=9, overlap=overlap, jitter=jitter)
    found = collect(design, updates=20)
    assert found.used == 20 * 9
    in_flight = {"none": 0, "deterministic": design.lag + 1, "free": design.prefetch}[overlap]
    assert found.used <= found.made <= found.used + 9 * (in_flight + 1)


def test_the_lag_is_what_was_asked_for():
    for lag in (1, 3):
        found = collect(replace(ONE, overlap="deterministic", lag=lag), updates=400)
        assert found.lag == pytest.approx(lag, rel=0.02)
    assert collect(ONE).lag == 0.0


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_more_workers_faster_links_and_learners_are_never_slower(overlap):
    rates = [collect(replace(LINKED, overlap=overlap, workers=n)).per_s for n in (1, 2, 5, 20, 100)]
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(rates))
    base = replace(LINKED, overlap=overlap, workers=20)
    assert collect(replace(base, link=gbit(10))).per_s >= collect(base).per_s * (1 - 1e-9)
    assert collect(replace(base, update_row_s=ONE.update_row_s / 20)).per_s >= collect(base).per_s * (1 - 1e-9)


def test_slow_slabs_hold_up_those_who_wait_for_all():
    base = replace(ONE, workers=50, collect_s=1.0, update_row_s=1e-7)
    even, uneven = collect(base), collect(replace(base, jitter=0.1))
    assert 0.6 < uneven.per_s / even.per_s < 0.9  # the slowest of fifty is about 2.2 deviations late
    assert uneven == collect(replace(base, jitter=0.1))  # the same every time


def test_workers_who_wait_use_no_core():
    waits = replace(ONE, workers=8, collect_s=1e-4, wait_s=0.1, cores=1, update_row_s=0.0)
    assert collect(waits).per_s == pytest.approx(8 * 100 / 0.11, rel=0.02)


# --- a replay service ---

SERVED = Serving(producers=4, consumers=0, add_s=1e-5, keep_s=1e-4, row_bytes=256)


def test_a_full_service_takes_in_what_its_core_can():
    found, out = serve_replay(SERVED, 1.0)
    assert found.per_s == pytest.approx(serving_bound(SERVED)["service"], rel=0.01)
    assert (found.bottleneck, out) == ("service", 0.0)


def test_slow_producers_and_slow_links_are_named():
    slow, _ = serve_replay(replace(SERVED, make_s=0.01), 2.0)
    assert slow.per_s == pytest.approx(4 * 256 / 0.01001, rel=0.02)
    assert slow.bottleneck == "producers"
    thin, _ = serve_replay(replace(SERVED, link=Link(1e7)), 2.0)
    assert thin.per_s == pytest.approx(1e7 / 256, rel=0.02)
    assert thin.bottleneck == "link in"


def test_a_draw_waits_for_one_turn_of_those_who_add():
    busy = replace(SERVED, consumers=1, draw_s=1e-4, give_s=1e-4)
    _, alone = serve_replay(replace(busy, producers=0), 1.0)
    _, beside = serve_replay(busy, 1.0)
    assert alone == pytest.approx(256 / 2e-4, rel=0.01)
    turn = busy.turn * busy.keep_s + busy.give_s
    assert 256 / (2 * turn + busy.draw_s) <= beside <= 256 / turn * (1 + 1e-9)


# --- replicas that meet ---

REPLICAS = Meeting(replicas=8, train_s=10.0, parameters=1_000_000, link=gbit(1))


def test_a_round_at_a_coordinator_is_all_updates_in_and_all_answers_out():
    wire = 8 * 4e6 / 1.25e8
    assert meet(REPLICAS).seconds == pytest.approx(2 * wire + 2e-4)
    busy = replace(REPLICAS, keep_s=1.0)
    assert meet(busy).seconds == pytest.approx(8 * 1.0 + 4e6 / 1.25e8 + wire + 2e-4)
    assert meet(busy).bottleneck == "coordinator's core"


def test_a_ring_moves_almost_two_models_over_every_link_however_many_there_are():
    for replicas in (2, 8, 100):
        ring = replace(REPLICAS, way="ring", replicas=replicas)
        steps = 2 * (replicas - 1)
        assert meet(ring).seconds == pytest.approx(steps * (4e6 / replicas / 1.25e8 + 1e-4))


def test_a_pair_is_not_held_up_by_others():
    gossip = replace(REPLICAS, way="gossip", jitter=0.2)
    rounds = {n: meet(replace(gossip, replicas=n)).efficiency for n in (2, 1000)}
    assert rounds[1000] == pytest.approx(rounds[2], abs=0.15)
    star = meet(replace(gossip, way="star", replicas=1000, link=Link())).efficiency
    assert star < rounds[1000]


@pytest.mark.parametrize("way", ["star", "ring", "gossip"])
def test_one_replica_and_free_links_cost_nothing(way):
    alone = meet(Meeting(replicas=1, train_s=10.0, parameters=10, way=way))
    assert (alone.seconds, alone.efficiency) == (0.0, 1.0)


def test_nodes_are_rounded_up():
    assert replace(ONE, workers=33).nodes == ceil(33 / 32)


# --- from measured cells to the page ---


@pytest.fixture(scope="module")
def published():
    return scaling.read()


def test_a_cost_is_a_line_that_never_falls():
    assert line([(1, 3.0), (2, 5.0), (4, 9.0)]) == (pytest.approx(1.0), pytest.approx(2.0))
    assert line([(1, 5.0), (2, 3.0)]) == (4.0, 0.0)
    assert line([(1, 1.0), (2, 3.0)]).at_zero == 0.0


def test_the_published_loops_on_two_cores_are_simulated_within_a_fifth(published):
    costs = costs_of(published["cells"])
    for part in WORLDS:
        own = of(published["cells"], part)
        for i, point in enumerate(own[0]["points"]):
            rate = here(costs, part, point["algo"], point["overlap"], point["workers"])
            assert rate == pytest.approx(mid(own, "points", i, "rows_per_s"), rel=0.2), point


def test_the_page_says_what_is_off_and_what_is_simulated(published):
    costs = costs_of(published["cells"])
    found = [
        Check("head_on, ppo, no workers", "rows/s", 100.0, 90.0, 110.0, 105.0),
        Check("coordinator, 4 clients x 100: round", "s", 1.0, 0.9, 1.1, 1.5),
    ]
    simulated = json.loads(scaling.SIMULATED.read_text())
    page = write_page(published, costs, found, simulated)
    assert "1 of 1 loops of training are within 20 %, the worst is 5 % off; 0 of 1 points" in page
    assert "**Not within:** coordinator, 4 clients x 100: round." in page
    assert all(f"({kind})" in page for kind in ("measured", "simulated"))


def test_the_page_is_made_from_the_published_results(published):
    costs = costs_of(published["cells"])
    simulated = json.loads(scaling.SIMULATED.read_text())
    assert worker_table(simulated["workers"]) in PAGE.read_text()
    assert cost_table(costs) in PAGE.read_text()
