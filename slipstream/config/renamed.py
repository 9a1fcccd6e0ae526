"""Words that mean something here under another name: former keys of ours, and those of other libraries.

Files and runs that an older version wrote still load (`with_new_names`). A word that another library uses is not taken
for ours, as its unit may differ; the error names the key that stands for it (`replacement`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from slipstream.config.yaml import KeyPath

# --- former keys, which are read ---


def with_new_names(values: dict[str, Any]) -> dict[str, Any]:
    """Plain values of a scenario with every old key under its new name; what is wrong with them is said later."""
    return _shaping_coef(values)


def _shaping_coef(values: dict[str, Any]) -> dict[str, Any]:
    """`collect.shaping_coef`, of which 0 meant none, became `shaping.kappa` and `.use_potential_shaping`."""
    collect, shaping = values.get("collect"), values.get("shaping", {})
    if not isinstance(collect, dict) or "shaping_coef" not in collect or not isinstance(shaping, dict):
        return values
    kappa = collect["shaping_coef"]
    new = {"use_potential_shaping": False} if kappa == 0 else {"use_potential_shaping": True, "kappa": kappa}
    rest = {key: value for key, value in collect.items() if key != "shaping_coef"}
    return {**values, "collect": rest, "shaping": {**shaping, **new}}


# --- others' words, which are answered ---


class Key(NamedTuple):
    """A key of ours, as a dotted path, and what is different about it."""

    path: str
    note: str = ""


_BATCH = (
    Key("algo.batch_size"),
    Key("collect.num_worlds", "times collect.rollout_length, the steps that an update learns from"),
)
_MINIBATCH = (Key("algo.minibatch_size"), Key("algo.batch_size"))
_LAMBDA = (Key("algo.gae_lambda"), Key("algo.vtrace_lambda"))
_INTENSITY = (Key("algo.training_intensity", "gradient steps per environment step"),)
_CRITIC_RATE = (Key("algo.critic_learning_rate"), Key("algo.learning_rate"))
_TARGET = (Key("algo.target_update"), Key("algo.tau", "the targets move a little at every step"))
_WORKERS = (Key("collect.workers", "processes that collect; threads that step worlds are collect.world_threads"),)
_EPSILON = (Key("algo.epsilon", "a number, or [fraction of the budget, value] points"),)
_PRIORITISED = (Key("algo.replay.prioritised"),)
_DEVICE = (Key("device", "cpu, cuda or auto; on the command line also --gpu"),)
_QUANTILES = (Key("algo.values.quantiles", "of values of kind quantile"),)

# Under the name of a part of ours, "" being the root: a word is looked up where it stands, then under "anywhere".
WORDS: dict[str, dict[str, tuple[Key, ...]]] = {
    "federated": {
        "mode": (Key("federated.aggregator", "how weights become one; how they travel is federated.transport"),),
        "strategy": (Key("federated.aggregator"),),
        "timeout": (Key("federated.timeout_s"),),
        "client_id": (Key("federated.client"),),
        "total_clients": (Key("federated.clients"),),
        "num_clients": (Key("federated.clients"),),
        "round_interval": (Key("federated.interval"),),
        "mu": (Key("federated.proximal_mu"),),
        "optimizer": (Key("federated.optimizer_strategy"),),
        "round": (Key("federated.first_round"),),
        "folder": (Key("federated.root"),),
        "dir": (Key("federated.root"),),
    },
    "network": {
        "hidden": (Key("algo.hidden", "of every network, critics included"),),
        "activation": (Key("algo.activation", "of every network, critics included"),),
    },
    "evaluate": {
        "interval": (Key("evaluate.evaluation_interval"),),
        "duration": (Key("evaluate.evaluation_duration"),),
        "episodes": (Key("evaluate.evaluation_duration"),),
    },
    "checkpoint": {
        "every": (Key("checkpoint.checkpoint_every"),),
        "interval": (Key("checkpoint.checkpoint_every"),),
    },
    "world": {
        "timeout": (Key("world.max_episode_steps"),),
        "max_steps": (Key("world.max_episode_steps"),),
        "episode_length": (Key("world.max_episode_steps"),),
        "time_limit": (Key("world.max_episode_steps"),),
        "horizon": (Key("world.max_episode_steps"),),
    },
    "anywhere": {
        # step sizes and networks
        "lr": (Key("algo.learning_rate"),),
        "actor_lr": (Key("algo.learning_rate"),),
        "policy_lr": (Key("algo.learning_rate"),),
        "pi_lr": (Key("algo.learning_rate"),),
        "alpha_lr": (Key("algo.learning_rate", "the temperature takes the same steps"),),
        "lr_schedule": (Key("algo.learning_rate", "a number, or [fraction of the budget, value] points"),),
        "critic_lr": _CRITIC_RATE,
        "q_lr": _CRITIC_RATE,
        "qf_lr": _CRITIC_RATE,
        "vf_lr": _CRITIC_RATE,
        "adam_epsilon": (Key("algo.adam_eps"),),
        "grad_clip": (Key("algo.max_grad_norm"),),
        "gradient_clip": (Key("algo.max_grad_norm"),),
        "clip_grad_norm": (Key("algo.max_grad_norm"),),
        "model": (Key("algo.hidden", "and algo.activation"),),
        "net_arch": (Key("algo.hidden"),),
        "fcnet_hiddens": (Key("algo.hidden"),),
        "hidden_sizes": (Key("algo.hidden"),),
        "hidden_size": (Key("algo.hidden"),),
        "hidden_layers": (Key("algo.hidden"),),
        "hidden_dims": (Key("algo.hidden"),),
        "fcnet_activation": (Key("algo.activation"),),
        "activation_fn": (Key("algo.activation"),),
        "vf_share_layers": (Key("algo.shared_torso"),),
        "log_std_init": (Key("algo.init_log_std"),),
        "discount": (Key("algo.gamma"),),
        "discount_factor": (Key("algo.gamma"),),
        # rollouts and passes over them
        "num_sgd_iter": (Key("algo.epochs"), *_INTENSITY),
        "num_epochs": (Key("algo.epochs"), *_INTENSITY),
        "n_epochs": (Key("algo.epochs"), *_INTENSITY),
        "ppo_epochs": (Key("algo.epochs"), *_INTENSITY),
        "update_epochs": (Key("algo.epochs"), *_INTENSITY),
        "sgd_minibatch_size": _MINIBATCH,
        "mini_batch_size": _MINIBATCH,
        "minibatch_size": _MINIBATCH,
        "num_minibatches": (Key("algo.minibatch_size", "their size, not how many"), Key("algo.batch_size")),
        "n_minibatches": (Key("algo.minibatch_size", "their size, not how many"), Key("algo.batch_size")),
        "batch_size": (Key("algo.batch_size"), Key("algo.minibatch_size", "agent steps per gradient step")),
        "train_batch_size": _BATCH,
        "train_batch_size_per_learner": _BATCH,
        "rollout_fragment_length": (Key("collect.rollout_length"),),
        "rollout_steps": (Key("collect.rollout_length"),),
        "n_steps": (Key("collect.rollout_length", "steps of each world in one rollout"),),
        "num_steps": (Key("collect.rollout_length", "steps of each world in one rollout"),),
        "lambda": _LAMBDA,
        "lambda_": _LAMBDA,
        "lam": _LAMBDA,
        "gae_lambda": _LAMBDA,
        "clip_param": (Key("algo.clip_coef"),),
        "clip_range": (Key("algo.clip_coef"),),
        "clip_ratio": (Key("algo.clip_coef"),),
        "clip_eps": (Key("algo.clip_coef"),),
        "eps_clip": (Key("algo.clip_coef"),),
        "clip_range_vf": (Key("algo.value_clip"),),
        "vf_clip_param": (Key("algo.value_clip"),),
        "entropy_coeff": (Key("algo.entropy_coef"), Key("algo.temperature")),
        "ent_coef": (Key("algo.entropy_coef"), Key("algo.temperature")),
        "vf_loss_coeff": (Key("algo.value_coef"),),
        "vf_coef": (Key("algo.value_coef"),),
        "value_loss_coef": (Key("algo.value_coef"),),
        "kl_coeff": (Key("algo.kl_coef"),),
        "target_kl": (Key("algo.kl_stop", "ends an update's epochs; algo.kl_target steers the penalty instead"),),
        "use_kl_loss": (Key("algo.kl_coef", "0: none"),),
        "vtrace_clip_rho_threshold": (Key("algo.rho_clip"),),
        "vtrace_clip_pg_rho_threshold": (Key("algo.rho_clip", "the policy's weights are clipped there too"),),
        "normalize_obs": (Key("algo.normalize_observation"),),
        "norm_obs": (Key("algo.normalize_observation"),),
        "observation_filter": (Key("algo.normalize_observation"),),
        "norm_adv": (Key("algo.normalize_advantage"),),
        "norm_reward": (Key("algo.normalize_value", "value targets are standardised instead of rewards"),),
        # replay
        "replay_buffer_capacity": (Key("algo.replay.capacity"),),
        "buffer_size": (Key("algo.replay.capacity"),),
        "replay_size": (Key("algo.replay.capacity"),),
        "memory_size": (Key("algo.replay.capacity"),),
        "replay_buffer_config": (Key("algo.replay"),),
        "n_step": (Key("algo.replay.n_step"),),
        "nstep": (Key("algo.replay.n_step"),),
        "per": _PRIORITISED,
        "prioritized_replay": _PRIORITISED,
        "prioritized": _PRIORITISED,
        "prioritized_replay_alpha": (Key("algo.replay.prioritised.alpha"),),
        "prioritized_replay_beta": (Key("algo.replay.prioritised.beta"),),
        "train_freq": _INTENSITY,
        "gradient_steps": _INTENSITY,
        "updates_per_step": _INTENSITY,
        "utd_ratio": _INTENSITY,
        "warmup_steps": (Key("algo.learning_starts"),),
        "start_steps": (Key("algo.learning_starts"),),
        "start_timesteps": (Key("algo.learning_starts"),),
        "random_steps": (Key("algo.learning_starts"),),
        "num_steps_sampled_before_learning_starts": (Key("algo.learning_starts"),),
        "polyak": (Key("algo.tau", "the share of the new weights, not of the old ones"), *_TARGET),
        "tau": (Key("algo.tau"), Key("algo.target_update", "the targets are refreshed whole")),
        "target_network_update_freq": _TARGET,
        "target_update_interval": _TARGET,
        "initial_alpha": (Key("algo.temperature"),),
        "alpha": (Key("algo.temperature"),),
        "policy_freq": (Key("algo.policy_delay"),),
        "policy_frequency": (Key("algo.policy_delay"),),
        "policy_noise": (Key("algo.target_noise"),),
        "target_policy_noise": (Key("algo.target_noise"),),
        "noise_clip": (Key("algo.target_noise_clip"),),
        "target_policy_noise_clip": (Key("algo.target_noise_clip"),),
        "expl_noise": (Key("algo.exploration_noise"),),
        "action_noise": (Key("algo.exploration_noise"),),
        "exploration_fraction": _EPSILON,
        "exploration_initial_eps": _EPSILON,
        "exploration_final_eps": _EPSILON,
        "epsilon_timesteps": _EPSILON,
        "epsilon_decay": _EPSILON,
        "double_q": (Key("algo.double"),),
        "n_quantiles": _QUANTILES,
        "num_atoms": _QUANTILES,
        "min_q_weight": (Key("algo.conservative_coef"),),
        "cql_alpha": (Key("algo.conservative_coef"),),
        # budgets, collecting, judging, saving
        "total_timesteps": (Key("timesteps"),),
        "timesteps_total": (Key("timesteps"),),
        "max_timesteps": (Key("timesteps"),),
        "num_timesteps": (Key("timesteps"),),
        "total_steps": (Key("timesteps"),),
        "max_steps": (Key("timesteps"),),
        "num_env_steps": (Key("timesteps"),),
        "steps": (Key("timesteps"),),
        "max_episodes": (Key("stop.episodes"),),
        "num_episodes": (Key("stop.episodes"),),
        "episodes": (Key("stop.episodes"),),
        "time_total_s": (Key("stop.wall_time_s"),),
        "target_reward": (Key("stop.target_return"),),
        "use_gpu": _DEVICE,
        "gpu": _DEVICE,
        "num_gpus": _DEVICE,
        "cuda": _DEVICE,
        "num_learners": (Key("learners"),),
        "num_rollout_workers": _WORKERS,
        "num_env_runners": _WORKERS,
        "num_workers": _WORKERS,
        "collect_workers": (Key("collect.workers"),),
        "collect_prefetch": (Key("collect.prefetch"),),
        "collect_seed_stride": (Key("collect.seed_stride"),),
        "num_envs": (Key("collect.num_worlds"),),
        "n_envs": (Key("collect.num_worlds"),),
        "num_envs_per_worker": (Key("collect.num_worlds", "all together"),),
        "num_envs_per_env_runner": (Key("collect.num_worlds", "all together"),),
        "eval_freq": (Key("evaluate.evaluation_interval", "updates between evaluations"),),
        "eval_interval": (Key("evaluate.evaluation_interval", "updates between evaluations"),),
        "n_eval_episodes": (Key("evaluate.evaluation_duration"),),
        "eval_episodes": (Key("evaluate.evaluation_duration"),),
        "eval_seed": (Key("evaluate.seed"),),
        "save_freq": (Key("checkpoint.checkpoint_every", "steps"),),
        "save_interval": (Key("checkpoint.checkpoint_every", "steps"),),
        "checkpoint_freq": (Key("checkpoint.checkpoint_every", "steps"),),
        "checkpoint_frequency": (Key("checkpoint.checkpoint_every", "steps"),),
        "checkpoint_interval": (Key("checkpoint.checkpoint_every", "steps"),),
        "num_to_keep": (Key("checkpoint.keep"),),
        "env": (Key("world"),),
        "env_id": (Key("world.id"), Key("world")),
        "env_name": (Key("world.id"), Key("world")),
        "env_config": (Key("world"),),
        "env_kwargs": (Key("world.kwargs"), Key("world")),
        "fed_root": (Key("federated.root"),),
    },
}  # fmt: skip

# Words for which there is no key, and what there is instead.
SAYINGS: dict[str, str] = {
    "main": "there is no level of that name; what stood in it is written at the top of the file",
    "scenario": "a scenario is named first, without a flag or key: slipstream train head_on, or train('head_on')",
    "scenario_name": "a scenario is named first, without a flag or key: slipstream train head_on, or train('head_on')",
    "repeat": "runs that learn together are started by slipstream federate SCENARIO --repeat N, others by a sweep",
    "max_parallel": "belongs to slipstream federate and slipstream sweep, which start several runs",
    "auto_seed": "belongs to slipstream federate and slipstream sweep, which start several runs",
    "seed_base": "belongs to slipstream federate and slipstream sweep, which start several runs; one run has seed",
    "seed_step": "belongs to slipstream federate and slipstream sweep, which start several runs; one run has seed",
    "repo_root": "not needed; run folders are made in the current folder",
    "wandb": "not part of a scenario; say --wandb on the command line",
    "tensorboard": "not part of a scenario; say --tensorboard on the command line",
}


def replacement(path: KeyPath, has: Callable[[str], bool]) -> Key | str | None:
    """The key that stands for an unknown one, or a sentence, or None; `has` says whether a dotted path is a key here.

    Where none of a word's keys is one here, the first is returned all the same: another algorithm has it.
    """
    word, around = str(path[-1]).lower(), str(path[-2]) if len(path) > 1 else ""
    found = WORDS.get(around, {}).get(word) or WORDS["anywhere"].get(word)
    if found is None:
        return SAYINGS.get(word)
    own = [key._replace(path=_beside(key.path, path)) for key in found]
    fitting = [key for key in own if has(key.path) and key.path != ".".join(map(str, path))]
    return next(iter(fitting), own[0])


def _beside(key: str, path: KeyPath) -> str:
    """A key of `algo`, where a policy has an algorithm of its own: that one's."""
    is_own = len(path) > 3 and path[0] == "policies" and path[2] == "algo"
    return f"policies.{path[1]}.{key}" if is_own and key.startswith("algo.") else key
