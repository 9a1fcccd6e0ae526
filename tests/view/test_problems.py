"""No problem says what the judgement beside it denies."""

import pytest

from slipstream.stats.intervals import Interval
from slipstream.view.history import Curve
from slipstream.view.problems import Problem, check_with_judgement
from slipstream.view.run import Judged

PLATEAU = Problem("negative_plateau", "The return stays at about -0.3.", 1000, 2000)


def judged(**returns):
    """Rows of a judgement: what each earned, from a tenth below to a tenth above it."""
    return [Judged(name, 100, {"return": Interval(v, v - 0.1, v + 0.1)}) for name, v in returns.items()]


def shares(**parts):
    return [Judged(name, 100, {"success": Interval(part, part, part)}) for name, part in parts.items()]


@pytest.mark.parametrize(
    ("rows", "stays"),
    [
        (judged(learned=-0.22, random=-0.98), False),  # it beats every script
        (judged(learned=0.5, mvp=3.0), False),  # it earns more than nothing
        (judged(learned=-0.9, random=-0.98), True),  # no better than chance
        (judged(learned=-0.5, greedy=0.3, random=-0.9), True),  # better than one, worse than another
        (shares(learned=0.5), True),  # of its return the judgement says nothing
        ([], True),
    ],
)
def test_a_plateau_is_none_where_the_policy_beats_every_script(rows, stays):
    assert bool(check_with_judgement([PLATEAU], {}, rows)) is stays


def test_a_plateau_names_the_scripts_that_earn_the_same_and_those_that_earn_more():
    (problem,) = check_with_judgement([PLATEAU], {}, judged(learned=-0.9, greedy=0.3, random=-0.98))
    assert "learned -0.9, greedy 0.3, random -0.98" in problem.found
    assert "no more than random" in problem.tries
    assert "greedy earns more" in problem.tries
    assert (problem.first, problem.last) == (PLATEAU.first, PLATEAU.last)


def test_a_streak_that_never_came_is_none_where_fresh_episodes_are_clean():
    streak = Problem("streak_at_zero", "No streak.", 1, 2)
    assert check_with_judgement([streak], {}, shares(learned=0.97, mvp=1.0)) == []
    (told,) = check_with_judgement([streak], {}, shares(learned=0.25, mvp=0.5, noop=0.0))
    assert "25%" in told.found
    assert "mvp" in told.found


def test_a_collapse_of_entropy_is_none_where_the_policy_is_good():
    collapse = Problem("entropy_collapsed", "Entropy fell.", 1, 2)
    assert check_with_judgement([collapse], {}, judged(learned=5.0, noop=0.0)) == []
    assert check_with_judgement([collapse], {}, judged(learned=0.0, noop=0.0)) == [collapse]
    assert check_with_judgement([collapse], {}, judged(learned=5.0, mvp=9.0, noop=0.0)) == [collapse]


def test_evaluations_below_training_are_none_where_fresh_episodes_earn_what_training_did():
    below = Problem("evaluation_below", "Far below.", 150, 300)
    trained = {"env/return_mean": Curve([100, 200, 300], [0.0, 4.0, 6.0])}
    assert check_with_judgement([below], trained, judged(learned=5.0)) == []
    assert check_with_judgement([below], trained, judged(learned=4.0)) == [below]


def test_signs_of_which_a_judgement_knows_nothing_stay():
    other = Problem("high_kl", "KL is high.", 1, 2)
    assert check_with_judgement([other], {}, judged(learned=5.0, noop=0.0)) == [other]
