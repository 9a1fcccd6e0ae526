"""Worlds that only a memory can solve, solved in seconds; and mistakes with a memory that such a world shows.

`remember`: a bit of the first tick must be said on the last one, with masks in between. `copy`: half of an episode must
be repeated in the other half. Without a memory both pay one half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learning import build

from slipstream.algos import rollout_batch, sequences
from slipstream.collect.episodes import play
from slipstream.collect.teams import Seat
from slipstream.config.load import load
from slipstream.nets import recurrent
from slipstream.nets.inputs import LENGTHS
from slipstream.replay.sequences import Links, Sequences
from slipstream.run import setup
from slipstream.spec import MEMORY

LONG = {"algo.gamma": 0.99, "algo.gae_lambda": 0.95}
GRU = {"algo.network": {"kind": "gru", "size": 16}}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo, 2": {"world.horizon": 2},
    "ppo, 20": {"world.horizon": 20, "collect.rollout_length": 40, "timesteps": 24576, **LONG},
    "ppo, 100": {
        "world.horizon": 100,
        "collect.rollout_length": 100,
        "timesteps": 64 * 32 * 25,
        "algo.network.length": 100,
        "algo.network.span": 100,
        **LONG,
    },
    "ppo with an lstm": {"world.horizon": 8, "algo.network": {"kind": "lstm", "size": 16}},
    "impala": {"algo.kind": "impala", **GRU},
    "appo": {"algo.kind": "appo", **GRU, "algo.minibatch_size": 128, "timesteps": 32768, "algo.entropy_coef": 0.02},
    "reinforce": {"algo.kind": "reinforce", **GRU},
    "dqn, 2": {"algo.kind": "dqn", **GRU, "world.horizon": 2},
    "dqn, 20": {"algo.kind": "dqn", **GRU, "world.horizon": 20, "algo.gamma": 0.99, "timesteps": 8192},
    "dqn with all it has": {
        "algo.kind": "dqn",
        "algo.network": {"kind": "lstm", "size": 16, "length": 8},
        "algo.dueling": True,
        "algo.values.kind": "quantile",
        "algo.values.quantiles": 5,
        "algo.replay.prioritised.alpha": 0.6,
        "algo.replay.n_step": 3,
        "algo.accumulate": 2,
    },
    "sac, 2": {"algo.kind": "sac", **GRU, "world.horizon": 2, "timesteps": 2048},
    "sac, 20": {
        "algo.kind": "sac",
        "algo.network": {"kind": "gru", "size": 16, "length": 20, "span": 20},
        "world.horizon": 20,
        "algo.gamma": 0.99,
        "timesteps": 4608,
    },
}


def train(task, changes):
    """Train as the scenario says; the mean return without exploration afterwards."""
    scenario = load(f"probe_{task}", {"seed": 1, **changes})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = build(setup.resolve(scenario))
        while parts.updates * parts.scenario.rollout_steps < parts.scenario.timesteps:
            parts.advance()
        worlds = setup.make_evaluation_worlds(parts.scenario, 64)
        return float(play(worlds, parts.cast.teams, 128, seed=5).team_returns.mean())
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("how", list(SETTINGS))
def test_it_remembers(how):
    assert train("remember", SETTINGS[how]) > 0.95


@pytest.mark.parametrize("how", [{}, {"algo.kind": "sac"}, {"algo.kind": "td3", "timesteps": 5120}])
def test_an_axis_remembers(how):
    """`recall`: stand where the first tick showed; who does not know earns nothing."""
    assert train("recall", {**how, **GRU, "world.horizon": 4}) > 0.95


@pytest.mark.parametrize(
    "how", [{"timesteps": 32768}, {"algo.kind": "dqn", "algo.network": {"kind": "gru", "size": 32}, "timesteps": 8192}]
)
def test_it_copies(how):
    assert train("copy", {"world.horizon": 6, **how}) > 0.95


def test_without_a_memory_half_of_it_is_luck():
    assert train("remember", {"world.horizon": 2, "algo.network": "mlp"}) < 0.65


# --- mistakes ---


def state_kept_over_ends(patch):
    patch.setattr(Seat, "forget_ended", lambda self: None)


def state_forgotten_at_every_step(patch):
    real = recurrent.RecurrentTorso.step

    def step(self, inputs):
        features, after = real(self, inputs)
        return features, torch.zeros_like(after)

    patch.setattr(recurrent.RecurrentTorso, "step", step)


def steps_without_their_past(patch):
    real = sequences.in_sequences
    patch.setattr(sequences, "in_sequences", lambda rollout, index, length: real(rollout, index, 1))


def sequences_begin_with_nothing(patch):
    real = recurrent.CellRows

    def rows(x, before, lengths):
        return real(x, before if lengths is None else torch.zeros_like(before), lengths)

    patch.setattr(recurrent, "CellRows", rows)


def rows_without_what_led_to_them(patch):
    """As above, in learners from replay: no sequence is longer than a row, and nothing is burned in."""
    real = Links.__init__
    made = Sequences.__init__
    patch.setattr(Links, "__init__", lambda self, columns, length: real(self, columns, 1))
    patch.setattr(Sequences, "__init__", lambda self, replay, burn_in: made(self, replay, 0))


@pytest.mark.parametrize(
    ("mistake", "changes"),
    [
        (state_forgotten_at_every_step, {"world.horizon": 2}),
        (steps_without_their_past, {"world.horizon": 8}),
        (state_forgotten_at_every_step, {"world.horizon": 2, "algo.kind": "dqn", **GRU}),
        (rows_without_what_led_to_them, {"world.horizon": 8, "algo.kind": "dqn", **GRU}),
    ],
)
def test_a_mistake_that_spoils_what_is_learned(mistake, changes, monkeypatch):
    mistake(monkeypatch)
    assert train("remember", changes) < 0.8


# --- what is learned from is what acted ---


def rollout_and_learner(task="alternating", network=None, **changes):
    """A rollout after some updates, and the learner that acted in it, before it has learned from it."""
    asked = {"algo.network": network or {"kind": "gru", "size": 6, "length": 3}, **changes}
    shape = {"collect.num_worlds": 8, "collect.rollout_length": 12, "algo.minibatch_size": 24}
    parts = build(setup.resolve(load(f"probe_{task}", {"seed": 3, **shape, **asked})))
    for _ in range(2):
        parts.advance()
    for _ in range(2):  # what the second carries over was decided by the same weights
        rollouts, _ = parts.collector.collect(0)
    (rollout,) = rollouts.values()
    return rollout, parts.learner


def minibatches(rollout, learner):
    batch, _ = learner._prepare(rollout)
    order = np.random.Generator(np.random.Philox(key=[1, 2]))
    return [piece for pieces in rollout_batch.shuffled(batch, order, learner.config, learner.share) for piece in pieces]


def largest_ratio_error(rollout, learner):
    """How far the new policy's log-probabilities, unrolled over sequences, are from those with which it acted."""
    worst = 0.0
    for piece in minibatches(rollout, learner):
        assert LENGTHS in piece.inputs
        forward = learner.actor_critic.forward(piece.inputs, piece.critic_inputs, piece.mask)
        worst = max(worst, float((forward.policy.logp(piece.action) - piece.logp).abs().max().detach()))
    return worst


@pytest.mark.parametrize("task", ["alternating", "leaver", "bandit", "duration", "remember"])
@pytest.mark.parametrize(
    "network", [{"kind": "gru", "size": 6, "length": 4}, {"kind": "lstm", "size": 6, "length": 50}]
)
def test_before_it_learns_every_ratio_is_one(task, network):
    """Whoever decides every other tick, leaves early or is masked: sequences give the probabilities of acting."""
    rollout, learner = rollout_and_learner(task, network)
    assert largest_ratio_error(rollout, learner) == 0.0


@pytest.mark.parametrize("mistake", [state_kept_over_ends, sequences_begin_with_nothing])
def test_a_mistake_shows_in_the_ratios(mistake, monkeypatch):
    rollout, learner = rollout_and_learner()
    mistake(monkeypatch)
    if mistake is state_kept_over_ends:
        rollout, learner = rollout_and_learner()
        states = rollout.obs[MEMORY][2:]
        begun = ((rollout.terminated | rollout.truncated)[1:-1] & rollout.paid[1:-1]) != 0
        assert np.abs(states[begun]).max() > 0  # an episode begins with what the one before left
        return
    assert largest_ratio_error(rollout, learner) > 1e-3


@pytest.mark.parametrize("task", ["alternating", "leaver", "delayed"])
def test_states_are_zero_where_an_episode_begins_and_stay_where_nobody_decides(task):
    rollout, _ = rollout_and_learner(task)
    states = rollout.obs[MEMORY]
    ended = ((rollout.terminated | rollout.truncated) & rollout.paid) != 0
    assert ended[1:-1].any()
    assert (states[2:][ended[1:-1]] == 0).all()
    waits = (rollout.decided[1:-1] == 0) & ~ended[1:-1]
    assert np.array_equal(states[2:][waits], states[1:-1][waits])
    decides = (rollout.decided[1:-1] != 0) & ~ended[1:-1]
    assert (np.abs(states[2:][decides] - states[1:-1][decides]).sum(-1) > 0).all()
