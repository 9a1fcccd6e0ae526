"""The scaling simulation against closed forms: bounds, conservation, and what must not get worse; and its page."""

from dataclasses import replace
from itertools import pairwise
from math import inf
from statistics import median

import pytest
import scaling
from cells import read_cells
from scaling_measure import LOOPS, MEGABYTES, PARTS, WORLDS
from scaling_model import GPU, WAYS, checks, collecting, meeting, pick, predict, usual
from scaling_sim import Collecting, Meeting, collect, meet

GBIT = 1.25e8
OVERLAPS = ("none", "deterministic", "free")
ONE = Collecting(1, 100, 0.02, part_s=1e-3, update_s=1e-4, slab_bytes=1e5, weight_bytes=1e4)
LINKED = replace(ONE, link=GBIT)


def bound(d):
    """Rows per second that each part could do by itself; the least of them is the most that can be."""
    learner_s = d.workers * (d.part_s + d.rows * d.update_s)
    seconds = {
        "workers": d.collect_s,
        "learner": learner_s,
        "link in": d.workers * d.slab_bytes / d.link,
        "link out": d.weight_bytes / d.link,
        "cores": (learner_s + d.workers * d.collect_s) / (d.cores or inf),
    }
    return {part: d.workers * d.rows / spent for part, spent in seconds.items() if spent}


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
    for design in (ONE, LINKED, replace(LINKED, update_s=1e-6)):
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


def test_learner_and_workers_that_share_a_core_take_it_in_turns():
    shared = replace(ONE, workers=2, overlap="deterministic", cores=1)
    took = 2 * (0.02 + 1e-3 + 100 * 1e-4)  # of the one core, for a slab of each worker
    assert collect(shared, updates=60, warm=20).rows_per_s == pytest.approx(200 / took, rel=0.02)
    assert collect(replace(shared, cores=4)) == collect(replace(shared, cores=8))._replace(
        busy=collect(replace(shared, cores=4)).busy
    )


def test_a_short_job_is_not_kept_waiting_by_long_ones():
    """Slices: without them the learner's 1 ms would come after a whole slab of each worker."""
    busy = Collecting(3, 100, collect_s=1.0, overlap="free", part_s=1e-3, update_s=0.0, cores=1)
    assert collect(busy).rows_per_s == pytest.approx(300 / 3.003, rel=0.02)


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


# --- from measured costs to designs ---

WORLD = {
    "rows": 1000, "slab_bytes": 2e6, "weight_bytes": 1e4, "take_s": 0.1, "ppo_update_s": 0.3, "appo_update_s": 0.2,
    "worker_s, 1/1": 0.11, "part_s, 1/1": 2e-3, "worker_s, 1/2": 0.06, "part_s, 1/2": 1.5e-3,
}  # fmt: skip
ROUNDS = {
    **{f"coordinator, {n} x {size:,}": n * size * 1e-7 + 0.01 for n in (2, 8) for size in (100_000, 1_000_000)},
    **{f"ring finding, {n} x {mb:g} MB": 0.02 + 0.01 * n * n / 2 for n in (2, 8) for mb in MEGABYTES},  # on two cores
    **{f"ring moving, {n} x {mb:g} MB": 2e-3 * mb for n in (2, 8) for mb in MEGABYTES},
    **{f"gossip, {n} x {mb:g} MB": 0.03 + 3e-3 * mb for n in (2, 8) for mb in MEGABYTES},
    **{f"gossip cpu, {n} x {mb:g} MB": 3e-3 * mb for n in (2, 8) for mb in MEGABYTES},
}


def test_two_workers_have_half_the_worlds_each():
    one, two = (collecting(WORLD, "ppo", workers=n) for n in (1, 2))
    assert (one.rows, two.rows, two.collect_s, two.part_s) == (1000, 500, 0.06, 1.5e-3)
    assert one.update_s == two.update_s == 0.3 / 1000
    assert two.slab_bytes == one.slab_bytes / 2


def test_a_loop_without_workers_is_the_sum_of_its_costs():
    assert predict("head_on", WORLD)["ppo, no workers"] == pytest.approx(1000 / 0.4)
    assert set(predict("head_on", WORLD)) == set(LOOPS)


def test_what_four_take_follows_from_what_two_and_eight_took():
    rounds = predict("federation", ROUNDS)
    assert rounds["coordinator, 4 x 1,000,000"] == pytest.approx(4 * 0.1 + 0.01)
    assert rounds["ring, 4 x 4 MB"] == pytest.approx(0.02 + 2 * 4 * 0.01 + 2 * 2e-3 * 4)  # twice as many as cores
    assert rounds["gossip, 4 x 40 MB"] == pytest.approx(0.03 + 2 * 3e-3 * 40)


def test_with_a_core_each_peers_do_not_slow_each_other():
    ring = meeting(ROUNDS, 100, 1_000_000, "ring", cores=100)
    assert (ring.each_s, ring.once_s) == pytest.approx((0.01, 0.02 + 2e-3 * 4))
    assert meeting(ROUNDS, 100, 1_000_000, "gossip", cores=100) == meeting(ROUNDS, 100, 1_000_000, "gossip", 10**6)


def test_a_point_is_held_against_the_costs_of_its_own_repeat():
    """A machine at half its speed changes both sides alike."""
    slow = {name: cost if name in ("rows", "slab_bytes", "weight_bytes") else 2 * cost for name, cost in WORLD.items()}
    cells = [
        {
            "part": "works",
            "costs": costs,
            "points": {name: rate / 1.1 for name, rate in predict("works", costs).items()},
        }
        for costs in (WORLD, slow, WORLD)
    ]
    found = list(checks(cells))
    assert [row["what"] for row in found] == list(LOOPS)
    assert all(row["ratios"] == pytest.approx([1.1, 1.1, 1.1]) for row in found)


def test_a_check_that_is_far_off_is_marked():
    def row(what, part, ratio):
        return {"part": part, "what": what, "measured": 0.9, "ratios": [0.7, ratio, 2.5]}

    text = scaling.check_table([row("near", "federation", 1.2), row("low", "works", 0.79), row("high", "works", 2.38)])
    assert text.startswith("1 of 3 points are within 20 %, the worst is 138 % off.")
    assert "| federation | near | 900 ms | 1.20 | 0.70 to 2.50 |" in text
    assert "| **0.79** |" in text
    assert "| **2.38** |" in text


def test_figures_are_short():
    shown = {1.234e6: "1.23 M", 44_200: "44.2 k", 935.0: "935", 0.0208: "20.8 m", 5.76e-7: "576 n", 3.6e-10: "360 p"}
    assert {value: scaling.short(value) for value in shown} == shown
    assert scaling.short(21.2, "s") == "21.2 s"


# --- the page ---


@pytest.fixture(scope="module")
def cells():
    return read_cells(scaling.MEASURED)


@pytest.fixture(scope="module")
def rows():
    return read_cells(scaling.SIMULATED)


def test_every_part_was_measured_five_times(cells):
    assert {part: len(pick(cells, part=part)) for part in PARTS} == dict.fromkeys(PARTS, 5)


def test_the_checks_that_are_published_follow_from_what_was_measured(cells, rows):
    """Of the loops one repeat is enough: each is held against its own costs."""
    for check in checks([cell for cell in cells if cell["repeat"] == 0 or cell["part"] == "federation"]):
        (published,) = pick(rows, kind="checks", part=check["part"], what=check["what"])
        assert all(any(one == pytest.approx(ratio) for one in published["ratios"]) for ratio in check["ratios"])


def test_what_was_measured_on_two_cores_is_predicted_within_a_fifth(rows):
    assert not [row["what"] for row in pick(rows, kind="checks") if abs(median(row["ratios"]) - 1) > scaling.NEAR]


def test_nobody_is_simulated_faster_than_the_learner_can_be(cells, rows):
    byte_s = usual(cells, "wire")["tcp_byte_s"]
    for world in WORLDS:
        one = collecting(usual(cells, world))
        for learner, faster in (("APPO, CPU", 1.0), ("APPO, GPU", GPU)):
            slab_s = one.part_s + one.slab_bytes * byte_s + one.rows * one.update_s / faster
            rates = [row["per_s"] for row in pick(rows, kind="if_workers", world=world, learner=learner)]
            assert max(rates) <= 1.001 * one.rows / slab_s


def test_the_page_is_made_from_the_published_results(cells, rows):
    text = scaling.PAGE.read_text()
    assert text == scaling.render(text, cells, rows), "run python studies/scaling.py page"
    assert all(f"({kind}" in text for kind in ("measured", "simulated", "arithmetic"))


def test_the_advice_has_the_figures_of_the_simulation(cells, rows):
    section = scaling.PAGE.read_text().split("## What to add")[1].split("\n## ")[0]
    advice = [" ".join(item.split()) for item in section.split("\n- ")[1:]]  # one item for each thing to add

    def best(world, learner, link="10 Gbit"):
        return scaling.enough(
            pick(rows, kind="if_workers", world=world, learner=learner, link=link, overlap="deterministic")
        )

    (cpu, one), (gpu, few) = best("head_on", "APPO, CPU"), best("head_on", "APPO, GPU")
    (slow, many), (slow_gpu, most) = best("works", "APPO, CPU"), best("works", "APPO, GPU")
    star = pick(rows, kind="if_replicas", parameters=1_000_000, link="1 Gbit", way="coordinator")
    good = max(row["replicas"] for row in star if row["efficiency"] >= 0.8)
    fast, works = usual(cells, "head_on"), usual(cells, "works")
    assert one == 1
    update = 100 * fast["ppo_update_s"] / (fast["take_s"] + fast["ppo_update_s"])
    for item, figures in zip(
        advice,
        (
            (f"{update:.0f} %", f"{scaling.short(cpu)} rows"),
            (
                f"{scaling.short(works['rows'] / works['worker_s, 1/1'])} rows",
                f"{many:,} ",
                f"{scaling.short(slow)} rows",
            ),
            (
                f"{scaling.short(gpu)} rows",
                f"{few:,} workers",
                f"{gpu / cpu:.1f} times",
                f"{slow_gpu / slow:.1f} times",
                f"{most:,}",
            ),
            (f"{scaling.short(best('head_on', 'SAC, GPU')[0])} rows",),
            (f"{scaling.short(best('head_on', 'APPO, GPU', '1 Gbit')[0])} rows",),
            (f"{good:,} replicas",),
        ),
        strict=True,
    ):
        assert not [figure for figure in figures if figure not in item], item
