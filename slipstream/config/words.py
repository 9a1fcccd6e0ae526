"""Words of other libraries, and the keys that stand for them here.

Such a word is not read as ours, as its unit may differ; the error names the key that stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from slipstream.config.yaml import KeyPath


class Key(NamedTuple):
    """A key of ours, as a dotted path, and what is different about it."""

    path: str
    note: str = ""


def _table(*rows: tuple[str | Key, ...]) -> dict[str, tuple[Key, ...]]:
    """Words -> keys, from rows of words with spaces between them and the keys that may stand for each, best first."""
    return {
        word: tuple(Key(key) if isinstance(key, str) else key for key in keys)
        for words, *keys in rows
        for word in str(words).split()
    }


# Under the name of a block of ours: a word is looked up where it stands, then under "anywhere".
WORDS: dict[str, dict[str, tuple[Key, ...]]] = {
    "federated": _table(
        ("mode", Key("federated.aggregator", "how weights are merged; how they travel is federated.transport")),
        ("strategy", "federated.aggregator"),
        ("timeout", "federated.timeout_s"),
        ("client_id", "federated.client"),
        ("total_clients num_clients", "federated.clients"),
        ("round_interval", "federated.interval"),
        ("mu", "federated.proximal_mu"),
        ("optimizer", "federated.optimizer_strategy"),
        ("round", "federated.first_round"),
        ("folder dir", "federated.root"),
    ),
    "network": _table(
        ("hidden", Key("algo.hidden", "of every network, critics included")),
        ("activation", Key("algo.activation", "of every network, critics included")),
    ),
    "evaluate": _table(
        ("interval", "evaluate.evaluation_interval"),
        ("duration episodes", "evaluate.evaluation_duration"),
    ),
    "checkpoint": _table(
        ("every interval", "checkpoint.checkpoint_every"),
    ),
    "world": _table(
        ("timeout max_steps episode_length time_limit horizon", "world.max_episode_steps"),
    ),
    "anywhere": _table(
        ("lr actor_lr policy_lr pi_lr", "algo.learning_rate"),
        ("alpha_lr", Key("algo.learning_rate", "also used for the temperature")),
        ("lr_schedule", Key("algo.learning_rate", "a number, or a schedule of [fraction of the budget, value] points")),
        ("critic_lr q_lr qf_lr vf_lr", "algo.critic_learning_rate", "algo.learning_rate"),
        ("adam_epsilon", "algo.adam_eps"),
        ("grad_clip gradient_clip clip_grad_norm", "algo.max_grad_norm"),
        ("model", Key("algo.hidden", "and algo.activation")),
        ("net_arch fcnet_hiddens hidden_sizes hidden_size hidden_layers hidden_dims", "algo.hidden"),
        ("fcnet_activation activation_fn", "algo.activation"),
        ("vf_share_layers", "algo.shared_torso"),
        ("log_std_init", "algo.init_log_std"),
        ("discount discount_factor", "algo.gamma"),
        (
            "num_sgd_iter num_epochs n_epochs ppo_epochs update_epochs",
            "algo.epochs",
            Key("algo.training_intensity", "gradient steps per environment step"),
        ),
        ("sgd_minibatch_size mini_batch_size minibatch_size", "algo.minibatch_size", "algo.batch_size"),
        (
            "num_minibatches n_minibatches",
            Key("algo.minibatch_size", "their size, not their number"),
            "algo.batch_size",
        ),
        ("batch_size", "algo.batch_size", Key("algo.minibatch_size", "agent steps per gradient step")),
        (
            "train_batch_size train_batch_size_per_learner",
            "algo.batch_size",
            Key("collect.num_worlds", "times collect.rollout_length is what an update learns from"),
        ),
        ("rollout_fragment_length rollout_steps", "collect.rollout_length"),
        ("n_steps num_steps", Key("collect.rollout_length", "steps of each world in one rollout")),
        ("lambda lambda_ lam gae_lambda", "algo.gae_lambda", "algo.vtrace_lambda"),
        ("clip_param clip_range clip_ratio clip_eps eps_clip", "algo.clip_coef"),
        ("clip_range_vf vf_clip_param", "algo.value_clip"),
        ("entropy_coeff ent_coef", "algo.entropy_coef", "algo.temperature"),
        ("vf_loss_coeff vf_coef value_loss_coef", "algo.value_coef"),
        ("kl_coeff", "algo.kl_coef"),
        ("target_kl", Key("algo.kl_stop", "ends the epochs of an update; algo.kl_target adapts the penalty")),
        ("use_kl_loss", Key("algo.kl_coef", "0: none")),
        ("vtrace_clip_rho_threshold", "algo.rho_clip"),
        ("vtrace_clip_pg_rho_threshold", Key("algo.rho_clip", "it bounds the policy's importance weights too")),
        ("normalize_obs norm_obs observation_filter", "algo.normalize_observation"),
        ("norm_adv", "algo.normalize_advantage"),
        ("norm_reward", Key("algo.normalize_value", "value targets are standardised instead of rewards")),
        ("replay_buffer_capacity buffer_size replay_size memory_size", "algo.replay.capacity"),
        ("replay_buffer_config", "algo.replay"),
        ("n_step nstep", "algo.replay.n_step"),
        ("per prioritized_replay prioritized", "algo.replay.prioritised"),
        ("prioritized_replay_alpha", "algo.replay.prioritised.alpha"),
        ("prioritized_replay_beta", "algo.replay.prioritised.beta"),
        (
            "train_freq gradient_steps updates_per_step utd_ratio",
            Key("algo.training_intensity", "gradient steps per environment step"),
        ),
        (
            "warmup_steps start_steps start_timesteps random_steps num_steps_sampled_before_learning_starts",
            "algo.learning_starts",
        ),
        (
            "polyak",
            Key("algo.tau", "the fraction of the new weights, not of the old ones"),
            "algo.target_update",
            Key("algo.tau", "the target networks move a little at every step"),
        ),
        ("tau", "algo.tau", Key("algo.target_update", "the target network is copied whole")),
        (
            "target_network_update_freq target_update_interval",
            "algo.target_update",
            Key("algo.tau", "the target networks move a little at every step"),
        ),
        ("initial_alpha alpha", "algo.temperature"),
        ("policy_freq policy_frequency", "algo.policy_delay"),
        ("policy_noise target_policy_noise", "algo.target_noise"),
        ("noise_clip target_policy_noise_clip", "algo.target_noise_clip"),
        ("expl_noise action_noise", "algo.exploration_noise"),
        (
            "exploration_fraction exploration_initial_eps exploration_final_eps epsilon_timesteps epsilon_decay",
            Key("algo.epsilon", "a number, or a schedule of [fraction of the budget, value] points"),
        ),
        ("double_q", "algo.double"),
        ("n_quantiles num_atoms", Key("algo.values.quantiles", "with algo.values.kind quantile")),
        ("min_q_weight cql_alpha", "algo.conservative_coef"),
        (
            "total_timesteps timesteps_total max_timesteps num_timesteps total_steps max_steps num_env_steps steps",
            "timesteps",
        ),
        ("max_episodes num_episodes episodes", "stop.episodes"),
        ("time_total_s", "stop.wall_time_s"),
        ("target_reward", "stop.target_return"),
        ("use_gpu gpu num_gpus cuda", Key("device", "cpu, cuda or auto; on the command line also --gpu")),
        ("num_learners", "learners"),
        (
            "num_rollout_workers num_env_runners num_workers",
            Key("collect.workers", "processes that collect; threads that step the worlds are collect.world_threads"),
        ),
        ("collect_workers", "collect.workers"),
        ("collect_prefetch", "collect.prefetch"),
        ("collect_seed_stride", "collect.seed_stride"),
        ("num_envs n_envs", "collect.num_worlds"),
        ("num_envs_per_worker num_envs_per_env_runner", Key("collect.num_worlds", "over all workers")),
        ("eval_freq eval_interval", Key("evaluate.evaluation_interval", "updates between evaluations")),
        ("n_eval_episodes eval_episodes", "evaluate.evaluation_duration"),
        ("eval_seed", "evaluate.seed"),
        (
            "save_freq save_interval checkpoint_freq checkpoint_frequency checkpoint_interval",
            Key("checkpoint.checkpoint_every", "steps"),
        ),
        ("num_to_keep", "checkpoint.keep"),
        ("env env_config", "world"),
        ("env_id env_name", "world.id", "world"),
        ("env_kwargs", "world.kwargs", "world"),
        ("fed_root", "federated.root"),
    ),
}

# Words for which there is no key, and what to do instead.
_NAMED_FIRST = "a scenario is named first, without a flag or key: slipstream train head_on, or train('head_on')"
_SEVERAL = "belongs to slipstream federate and slipstream sweep, which start several runs"
SAYINGS: dict[str, str] = {
    "main": "there is no such level; write its contents at the top of the file",
    "scenario": _NAMED_FIRST,
    "scenario_name": _NAMED_FIRST,
    "repeat": "slipstream federate SCENARIO --repeat N starts runs that learn together; slipstream sweep starts others",
    "max_parallel": _SEVERAL,
    "auto_seed": _SEVERAL,
    "seed_base": f"{_SEVERAL}; one run has seed",
    "seed_step": f"{_SEVERAL}; one run has seed",
    "repo_root": "not needed; run folders are made in the working directory",
    "wandb": "not part of a scenario; use --wandb on the command line",
    "tensorboard": "not part of a scenario; use --tensorboard on the command line",
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
