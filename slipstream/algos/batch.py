"""From rollouts to minibatches: finished decisions as flat rows, with values, advantages and targets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.algos.protocol import Stats
from slipstream.algos.returns import Estimates, Values
from slipstream.algos.share import Share
from slipstream.config.algos.onpolicy import ActorCriticConfig
from slipstream.data.rollout import F32, Blocks, Rollout
from slipstream.nets.actor import Actor, tensors
from slipstream.nets.blocks import VECTOR, Inputs, pick, prepend, split_rows
from slipstream.nets.critic import Critic
from slipstream.nets.forward import shared_features
from slipstream.nets.heads import Categorical, Gaussian

Policy = Gaussian | Categorical
Terms = dict[str, float]  # named means over rows, for reports


class EvaluatedRollout(NamedTuple):
    """A rollout's inputs and values."""

    inputs: Inputs  # [rows * columns, ...], standardised
    critic_inputs: Inputs  # the same, or with the global state in front of the vector
    values: Values


class Batch(NamedTuple):
    """The finished decisions of a rollout as flat rows, ready for minibatches."""

    inputs: Inputs  # standardised
    critic_inputs: Inputs  # the same, or with the global state in front of the vector
    action: Tensor
    mask: Tensor | None
    logp: Tensor  # [rows], of the policy a ratio is taken to
    advantage: Tensor
    target: Tensor  # [rows], of the value, in the critic's own units
    value: Tensor  # [rows], before this update, in the critic's own units
    old: Policy | None  # before this update, where a KL penalty needs it
    part: float = 1.0  # of a minibatch's rows
    is_part: bool = False  # cut from a minibatch: advantages are standardised already, among all of its rows


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
    return critic.value(shared_features(actor, critic, inputs), critic_inputs).cpu().numpy(), inputs, critic_inputs


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


# --- rows and minibatches ---


def flat_rows(array: NDArray[Any], index: NDArray[np.int64] | None, device: torch.device) -> Tensor:
    """These flat rows (None: all) of an array [R, N, A, ...] as a tensor."""
    rows = array.reshape(-1, *array.shape[3:])
    return torch.from_numpy(rows if index is None else rows[index]).to(device)


@torch.no_grad()
def policy_on(actor: Actor, rollout: Rollout, inputs: Inputs) -> tuple[Policy, Tensor]:
    """The actor's policy on every row of a rollout, and its log-probability of what was done, [rows * columns]."""
    device = inputs[VECTOR].device
    mask = None if rollout.mask is None else flat_rows(rollout.mask, None, device)
    policy = actor.distribution(inputs, mask)
    return policy, policy.logp(flat_rows(rollout.action, None, device))


def to_batch(
    rollout: Rollout, evaluated: EvaluatedRollout, estimates: Estimates, critic: Critic, normalize_value: bool
) -> Batch:
    """The finished decisions; with `normalize_value` the critic's units move to the new targets first."""
    index = np.flatnonzero(estimates.complete)
    device = evaluated.inputs[VECTOR].device
    take = torch.from_numpy(index).to(device)
    targets = torch.from_numpy(estimates.target.reshape(-1)[index])
    if normalize_value:
        critic.rescale(targets)
    inputs = critic_inputs = pick(evaluated.inputs, itemgetter(take))
    if evaluated.critic_inputs is not evaluated.inputs:
        critic_inputs = pick(evaluated.critic_inputs, itemgetter(take))
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
    )


def shuffled(batch: Batch, order: np.random.Generator, config: ActorCriticConfig, share: Share) -> list[list[Batch]]:
    """The batch's rows in a new order, as minibatches of about the size asked for, each in the pieces to be learned.

    A piece is what is learned from at a time: `accumulate` of them, of the rows that are this learner's.
    """
    rows = len(batch.logp)
    permutation = torch.from_numpy(order.permutation(rows)).to(batch.logp.device)
    minibatches = _cut(_each(batch, lambda tensor: tensor[permutation]), split(rows, rows // config.minibatch_size))
    if config.accumulate * share.ranks == 1:
        return [[minibatch] for minibatch in minibatches]
    return [_pieces(minibatch, config, share) for minibatch in minibatches]


def _pieces(minibatch: Batch, config: ActorCriticConfig, share: Share) -> list[Batch]:
    """Those of a minibatch that are this learner's."""
    if config.normalize_advantage:
        minibatch = minibatch._replace(advantage=standardise(minibatch.advantage))
    size, count = len(minibatch.logp), config.accumulate
    if size < count * share.ranks:  # too few to share: all learn from all of them
        return [minibatch._replace(part=1.0 / share.ranks, is_part=True)]
    pieces = _cut(minibatch, split(size, count * share.ranks))[share.rank * count :][:count]
    return [piece._replace(part=len(piece.logp) / size, is_part=True) for piece in pieces]


def _cut(batch: Batch, slices: list[slice]) -> list[Batch]:
    """The rows of each slice; together they are all rows, in order. Torch cuts a tensor in one call."""
    sizes = [rows.stop - rows.start for rows in slices]
    nothing = [None] * len(sizes)
    inputs = split_rows(batch.inputs, sizes)
    cut = (
        inputs,
        inputs if batch.critic_inputs is batch.inputs else split_rows(batch.critic_inputs, sizes),
        torch.split(batch.action, sizes),
        nothing if batch.mask is None else torch.split(batch.mask, sizes),
        *(torch.split(tensor, sizes) for tensor in (batch.logp, batch.advantage, batch.target, batch.value)),
        nothing if batch.old is None else [pick_policy(batch.old, itemgetter(rows)) for rows in slices],
    )
    return [Batch(*fields) for fields in zip(*cut, strict=True)]


def split(rows: int, pieces: int) -> list[slice]:
    """`pieces` consecutive slices of 0..rows whose sizes differ by at most one; at least one, at most a row each."""
    pieces = max(1, min(pieces, rows))
    edges = [rows * i // pieces for i in range(pieces + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def kept(policy: Policy) -> Policy:
    """The policy as it is now: a Gaussian's deviation is the network's own parameter, and would go on learning."""
    return policy._replace(log_std=policy.log_std.detach().clone()) if isinstance(policy, Gaussian) else policy


def pick_policy(policy: Policy, how: Callable[[Tensor], Tensor]) -> Policy:
    """The policy on some of its rows."""
    if isinstance(policy, Gaussian):
        return Gaussian(how(policy.mean), policy.log_std)
    return Categorical(how(policy.logits))


def _each(batch: Batch, how: Callable[[Tensor], Tensor]) -> Batch:
    inputs = pick(batch.inputs, how)
    return Batch(
        inputs=inputs,
        critic_inputs=inputs if batch.critic_inputs is batch.inputs else pick(batch.critic_inputs, how),
        action=how(batch.action),
        mask=None if batch.mask is None else how(batch.mask),
        logp=how(batch.logp),
        advantage=how(batch.advantage),
        target=how(batch.target),
        value=how(batch.value),
        old=None if batch.old is None else pick_policy(batch.old, how),
    )


class Means:
    """Means over an update's gradient steps of what each says about itself."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.steps = 0
        self._sums = dict.fromkeys([*names, "grad_norm"], 0.0)

    def add(self, terms: Terms, norm: float) -> None:
        """Count one gradient step and its gradient's norm."""
        for name in self._sums:
            self._sums[name] += norm if name == "grad_norm" else terms[name]
        self.steps += 1

    def read(self) -> Stats:
        """The means so far, `grad_norm` among them."""
        return {name: total / self.steps for name, total in self._sums.items()}


# --- losses ---


def standardise(advantage: Tensor) -> Tensor:
    """Mean 0 and deviation 1 within a minibatch; a single row stays as it is."""
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8) if len(advantage) > 1 else advantage


def explained_variance(value: Tensor, target: Tensor) -> float:
    """Share of the targets' variance the values explain; nan when the targets do not vary."""
    variance = float(target.var(correction=0)) if len(target) > 1 else 0.0
    return 1.0 - float((target - value).var(correction=0)) / variance if variance > 0 else float("nan")
