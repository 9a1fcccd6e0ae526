"""From a rollout to minibatches: values, advantages and value targets (GAE, V-trace), flat rows, shuffled rows.

A rollout [R, N, A] (R = T + 1 rows in time) is read as [rows, columns], with a column for each agent of each world.
Decisions may last any number of ticks; an estimate belongs to the row where the decision was made. A `Batch` has
[B] rows: the finished decisions, in no order of time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream import _core
from slipstream.algos.adam import Share
from slipstream.config.algos.onpolicy import ActorCriticConfig, VtraceConfig
from slipstream.data.rollout import Blocks, Rollout
from slipstream.nets.actor import Actor, tensors
from slipstream.nets.critic import Critic
from slipstream.nets.heads import Categorical, Composite, Gaussian, tensors_of, with_tensors
from slipstream.nets.inputs import VECTOR, Inputs, map_blocks, prepend, split_rows
from slipstream.nets.networks import shared_features
from slipstream.types import F32, U8

ROWS_AT_A_TIME = 256  # of networks that read more than a vector, where values are estimated
Policy = Gaussian | Categorical | Composite


class Values(NamedTuple):
    """A critic's values on a rollout."""

    value: F32  # [rows * columns], V
    last_value: F32  # [columns], V after the last tick
    end_value: F32  # [rows * columns], V(final_obs) where an episode was truncated


class Estimates(NamedTuple):
    """Advantages and targets of a rollout, [rows, columns]."""

    advantage: F32
    target: F32  # of the value
    complete: U8  # 1 where a decision's outcome is in the rollout


class EvaluatedRollout(NamedTuple):
    """A rollout's inputs and values."""

    inputs: Inputs  # [rows * columns, ...], standardised
    critic_inputs: Inputs  # the same, or with the global state in front of the vector
    values: Values


class Batch(NamedTuple):
    """The finished decisions of a rollout as flat rows, ready for minibatches."""

    inputs: Inputs  # [B, ...], standardised
    critic_inputs: Inputs  # the same, or with the global state in front of the vector
    action: Tensor
    mask: Tensor | None
    logp: Tensor  # [B], of the action under the old policy: the ratio's denominator
    advantage: Tensor
    target: Tensor  # [B], of the value, in the critic's own units
    value: Tensor  # [B], before this update, in the critic's own units
    old: Policy | None  # before this update, where a KL penalty needs it
    row: NDArray[np.int64] | None = None  # [B], flat, in the rollout
    lengths: NDArray[np.int64] | None = None  # of sequences that the rows stand in, for a network with a memory
    fraction: float = 1.0  # these rows by the minibatch's
    is_standardised: bool = False  # advantages are standardised already, among all rows of the minibatch

    def map(self, how: Callable[[Tensor], Tensor]) -> Batch:
        """The same done to every tensor, such as a choice of rows; the fields below `old` are not kept."""
        inputs = map_blocks(self.inputs, how)
        return Batch(
            inputs=inputs,
            critic_inputs=inputs if self.critic_inputs is self.inputs else map_blocks(self.critic_inputs, how),
            action=how(self.action),
            mask=None if self.mask is None else how(self.mask),
            logp=how(self.logp),
            advantage=how(self.advantage),
            target=how(self.target),
            value=how(self.value),
            old=None if self.old is None else map_policy(self.old, how),
        )


# --- values of a rollout ---


@torch.no_grad()
def actor_inputs(actor: Actor, obs: Blocks, leading: int = 1) -> Inputs:
    """Standardised inputs, by row, of observation blocks with this many leading dimensions."""
    device = next(actor.parameters()).device
    return actor.inputs(
        {name: torch.from_numpy(b.reshape(-1, *b.shape[leading:])).to(device) for name, b in obs.items()}
    )


@torch.no_grad()
def values_of(
    actor: Actor, critic: Critic, obs: Blocks, state: F32 | None = None, leading: int = 1
) -> tuple[F32, Inputs, Inputs]:
    """V of every row, and the inputs of actor and critic, which are the same unless the critic sees the state."""
    inputs = critic_inputs = actor_inputs(actor, obs, leading)
    if critic.state_norm is not None and state is not None:
        vector = inputs[VECTOR]
        shared = torch.from_numpy(state.reshape(len(vector), -1)).to(vector.device)
        critic_inputs = prepend(critic.norm_state(shared), inputs)
    values = []
    for rows in _row_slices(inputs):
        few, critic_few = map_blocks(inputs, itemgetter(rows)), map_blocks(critic_inputs, itemgetter(rows))
        values.append(critic.value(shared_features(actor, critic, few), critic_few).cpu().numpy())
    return values[0] if len(values) == 1 else np.concatenate(values), inputs, critic_inputs


def _row_slices(inputs: Inputs) -> list[slice]:
    """All rows at once; a few at a time where there are images, which are large once convolved."""
    rows = len(inputs[VECTOR])
    size = ROWS_AT_A_TIME if any(block.dim() > 2 for block in inputs.values()) else rows
    return [slice(first, first + size) for first in range(0, rows, size)] or [slice(0, 0)]


def evaluate_rollout(actor: Actor, critic: Critic, rollout: Rollout) -> EvaluatedRollout:
    """Inputs and values of every row of a rollout, and values of what follows it and of where episodes were cut."""
    value, inputs, critic_inputs = values_of(actor, critic, rollout.obs, rollout.state, leading=3)
    last_value, *_ = values_of(actor, critic, rollout.last_obs, rollout.last_state, leading=2)
    end_value = np.zeros(len(value), np.float32)
    if rollout.ends is not None and len(rollout.ends.index):
        ends = rollout.ends
        end_value[ends.index], *_ = values_of(actor, critic, ends.obs, ends.state)
    return EvaluatedRollout(inputs, critic_inputs, Values(value, last_value, end_value))


def observe(rollout: Rollout, actor: Actor, critic: Critic | None = None) -> None:
    """Take the rollout into the input statistics: each decision once, so not those carried over in row 0."""
    fresh = rollout.decided[1:]
    index = np.flatnonzero(fresh)
    if actor.norm is not None:
        rows = {name: b[1:].reshape(fresh.size, *b.shape[3:])[index] for name, b in rollout.obs.items()}
        actor.observe(tensors(rows, actor.norm.mean.device))
    if critic is not None and rollout.state is not None:
        critic.observe_state(torch.from_numpy(rollout.state[1:].reshape(fresh.size, -1)[index]))


# --- advantages and value targets ---


def gae(rollout: Rollout, values: Values, gamma: float, gae_lambda: float) -> Estimates:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438), by core/kernels/gae.cpp.

    From a column's last decision to its first, with the reward r and the duration d of each:
    advantage = δ + γᵈ λ · next advantage, where δ = r + γᵈ · next value - value; target = advantage + value.
    The next value is 0 where the episode terminated, V(final_obs) where it was truncated; both end the sum.
    """
    out = _empty(rollout)
    _core.gae(**_columns(rollout, values), gamma=gamma, gae_lambda=gae_lambda, **out._asdict())
    return out


def vtrace(rollout: Rollout, values: Values, log_ratio: F32, config: VtraceConfig) -> Estimates:
    """V-trace targets (Espeholt et al. 2018), and advantages still to be weighted by ρ, by core/kernels/vtrace.cpp.

    `log_ratio` [rows * columns] is log π - log μ, μ being the policy that acted.
    """
    out = _empty(rollout)
    _core.vtrace(
        **_columns(rollout, values),
        log_ratio=log_ratio.reshape(out.target.shape),
        gamma=config.gamma,
        trace_lambda=config.vtrace_lambda,
        rho_bar=config.rho_clip,
        c_bar=config.trace_clip,
        **out._asdict(),
    )
    return out


def _empty(rollout: Rollout) -> Estimates:
    rows, worlds, agents = rollout.shape
    shape = (rows, worlds * agents)
    return Estimates(np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty(shape, np.uint8))


def _columns(rollout: Rollout, values: Values) -> dict[str, NDArray[Any]]:
    """What the kernels read, [rows, columns]."""
    rows = rollout.shape[0]
    return {
        "decided": rollout.decided.reshape(rows, -1),
        "value": values.value.reshape(rows, -1),
        "paid": rollout.paid.reshape(rows, -1),
        "reward": rollout.reward.reshape(rows, -1),
        "duration": rollout.duration.reshape(rows, -1),
        "terminated": rollout.terminated.reshape(rows, -1),
        "truncated": rollout.truncated.reshape(rows, -1),
        "end_value": values.end_value.reshape(rows, -1),
        "last_value": values.last_value,
    }


# --- rows and minibatches ---


def flat_rows(array: NDArray[Any], index: NDArray[np.int64] | None, device: torch.device) -> Tensor:
    """These flat rows (None: all) of an array [R, N, A, ...] as a tensor."""
    rows = array.reshape(-1, *array.shape[3:])
    return torch.from_numpy(rows if index is None else rows[index]).to(device)


@torch.no_grad()
def policy_of(actor: Actor, inputs: Inputs, mask: Tensor | None) -> Policy:
    """The actor's policy on these rows."""
    pieces = [(map_blocks(inputs, itemgetter(rows)), rows) for rows in _row_slices(inputs)]
    policies = [actor.distribution(few, None if mask is None else mask[rows]) for few, rows in pieces]
    joined = torch.cat([policy[0] for policy in policies]) if len(policies) > 1 else policies[0][0]
    return map_policy(policies[0], lambda _: joined)


@torch.no_grad()
def policy_on(actor: Actor, rollout: Rollout, inputs: Inputs) -> tuple[Policy, Tensor]:
    """The actor's policy on every row of a rollout, and its log-probability of what was done, [rows * columns]."""
    device = inputs[VECTOR].device
    mask = None if rollout.mask is None else flat_rows(rollout.mask, None, device)
    policy = policy_of(actor, inputs, mask)
    return policy, policy.logp(flat_rows(rollout.action, None, device))


def to_batch(
    rollout: Rollout,
    evaluated: EvaluatedRollout,
    estimates: Estimates,
    critic: Critic,
    normalize_value: bool,
    sequence: int = 0,
) -> Batch:
    """The finished decisions, in sequences of that length where a network remembers.

    With `normalize_value` this changes the critic first: target statistics and head.
    """
    index, lengths = np.flatnonzero(estimates.complete), None
    if sequence:
        from slipstream.algos.sequences import in_sequences

        index, lengths = in_sequences(rollout, index, sequence)
    device = evaluated.inputs[VECTOR].device
    take = torch.from_numpy(index).to(device)
    targets = torch.from_numpy(estimates.target.reshape(-1)[index])
    if normalize_value:
        critic.rescale(targets)  # PopArt: what the critic values stays the same
    inputs = critic_inputs = map_blocks(evaluated.inputs, itemgetter(take))
    if evaluated.critic_inputs is not evaluated.inputs:
        critic_inputs = map_blocks(evaluated.critic_inputs, itemgetter(take))
    return Batch(
        inputs=inputs,
        critic_inputs=critic_inputs,
        action=flat_rows(rollout.action, index, device),
        mask=None if rollout.mask is None else flat_rows(rollout.mask, index, device),
        logp=flat_rows(rollout.logp, index, device),
        advantage=torch.from_numpy(estimates.advantage.reshape(-1)[index]).to(device),
        target=critic.standardise(targets.to(device)),
        value=critic.standardise(torch.from_numpy(evaluated.values.value[index]).to(device)),
        old=None,
        row=index,
        lengths=lengths,
    )


def shuffled(batch: Batch, order: np.random.Generator, config: ActorCriticConfig, share: Share) -> list[list[Batch]]:
    """The batch's rows in a new order, as minibatches of about `minibatch_size`, each in pieces.

    Each has `accumulate` pieces, of this learner's share of its rows; their gradients are added up before a step.
    """
    rows = len(batch.logp)
    if batch.lengths is not None:
        from slipstream.algos.sequences import shuffled_sequences

        return shuffled_sequences(batch, batch.lengths, order, config, share)
    permutation = torch.from_numpy(order.permutation(rows)).to(batch.logp.device)
    minibatches = cut(batch.map(itemgetter(permutation)), split(rows, rows // config.minibatch_size))
    if config.accumulate * share.ranks == 1:
        return [[minibatch] for minibatch in minibatches]
    return [_pieces(minibatch, config, share) for minibatch in minibatches]


def _pieces(minibatch: Batch, config: ActorCriticConfig, share: Share) -> list[Batch]:
    """Those of a minibatch that are this learner's."""
    if config.normalize_advantage:
        minibatch = minibatch._replace(advantage=standardise(minibatch.advantage), is_standardised=True)
    size, count = len(minibatch.logp), config.accumulate
    if size < count * share.ranks:  # too few to share: all learn from all of them
        return [minibatch._replace(fraction=1.0 / share.ranks)]
    pieces = cut(minibatch, split(size, count * share.ranks))[share.rank * count :][:count]
    return [
        piece._replace(fraction=len(piece.logp) / size, is_standardised=minibatch.is_standardised) for piece in pieces
    ]


def cut(batch: Batch, slices: list[slice]) -> list[Batch]:
    """The rows of each slice, which together are all rows in order; torch cuts a tensor in one call.

    As with `Batch.map`, the fields below `old` are not kept.
    """
    sizes = [rows.stop - rows.start for rows in slices]
    nothing = [None] * len(sizes)
    inputs = split_rows(batch.inputs, sizes)
    cut = (
        inputs,
        inputs if batch.critic_inputs is batch.inputs else split_rows(batch.critic_inputs, sizes),
        torch.split(batch.action, sizes),
        nothing if batch.mask is None else torch.split(batch.mask, sizes),
        *(torch.split(tensor, sizes) for tensor in (batch.logp, batch.advantage, batch.target, batch.value)),
        nothing if batch.old is None else [map_policy(batch.old, itemgetter(rows)) for rows in slices],
    )
    return [Batch(*fields) for fields in zip(*cut, strict=True)]


def split(rows: int, pieces: int) -> list[slice]:
    """`pieces` consecutive slices of 0..rows whose sizes differ by at most one; at least one, at most a row each."""
    pieces = max(1, min(pieces, rows))
    edges = [rows * i // pieces for i in range(pieces + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def frozen(policy: Policy) -> Policy:
    """The policy as it is now: a Gaussian's deviation is the network's own parameter, and would go on learning."""
    rows, *parameters = tensors_of(policy)
    return with_tensors(policy, [rows, *(each.detach().clone() for each in parameters)])


def map_policy(policy: Policy, how: Callable[[Tensor], Tensor]) -> Policy:
    """The policy on some of its rows, which every kind has in its first tensor."""
    return with_tensors(policy, [how(policy[0])])


# --- statistics ---


def standardise(advantage: Tensor) -> Tensor:
    """Mean 0 and deviation 1 within a minibatch; a single row stays as it is."""
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8) if len(advantage) > 1 else advantage
