"""Choosing by a quantile of the time left: the likely is looked at, and the level decides between safe and lucky."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from learning import hand_spec

from slipstream.errors import ScenarioError
from slipstream.nets.heads import Categorical
from slipstream.worlds.drmario.cli.playing import LIKELY, MOST, Foresighted, likely
from slipstream.worlds.drmario.lookahead import Outcome

SPEC = hand_spec(choices=4)
HORIZON = 1000


def player(logits, outcomes, level, seen=None) -> Foresighted:
    """A policy with these logits; a look gives these outcomes by choice, whose observations are their quantiles."""

    def look(obs, choices):
        if seen is not None:
            seen.append((float(obs["obs"][0]), choices))
        return [outcomes[choice] for choice in choices]

    def network(obs, mask):
        return Categorical(torch.tensor(logits).expand(len(obs["obs"]), -1).masked_fill(mask == 0, -1e9))

    policy = SimpleNamespace(network=network, record=SimpleNamespace(world=SPEC))
    times = SimpleNamespace(quantiles=lambda obs: obs["obs"], record=SimpleNamespace(world=SPEC, horizon=HORIZON))
    return Foresighted(policy, times, level, look)


def going(ticks: int, *quantiles: list[float]) -> Outcome:
    """It goes on, with as many continuations as there are lists."""
    return Outcome(ticks, None, {"obs": np.array(quantiles, np.float32)})


def choose(*args, rows: int = 1, mask=None, **kwargs) -> list[int]:
    obs = {"obs": np.arange(rows, dtype=np.float32).reshape(rows, 1)}
    allowed = np.ones((rows, 4), np.uint8) if mask is None else np.tile(np.array(mask, np.uint8), (rows, 1))
    acted = player(*args, **kwargs).act(obs, allowed, None)
    assert acted.action.dtype == np.int32
    assert acted.logp.shape == (rows,)
    return acted.action.tolist()


SAFE, LUCKY = going(10, [100, 110, 120]), going(10, [20, 120, 500])


def test_a_low_level_counts_on_luck_and_a_high_one_does_not():
    outcomes = {0: SAFE, 1: LUCKY, 2: Outcome(5, False, {}), 3: Outcome(5, False, {})}
    for level, wanted in ((0.1, 1), (0.5, 0), (0.9, 0)):
        assert choose([0.0, 0.0, 0.0, 0.0], outcomes, level, rows=3) == [wanted] * 3


def test_the_time_until_then_counts_and_so_does_an_end():
    slow, won, lost = going(200, [90, 100, 110]), Outcome(150, True, {}), Outcome(1, False, {})
    assert choose([0.0] * 4, {0: slow, 1: SAFE, 2: lost, 3: lost}, 0.5) == [1]
    assert choose([0.0] * 4, {0: slow, 1: going(60, [95, 96, 97]), 2: won, 3: lost}, 0.5) == [2]
    assert choose([0.0] * 4, {0: lost, 1: lost, 2: slow, 3: lost}, 0.5) == [2]


def test_among_those_that_are_not_expected_to_succeed_the_likeliest_is_taken():
    hopeless = {
        0: Outcome(1, False, {}),
        1: going(9, [900, 995, 1000]),
        2: going(3, [1000] * 3),
        3: going(1, [1000] * 3),
    }
    assert choose([0.0, 1.0, 2.0, 1.5], hopeless, 0.5) == [2]


def test_what_may_follow_is_mixed_and_not_averaged():
    """Two continuations: half of the time 10, half 400; the lower quarter of the mixture is 10."""
    split, even = going(0, [10.0, 10.0, 10.0], [400.0, 400.0, 400.0]), going(0, [100.0] * 3, [100.0] * 3)
    outcomes = {0: even, 1: split, 2: even, 3: even}
    assert choose([0.0] * 4, outcomes, 0.25) == [1]
    assert choose([0.0] * 4, outcomes, 0.75) == [0]


def test_only_what_is_likely_and_allowed_is_looked_at():
    seen = []
    outcomes = {0: SAFE, 1: Outcome(1, True, {}), 2: Outcome(2, True, {}), 3: Outcome(1, True, {})}
    assert choose(
        [5.0, 5.0 + np.log(LIKELY) - 0.01, 4.0, 6.0], outcomes, 0.5, rows=2, mask=[1, 1, 1, 0], seen=seen
    ) == [2, 2]
    assert seen == [(0.0, [0, 2]), (1.0, [0, 2])]
    assert choose([9.0, 0.0, 0.0, 0.0], outcomes, 0.5, seen=seen) == [0]
    assert len(seen) == 2, "where there is nothing to choose nobody looks"


def test_at_most_so_many_are_looked_at_the_likeliest_first():
    assert likely(np.log(np.full(50, 0.02, np.float32))) == list(range(MOST))
    assert likely(np.log(np.array([0.01, 0.5, 0.2, 0.29], np.float32))) == [1, 3, 2]


def test_levels_and_models_that_do_not_fit_are_refused():
    for level in (0.0, 1.0, 1.5):
        with pytest.raises(ScenarioError, match=rf"0 and 1\b.* {level:g}$"):
            player([0.0] * 4, {}, level)
    other = SimpleNamespace(record=SimpleNamespace(world=hand_spec(choices=4, features=3), horizon=9))
    with pytest.raises(ScenarioError, match=r"test/hand .*3 inputs.*test/hand .*1"):
        Foresighted(SimpleNamespace(record=SimpleNamespace(world=SPEC)), other, 0.5, lambda obs, choices: [])
