"""What networks with a memory see of a draw of sequences, against stepping through every episode as it was acted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learning import build, flat, scenario_of, tiny

from slipstream.algos.offpolicy import rows_of
from slipstream.algos.protocol import Progress
from slipstream.algos.remembered import actor_rows, critic_rows, returns_within
from slipstream.collect.teams import Seat
from slipstream.data.transitions import Transitions
from slipstream.nets.actor import tensors
from slipstream.nets.inputs import VECTOR
from slipstream.nets.recurrent import RecurrentTorso
from slipstream.spec import MEMORY

CPU = torch.device("cpu")
NETWORKS = [{"kind": "gru", "size": 6, "length": 3}, {"kind": "lstm", "size": 5, "length": 50}]
WORLDS = ["alternating", "leaver", "duration", "bandit", "remember"]


def parts_of(kind="dqn", world="alternating", network=NETWORKS[0], **algo):
    """A learner that has collected, and learned nothing."""
    own = {"network": network, "learning_starts": 10**6, "replay.capacity": 2000, **algo}
    parts = build(scenario_of(f"probe_{world}", {**tiny(kind, **own), "seed": 3, "collect.rollout_length": 11}))
    for _ in range(6):
        parts.advance()
    return parts


def draw_of(parts, batch=61, draw=0):
    (feed,) = parts.feeds.values()
    return feed._memory.sequences.draw(batch, draw)


def starts_of(sample):
    return np.cumsum(sample.past.lengths) - sample.past.lengths


def largest_state_error(parts, draws=4):
    """How far burned-in states are from those the agents had, the weights being the same; and how large these are."""
    worst, sizes = 0.0, []
    for draw in range(draws):
        sample = draw_of(parts, draw=draw)
        rows = actor_rows(parts.learner.actor, rows_of(sample, parts.learner.actor, CPU))
        starts = starts_of(sample)
        found, stored = rows.inputs[MEMORY].numpy()[starts], sample.rows.obs[MEMORY][starts]
        worst = max(worst, float(np.abs(found - stored).max()))
        sizes.append(np.abs(stored[sample.past.before > 0]).sum())
    return worst, sum(sizes)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("burn_in", [0, 1, 4])
def test_with_the_weights_that_acted_burn_in_ends_in_the_state_that_was_stored(world, network, burn_in):
    worst, size = largest_state_error(parts_of("dqn", world, network, **{"replay.burn_in": burn_in}))
    assert worst < 1e-6
    assert (size > 0) == (burn_in > 0), "there was something to bring up to date"


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("network", NETWORKS)
def test_what_followed_is_valued_with_the_state_after_the_decision(world, network):
    """Values of the next observation, or the final one where it was cut, from one step of the memory for each row."""
    parts = parts_of("dqn", world, network, **{"replay.burn_in": 2})
    actor = parts.learner.actor
    sample = draw_of(parts)
    rows = actor_rows(actor, rows_of(sample, actor, CPU))
    with torch.no_grad():
        found = rows.following(actor.quantiles(rows.next_inputs))
        _, after = actor.torso.step(actor.inputs(tensors(sample.rows.obs, CPU)))
        expected = actor.quantiles(actor.inputs({**tensors(sample.rows.next_obs, CPU), MEMORY: after}))
    goes_on = sample.rows.discount > 0
    assert goes_on.sum() > 10
    torch.testing.assert_close(found[goes_on], expected[goes_on], atol=1e-5, rtol=1e-5)
    if rows.next_mask is not None:
        np.testing.assert_array_equal(rows.following(rows.next_mask)[goes_on], sample.rows.next_mask[goes_on])
    noise = torch.arange(len(sample.rows))
    assert torch.equal(rows.following(rows.spread(noise)), noise), "each row's own draws"


@pytest.mark.parametrize("world", ["leaver", "alternating"])
def test_an_episode_begins_with_nothing_remembered(world):
    parts = parts_of("dqn", world)
    (feed,) = parts.feeds.values()
    rows = feed.replay.read(0, feed.replay.total_added)
    begins = rows["back"] == 0
    assert begins.sum() > 8
    assert (rows[f"obs.{MEMORY}"][begins] == 0).all()
    assert (np.abs(rows[f"obs.{MEMORY}"][~begins]).sum(1) > 0).all()
    assert f"next_obs.{MEMORY}" not in rows


def sequences_in(parts):
    """Every sequence that can be drawn, by what was seen and done in it."""
    (feed,) = parts.feeds.values()
    found = set()
    for draw in range(200):
        sample = feed._memory.sequences.draw(64, draw)
        last = np.cumsum(sample.past.lengths)[:-1]
        pieces = [
            np.split(each, last) for each in (sample.rows.obs["obs"], sample.rows.obs[MEMORY], sample.rows.action)
        ]
        found |= {tuple(part.tobytes() for part in each) for each in list(zip(*pieces, strict=True))[:-1]}
    return len(feed._memory.sequences), found


def test_slabs_of_some_worlds_make_the_same_sequences():
    whole, groups = (parts_of("dqn", "alternating", {"kind": "gru", "size": 4, "length": 3}) for _ in range(2))
    for parts, first_worlds in ((whole, ()), (groups, (0, 2))):
        (feed,) = parts.feeds.values()
        for update in range(6, 12):
            (rollout,) = parts.collector.collect(update)[0].values()
            feed.learn(rollout, Progress(0.0, update), first_worlds)
    assert sequences_in(whole) == sequences_in(groups)


def test_where_worlds_begin_anew_so_do_sequences():
    parts = parts_of("dqn", "leaver", {"kind": "gru", "size": 4, "length": 50})
    (feed,) = parts.feeds.values()
    before, sequences = feed.replay.total_added, len(feed._memory.sequences)
    parts.collector.restart()
    feed.restart()
    parts.advance()
    back = feed.replay.read(before, feed.replay.total_added)["back"]
    assert (back[:12] == 0).all(), "of 3 agents in 4 worlds"
    assert len(feed._memory.sequences) > sequences


# --- mistakes that the above would show ---


def state_kept_over_ends(patch):
    patch.setattr(Seat, "forget_ended", lambda self: None)


def burn_in_begins_a_row_late(patch):
    real = RecurrentTorso.after

    def after(self, inputs):
        rolled = {name: block if name == "lengths" else block.roll(-1, 0) for name, block in inputs.items()}
        return real(self, rolled)

    patch.setattr(RecurrentTorso, "after", after)


def burn_in_begins_with_nothing(patch):
    real = RecurrentTorso.after
    patch.setattr(
        RecurrentTorso, "after", lambda self, inputs: real(self, {**inputs, MEMORY: torch.zeros_like(inputs[MEMORY])})
    )


@pytest.mark.parametrize("mistake", [burn_in_begins_a_row_late, burn_in_begins_with_nothing])
def test_a_mistake_in_burn_in_shows_in_the_states(mistake, monkeypatch):
    network = {"kind": "gru", "size": 6, "length": 2}
    parts = parts_of("dqn", "leaver", network, **{"replay.burn_in": 3})
    assert largest_state_error(parts)[0] < 1e-6
    mistake(monkeypatch)
    assert largest_state_error(parts)[0] > 1e-3


def test_a_state_kept_over_an_end_shows_in_the_rows(monkeypatch):
    state_kept_over_ends(monkeypatch)
    with pytest.raises(AssertionError):
        test_an_episode_begins_with_nothing_remembered("leaver")


# --- n-step returns ---


@given(st.integers(0, 1000), st.integers(1, 6))
def test_n_step_returns_stay_within_their_sequence(seed, steps):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, 4)
    count = int(lengths.sum())
    reward, discount = rng.normal(size=count).astype(np.float32), rng.random(count).astype(np.float32)
    nothing = np.zeros((count, 1), np.float32)
    rows = Transitions({"obs": nothing}, np.zeros(count, np.int32), None, reward, discount, {"obs": nothing}, None)
    found = returns_within(rows, lengths, steps)
    ends = np.cumsum(lengths)
    for row in range(count):
        last = min(row + steps, int(ends[np.searchsorted(ends, row, side="right")])) - 1
        total, weight = 0.0, 1.0
        for k in range(row, last + 1):
            total, weight = total + weight * reward[k], weight * discount[k]
        assert found.last[row] == last
        assert found.reward[row] == pytest.approx(total, abs=1e-5)
        assert found.discount[row] == pytest.approx(weight, abs=1e-6)


def test_an_n_step_return_is_led_to_the_row_after_its_last_decision():
    parts = parts_of("dqn", "leaver", {"kind": "gru", "size": 4, "length": 5})
    sample, actor = draw_of(parts), parts.learner.actor
    rows = rows_of(sample, actor, CPU, n_step=3)
    found = rows.following(rows.next_inputs[VECTOR]).numpy()
    last = returns_within(sample.rows, sample.past.lengths, 3).last
    goes_on = sample.rows.discount[last] > 0
    np.testing.assert_array_equal(found[goes_on], sample.rows.next_obs["obs"][last][goes_on])


# --- learners ---


@pytest.mark.parametrize(
    ("kind", "world"), [("dqn", "leaver"), ("sac", "leaver"), ("sac", "recall"), ("td3", "recall")]
)
def test_a_batch_in_pieces_gives_the_same_gradient(kind, world):
    whole, pieces = parts_of(kind, world), parts_of(kind, world, accumulate=3)
    for update in range(2):
        for parts in (whole, pieces):
            parts.learner.update(draw_of(parts, draw=update), Progress(0.0, update))
    for name, module in whole.learner.modules.items():
        torch.testing.assert_close(flat(module), flat(pieces.learner.modules[name]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("kind", "world"), [("dqn", "leaver"), ("sac", "leaver"), ("td3", "target")])
def test_learners_take_the_steps_that_were_asked_for(kind, world):
    """Rewards of 0.5 and more at every step: summed over three of them, targets are larger."""
    network = {"kind": "gru", "size": 4, "length": 6}
    one, three = (parts_of(kind, world, network, **{"replay.n_step": steps}) for steps in (1, 3))
    sample = draw_of(one)
    means = [float(parts.learner.update(sample, Progress(0.0, 0)).stats["q_mean"]) for parts in (one, three)]
    assert means[1] > means[0] + 0.3


@pytest.mark.parametrize("double", [False, True])
def test_the_target_network_remembers_with_its_own_weights(double):
    """Against steps of each network, one by one, from the state that was stored before the burn-in."""
    parts = parts_of("dqn", "bandit", {"kind": "lstm", "size": 4, "length": 3}, double=double, **{"replay.burn_in": 2})
    learner, sample = parts.learner, draw_of(parts)
    target = learner.target.network
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.mul_(1.5)
    found = learner._next_quantiles(actor_rows(learner.actor, rows_of(sample, learner.actor, CPU))).squeeze(1)

    def after(network, row, number):
        """What a network remembers after a row of the sequence with this number."""
        first, length = sample.past.before[:number].sum(), sample.past.before[number]
        obs = {name: block[first : first + length] for name, block in sample.past.obs.items()}
        start = starts_of(sample)[number]
        obs = {name: np.concatenate([block, sample.rows.obs[name][start : row + 1]]) for name, block in obs.items()}
        state = torch.from_numpy(obs[MEMORY][:1])
        for each in torch.from_numpy(obs["obs"]):
            _, state = network.torso.step({VECTOR: each[None], MEMORY: state})
        return state

    numbers = np.repeat(np.arange(len(sample.past.lengths)), sample.past.lengths)
    with torch.no_grad():
        for row in np.flatnonzero(sample.rows.discount > 0):
            following = torch.from_numpy(sample.rows.next_obs["obs"][row : row + 1])
            values, choosing = (
                network.quantiles({VECTOR: following, MEMORY: after(network, row, numbers[row])})[0, :, 0]
                for network in (target, learner.actor if double else target)
            )
            allowed = torch.from_numpy(sample.rows.next_mask[row]) != 0
            best = choosing.masked_fill(~allowed, -torch.inf).argmax()
            torch.testing.assert_close(found[row], values[best], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["sac", "td3"])
def test_a_critic_remembers_observations_and_no_action(kind):
    parts = parts_of(kind, "recall", {"kind": "gru", "size": 6, "length": 8})
    learner, sample = parts.learner, draw_of(parts, 24)
    rows = rows_of(sample, learner.actor, CPU)
    (first, second) = critic_rows(learner.critics, rows)
    assert first.inputs.keys() == second.inputs.keys()
    assert (first.inputs[MEMORY] == 0).all(), "whole episodes begin with nothing"

    def values(action, vector=rows.inputs[VECTOR]):
        inputs = [{**each.inputs, VECTOR: torch.cat([vector, action], 1)} for each in (first, second)]
        return learner.critics(*inputs).squeeze(2)

    other = rows.action.clone()
    other[3] += 0.5
    changed = (values(rows.action) != values(other)).any(0)
    assert changed.nonzero().flatten().tolist() == [3]
    cue = rows.inputs[VECTOR].clone()
    cue[0, 0] *= -1
    changed = (values(rows.action) != values(rows.action, cue)).any(0)
    assert changed[: sample.past.lengths[0]].all()
    assert not changed[sample.past.lengths[0] :].any()


def test_critics_begin_the_burn_in_with_nothing():
    parts = parts_of("sac", "leaver", {"kind": "lstm", "size": 4, "length": 2}, **{"replay.burn_in": 2})
    learner, sample = parts.learner, draw_of(parts)
    rows = rows_of(sample, learner.actor, CPU)
    for critic, seen in zip(learner.critics.networks, critic_rows(learner.critics, rows), strict=True):
        seen_before = np.split(sample.past.obs["obs"], np.cumsum(sample.past.before)[:-1])
        for start, before in zip(starts_of(sample), seen_before, strict=True):
            state = torch.zeros(1, 8)
            for obs in torch.from_numpy(before):
                _, state = critic.torso.torso.step({VECTOR: obs[None], MEMORY: state})
            torch.testing.assert_close(seen.inputs[MEMORY][start], state[0])
