"""The scaling simulation against closed forms: bounds, conservation, and what must not get worse; and its page."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
import scaling
from cells import read_cells
from scaling_measure import PARTS, POINTS, WORLDS
from scaling_model import WAYS, alone, checks, collecting, figures, meeting, mid, on_line, pick, serving
from scaling_sim import Collecting, Meeting, Queue, Serving, Sim, collect, meet, serve

GBIT = 1.25e8
OVERLAPS = ("none", "deterministic", "free")
ONE = Collecting(1, 100, 0.02, part_s=1e-3, update_s=1e-4, slab_bytes=1e5, weight_bytes=1e4)
LINKED = replace(ONE, link=GBIT)


def bound(d):
    """Rows per second that each part could do by itself; the least of them is the most that can be."""
    learner_s = d.workers * (d.part_s + d.rows * d.update_s)
    seconds = {
        "workers": d.collect_s + d.wait_s,
        "learner": learner_s,
        "link in": d.workers * d.slab_bytes / d.link,
        "link out": d.weight_bytes / d.link,
        "cores": (learner_s + d.workers * d.collect_s) / (d.cores or inf),
    }
    return {part: d.workers * d.rows / spent for part, spent in seconds.items() if spent}


# --- the kernel ---


@pytest.mark.parametrize(("cores", "ends"), [(1, [2, 4, 6]), (2, [2, 2, 4]), (4, [2, 2, 2])])
def test_jobs_are_done_first_come_first_served(cores, ends):
    sim, ended = Sim({"cores": [0.0] * cores}), []

    def job():
        yield sim.use("cores", 2.0)
        ended.append(sim.now)

    for _ in range(3):
        sim.start(job())
    sim.run()
    assert ended == ends
    assert sim.total["cores"] == 6.0


def test_names_with_the_same_places_share_a_resource():
    shared = [0.0]
    sim = Sim({"learner": shared, "workers": shared})
    assert [sim.use("learner", 1.0), sim.use("workers", 2.0)] == [1.0, 3.0]
    assert sim.total == {"learner": 1.0, "workers": 2.0}


def test_a_queue_gives_every_thing_once_and_in_order():
    sim, got = Sim({}), []
    queue = Queue(sim)

    def taker(name):
        for _ in range(2):
            item = yield queue
            got.append((name, item, sim.now))

    def putter():
        queue.put("a")
        queue.put("b")
        yield 1.0
        queue.put("c")
        queue.put("d")

    sim.start(taker("early"))
    sim.start(putter())
    sim.start(taker("late"))
    sim.run()
    assert [item for _, item, _ in got] == ["a", "b", "c", "d"]
    assert [when for *_, when in got] == [0.0, 0.0, 1.0, 1.0]


# --- workers and a learner ---


def test_one_worker_in_turn_is_the_sum_of_all_parts():
    took = 0.02 + 1e-3 + 100 * 1e-4  # collect, hear and copy, learn
    assert collect(ONE).rows_per_s == pytest.approx(100 / took)


def test_one_worker_beside_the_learner_is_the_slower_of_the_two():
    beside = replace(ONE, overlap="deterministic")
    assert collect(beside).rows_per_s == pytest.approx(100 / 0.02)
    assert collect(replace(beside, update_s=1e-3)).rows_per_s == pytest.approx(100 / (0.1 + 1e-3))


def test_with_one_slot_a_free_worker_waits_until_its_slab_was_copied():
    assert collect(replace(ONE, overlap="free")).rows_per_s == pytest.approx(100 / (0.02 + 1e-3))


@pytest.mark.parametrize("workers", [1, 2, 7, 100])
@pytest.mark.parametrize("link", [inf, GBIT, GBIT / 100])
def test_in_turn_the_simulation_equals_the_closed_form(workers, link):
    design = replace(ONE, workers=workers, link=link)
    wire_s = design.slab_bytes / link
    in_s = max(wire_s + workers * design.part_s, workers * wire_s + design.part_s)  # one hand over, or one sent, more
    took = design.weight_bytes / link + design.collect_s + in_s + workers * 100 * design.update_s
    assert collect(design).rows_per_s == pytest.approx(workers * 100 / took)


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("workers", [1, 3, 40])
@pytest.mark.parametrize("cores", [1, 2, None])
def test_nothing_is_faster_than_the_bound(overlap, workers, cores):
    for design in (ONE, LINKED, replace(LINKED, update_s=1e-6), replace(ONE, wait_s=0.1)):
        design = replace(design, overlap=overlap, workers=workers, cores=cores)
        found = collect(design, updates=60, warm=20)
        assert found.rows_per_s <= min(bound(design).values()) * 1.001
        assert all(share <= 1.0 for share in found.busy.values())


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"update_s": 1e-3}, "learner"),
        ({"link": 1e6, "update_s": 1e-6}, "link in"),
        ({"link": 1e7, "weight_bytes": 1e9}, "link out"),
        ({"collect_s": 100.0}, "workers"),
    ],
)
def test_saturated_it_makes_what_the_narrowest_part_can_and_names_it(overlap, change, name):
    design = replace(ONE, overlap=overlap, workers=50, **change)
    found = collect(design, updates=40, warm=20)
    assert found.rows_per_s == pytest.approx(min(bound(design).values()), rel=0.02)
    assert found.waits_for == name


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_no_slab_is_lost_or_used_twice(overlap, jitter):
    total = collect(replace(LINKED, workers=9, overlap=overlap, jitter=jitter), updates=20).total
    assert total["used"] == 20 * 9
    ahead = {"none": 0, "deterministic": 1, "free": 1}[overlap]  # slabs of a worker beyond those that were used
    assert total["used"] <= total["made"] <= total["used"] + 9 * ahead


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_more_workers_faster_links_and_learners_are_never_slower(overlap):
    rates = [collect(replace(LINKED, overlap=overlap, workers=n)).rows_per_s for n in (1, 2, 5, 20, 100)]
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(rates))
    base = replace(LINKED, overlap=overlap, workers=20)
    for better in ({"link": 10 * GBIT}, {"update_s": ONE.update_s / 20}):
        assert collect(replace(base, **better)).rows_per_s >= collect(base).rows_per_s * (1 - 1e-9)


def test_slow_slabs_hold_up_those_who_wait_for_all():
    base = replace(ONE, workers=50, collect_s=1.0, update_s=1e-7)
    even, uneven = collect(base), collect(replace(base, jitter=0.1))
    assert 0.6 < uneven.rows_per_s / even.rows_per_s < 0.9  # the slowest of fifty is about 2.2 deviations late
    assert uneven == collect(replace(base, jitter=0.1))  # the same every time


def test_workers_who_wait_use_no_core():
    waits = replace(ONE, workers=8, collect_s=1e-4, wait_s=0.1, cores=1, update_s=0.0)
    assert collect(waits).rows_per_s == pytest.approx(8 * 100 / 0.109, rel=0.02)


# --- a replay service ---

SERVICE = Serving(2, 500.0, add_s=4e-5, keep_s=1e-4, draw_s=7e-5, give_s=2e-4, trip_s=1e-5)


def test_a_learner_alone_with_a_service_draws_one_batch_after_the_other():
    assert serve(replace(SERVICE, producers=0)).rows_per_s == pytest.approx(256 / 2.8e-4, rel=1e-3)


def test_a_service_with_time_to_spare_takes_in_all_that_comes():
    found = serve(SERVICE, seconds=4.0)
    assert found.total["in"] == pytest.approx(2 * 500 * 4.0, abs=4)
    assert found.busy["service"] == pytest.approx(1000 * 1e-4 + found.rows_per_s / 256 * 2e-4, rel=1e-2)


def test_a_full_service_gives_draws_and_blocks_a_turn_each():
    full = serve(replace(SERVICE, producers=40, add_s=0.0, draw_s=0.0, trip_s=0.0), seconds=2.0)
    assert full.busy["service"] == pytest.approx(1.0, abs=1e-3)
    assert full.total["in"] == pytest.approx(full.total["out"], rel=1e-2)


@pytest.mark.parametrize("worse", [{"producers": 4}, {"keep_s": 2e-4}, {"give_s": 4e-4}, {"add_s": 2e-4}])
def test_more_to_do_for_anybody_is_no_more_to_draw(worse):
    assert serve(replace(SERVICE, **worse)).rows_per_s < serve(SERVICE).rows_per_s


# --- replicas that meet ---

REPLICAS = Meeting(8, 1_000_000, train_s=10.0, link=GBIT)


def test_a_round_at_a_coordinator_is_all_updates_in_and_all_answers_out():
    wire_s = 8 * 4e6 / GBIT
    assert meet(REPLICAS).seconds == pytest.approx(2 * wire_s)
    busy = meet(replace(REPLICAS, each_s=1.0, once_s=0.5))
    assert busy.seconds == pytest.approx(4e6 / GBIT + 8 * 1.0 + 0.5 + wire_s)
    assert (meet(REPLICAS).waits_for, busy.waits_for) == ("coordinator's link", "coordinator")


def test_a_coordinator_works_while_it_waits_for_the_slowest():
    early = replace(REPLICAS, link=inf, each_s=0.01, jitter=0.3)
    assert meet(early).seconds == pytest.approx(0.01, abs=0.03)  # all but the last are taken in when it comes


def test_a_ring_moves_almost_two_models_over_every_link_however_many_there_are():
    for replicas in (2, 8, 100):
        ring = replace(REPLICAS, way="ring", replicas=replicas, each_s=0.5, once_s=0.25)
        moved_s = 2 * (replicas - 1) * 4e6 / replicas / GBIT
        assert meet(ring).seconds == pytest.approx(replicas * 0.5 + 0.25 + moved_s)


def test_a_pair_is_not_held_up_by_others():
    gossip = replace(REPLICAS, way="gossip", jitter=0.2)
    share = {n: meet(replace(gossip, replicas=n)).efficiency for n in (2, 1000)}
    assert share[1000] == pytest.approx(share[2], abs=0.15)
    assert meet(replace(gossip, way="coordinator", replicas=1000, link=inf)).efficiency < share[1000]
    assert meet(replace(gossip, jitter=0.0, once_s=0.1)).seconds == pytest.approx(0.1 + 4e6 / GBIT)


@pytest.mark.parametrize("way", WAYS)
def test_one_replica_and_free_links_cost_nothing(way):
    alone = meet(Meeting(1, 10, way, train_s=10.0))
    assert (alone.seconds, alone.efficiency) == (0.0, 1.0)


# --- from measured cells to the page ---


@pytest.fixture(scope="module")
def cells():
    return read_cells(scaling.MEASURED)


@pytest.fixture(scope="module")
def rows():
    return read_cells(scaling.SIMULATED)


def test_a_cost_lies_on_a_line_and_is_never_below_zero():
    assert on_line(3, 1, 10.0, 2, 20.0) == 30.0
    assert on_line(3, 1, 10.0, 2, 5.0) == 0.0


def test_a_figure_is_taken_from_the_row_that_was_asked_for():
    cells = [{"part": "x", "t": [{"n": 1, "s": 5.0}, {"n": 2, "s": took}]} for took in (7.0, 9.0, 8.0)]
    assert figures([*cells, {"part": "y"}], "x", "t", "s", n=2) == [7.0, 9.0, 8.0]
    assert mid(cells, "x", "t", "s", n=2) == 8.0


def test_every_part_was_measured_as_often(cells):
    counts = {part: len(pick(cells, part=part)) for part in PARTS}
    assert set(counts.values()) == {5}, counts


def test_two_workers_have_half_the_worlds_each(cells):
    one, two = (collecting(cells, "works", workers=n) for n in (1, 2))
    assert two.rows == one.rows / 2
    assert one.collect_s / 2 < two.collect_s < one.collect_s
    assert two.update_s == one.update_s


def test_a_batch_with_nobody_else_there_takes_what_learner_way_and_service_take(cells):
    served = serving(cells)
    alone = Serving(0, 1.0, draw_s=served["draw_s"], give_s=served["give_s"], trip_s=served["trip_s"])
    rate = mid(cells, "replay", "replay", "out_per_s", producers=0, consumers=1)
    assert serve(alone).rows_per_s == pytest.approx(rate, rel=0.1)  # medians of three figures need not be of one repeat


def test_replicas_that_share_cores_add_up_one_after_the_other(cells):
    shared, own = (meeting(cells, 4, 1_000_000, "ring", cores=cores) for cores in (2, 4))
    assert shared.once_s == pytest.approx(2 * own.once_s)
    assert shared.each_s == own.each_s


def test_what_was_measured_on_two_cores_is_simulated_within_a_fifth(cells, rows):
    found = list(checks(cells))
    assert len([check for check in found if check.what.split(",")[0] in WORLDS]) == len(WORLDS) * len(POINTS)
    assert not [check for check in found if abs(check.ratio - 1) > 0.2]
    published = {row["what"]: row["predicted"] for row in pick(rows, kind="check")}
    assert {check.what: check.predicted for check in found} == published


def test_a_check_that_is_far_off_is_marked():
    def row(what, unit, predicted):
        return {"what": what, "unit": unit, "measured": [0.9, 1.0, 1.1], "predicted": predicted, "ratio": predicted}

    text = scaling.check_table([row("near", "s", 1.2), row("low", "s", 0.79), row("high", "", 2.38)])
    assert text.startswith("1 of 3 points are within 20 %, the worst is 138 % off. **Not within:** low; high.")
    assert "| near | 1 s | 900 ms to 1.1 s | 1.2 s | 1.20 |" in text
    assert "| **0.79** |" in text
    assert "| **2.38** |" in text


def test_figures_are_short():
    shown = {1.234e6: "1.23 M", 44_200: "44.2 k", 935.0: "935", 0.0208: "20.8 m", 5.76e-7: "576 n"}
    assert {value: scaling.short(value) for value in shown} == shown
    assert scaling.short(21.2, "s") == "21.2 s"


def test_the_page_is_made_from_the_published_results(cells, rows):
    text = scaling.PAGE.read_text()
    assert text == scaling.render(text, cells, rows), "run python studies/scaling.py page"
    assert all(f"({kind}" in text for kind in ("measured", "simulated", "arithmetic"))


def test_the_advice_says_what_was_simulated(cells, rows):
    text = scaling.PAGE.read_text().split("## What things cost")[0]

    def best(world, gpu, link="10 Gbit"):
        own = pick(rows, kind="workers")
        return scaling.enough(pick(own, world=world, gpu=gpu, link=link, overlap="deterministic"))

    (cpu, one), (gpu, few) = best("head_on", False), best("head_on", True)
    (slow, many), (slow_gpu, most) = best("works", False), best("works", True)
    star = pick(pick(rows, kind="replicas"), parameters=1_000_000, link="1 Gbit", way="coordinator")
    good = max(row["replicas"] for row in star if row["efficiency"] >= 0.8)
    words = " ".join(text.split())
    fast, works = collecting(cells, "head_on", "ppo"), collecting(cells, "works")
    update_s = fast.update_s * fast.rows
    assert one == 1
    for said in (
        f"In head_on {100 * update_s / (alone(cells, 'head_on', 'take_s') + update_s):.0f} % of PPO's loop",
        f"one makes {scaling.short(works.rows / works.collect_s)} rows",
        f"full, at {scaling.short(cpu)} rows",
        f"about {many:,} of them, {scaling.short(slow)} rows",
        f"head_on makes {scaling.short(gpu)} rows a second with {few:,} workers, {gpu / cpu:.1f} times",
        f"no use below {many:,} workers, and brings {slow_gpu / slow:.1f} times the rows with {most:,} ",
        f"1 Gbit ends at {scaling.short(best('head_on', True, '1 Gbit')[0])} rows",
        f"about {good:,} keep four fifths",
    ):
        assert said in words, said
