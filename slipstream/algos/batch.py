"""What the learners from rollouts share: networks, decisions as flat rows with values and targets, minibatches.

A slab [R, N, A] is seen as [rows, columns] with a column for each agent of each world, and flat as rows * columns.
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
from slipstream.algos.adam import FlatAdam
from slipstream.algos.protocol import Stats, Traits, action_table
from slipstream.algos.share import Share
from slipstream.config.algos.onpolicy import ActorCriticConfig, BoardNetwork, ReinforceConfig, VtraceConfig
from slipstream.data.rollout import F32, U8, Blocks, Rollout
from slipstream.errors import ScenarioError
from slipstream.nets import torsos
from slipstream.nets.actor import Actor, ActorSpec
from slipstream.nets.boards import BoardSpec
from slipstream.nets.critic import Critic
from slipstream.nets.heads import Categorical, Gaussian
from slipstream.nets.torsos import ForwardRecord, PassRecorder
from slipstream.spec import WorldSpec

Policy = Gaussian | Categorical
Terms = dict[str, float]  # named means over rows, for people to read


class Values(NamedTuple):
    """What a critic says of a slab."""

    value: F32  # [rows * columns], V
    last_value: F32  # [columns], V after the last tick
    end_value: F32  # [rows * columns], V(final_obs) where an episode was truncated


class EvaluatedRollout(NamedTuple):
    """A slab as the networks see it."""

    x: Tensor  # [rows * columns, inputs], standardised
    critic_x: Tensor  # the same tensor, or [rows * columns, state + inputs]
    values: Values


class Estimates(NamedTuple):
    """What a kernel makes of a slab, [rows, columns]."""

    advantage: F32
    target: F32  # of the value
    complete: U8  # 1 where a decision's outcome is in the slab


class Batch(NamedTuple):
    """The finished decisions of a rollout as flat rows, ready for minibatches."""

    x: Tensor  # [rows, inputs], standardised
    critic_x: Tensor  # the same tensor, or [rows, state + inputs]
    action: Tensor
    mask: Tensor | None
    logp: Tensor  # [rows], of the policy a ratio is taken to
    advantage: Tensor
    target: Tensor  # [rows], of the value, in the critic's own units
    value: Tensor  # [rows], before this update, in the critic's own units
    old: Policy | None  # before this update, where a KL penalty needs it
    part: float = 1.0  # of a minibatch's rows
    is_part: bool = False  # cut from a minibatch: advantages are standardised already, among all of its rows


# --- networks ---


def make_actor(
    config: ActorCriticConfig | ReinforceConfig, traits: Traits, spec: WorldSpec, generator: torch.Generator
) -> Actor:
    """The acting network a config asks for in this world."""
    table = action_table(config, traits, spec)
    board: BoardSpec | None = None
    network: BoardNetwork = "candidates"
    if isinstance(config, ActorCriticConfig) and config.network != "perceptron":
        board, network = board_of(config, spec), config.network
    return Actor(
        ActorSpec(
            inputs=spec.obs_size,
            outputs=len(table) or spec.action.size,
            discrete=spec.action.discrete or bool(table),
            hidden=config.hidden,
            activation=config.activation,
            normalize_observation=config.normalize_observation,
            init_log_std=config.init_log_std,
            board=board,
            board_network=network,
        ),
        generator,
    )


def board_of(config: ActorCriticConfig, spec: WorldSpec) -> BoardSpec | None:
    """Where the world's inputs have what a network for boards reads; None where a perceptron is asked for."""
    if config.network == "perceptron":
        return None
    board = board_in(spec)
    if board is None or not spec.masked:
        raise ScenarioError(
            f"algo.network: '{config.network}' looks at boards with placements; {spec.name} shows "
            f"{', '.join(block.name for block in spec.obs)}; use network perceptron, or an observation with colours "
            "and virus planes"
        )
    return board


def board_in(spec: WorldSpec) -> BoardSpec | None:
    """Where a world's inputs have a board, if they have one."""
    blocks = {block.name: block for block in spec.obs}
    ends = np.cumsum([block.size for block in spec.obs]).tolist()
    at = {block.name: end - block.size for block, end in zip(spec.obs, ends, strict=True)}
    wanted = ("yellow", "red", "blue", "virus")
    planes = blocks.get("planes")
    if planes is None or not set(wanted) <= set(planes.features) or not {"pills", "aux"} <= blocks.keys():
        return None
    _, height, width = planes.shape
    first = {name: at["planes"] + planes.features.index(name) * height * width for name in wanted}
    return BoardSpec(
        height=height,
        width=width,
        colours=(first["yellow"], first["red"], first["blue"]),
        special=first["virus"],
        pieces=at["pills"],
        numbers=at["aux"],
        num_numbers=blocks["aux"].size,
        costs=at.get("costs"),
        planes=at["planes"],
        num_planes=planes.shape[0],
    )


def make_critic(config: ActorCriticConfig, spec: WorldSpec, generator: torch.Generator, state_size: int = 0) -> Critic:
    """The value network beside it, which sees `state_size` features of the world's global state too."""
    return Critic(
        inputs=spec.obs_size + state_size,
        hidden=config.hidden,
        activation=config.activation,
        shared_torso=config.shared_torso,
        state_size=state_size,
        generator=generator,
        board=board_of(config, spec),
    )


@torch.no_grad()
def actor_inputs(actor: Actor, obs: Blocks, leading: int = 1) -> Tensor:
    """Standardised inputs [rows, inputs] of observation blocks with this many leading dimensions."""
    device = next(actor.parameters()).device
    return actor.inputs(
        {name: torch.from_numpy(b.reshape(-1, *b.shape[leading:])).to(device) for name, b in obs.items()}
    )


@torch.no_grad()
def values_of(
    actor: Actor, critic: Critic, obs: Blocks, state: F32 | None = None, leading: int = 1
) -> tuple[F32, Tensor, Tensor]:
    """V of every row, and the inputs of actor and critic, which are one tensor unless the critic sees the state."""
    x = critic_x = actor_inputs(actor, obs, leading)
    if critic.state_norm is not None and state is not None:
        shared = torch.from_numpy(state.reshape(len(x), -1)).to(x.device)
        critic_x = torch.cat([critic.norm_state(shared), x], 1)
    return critic.value(shared_features(actor, critic, x), critic_x).cpu().numpy(), x, critic_x


def shared_features(actor: Actor, critic: Critic, x: Tensor) -> Tensor | None:
    """What both heads read where actor and critic share a torso, else None."""
    features: Tensor | None = actor.torso(x) if critic.torso is None else None
    return features


class Heard(NamedTuple):
    """What actor and critic say of every row of a batch."""

    policy: Policy
    value: Tensor  # [rows], standardised
    record: ForwardRecord | None = None  # of their passes; None: torch's graph knows the way back


class ActorCritic:
    """Actor and critic of a learner, which asks both again and again and knows the slopes of its loss by what they say.

    What was heard can be learned from until they are asked again.
    """

    def __init__(self, actor: Actor, critic: Critic) -> None:
        self._actor, self._critic = actor, critic
        self._nets = _perceptrons(actor, critic)
        self._recorder = PassRecorder()

    def hear(self, batch: Batch) -> Heard:
        """Ask both; perceptrons run side by side."""
        record = None
        if self._nets is not None:
            acts, judges = self._nets
            record = self._recorder.run(acts.over(batch.x), judges.over(batch.critic_x))
        if record is None:
            return Heard(*policy_and_value(self._actor, self._critic, batch))
        out, value = record.outs
        return Heard(self._actor.policy(out, batch.mask), value.squeeze(1), record)


def learn(optimiser: FlatAdam, heard: Heard, slopes: tuple[Tensor, ...], batch: Batch, terms: Terms) -> None:
    """Count a batch into the optimiser's next step; `slopes` of the loss by the policy's tensors, then by the value."""
    if heard.record is None:
        return optimiser.add((*heard.policy, heard.value), slopes, batch.part, terms)
    by_out, *by_log_std, by_value = slopes
    if batch.mask is not None:
        by_out = by_out.masked_fill(batch.mask == 0, 0.0)
    grads = heard.record.gradients((by_out, by_value.unsqueeze(1)))
    optimiser.add_gradient((*by_log_std, *grads), batch.part, terms)  # in the order of the actor's parameters
    return None


def policy_and_value(actor: Actor, critic: Critic, batch: Batch) -> tuple[Policy, Tensor]:
    """The policy on every row and the critic's standardised value, [rows], in torch's graph."""
    nets = _perceptrons(actor, critic)
    if nets is not None:
        acts, judges = nets
        out, value = torsos.run(acts.over(batch.x), judges.over(batch.critic_x))
        return actor.policy(out, batch.mask), value.squeeze(1)
    features = shared_features(actor, critic, batch.x)
    return actor.distribution(batch.x, batch.mask, features), critic(features, batch.critic_x)


def _perceptrons(actor: Actor, critic: Critic) -> tuple[torsos.Net, torsos.Net] | None:
    if actor.board is not None or not isinstance(critic.torso, torsos.Mlp):
        return None
    return actor.torso.net(actor.head), critic.torso.net(critic.head)


def see(actor: Actor, critic: Critic, rollout: Rollout) -> EvaluatedRollout:
    """Inputs and values of every row of a slab, of what follows it, and of where episodes were truncated."""
    value, x, critic_x = values_of(actor, critic, rollout.obs, rollout.state, leading=3)
    last_value, *_ = values_of(actor, critic, rollout.last_obs, rollout.last_state, leading=2)
    end_value = np.zeros(len(value), np.float32)
    if rollout.ends is not None and len(rollout.ends.index):
        ends = rollout.ends
        end_value[ends.index], *_ = values_of(actor, critic, ends.obs, ends.state)
    return EvaluatedRollout(x, critic_x, Values(value, last_value, end_value))


def observe(rollout: Rollout, actor: Actor, critic: Critic | None = None) -> None:
    """Take the rollout into the input statistics: each decision once, so not those carried over in row 0."""
    fresh = rollout.decided[1:]
    index = np.flatnonzero(fresh)
    if actor.norm is not None:
        blocks = [b[1:].reshape(fresh.size, -1)[index].astype(np.float32) for b in rollout.obs.values()]
        actor.norm.update(torch.from_numpy(np.concatenate(blocks, 1)).to(actor.norm.mean.device))
    if critic is not None and rollout.state is not None:
        critic.observe_state(torch.from_numpy(rollout.state[1:].reshape(fresh.size, -1)[index]))


# --- advantages and targets ---


def gae(rollout: Rollout, values: Values, gamma: float, gae_lambda: float) -> Estimates:
    """Generalised advantages and their value targets."""
    out = _empty(rollout)
    _core.gae(**_slab(rollout, values), gamma=gamma, gae_lambda=gae_lambda, **out._asdict())
    return out


def vtrace(rollout: Rollout, values: Values, log_ratio: F32, config: VtraceConfig) -> Estimates:
    """V-trace targets, and advantages that ρ is still to weight; `log_ratio` [rows * columns] is log π - log μ."""
    out = _empty(rollout)
    _core.vtrace(
        **_slab(rollout, values),
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


def _slab(rollout: Rollout, values: Values) -> dict[str, NDArray[Any]]:
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
def policy_on(actor: Actor, rollout: Rollout, x: Tensor) -> tuple[Policy, Tensor]:
    """What this actor would do on every row of a slab, and how likely what was done is under it, [rows * columns]."""
    mask = None if rollout.mask is None else flat_rows(rollout.mask, None, x.device)
    policy = actor.distribution(x, mask)
    return policy, policy.logp(flat_rows(rollout.action, None, x.device))


def to_batch(
    rollout: Rollout, seen: EvaluatedRollout, estimates: Estimates, critic: Critic, normalize_value: bool
) -> Batch:
    """The finished decisions; with `normalize_value` the critic's units move to the new targets first."""
    index = np.flatnonzero(estimates.complete)
    device = seen.x.device
    take = torch.from_numpy(index).to(device)
    targets = torch.from_numpy(estimates.target.reshape(-1)[index])
    if normalize_value:
        critic.rescale(targets)
    x = seen.x[take]
    return Batch(
        x=x,
        critic_x=x if seen.critic_x is seen.x else seen.critic_x[take],
        action=flat_rows(rollout.action, index, device),
        mask=None if rollout.mask is None else flat_rows(rollout.mask, index, device),
        logp=flat_rows(rollout.logp, index, device),
        advantage=torch.from_numpy(estimates.advantage.reshape(-1)[index]).to(device),
        target=critic.standardise(targets.to(device)),
        value=critic.standardise(torch.from_numpy(seen.values.value[index]).to(device)),
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
    x = torch.split(batch.x, sizes)
    cut = (
        x,
        x if batch.critic_x is batch.x else torch.split(batch.critic_x, sizes),
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


def pick_policy(policy: Policy, pick: Callable[[Tensor], Tensor]) -> Policy:
    """The policy on some of its rows."""
    if isinstance(policy, Gaussian):
        return Gaussian(pick(policy.mean), policy.log_std)
    return Categorical(pick(policy.logits))


def _each(batch: Batch, pick: Callable[[Tensor], Tensor]) -> Batch:
    x = pick(batch.x)
    return Batch(
        x=x,
        critic_x=x if batch.critic_x is batch.x else pick(batch.critic_x),
        action=pick(batch.action),
        mask=None if batch.mask is None else pick(batch.mask),
        logp=pick(batch.logp),
        advantage=pick(batch.advantage),
        target=pick(batch.target),
        value=pick(batch.value),
        old=None if batch.old is None else pick_policy(batch.old, pick),
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
