"""PPO (Schulman et al. 2017, arXiv:1707.06347): several epochs on a clipped surrogate of each rollout.

Where we depart from the paper: advantages are over decisions of any duration (semi-Markov GAE); a truncated episode
bootstraps from its final observation; the KL penalty is optional and adapts as in section 4; value targets may be
standardised without changing the critic's output (PopArt, van Hasselt et al. 2016); minibatches are cut into fixed
shards whose gradients are summed in order, so that the number of threads cannot change a bit.
With `centralised_critic` the critic sees the world's global state too (MAPPO, Yu et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slipstream import _core
from slipstream.algos.adam import FlatAdam
from slipstream.algos.protocol import Arrays, Progress, Stats, Traits
from slipstream.algos.sharding import Shards, fastest_threads, split
from slipstream.algos.state import load_module, module_arrays
from slipstream.config.algos import PpoConfig, schedule_at
from slipstream.data import Blocks, Rollout
from slipstream.nets.actor import Acted, Actor, ActorSpec, act
from slipstream.nets.critic import Critic
from slipstream.nets.heads import Categorical, Distribution, Gaussian
from slipstream.worlds.spec import WorldSpec

VALUE_SHARD = 2048  # rows per forward pass when a rollout's values are computed
KL_GROWTH, KL_SHRINK = 1.5, 0.5  # section 4 of the paper


class Batch(NamedTuple):
    """The decisions of a rollout as flat rows, ready for minibatches."""

    x: Tensor  # [rows, inputs], standardised
    critic_x: Tensor  # the same tensor, or [rows, state + inputs]
    action: Tensor
    mask: Tensor | None
    logp: Tensor  # [rows], when collected
    advantage: Tensor
    target: Tensor  # [rows], of the value, in the critic's own units
    value: Tensor  # [rows], before this update, in the critic's own units
    old: Distribution | None  # before this update, where the KL penalty needs it


Terms = dict[str, Tensor]  # named means over rows, for people to read
TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


class Part(NamedTuple):
    """A part of the loss with parameters of its own: actor and critic, unless they share a torso."""

    parameters: list[nn.Parameter]
    loss: Callable[[Batch, float], tuple[Terms, Tensor]]  # (rows, entropy_coef) -> what to report, what to minimise


class Ppo:
    """One policy shared by the agents of a team, and its critic."""

    traits: ClassVar[Traits] = Traits("ppo", "rollout", continuous=True, discrete=True, masks=True, durations=True)

    def __init__(
        self,
        config: PpoConfig,
        spec: WorldSpec,
        seed: int,
        device: torch.device,
        inference_shard: int = 64,
        threads: int = 1,
    ) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        self.inference_shard = inference_shard
        self.shards = Shards(threads)
        self.block_shapes = {block.name: block.shape for block in spec.obs}
        table = config.discrete_actions and not spec.action.discrete
        generator = torch.Generator().manual_seed(seed)
        self.actor = Actor(
            ActorSpec(
                inputs=spec.obs_size,
                outputs=len(spec.action.table) if table else spec.action.size,
                discrete=spec.action.discrete or table,
                hidden=config.hidden,
                activation=config.activation,
                normalize_observation=config.normalize_observation,
                init_log_std=config.init_log_std,
            ),
            generator,
        ).to(device)
        self.critic = Critic(
            inputs=spec.obs_size + (spec.state_size if config.centralised_critic else 0),
            hidden=config.hidden,
            activation=config.activation,
            shared_torso=config.shared_torso,
            state_size=spec.state_size if config.centralised_critic else 0,
            generator=generator,
        ).to(device)
        self.kl_coef = config.kl_coef
        self.optimiser = FlatAdam(
            {
                **{f"actor.{name}": parameter for name, parameter in self.actor.named_parameters()},
                **{f"critic.{name}": parameter for name, parameter in self.critic.named_parameters()},
            }
        )
        actor, critic = list(self.actor.parameters()), list(self.critic.parameters())
        self.parts = (
            [Part([*actor, *critic], self._joint_loss)]
            if config.shared_torso
            else [Part(actor, self._actor_loss), Part(critic, self._critic_loss)]
        )

    def act(self, obs: Blocks, mask: NDArray[np.uint8] | None, noise: NDArray[np.float32] | None) -> Acted:
        """Choose for every row; without noise, the most likely action."""
        return act(self.actor, obs, mask, noise, self.inference_shard, self.device)

    def update(self, rollout: Rollout, progress: Progress) -> Stats:
        """Values, advantages, then epochs of minibatches; the observation statistics move last."""
        config = self.config
        learning_rate = schedule_at(config.learning_rate, progress.fraction)
        entropy_coef = schedule_at(config.entropy_coef, progress.fraction)

        batch, value_stats = self._prepare(rollout)
        rows = len(batch.logp)
        if rows == 0:
            return {"rows": 0.0}
        order = np.random.Generator(np.random.Philox(key=[self.seed, progress.update]))
        sums = torch.zeros(len(TERMS) + 1, dtype=torch.float64)
        steps = epochs = 0
        for _ in range(config.epochs):
            epoch_kl = 0.0
            pieces = split(rows, rows // config.minibatch_size)
            shuffled = _take(batch, torch.from_numpy(order.permutation(rows)).to(self.device))
            for piece in pieces:
                terms, norm = self._descend(_cut(shuffled, piece), learning_rate, entropy_coef)
                sums += torch.stack([*(terms[name] for name in TERMS), norm]).cpu()
                epoch_kl += float(terms["approx_kl"]) / len(pieces)
                steps += 1
            epochs += 1
            if config.kl_stop is not None and epoch_kl > config.kl_stop:
                break
        if config.kl_target is not None:
            self._adapt_kl(float(sums[TERMS.index("approx_kl")]) / steps, config.kl_target)
        self._observe(rollout)
        means = dict(zip([*TERMS, "grad_norm"], (sums / steps).tolist(), strict=True))
        return {
            **means,
            **value_stats,
            "learning_rate": learning_rate,
            "entropy_coef": entropy_coef,
            "kl_coef": self.kl_coef,
            "epochs": float(epochs),
            "rows": float(rows),
        }

    def _prepare(self, rollout: Rollout) -> tuple[Batch, Stats]:
        """Values of every row, advantages of every finished decision, and those decisions as flat rows."""
        config = self.config
        rows, worlds, agents = rollout.shape
        columns = worlds * agents
        x, critic_x = self._inputs(rollout.obs, rollout.state, rows * columns)
        values = self._values(x, critic_x)
        last = self._values(*self._inputs(rollout.last_obs, rollout.last_state, columns))
        end_value = np.zeros(rows * columns, np.float32)
        if rollout.ends is not None and len(rollout.ends.index):
            ends = rollout.ends
            end_value[ends.index] = self._values(*self._inputs(ends.obs, ends.state, len(ends.index)))
        advantage = np.empty((rows, columns), np.float32)
        target = np.empty((rows, columns), np.float32)
        complete = np.empty((rows, columns), np.uint8)
        _core.gae(
            decided=rollout.decided.reshape(rows, columns),
            value=values.reshape(rows, columns),
            paid=rollout.paid.reshape(rows, columns),
            reward=rollout.reward.reshape(rows, columns),
            duration=rollout.duration.reshape(rows, columns),
            terminated=rollout.terminated.reshape(rows, columns),
            truncated=rollout.truncated.reshape(rows, columns),
            end_value=end_value.reshape(rows, columns),
            last_value=last,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            advantage=advantage,
            target=target,
            complete=complete,
        )
        index = np.flatnonzero(complete)
        take = torch.from_numpy(index).to(self.device)
        targets = torch.from_numpy(target.reshape(-1)[index])
        if config.normalize_value:
            self.critic.rescale(targets)

        def flat(array: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(array.reshape(rows * columns, *array.shape[3:])[index]).to(self.device)

        rows_x = x[take]
        batch = Batch(
            x=rows_x,
            critic_x=rows_x if critic_x is x else critic_x[take],
            action=flat(rollout.action),
            mask=None if rollout.mask is None else flat(rollout.mask),
            logp=flat(rollout.logp),
            advantage=torch.from_numpy(advantage.reshape(-1)[index]).to(self.device),
            target=self.critic.standardise(targets.to(self.device)),
            value=self.critic.standardise(torch.from_numpy(values[index]).to(self.device)),
            old=None,
        )
        if self.kl_coef > 0:
            with torch.no_grad():
                batch = batch._replace(old=self.actor.distribution(self.actor.torso(batch.x), batch.mask))
        return batch, {"explained_variance": explained_variance(batch.value, batch.target)}

    def _inputs(self, obs: Blocks, state: NDArray[np.float32] | None, rows: int) -> tuple[Tensor, Tensor]:
        """Standardised inputs of actor and critic, [rows, ...]; without a centralised critic they are one tensor."""
        blocks = {
            name: torch.from_numpy(block.reshape(rows, *self.block_shapes[name])).to(self.device)
            for name, block in obs.items()
        }
        with torch.no_grad():
            x = self.actor.inputs(blocks)
            if not self.config.centralised_critic or state is None:
                return x, x
            shared = torch.from_numpy(state.reshape(rows, -1)).to(self.device)
            return x, torch.cat([self.critic.norm_state(shared), x], 1)

    @torch.no_grad()
    def _values(self, x: Tensor, critic_x: Tensor) -> NDArray[np.float32]:
        """V of every row, computed shard by shard."""

        def value(piece: slice) -> Tensor:
            return self.critic.value(self._features(x[piece]), critic_x[piece])

        pieces = [slice(i, i + VALUE_SHARD) for i in range(0, len(x), VALUE_SHARD)]
        return torch.cat(list(self.shards.map(value, pieces))).cpu().numpy()

    def _features(self, x: Tensor) -> Tensor | None:
        return self.actor.torso(x) if self.config.shared_torso else None

    def _descend(self, batch: Batch, learning_rate: float, entropy_coef: float) -> tuple[Terms, Tensor]:
        """One gradient step on a minibatch; returns its terms and the gradient norm."""
        if self.config.normalize_advantage and len(batch.logp) > 1:
            advantage = batch.advantage
            batch = batch._replace(advantage=(advantage - advantage.mean()) / (advantage.std() + 1e-8))
        terms, grads = self._gradients(batch, entropy_coef)
        return terms, self.optimiser.step(grads, learning_rate, self.config.max_grad_norm)

    def _gradients(self, batch: Batch, entropy_coef: float) -> tuple[Terms, list[Tensor]]:
        """Terms, and gradients in the order of the parameters; the parts and shards are worked on side by side."""
        rows = len(batch.logp)

        def work(task: tuple[Part, slice]) -> tuple[Terms, tuple[Tensor, ...]]:
            part, piece = task
            terms, total = part.loss(batch if len(pieces) == 1 else _cut(batch, piece), entropy_coef)
            share = (piece.stop - piece.start) / rows
            grads = torch.autograd.grad(total if share == 1 else total * share, part.parameters)
            return {name: value.detach() * share for name, value in terms.items()}, grads

        pieces = split(rows, self.config.gradient_shards)
        results = list(self.shards.map(work, [(part, piece) for part in self.parts for piece in pieces]))
        terms: Terms = {}
        sums: list[tuple[Tensor, ...]] = []
        for index, (some, grads) in enumerate(results):
            terms |= {name: terms[name] + value if name in terms else value for name, value in some.items()}
            if index % len(pieces) == 0:
                sums.append(grads)
            else:
                sums[-1] = tuple(torch._foreach_add(sums[-1], grads))
        return terms, [grad for grads in sums for grad in grads]

    def _actor_loss(self, batch: Batch, entropy_coef: float) -> tuple[Terms, Tensor]:
        return self._policy_terms(self.actor.torso(batch.x), batch, entropy_coef)

    def _critic_loss(self, batch: Batch, entropy_coef: float) -> tuple[Terms, Tensor]:
        return self._value_terms(None, batch)

    def _joint_loss(self, batch: Batch, entropy_coef: float) -> tuple[Terms, Tensor]:
        features = self.actor.torso(batch.x)
        policy_terms, policy = self._policy_terms(features, batch, entropy_coef)
        value_terms, value = self._value_terms(features, batch)
        return policy_terms | value_terms, policy + value

    def _policy_terms(self, features: Tensor, batch: Batch, entropy_coef: float) -> tuple[Terms, Tensor]:
        """Surrogate, entropy and KL penalty."""
        dist = self.actor.distribution(features, batch.mask)
        logp = dist.logp(batch.action)
        policy, approx_kl, clipped = surrogate_loss(logp, batch.logp, batch.advantage, self.config.clip_coef)
        entropy = dist.entropy().mean()
        total = policy - entropy_coef * entropy
        if batch.old is not None:
            total = total + self.kl_coef * kl_penalty(batch.old, dist)
        terms = {"policy_loss": policy, "entropy": entropy, "approx_kl": approx_kl, "clip_fraction": clipped}
        return terms, total

    def _value_terms(self, features: Tensor | None, batch: Batch) -> tuple[Terms, Tensor]:
        """Value loss; the critic reads the actor's features where they share a torso."""
        value = value_loss(self.critic(features, batch.critic_x), batch.target, batch.value, self.config.value_clip)
        return {"value_loss": value}, self.config.value_coef * value

    def _adapt_kl(self, kl: float, target: float) -> None:
        if kl > 2.0 * target:
            self.kl_coef *= KL_GROWTH
        elif kl < 0.5 * target:
            self.kl_coef *= KL_SHRINK

    def _observe(self, rollout: Rollout) -> None:
        """Take the rollout into the input statistics: each decision once, so not those carried over in row 0."""
        fresh = rollout.decided[1:]
        index = np.flatnonzero(fresh)
        if self.actor.norm is not None:
            blocks = [b[1:].reshape(fresh.size, -1)[index].astype(np.float32) for b in rollout.obs.values()]
            self.actor.norm.update(torch.from_numpy(np.concatenate(blocks, 1)).to(self.device))
        if self.config.centralised_critic and rollout.state is not None:
            self.critic.observe_state(torch.from_numpy(rollout.state[1:].reshape(fresh.size, -1)[index]))

    def choose_threads(self, candidates: list[int]) -> int:
        """Measure once which number of threads computes a minibatch's gradients fastest, and use it."""
        batch = _noise_batch(self.actor.spec, self.critic.inputs, self.config.minibatch_size, self.device)

        def minibatch(shards: Shards) -> None:
            self.shards = shards
            self._gradients(batch, 0.0)

        self.shards = Shards(fastest_threads(minibatch, candidates))
        return self.shards.threads

    def actor_spec(self) -> ActorSpec:
        """How to build the acting network again."""
        return self.actor.spec

    def actor_arrays(self) -> Arrays:
        """The acting network's weights and statistics."""
        return module_arrays(self.actor, "actor")

    def state_dict(self, include_optim: bool = True) -> Arrays:
        """Networks, statistics and the KL coefficient; with the optimiser's moments unless told otherwise."""
        state = {**module_arrays(self.actor, "actor"), **module_arrays(self.critic, "critic")}
        state["kl_coef"] = np.array(self.kl_coef, np.float64)
        if include_optim:
            state |= self.optimiser.arrays("optim")
        return state

    def load_state_dict(self, state: Arrays, strict: bool = True, include_optim: bool = True) -> None:
        """Take over a saved state; problems are named."""
        load_module(self.actor, state, "actor", strict)
        load_module(self.critic, state, "critic", strict)
        if "kl_coef" in state:
            self.kl_coef = float(state["kl_coef"])
        if include_optim:
            self.optimiser.load(state, "optim")


def surrogate_loss(logp: Tensor, old_logp: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, Tensor, Tensor]:
    """Clipped surrogate (to minimise), the approximate KL and the share of rows that were clipped."""
    log_ratio = logp - old_logp
    ratio = torch.exp(log_ratio)
    loss = -torch.min(advantage * ratio, advantage * ratio.clamp(1.0 - clip, 1.0 + clip)).mean()
    with torch.no_grad():
        approx_kl = (ratio - 1.0 - log_ratio).mean()  # k3 estimator: unbiased, never negative
        clipped = ((ratio - 1.0).abs() > clip).float().mean()
    return loss, approx_kl, clipped


def value_loss(prediction: Tensor, target: Tensor, before: Tensor, clip: float | None) -> Tensor:
    """Half squared error; with `clip` the worse of it and that of a prediction kept within ± clip of the old one."""
    error = (prediction - target).square()
    if clip is not None:
        kept = before + (prediction - before).clamp(-clip, clip)
        error = torch.max(error, (kept - target).square())
    return 0.5 * error.mean()


def kl_penalty(old: Distribution, new: Distribution) -> Tensor:
    """Mean KL(old || new)."""
    if isinstance(old, Gaussian) and isinstance(new, Gaussian):
        return new.kl_from(old).mean()
    assert isinstance(old, Categorical)
    assert isinstance(new, Categorical)
    return new.kl_from(old).mean()


def explained_variance(value: Tensor, target: Tensor) -> float:
    """Share of the targets' variance the values explain; nan when the targets do not vary."""
    variance = float(target.var(correction=0)) if len(target) > 1 else 0.0
    return 1.0 - float((target - value).var(correction=0)) / variance if variance > 0 else float("nan")


def _take(batch: Batch, rows: Tensor) -> Batch:
    """The batch in this order of rows."""
    return _each(batch, lambda tensor: tensor[rows])


def _cut(batch: Batch, piece: slice) -> Batch:
    """Consecutive rows of the batch, without copying."""
    return _each(batch, lambda tensor: tensor[piece])


def _each(batch: Batch, pick: Callable[[Tensor], Tensor]) -> Batch:
    x = pick(batch.x)
    old = batch.old
    if old is not None:
        old = Gaussian(pick(old.mean), old.log_std) if isinstance(old, Gaussian) else Categorical(pick(old.logits))
    return Batch(
        x=x,
        critic_x=x if batch.critic_x is batch.x else pick(batch.critic_x),
        action=pick(batch.action),
        mask=None if batch.mask is None else pick(batch.mask),
        logp=pick(batch.logp),
        advantage=pick(batch.advantage),
        target=pick(batch.target),
        value=pick(batch.value),
        old=old,
    )


def _noise_batch(spec: ActorSpec, critic_inputs: int, rows: int, device: torch.device) -> Batch:
    """A batch of the right shapes and no meaning, for timing."""
    ones = torch.ones(rows, device=device)
    action = torch.zeros(rows, device=device) if spec.discrete else torch.zeros(rows, spec.outputs, device=device)
    return Batch(
        x=torch.ones(rows, spec.inputs, device=device),
        critic_x=torch.ones(rows, critic_inputs, device=device),
        action=action,
        mask=None,
        logp=ones,
        advantage=ones,
        target=ones,
        value=ones,
        old=None,
    )
