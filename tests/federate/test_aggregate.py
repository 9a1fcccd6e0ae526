"""The rules by which clients' arrays become one: closed forms, laws that hold for any arrays, and Flower's numbers."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from flower_numbers import CASES, RECORDED, by_flower, clients, plain, weights
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.config.aggregators import AGGREGATORS
from slipstream.data.merge_rules import Rule
from slipstream.errors import FederationError
from slipstream.federate import rules
from slipstream.federate.aggregate import Base, MergeSettings, aggregate, claimed_weights, clip_weights, proximal
from slipstream.federate.blocks import BLOCK, distances, ordered
from slipstream.federate.rules import Known, aggregator_rule, merge_by
from slipstream.federate.rules.bulyan import nearest_rows
from slipstream.federate.rules.mean import mean
from slipstream.federate.rules.weighted_mean import weighted_mean
from slipstream.federate.update import ClientUpdate


def told(clients):
    """What each client says about itself, for rules that go by it."""
    return {
        name: {"samples": 100.0 + i, "mean_return": float(i), "reward_delta": 1.0}
        for i, name in enumerate(sorted(clients))
    }


def by(rule, clients, liars=0, select=None):
    return merge_by(rule, clients, Known(told(clients), liars=liars, select=select))


def median(clients):
    """Of any number of clients, also of one or two, with which no round by it would close."""
    return aggregator_rule("median").merge(clients, Known()).arrays


RULES = {
    "mean": mean,
    "weighted_mean": lambda c: weighted_mean(c, {name: 1.0 + i for i, name in enumerate(sorted(c))}),
    "median": median,
    "trimmed_mean": lambda c: by("trimmed_mean", c, (len(c) - 1) // 2),
    "krum": lambda c: by("krum", c, max(0, (len(c) - 3) // 2)),
    "multi_krum": lambda c: by("multi_krum", c, max(0, (len(c) - 3) // 2)),
    "bulyan": lambda c: by("bulyan", c, max(0, (len(c) - 3) // 4)),
    "geometric_median": lambda c: by("geometric_median", c),
}
ROBUST = [name for name in RULES if AGGREGATORS[name].withstands is not None]
every_rule = pytest.mark.parametrize("rule", RULES)
wide = st.floats(-(2.0**100), 2.0**100, allow_nan=False, width=32).map(lambda x: x or 0.0)  # 0 for -0
quick = settings(max_examples=20, deadline=None)


def named(*rows, dtype=np.float64):
    """Clients a, b, c … with one array each."""
    return {chr(97 + i): {"x": np.array(row, dtype)} for i, row in enumerate(rows)}


def least(rule):
    return AGGREGATORS[rule].needed(0)


@st.composite
def rounds(draw, smallest=3, largest=9):
    """Clients with a few numbers of sizes that networks have."""
    count, width = draw(st.integers(smallest, largest)), draw(st.integers(1, 6))
    numbers = st.floats(-100, 100, allow_nan=False, width=32)
    return named(*[draw(st.lists(numbers, min_size=width, max_size=width)) for _ in range(count)])


def bits(arrays):
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}


# --- closed forms ---


def test_the_mean_is_the_sum_over_the_number():
    assert mean(named([1, 2], [3, 6], [5, 1]))["x"].tolist() == [3, 3]


def test_a_weighted_mean_counts_by_weights_that_need_not_sum_to_one():
    merged = weighted_mean(named([0, 8], [4, 0]), {"a": 1, "b": 3})
    assert merged["x"].tolist() == [3, 2]


@pytest.mark.parametrize(("values", "middle"), [([5, 1, 3], 3), ([4, 1, 100, 2], 3), ([7], 7), ([1, 2], 1.5)])
def test_the_median_is_the_middle_or_between_the_two_in_the_middle(values, middle):
    assert median(named(*([v] for v in values)))["x"].tolist() == [middle]


def test_a_trimmed_mean_leaves_out_the_smallest_and_the_largest_number_by_number():
    merged = by("trimmed_mean", named([1, 900], [2, 3], [3, 4], [4, 5], [1e9, -1e9]), 1)
    assert merged["x"].tolist() == [3, 4]


def test_krum_takes_the_client_with_the_nearest_company():
    # Of five, with one liar, the two nearest others count. Squared distances: a 1 + 9, b 1 + 4, c 4 + 9, d 36 + 49 …
    assert by("krum", named([0], [1], [3], [9], [1000]), 1)["x"].tolist() == [1]


def test_multi_krum_is_the_mean_of_as_many_as_cannot_be_outnumbered():
    made = named([0], [1], [3], [9], [1000])
    assert by("multi_krum", made, 1)["x"].tolist() == [0.5]  # 5 - 1 - 2 clients: b and a
    assert by("multi_krum", made, 1, select=3)["x"].tolist() == [4 / 3]


def test_bulyan_chooses_by_krum_again_and_again_then_averages_what_is_nearest_to_the_median():
    # Of seven, with one liar: five chosen, of which number by number the three nearest to their median.
    made = named([0.0], [1.0], [2.0], [3.5], [5.5], [8.0], [1000.0])
    left, chosen = dict(made), {}
    for _ in range(5):  # as the paper says it, with no shared code but Krum itself
        values = {name: float(arrays["x"][0]) for name, arrays in left.items()}
        nearest = max(1, len(values) - 3)
        score = {
            name: sum(sorted((value - other) ** 2 for o, other in values.items() if o != name)[:nearest])
            for name, value in values.items()
        }
        best = min(sorted(score), key=lambda name: score[name])
        chosen[best] = values[best]
        del left[best]
    middle = np.median(list(chosen.values()))
    expected = np.mean(sorted(chosen.values(), key=lambda value: abs(value - middle))[:3])
    assert by("bulyan", made, 1)["x"].tolist() == [expected]


def test_of_two_numbers_as_near_to_the_median_bulyan_takes_the_smaller():
    ordered = [np.array([float(value)]) for value in (0, 1, 3, 4)]
    assert nearest_rows(ordered, 3).tolist() == [pytest.approx(4 / 3)]


@pytest.mark.parametrize(("count", "reach"), [(1, 1), (2, 2), (5, 1), (6, 2), (7, 3), (8, 6)])
def test_the_nearest_to_the_median_are_those_that_sorting_by_distance_finds(count, reach):
    rng = np.random.default_rng(count)
    rows = [rng.normal(size=300) for _ in range(count)]
    stack = np.stack(rows)
    order = np.argsort(np.abs(stack - np.median(stack, axis=0)), axis=0)[:reach]
    expected = np.take_along_axis(stack, order, axis=0).mean(0)
    np.testing.assert_allclose(nearest_rows(rows, reach), expected, atol=1e-12)


def test_the_geometric_median_of_a_triangle_sees_every_corner_under_the_same_angle():
    # An isosceles triangle: the point on its axis where the sides meet at 120 degrees, 1 / sqrt 3 above the base.
    merged = by("geometric_median", named([-1, 0], [1, 0], [0, 3]))
    np.testing.assert_allclose(merged["x"], [0, 3**-0.5], atol=1e-9)


def test_the_geometric_median_of_four_corners_is_where_the_diagonals_cross():
    merged = by("geometric_median", named([0, 0], [4, 0], [0, 4], [1, 1]))
    assert merged["x"].tolist() == [1, 1]  # a client itself
    merged = by("geometric_median", named([0, 0], [6, 6], [0, 4], [4, 0]))
    np.testing.assert_allclose(merged["x"], [2, 2], atol=1e-9)


def test_proximal_merging_ends_where_both_pulls_are_equal():
    own, merged = {"x": np.array([0.0, 8.0])}, {"x": np.array([4.0, 0.0])}
    assert proximal(own, merged, 0.0)["x"].tolist() == [0, 8]
    assert proximal(own, merged, 3.0)["x"].tolist() == [3, 2]
    assert proximal(own, merged, np.inf)["x"].tolist() == [4, 0]
    with pytest.raises(FederationError, match="mu"):
        proximal(own, merged, -0.1)


@pytest.mark.parametrize("count", range(1, 34))
def test_the_network_sorts_every_row_of_zeros_and_ones(count):
    """If a network sorts all rows of 0 and 1 it sorts everything (Knuth); all of them up to 10, then those cut once."""
    if count <= 10:
        rows = np.array(list(itertools.product((0.0, 1.0), repeat=count))).T
    else:
        rng = np.random.default_rng(count)
        rows = rng.permuted(np.tri(count + 1, count, -1).repeat(40, axis=0), axis=1).T
    np.testing.assert_array_equal(np.stack(ordered(list(rows))), np.sort(rows, axis=0))


def test_distances_are_those_of_all_arrays_together():
    made = {"a": {"x": np.zeros(2), "y": np.zeros(())}, "b": {"x": np.array([3.0, 0]), "y": np.array(4.0)}}
    assert distances(made).tolist() == [[0, 25], [25, 0]]


def test_distances_are_not_lost_beside_large_weights():
    made = named([1e8], [1e8 + 1e-3], [1e8 + 3e-3])
    np.testing.assert_allclose(distances(made)[0], [0, 1e-6, 9e-6], rtol=1e-4)


@every_rule
def test_arrays_longer_than_a_block_are_merged_like_short_ones(rule):
    rng = np.random.default_rng(1)
    long = {f"c{i}": {"x": rng.normal(size=(2, BLOCK - 3)).astype(np.float32)} for i in range(7)}
    merged = RULES[rule](long)["x"]
    assert merged.shape == (2, BLOCK - 3)
    if rule in ("mean", "median", "trimmed_mean"):
        tail = {c: {"x": arrays["x"][1:, -5:]} for c, arrays in long.items()}
        assert RULES[rule](tail)["x"].tobytes() == merged[1:, -5:].tobytes()
    else:  # whoever is chosen by all numbers is a mixture of clients
        low, high = (f([arrays["x"] for arrays in long.values()], axis=0) for f in (np.min, np.max))
        assert ((merged >= low) & (merged <= high)).all()


# --- laws ---


@every_rule
@quick
@given(made=rounds(), seed=st.integers(0, 1000))
def test_the_order_of_arrival_changes_no_bit(rule, made, seed):
    ids = list(made)
    np.random.default_rng(seed).shuffle(ids)
    assert bits(RULES[rule](made)) == bits(RULES[rule]({name: made[name] for name in ids}))


@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
@quick
@given(made=rounds(), seed=st.integers(0, 1000))
def test_who_sent_what_changes_no_bit_where_numbers_are_ordered(rule, made, seed):
    sent = list(made.values())
    np.random.default_rng(seed).shuffle(sent)
    assert bits(RULES[rule](made)) == bits(RULES[rule](dict(zip(made, sent, strict=True))))


@every_rule
@quick
@given(row=st.lists(wide, min_size=1, max_size=5))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clients_that_agree_are_taken_at_their_word(rule, dtype, row):
    one = named(row, dtype=dtype)
    if least(rule) == 1 or rule == "median":
        assert bits(RULES[rule](one)) == bits(one["a"])
    if dtype == np.float32:
        assert bits(RULES[rule](named(*[row] * 5, dtype=dtype))) == bits(one["a"])


@every_rule
@quick
@given(made=rounds(), factor=st.sampled_from([0.25, 0.5, 2.0, -4.0]))
def test_scaling_every_client_scales_the_result(rule, made, factor):
    """By powers of two, which round nothing; a sign that turns all around may break a tie the other way."""
    if factor < 0 and rule == "bulyan":
        factor = -factor
    scaled = {name: {"x": arrays["x"] * factor} for name, arrays in made.items()}
    np.testing.assert_allclose(RULES[rule](scaled)["x"], RULES[rule](made)["x"] * factor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@quick
@given(seed=st.integers(0, 10**6), shift=st.floats(-50, 50), count=st.integers(3, 9))
def test_moving_every_client_moves_the_result(rule, seed, shift, count):
    rng = np.random.default_rng(seed)  # in general position: a tie may fall otherwise after rounding
    made = named(*rng.normal(size=(count, 4)))
    moved = {name: {"x": arrays["x"] + shift} for name, arrays in made.items()}
    np.testing.assert_allclose(RULES[rule](moved)["x"], RULES[rule](made)["x"] + shift, rtol=1e-9, atol=1e-9)


@every_rule
@quick
@given(made=rounds())
def test_every_number_stays_between_the_clients_smallest_and_largest(rule, made):
    stack = np.stack([arrays["x"] for arrays in made.values()])
    merged = RULES[rule](made)["x"]
    slack = 1e-12 * np.abs(stack).max(0)
    assert (merged >= stack.min(0) - slack).all()
    assert (merged <= stack.max(0) + slack).all()


@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
@quick
@given(seed=st.integers(0, 10**6), liars=st.integers(0, 4), size=st.sampled_from([1e3, 1e30]))
def test_liars_cannot_push_an_ordered_rule_beyond_the_honest(rule, seed, liars, size):
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(2 * liars + 1 - liars, 5))
    lies = size * rng.normal(size=(liars, 5))
    made = named(*rng.permuted(np.concatenate([honest, lies]), axis=0))
    merged = (median(made) if rule == "median" else by("trimmed_mean", made, liars))["x"]
    assert (merged >= honest.min(0)).all()
    assert (merged <= honest.max(0)).all()


@pytest.mark.parametrize("rule", ["krum", "multi_krum", "bulyan", "geometric_median"])
@quick
@given(seed=st.integers(0, 10**6), liars=st.integers(1, 2), together=st.booleans())
def test_liars_far_away_move_no_robust_rule_far(rule, seed, liars, together):
    rng = np.random.default_rng(seed)
    count = 4 * liars + 3
    honest = rng.normal(size=(count - liars, 6))
    lies = 1e6 * rng.normal(size=(1 if together else liars, 6)) + np.zeros((liars, 1))
    made = named(*rng.permutation(np.concatenate([lies, honest])))
    merged = by(rule, made, liars)["x"]
    assert np.abs(merged).max() < 10
    assert np.abs(mean(made)["x"]).max() > 1e4  # what it is worth


@quick
@given(made=rounds(smallest=3, largest=8))
def test_nothing_is_nearer_to_all_clients_than_their_geometric_median(made):
    stack = np.stack([arrays["x"] for arrays in made.values()])
    best = by("geometric_median", made)["x"]

    def cost(point):
        return np.linalg.norm(stack - point, axis=1).sum()

    rng = np.random.default_rng(1)
    spread = np.linalg.norm(stack - stack.mean(0), axis=1).max()
    nearby = best + spread * rng.normal(size=(200, stack.shape[1])) * np.geomspace(1e-3, 1, 200)[:, None]
    assert cost(best) <= min(map(cost, [*nearby, *stack, np.median(stack, axis=0)])) + 1e-5 * spread


# --- Flower ---

RECORD = json.loads(RECORDED.read_text())


def ours(rule, seed, count, liars):
    made = clients(seed, count, liars)
    if rule == "weighted_mean":
        return weighted_mean(made, clip_weights(weights(seed, count)))
    if rule in ("mean", "median"):
        return RULES[rule](made)
    return by(rule, made, liars)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_rule_gives_flowers_numbers(case):
    recorded = RECORD["rules"][str(case)]
    assert recorded.keys() >= {"mean", "weighted_mean", "median", "trimmed_mean", "krum", "multi_krum"}
    for rule, numbers in recorded.items():
        merged = ours(rule, *case)
        np.testing.assert_allclose(plain(merged[name] for name in ("weight", "bias", "scale")), numbers, atol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_flower_still_gives_what_was_recorded(case):
    pytest.importorskip("flwr")
    live = by_flower(*case)
    assert live.keys() == RECORD["rules"][str(case)].keys()
    for rule, numbers in live.items():
        np.testing.assert_allclose(RECORD["rules"][str(case)][rule], numbers, atol=1e-9)
        merged = ours(rule, *case)
        np.testing.assert_allclose(plain(merged[name] for name in ("weight", "bias", "scale")), numbers, atol=1e-9)


# --- what is refused ---


@every_rule
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_number_that_is_not_finite_is_refused_by_every_rule_naming_who_sent_it(rule, bad, dtype):
    for place in range(7):
        made = named(*np.random.default_rng(1).normal(size=(7, 3)), dtype=dtype)
        made["abcdefg"[place]]["x"][1] = bad
        with pytest.raises(FederationError, match=rf"client {'abcdefg'[place]}: x\[1\] is {bad},"):
            RULES[rule](made)


def test_numbers_too_large_to_add_up_are_refused():
    with pytest.raises(FederationError, match=r"x: .* 1\.7e\+308,"):
        mean(named([1.7e308], [1.7e308]))


def test_integers_are_no_weights():
    with pytest.raises(FederationError, match=r"x: int64 .*count"):
        mean(named([1], [2], dtype=np.int64))


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"y": np.zeros(2)}, "x: .*client a,.*client b$"),
        ({"x": np.zeros(3)}, r"x: float64\[3\] .*client b,.* float64\[2\] .*client a"),
        ({"x": np.zeros(2, np.float32)}, r"x: float32\[2\] .*client b,.* float64\[2\] .*client a"),
    ],
)
def test_arrays_that_do_not_fit_together_are_named(second, words):
    with pytest.raises(FederationError, match=words):
        mean({"a": {"x": np.zeros(2)}, "b": second})


def test_no_client_is_no_mean():
    with pytest.raises(FederationError, match=r"mean .* 1 clients.* 0$"):
        mean({})


@pytest.mark.parametrize(
    ("rule", "liars", "count"), [("trimmed_mean", 2, 4), ("krum", 1, 4), ("multi_krum", 2, 6), ("bulyan", 1, 6)]
)
def test_too_few_clients_for_so_many_liars_are_refused(rule, liars, count):
    with pytest.raises(FederationError, match=f"^{rule} .* {liars} liars .* {count + 1} clients.* {count}$"):
        by(rule, named(*np.eye(count)), liars)
    by(rule, named(*np.eye(count + 1)), liars)


def test_the_clients_arrays_are_left_alone():
    for merge in RULES.values():
        made = named(*np.random.default_rng(1).normal(size=(7, 3)))
        before = {name: bits(arrays) for name, arrays in made.items()}
        merged = merge(made)
        merged["x"][:] = 7
        assert {name: bits(arrays) for name, arrays in made.items()} == before


# --- weights ---


def update(client, arrays=None, **changes):
    given = {"round": 1, "base": "", "update_id": client, "arrays": arrays or {"x": np.zeros(1)}}
    return ClientUpdate(client, **{**given, **changes})


def test_a_claimed_weight_counts_at_most_twice_the_median():
    made = [update("a", weight=10), update("b", weight=12), update("c", weight=1e12)]
    assert claimed_weights(made, "custom") == {"a": 10, "b": 12, "c": 24}


def test_one_of_two_cannot_raise_the_median_that_clips_it():
    assert claimed_weights([update("a", weight=1), update("b", weight=1e12)], "custom") == {"a": 1, "b": 2}


def test_weights_by_samples_are_read_from_the_facts():
    made = [update("a", facts={"samples": 100}), update("b", facts={"samples": 150})]
    assert claimed_weights(made, "samples") == {"a": 100, "b": 150}
    with pytest.raises(FederationError, match=r"client c: .*samples"):
        claimed_weights([*made, update("c")], "samples")


def test_those_who_did_nothing_do_not_clip_those_who_did():
    made = [update("a", weight=0), update("b", weight=0), update("c", weight=5)]
    assert claimed_weights(made, "custom") == {"a": 0, "b": 0, "c": 5}


def test_three_median_deviations_of_a_rise_in_reward_count_double_or_nothing():
    rises = {"a": 4.0, "b": 5.0, "c": 6.0, "d": 8.0, "e": -1000.0}  # median 5, median deviation 1
    made = [update(name, facts={"reward_delta": rise}) for name, rise in rises.items()]
    weights = claimed_weights(made, "reward_delta")
    assert weights == {"a": pytest.approx(2 / 3), "b": 1, "c": pytest.approx(4 / 3), "d": 2, "e": 0}


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_a_weight_that_is_none_is_refused(weight):
    with pytest.raises(FederationError, match=f"client a: custom of {weight} "):
        claimed_weights([update("a", weight=weight)], "custom")


def test_weights_that_are_all_zero_are_refused():
    with pytest.raises(FederationError, match=r"\{'a': 0\.0, 'b': 0\.0\}"):
        weighted_mean(named([1], [2]), {"a": 0.0, "b": 0.0})


# --- a round ---

WEIGHTS = {"x": Rule("merge")}


def round_of(settings, made, base=None, order=None, **changes):
    facts = told(made)
    updates = [update(name, made[name], **{"facts": facts[name], **changes.get(name, {})}) for name in order or made]
    return aggregate(settings, WEIGHTS, updates, base)


@pytest.mark.parametrize("rule", AGGREGATORS)
def test_a_round_is_the_rule_of_its_updates_in_any_order(rule):
    made = named(*np.random.default_rng(3).normal(size=(7, 5)).astype(np.float32), dtype=np.float32)
    arrays, report = round_of(MergeSettings(rule, 1), made)
    again, same = round_of(MergeSettings(rule, 1), made, order=sorted(made, reverse=True))
    assert bits(arrays) == bits(again)
    assert report == same
    assert report.used == report.asked == rule
    assert report.reason == ""
    assert report.clients == tuple("abcdefg")
    assert sum(report.shares.values()) == pytest.approx(1)
    alone = aggregator_rule(rule).merge(made, Known(told(made), liars=1, weights=dict.fromkeys(made, 1.0)))
    assert bits(arrays) == bits(mean(made) if rule == "weighted_mean" else alone.arrays)  # all claim the same
    assert report.chosen == alone.plan.clients
    assert report.shares == pytest.approx(dict(alone.plan.shares))
    assert len(report.chosen) == {"krum": 1, "multi_krum": 4, "bulyan": 5}.get(rule, len(alone.plan.clients))


@pytest.mark.parametrize(
    ("asked", "liars", "count", "used", "survives"),
    [
        ("bulyan", 1, 7, "bulyan", 1),
        ("bulyan", 1, 6, "multi_krum", 1),
        ("bulyan", 1, 5, "multi_krum", 1),
        ("bulyan", 1, 4, "trimmed_mean", 1),
        ("bulyan", 1, 3, "trimmed_mean", 1),
        ("bulyan", 2, 4, "median", 1),
        ("bulyan", 2, 3, "median", 1),
        ("krum", 2, 6, "trimmed_mean", 2),
        ("trimmed_mean", 2, 4, "median", 1),
        ("geometric_median", 2, 4, "median", 1),
        ("median", 2, 3, "median", 1),
        ("mean", 3, 1, "mean", 0),
    ],
)
def test_fewer_clients_go_down_the_ladder_and_the_report_says_so(asked, liars, count, used, survives):
    made = named(*np.random.default_rng(3).normal(size=(count, 5)))
    arrays, report = round_of(MergeSettings(asked, liars), made)
    assert (report.asked, report.used, report.stands_against) == (asked, used, survives)
    assert (report.reason == "") == (asked == used)
    if asked != used:
        assert re.search(rf"\b{count}\b", report.reason)
    if used == "median":
        assert bits(arrays) == bits(median(made))


@pytest.mark.parametrize("rule", ROBUST)
@pytest.mark.parametrize("count", [1, 2])
def test_below_the_ladder_nothing_is_aggregated(rule, count):
    liars = 0 if rule == "median" else 1
    with pytest.raises(FederationError, match=f"^{rule} .* {liars} liars .* clients .* 3, .* {count}:"):
        round_of(MergeSettings(rule, liars), named(*np.eye(count)))


def test_an_empty_round_is_refused():
    with pytest.raises(FederationError, match=r"^mean .* 1 clients .* 3, .* 0:"):
        aggregate(MergeSettings("mean"), WEIGHTS, [])


@pytest.mark.parametrize("rule", ["meen", "own", "__init__"])
def test_a_rule_that_is_not_there_is_refused_by_its_name(rule):
    with pytest.raises(FederationError, match=f"'{rule}'"):
        aggregate(MergeSettings(rule), WEIGHTS, [update("a")])


def test_every_rule_of_the_config_has_a_file_and_every_file_is_one_of_them():
    files = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - {"__init__", "own"}
    assert files == set(AGGREGATORS) == set(RULES)  # so that the laws above are tried with each
    assert all(aggregator_rule(name).traits == AGGREGATORS[name] for name in AGGREGATORS)


def test_an_inflated_claim_moves_a_round_no_further_than_two_honest_clients_would():
    made = named([0.0], [0.0], [0.0], [12.0])
    claims = {"a": {"weight": 5}, "b": {"weight": 5}, "c": {"weight": 5}, "d": {"weight": 1e12}}
    arrays, report = round_of(MergeSettings("weighted_mean"), made, **claims)
    assert arrays["x"].tolist() == [pytest.approx(12 * 2 / 5)]
    assert report.shares["d"] == pytest.approx(2 / 5)


def test_weights_of_the_settings_are_no_claims_and_count_as_they_are():
    made = named([0.0], [0.0], [12.0])
    weights = {"a": 1.0, "b": 1.0, "c": 10.0, "away": 5.0}
    arrays, _ = round_of(MergeSettings("weighted_mean", weights=weights), made)
    assert arrays["x"].tolist() == [pytest.approx(10)]
    with pytest.raises(FederationError, match=r"client b: .* a, c "):
        round_of(MergeSettings("weighted_mean", weights={"a": 1.0, "c": 1.0}), made)


def test_the_report_says_how_far_everyone_went():
    made = named([3.0, 4.0], [-3.0, 4.0])
    _, report = round_of(MergeSettings("mean"), made, Base("h", {"x": np.zeros(2)}))
    assert report.delta_norms == {"a": 5, "b": 5}
    assert report.drift == 4
    assert report.variance == 9
    assert round_of(MergeSettings("mean"), made)[1].drift is None


def test_a_base_of_another_network_is_refused():
    with pytest.raises(FederationError, match=r"^x: .* a only"):
        round_of(MergeSettings("mean"), named([1.0]), Base("h", {"y": np.zeros(1)}))
