"""Strengths come back from games, and equals are called different no more often than promised."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from slipstream.stats.ratings import ELO, EloTest, Score, elo, elo_difference, elo_intervals, evidence_against, expected

SCORES = np.linspace(0.0, 1.0, 5)

# How likely two equals are to take 0, 0.5, 1, 1.5 and 2 points from a pair of games on one seed.
EQUALS = {
    "two games that know nothing of each other": [0.25, 0.0, 0.5, 0.0, 0.25],
    "the seed decides both": [0.5, 0.0, 0.0, 0.0, 0.5],
    "the side decides nearly all": [0.05, 0.0, 0.9, 0.0, 0.05],
    "many draws": [0.02, 0.2, 0.56, 0.2, 0.02],
}


def histories(chances, matches, pairs, seed=0):
    """Counts after every pair of every match, [matches, pairs, 5]."""
    drawn = np.random.default_rng(seed).choice(5, p=chances, size=(matches, pairs))
    return np.eye(5)[drawn].cumsum(1)


def tilted(chances, difference):
    """The same with the mean score that a difference in strength gives."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        tried = np.array(chances) * np.exp(middle * SCORES)
        tried /= tried.sum()
        low, high = (middle, high) if tried @ SCORES < expected(difference) else (low, middle)
    return tried


def passes(counts, test):
    """Matches in which one test, looked at after every pair, passes before it fails."""
    fail, done = test.bounds
    passed, going = 0, counts
    for n in range(counts.shape[1]):
        alike = going[:, n] @ 1000.0 ** np.arange(going.shape[-1])  # many matches stand alike
        _, rows, which = np.unique(alike, return_index=True, return_inverse=True)
        ratio = test.log_ratio(going[rows, n])[which]
        passed += int((ratio >= done).sum())
        going = going[(fail < ratio) & (ratio < done)]
    return passed / len(counts)


# --- between two ---


@pytest.mark.parametrize("counts", [[3, 7], [0, 12], [5, 0], [40, 60]])
def test_with_wins_and_losses_alone_it_is_walds_test(counts):
    lost, won = counts
    low, high = expected(10.0), expected(80.0)
    walds = won * math.log(high / low) + lost * math.log((1.0 - high) / (1.0 - low))
    assert float(EloTest(10.0, 80.0).log_ratio(counts)) == pytest.approx(walds, rel=1e-9)


@pytest.mark.parametrize("mean", [0.3, 0.5, 0.64])
@pytest.mark.parametrize(
    "counts", [[1, 2, 9, 4, 3], [0, 0, 8, 2, 0], [0, 0, 0, 0, 7], [5, 0, 0, 0, 6], [0, 0, 3, 0, 0]]
)
def test_the_likeliest_distribution_with_a_mean_is_found(counts, mean):
    """Against a general optimiser that looks for the five chances themselves."""
    counts = np.array(counts, float)
    conditions = [{"type": "eq", "fun": lambda p: p.sum() - 1}, {"type": "eq", "fun": lambda p: p @ SCORES - mean}]
    found = minimize(
        lambda p: -(counts * np.log(np.maximum(p, 1e-300))).sum(),
        tilted([0.2] * 5, ELO * math.log(mean / (1 - mean))),
        bounds=[(1e-12, 1)] * 5,
        constraints=conditions,
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    present = counts[counts > 0]
    best = float((present * np.log(present / present.sum())).sum())
    assert float(evidence_against(counts, mean)) == pytest.approx(best + found.fun, abs=1e-5)


def test_nothing_speaks_against_the_mean_that_was_found():
    counts = [1, 2, 9, 4, 3]
    assert float(evidence_against(counts, np.dot(counts, SCORES) / 19)) == pytest.approx(0.0, abs=1e-12)
    assert float(evidence_against([0, 0, 0], 0.4)) == 0.0


def test_a_streak_is_stronger_than_something_and_nobody_knows_than_what():
    found = elo_difference([0, 0, 0, 0, 10])
    least = math.exp(-0.5 * 1.959963984540054**2 / 10)  # of which ten in a row still come up often enough
    assert found.estimate == found.high == math.inf
    assert found.low == pytest.approx(ELO * math.log(least / (1 - least)))
    assert elo_difference([0] * 5)[1:] == (-math.inf, math.inf)


def test_swapping_the_two_mirrors_every_bit():
    counts = [3, 1, 14, 6, 8]
    there, back = elo_difference(counts), elo_difference(counts[::-1])
    assert there == (-back.estimate, -back.high, -back.low)
    history = histories(tilted([0.2] * 5, 120.0), 1, 60)[0]
    test = EloTest(0.0, 80.0)
    who, when = test.settle(history)
    assert (who, when) == ("first", when)
    assert test.settle(history[:, ::-1]) == ("second", when)


@pytest.mark.parametrize("name", EQUALS)
def test_an_interval_holds_the_truth_as_often_as_it_says(name):
    for difference in (0.0, 100.0):
        counts = histories(tilted(EQUALS[name], difference), 2000, 100)[:, -1]
        held = (evidence_against(counts, expected(difference)) <= 0.5 * 1.96**2).mean()
        assert 0.92 <= held <= 0.98
    found = elo_difference(counts[0])  # and the ends are where that evidence is reached
    for end in found[1:]:
        assert float(evidence_against(counts[0], expected(end))) == pytest.approx(0.5 * 1.96**2, rel=1e-3)


@pytest.mark.parametrize("name", EQUALS)
def test_equals_are_hardly_ever_called_different_however_alike_the_games_of_a_pair(name):
    test = EloTest(0.0, 120.0)
    false = passes(histories(EQUALS[name], 2000, 150), test)
    assert false <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)
    if name.startswith(("two", "the seed")):
        assert false > 0.02, "a test that never passes anything would prove nothing"
    found = passes(histories(tilted(EQUALS[name], 120.0), 500, 150), test)
    assert found >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 500) - 0.02


def test_games_of_one_seed_counted_one_by_one_would_be_too_sure():
    counts = histories(EQUALS["the seed decides both"], 1000, 120)
    singly = 2 * counts[..., [0, 2, 4]]  # each pair as two games that know nothing of each other
    assert passes(singly, EloTest(0.0, 120.0)) > 0.08


def slow_settle(test, history):
    """Row by row, each of the two tests until it ends."""
    fail, done = test.bounds
    ended = {}
    both = {"first": test.log_ratio(history), "second": test.log_ratio(history[:, ::-1])}
    for n in range(1, len(history) + 1):
        for who, ratios in both.items():
            ratio = ratios[n - 1]
            if who not in ended and (ratio >= done or ratio <= fail):
                if ratio >= done:
                    return who, n
                ended[who] = n
        if len(ended) == 2:
            return "neither", n
    return "open", len(history)


def test_two_are_settled_as_soon_as_one_test_passes_or_both_have_failed():
    test = EloTest(0.0, 100.0, 0.2, 0.2)  # so sloppy that everything happens
    rows = [h for name in EQUALS for d in (-60.0, 0.0, 60.0) for h in histories(tilted(EQUALS[name], d), 5, 40)]
    found = [test.settle(history) for history in rows]
    assert found == [slow_settle(test, history) for history in rows]
    assert {who for who, _ in found} == {"first", "second", "neither", "open"}
    assert EloTest().settle(np.zeros((0, 5))) == ("open", 0)


# --- among many ---


def test_strengths_come_back_from_games():
    truth = np.array([120.0, 30.0, -10.0, -140.0])
    rng = np.random.default_rng(0)
    points = np.zeros((4, 4))
    for i in range(4):
        for j in range(i):
            won = rng.binomial(4000, expected(truth[i] - truth[j]))
            points[i, j], points[j, i] = won, 4000 - won
    np.testing.assert_allclose(elo(points), truth - truth.mean(), atol=12)


def test_strengths_are_the_likeliest_ones():
    points = np.random.default_rng(1).integers(0, 9, (5, 5)) * (1.0 - np.eye(5))

    def unlikely(strength):
        share = np.log1p(np.exp((strength[None, :] - strength[:, None]) / ELO))
        return float((((points + 0.5) * (1 - np.eye(5))) * share).sum())

    found = minimize(unlikely, np.zeros(5), method="BFGS", options={"gtol": 1e-9}).x
    np.testing.assert_allclose(elo(points), found - found.mean(), atol=1e-2)
    stack = np.stack([points, points.T, 1000 * np.triu(points)])
    np.testing.assert_allclose(elo(stack), [elo(table) for table in stack], atol=1e-6)


def test_lopsided_tables_are_solved_too():
    """Whole steps of Newton's run away from this one. At the likeliest strengths everybody expects what it has."""
    points = np.array([[0, 0, 10, 1], [10_000, 0, 100, 100_000], [100_000, 0, 0, 0], [0, 1, 10, 0]], float)
    won = (points + 0.5) * (1 - np.eye(4))
    strengths = elo(points)
    share = 1 / (1 + np.exp((strengths[None, :] - strengths[:, None]) / ELO))
    np.testing.assert_allclose(((won + won.T) * share).sum(1), won.sum(1), rtol=1e-7)


def test_a_player_who_lost_every_game_is_not_infinitely_weak():
    strengths = elo([[0, 10], [0, 0]])
    np.testing.assert_allclose(strengths, np.array([0.5, -0.5]) * ELO * math.log(10.5 / 0.5))
    with pytest.raises(ValueError, match="square"):
        elo([[1.0, 2.0]])


def rounds_of(points):
    """Rounds between two from the points the first one took of two games."""
    tables = np.zeros((len(points), 2, 2))
    tables[:, 0, 1], tables[:, 1, 0] = points, 2.0 - np.asarray(points)
    return tables


@pytest.mark.parametrize(("joint", "wider"), [(False, 1.0), (True, math.sqrt(2.0))])
def test_intervals_of_ratings_are_as_wide_as_the_rounds_scatter(joint, wider):
    """The closed form for two: a standard error of 1 / sqrt(n p (1 - p)) in log odds, half of it for each."""
    rng, p, games = np.random.default_rng(2), 0.65, 2000
    points = 2 * rng.binomial(1, p, games // 2) if joint else rng.binomial(2, p, games // 2)
    first, second = elo_intervals(rounds_of(points), resamples=2000)
    assert first.high - first.low == pytest.approx(1.96 * wider * ELO / math.sqrt(games * p * (1 - p)), rel=0.1)
    assert first.low < ELO * math.log(p / (1 - p)) / 2 < first.high
    assert first == pytest.approx((-second.estimate, -second.high, -second.low))
    assert first.estimate == pytest.approx(elo(rounds_of(points).sum(0))[0])


def test_an_unbroken_streak_is_no_certainty():
    """A Poisson number with mean 1 is 3 at the end of its 95 % interval: so many rounds more, all drawn."""
    won, _ = elo_intervals(rounds_of([2.0] * 40))
    assert won.low == pytest.approx(0.5 * ELO * math.log((80 + 3 + 0.5) / (3 + 0.5)))
    assert won.high == won.estimate == pytest.approx(0.5 * ELO * math.log(80.5 / 0.5))
    tables = np.zeros((40, 3, 3))
    tables[:, 0, 1] = tables[:, 0, 2] = tables[:, 1, 2] = 2.0
    found = elo_intervals(tables)
    assert [rating.high - rating.low > 50 for rating in found] == [True] * 3
    assert found == elo_intervals(tables), "the same rounds give the same bits"


def test_a_score_counts_a_draw_as_half():
    assert (Score(3, 2, 5).games, Score(3, 2, 5).mean) == (10, 0.4)
