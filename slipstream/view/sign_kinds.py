"""The kinds of problem signs a run can show: what each is called, and what to try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

EXPLORE_MORE = (
    "Explore more (algo.entropy_coef, algo.init_log_std), make penalties smaller than what success pays, or begin with "
    "an easier scenario or a curriculum."
)


class Kind(NamedTuple):
    """What every sign of a name shares."""

    title: str
    tries: str


KINDS = {
    "negative_plateau": Kind(
        "plateau at a negative return",
        "Compare with the scripts' rows (slipstream eval SCENARIO): a policy that does nothing may earn the same. "
        + EXPLORE_MORE,
    ),
    "oscillation": Kind(
        "the return swings up and down",
        "Steps are too large, or too few episodes decide: a smaller algo.learning_rate, fewer algo.epochs, more "
        "collect.num_worlds, algo.ema_decay for PPO. A larger evaluate.evaluation_duration shows whether it is the "
        "evaluation that swings. The best checkpoint is kept in any case.",
    ),
    "streak_at_zero": Kind(
        "no streak of clean episodes",
        "Look at what spoils episodes (the eval/ figures, the replays): conflicts want larger penalties, agents that "
        "never arrive want more reward for arriving or a longer world.max_episode_steps. Where even the scripts are "
        "never clean, no run can be.",
    ),
    "entropy_collapsed": Kind(
        "the entropy collapsed",
        "It stopped exploring before it had learned: a larger algo.entropy_coef (ten times), a smaller "
        "algo.learning_rate, or fewer algo.epochs.",
    ),
    "high_kl": Kind(
        "KL far above its target",
        "Updates go too far for the data they learn from: a smaller algo.learning_rate, fewer algo.epochs, a larger "
        "algo.minibatch_size, or algo.kl_stop.",
    ),
    "blind_critic": Kind(
        "the critic explains nothing",
        "A longer collect.rollout_length, algo.normalize_value, a larger algo.value_coef or network; check that the "
        "observation holds what the return depends on. Where every episode earns the same there is nothing to explain.",
    ),
    "not_finite": Kind(
        "NaN or infinity in a batch",
        "A tenth of the learning rate; then look into quarantine/ for what it was, reward or observation, and check an "
        "environment of your own with slipstream check-world.",
    ),
    "rate_at_zero": Kind(
        "the learning rate reached 0 early",
        "Let its schedule end with the budget (algo.learning_rate), or stop the run where the schedule ends.",
    ),
    "evaluation_below": Kind(
        "evaluation far below training",
        "Without exploration the policy does worse. Either noise helps where it should not (a smaller "
        "algo.entropy_coef or algo.init_log_std), or the newest weights swing (algo.ema_decay for PPO), or evaluation "
        "meets what training never does.",
    ),
    "replay_starved": Kind(
        "the replay is starved",
        "Learning begins after algo.learning_starts steps: lower it where the budget is small. A learner that waits "
        "for a replay service wants more who add (collect.workers, or runs that share the service), a smaller "
        "algo.training_intensity, or more algo.replay.sharing.limit.tolerance.",
    ),
    "workers_lost": Kind(
        "workers died or were stuck",
        "A worker that the system kills wants more memory (fewer collect.workers or collect.num_worlds); one that is "
        "stuck in a slow world wants a larger collect.deadline_s; one that dies in an environment of your own has its "
        "traceback in training_log.txt.",
    ),
    "crashed": Kind(
        "the run crashed",
        "training_log.txt has the end of the traceback. Mend what it names: an environment of your own (slipstream "
        "check-world), a setting, memory or disk. Then slipstream resume RUN goes on from the last checkpoint.",
    ),
    "end_failed": Kind(
        "something at the end could not be written",
        "The last checkpoint is whole, and training_log.txt has the end of the traceback. Mend what it names; then "
        "slipstream resume RUN writes the end again, and slipstream eval RUN judges the policy.",
    ),
}


@dataclass(frozen=True)
class Sign:
    """Something that looks wrong."""

    name: str  # a key of KINDS
    found: str
    first: int  # steps between which it was seen
    last: int
    tries: str = ""  # what to try in this case; "": as its kind says
