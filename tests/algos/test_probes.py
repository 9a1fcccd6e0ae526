"""Every algorithm solves every probe world it has the traits for, in about a second each; known mistakes would show.

A probe is judged by what the policy earns beside the world's own best script, and by the error of the learner's values
against the closed form stated in core/probe. A mutant is a learner or the collector with one mistake planted; it must
miss the mark that the right one hits. Settings are those of
worlds/probe/scenarios/presets/<algo>_probe.yaml (PPO: probe.yaml).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from learning import PROBES, Parts, build, recast, scenario_of

from slipstream.algos import dqn, sac
from slipstream.algos.protocol import refuse_mismatch
from slipstream.algos.registry import ALGORITHMS
from slipstream.algos.rollout_batch import values_of
from slipstream.collect import teams
from slipstream.collect.episodes import play
from slipstream.collect.serial import RolloutRecorder
from slipstream.collect.shaping import Shaper
from slipstream.config.load import load
from slipstream.nets import actor as actor_module
from slipstream.nets.inputs import append
from slipstream.run import setup
from slipstream.spec import joint_mask
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

HORIZON = 8
SHAPED = {"shaping.use_potential_shaping": True}
TABLE_SHARE = 11 / 12  # of the best return of `target` by its action table: ±1/2 misses by up to 1/2, E miss² = 1/12

# Who enters: every registered algorithm, and variants of some.
ENTRANTS: dict[str, dict[str, Any]] = {
    **{kind: {"algo.kind": kind} for kind in ALGORITHMS},
    "qr-dqn": {
        "algo.kind": "dqn",
        "algo.values": {"kind": "quantile", "quantiles": 8},
        "algo.dueling": True,
        "algo.replay.prioritised": {},
        "algo.replay.n_step": 3,
    },
}
# Largest share of the best return that may be missing, and largest error of the values: the right learner is at about
# half of them. REINFORCE has no values.
RETURN_GAP = 0.03
USUAL_VALUE_ERROR = 0.04
TARGET_VALUE_ERROR = 0.1  # exploration never quite ends on a continuous axis
PESSIMISTS_VALUE_ERROR = 0.15  # CQL means to be too low


class Score(NamedTuple):
    """How far a trained policy and its values are from the optimum."""

    return_gap: float  # share of the best return that is missing; negative: more than is possible
    value_error: float  # root mean square, relative to the values' own
    wrong_choices: float  # long choices of `duration`, masked ones of `bandit` and `parts`, per episode
    rows_excess: float  # decisions that entered updates beyond those that agents took


def contests() -> list[tuple[str, str]]:
    """Every algorithm with every probe it has the traits for."""
    specs = {task: make_worlds(load(f"probe_{task}").world, 1, EnvOptions(seed=0)).spec for task in PROBES}
    traits = {name: ALGORITHMS[changes["algo.kind"]].traits for name, changes in ENTRANTS.items()}
    return [(who, task) for who in ENTRANTS for task in PROBES if not refuse_mismatch(traits[who], specs[task], "")]


def closed_form(task: str, obs: np.ndarray, gamma: float, by_table: bool) -> np.ndarray:
    """V of every observation under the best policy, as core/probe states it."""

    def ticks(count: np.ndarray) -> np.ndarray:
        return (1 - gamma**count) / (1 - gamma)

    if task == "target" and by_table:
        miss = np.square(np.abs(obs[:, :2]) - 0.5).mean(1)
        return 1 - miss + TABLE_SHARE * (ticks(obs[:, 2] * HORIZON) - 1)
    if task in ("alternating", "coordination", "target"):
        return ticks(obs[:, 2] * HORIZON)
    if task in ("constant", "duration"):
        return np.full(len(obs), 1 / (1 - gamma))
    if task in ("parts", "switches"):
        axes = 1.0 if task == "parts" else 0.0
        now = np.where(obs[:, 3] > 0, 1.0, 0.6) + obs[:, 4:7] @ [1.0, 0.5, 0.3] + axes
        return now + (1.4 + axes) * (gamma - gamma ** (obs[:, 7] * HORIZON)) / (1 - gamma)
    if task == "bandit":
        return obs[:, :3] @ [1.0, 0.5, 0.3] + 0.6 * (gamma - gamma ** (obs[:, 3] * HORIZON)) / (1 - gamma)
    if task == "corridor":
        return gamma ** (12 * (1 - obs[:, 0]) - 1)
    if task == "delayed":
        return gamma ** (obs[:, 2] * HORIZON - 1) * np.where(obs[:, 2] == 1, 1, obs[:, 1])
    assert task == "leaver"
    left = obs[:, 1] * HORIZON
    return ticks(left) + obs[:, 2] * 2 * gamma ** (left - 1)


@torch.no_grad()
def values(learner: Any, obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray | None:
    """What the learner thinks of every observation, or of what it would do there; None where it has no values."""
    if hasattr(learner, "critic"):
        return values_of(learner.actor, learner.critic, {"obs": obs})[0]
    x, action = torch.from_numpy(obs), torch.from_numpy(learner.act({"obs": obs}, mask, None).action)
    if learner.actor.spec.head == "values":
        return dqn.taken(learner.actor.quantiles(learner.actor.inputs({"obs": x})), action.long()).mean(1).numpy()
    if not hasattr(learner, "critics"):
        return None
    inputs = learner.actor.inputs({"obs": x})
    if not learner.actor.spec.discrete:
        return learner.critics(append(inputs, action)).mean(0).squeeze(1).numpy()
    return learner.critics(inputs).mean(0).gather(1, action.long().unsqueeze(1)).squeeze(1).numpy()


def train(who: str, task: str, changes: dict[str, Any] | None = None) -> tuple[Parts, float]:
    """Train as the scenario says; also the share of decisions in updates beyond those that were taken."""
    parts = build(scenario_of(f"probe_{task}", {"seed": 1, **ENTRANTS[who], **(changes or {})}))
    taken = learned = 0
    real_step = parts.env.step

    def counting_step() -> None:
        nonlocal taken
        taken += int(np.count_nonzero(parts.env.acting))
        real_step()

    parts.env.step = counting_step  # type: ignore[method-assign]
    while parts.updates * parts.scenario.rollout_steps < parts.scenario.timesteps:
        learned += int(parts.advance()["rows"])
    return parts, learned / taken - 1


def score(who: str, task: str, parts: Parts, rows_excess: float) -> Score:
    scenario = parts.scenario
    worlds = setup.make_evaluation_worlds(scenario, 64)
    everyone = tuple(range(worlds.spec.num_agents))
    best_team = setup.scripted_team("best", everyone, "best", worlds.spec, "script")
    mine, best = play(worlds, parts.cast.teams, 64, seed=5), play(worlds, [best_team], 64, seed=5)
    by_table = task == "target" and any(team.table for team in parts.cast.teams)
    masked = dict.fromkeys(("bandit", "parts", "switches"), "masked_choices")
    wrong = {"duration": "long_choices", **masked}.get(task)

    obs, mask = decisions_of_best(scenario.world)
    if mask is not None and any(team.table for team in parts.cast.teams):
        mask = joint_mask(worlds.spec.action.parts, mask)
    value = values(parts.learner, obs, mask)
    expected = closed_form(task, obs.astype(np.float64), scenario.algo.gamma, by_table)
    if task == "corridor":  # shaping moves every value by its potential, and nothing else
        expected -= parts.cast.shaping.kappa * (obs[:, 0].astype(np.float64) - 1)
    squared_error = 0.0 if value is None else np.mean((value - expected) ** 2)
    return Score(
        return_gap=1 - mine.team_returns.mean() / (best.team_returns.mean() * (TABLE_SHARE if by_table else 1.0)),
        value_error=float(np.sqrt(squared_error / np.mean(expected**2))),
        wrong_choices=float(mine.stat(wrong).mean()) if wrong else 0.0,
        rows_excess=rows_excess,
    )


def decisions_of_best(world: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Observations and masks at the decisions of agents that play the best script."""
    env = make_worlds(world, 64, EnvOptions(seed=99))
    env.reset()
    seen, allowed = [], []
    for _ in range(16):
        seen.append(env.obs["obs"][env.acting != 0])
        if env.action_mask is not None:
            allowed.append(env.action_mask[env.acting != 0])
        env.act_scripted("best", list(range(env.spec.num_agents)))
        env.step()
    return np.concatenate(seen), np.concatenate(allowed) if allowed else None


def value_limit(who: str, task: str) -> float:
    if who == "cql":
        return PESSIMISTS_VALUE_ERROR
    return TARGET_VALUE_ERROR if task in ("target", "parts") else USUAL_VALUE_ERROR


def is_solved(who: str, task: str, result: Score) -> bool:
    return (
        abs(result.return_gap) < RETURN_GAP
        and result.value_error < value_limit(who, task)
        and result.wrong_choices == 0
        and result.rows_excess <= 0
    )


@pytest.mark.parametrize(("who", "task"), contests())
def test_it_solves_the_probe(who, task):
    result = score(who, task, *train(who, task))
    assert is_solved(who, task, result), result


def test_ppo_solves_the_corridor_with_shaping_and_the_critic_knows_the_shaped_value():
    result = score("ppo", "corridor", *train("ppo", "corridor", SHAPED))
    assert is_solved("ppo", "corridor", result), result


def test_ppo_solves_coordination_with_a_centralised_critic():
    parts, excess = train("ppo", "coordination", {"algo.centralised_critic": True, "timesteps": 12288})
    worlds = setup.make_evaluation_worlds(parts.scenario, 64)
    assert play(worlds, parts.cast.teams, 64, seed=5).team_returns.min() == 2 * HORIZON
    assert excess <= 0


def test_ppo_solves_coordination_with_a_policy_per_role():
    roles = {"first": {"kind": "learning"}, "second": {"kind": "learning"}}
    teams = {"same": "first", "complement": "second"}
    parts = build(recast(scenario_of("probe_coordination", {"timesteps": 12288}), roles, teams))
    while parts.updates * parts.scenario.rollout_steps < parts.scenario.timesteps:
        parts.advance()
    worlds = setup.make_evaluation_worlds(parts.scenario, 64)
    assert play(worlds, parts.cast.teams, 64, seed=5).team_returns.min() == 2 * HORIZON


def test_ppo_does_as_well_as_the_action_table_lets_it():
    parts, _ = train("ppo", "target", {"algo.discrete_actions": True, "algo.entropy_coef": 0.01})
    worlds = setup.make_evaluation_worlds(parts.scenario, 256)
    assert play(worlds, parts.cast.teams, 256, seed=5).team_returns.mean() / HORIZON > TABLE_SHARE - 0.02


# --- mutants ---

Patch = pytest.MonkeyPatch


def _wrap(patch: Patch, name: str, after: Callable[[RolloutRecorder, int], None]) -> None:
    real = getattr(RolloutRecorder, name)

    def wrapped(self: RolloutRecorder, row: int, *args: Any) -> None:
        real(self, row, *args)
        after(self, row)

    patch.setattr(RolloutRecorder, name, wrapped)


def truncation_taken_for_termination(patch: Patch) -> None:
    def mistake(recorder: RolloutRecorder, row: int) -> None:
        recorder.rollout.terminated[row] |= recorder.rollout.truncated[row]

    _wrap(patch, "outcome", mistake)


def truncation_bootstraps_from_the_next_episode(patch: Patch) -> None:
    def mistake(recorder: RolloutRecorder, row: int) -> None:
        recorder.rollout.truncated[row] = 0  # the row after it is the first of the next episode

    _wrap(patch, "outcome", mistake)


def termination_bootstraps(patch: Patch) -> None:
    def mistake(recorder: RolloutRecorder, row: int) -> None:
        recorder.rollout.terminated[row] = 0

    _wrap(patch, "outcome", mistake)


def mask_ignored(patch: Patch) -> None:
    patch.setattr(actor_module, "masked", lambda logits, mask: logits)


def masks_of_parts_exchanged(patch: Patch) -> None:
    real = actor_module.masked
    patch.setattr(actor_module, "masked", lambda out, mask: real(out, mask.roll(3, 1)))


def joint_masks_of_parts_exchanged(patch: Patch) -> None:
    patch.setattr(teams, "joint_mask", lambda parts, mask: joint_mask(parts, np.roll(mask, 3, axis=-1)))


def mask_of_what_follows_ignored(patch: Patch) -> None:
    real = sac.rows_of
    patch.setattr(sac, "rows_of", lambda *args: real(*args)._replace(next_mask=None))


def discount_per_decision(patch: Patch) -> None:
    def mistake(recorder: RolloutRecorder, row: int) -> None:
        recorder.rollout.duration[row] = 1

    _wrap(patch, "outcome", mistake)


def reward_not_discounted_within_a_decision(patch: Patch) -> None:
    patch.setattr(setup, "_tick_discount", lambda scenario: 1.0)


def departed_agents_counted(patch: Patch) -> None:
    def decided(recorder: RolloutRecorder, row: int) -> None:
        recorder.rollout.decided[row] = 1

    def paid(recorder: RolloutRecorder, row: int) -> None:
        recorder.rollout.paid[row] = 1

    _wrap(patch, "decide", decided)
    _wrap(patch, "outcome", paid)


def shaping_kept_at_termination(patch: Patch) -> None:
    real = Shaper.paid

    def mistake(self: Shaper, duration: Any, terminated: Any, truncated: Any) -> Any:
        return real(self, duration, np.zeros_like(terminated), truncated)

    patch.setattr(Shaper, "paid", mistake)


MUTANTS = [
    # who, task, mistake, what it must spoil, changes
    ("ppo", "constant", truncation_taken_for_termination, "value_error", {}),
    ("ppo", "corridor", truncation_taken_for_termination, "value_error", {}),
    ("ppo", "corridor", truncation_bootstraps_from_the_next_episode, "value_error", {}),
    ("ppo", "bandit", mask_ignored, "wrong_choices", {}),
    ("ppo", "parts", masks_of_parts_exchanged, "wrong_choices", {}),
    ("dqn", "switches", joint_masks_of_parts_exchanged, "wrong_choices", {}),
    ("ppo", "duration", discount_per_decision, "wrong_choices", {}),
    ("ppo", "duration", reward_not_discounted_within_a_decision, "wrong_choices", {}),
    ("ppo", "alternating", discount_per_decision, "value_error", {}),
    ("ppo", "leaver", departed_agents_counted, "rows_excess", {"timesteps": 2048}),
    ("ppo", "corridor", shaping_kept_at_termination, "value_error", SHAPED),
    ("dqn", "constant", truncation_taken_for_termination, "value_error", {}),
    ("dqn", "corridor", truncation_bootstraps_from_the_next_episode, "value_error", {"world.horizon": 4}),
    ("dqn", "delayed", termination_bootstraps, "value_error", {}),
    ("dqn", "bandit", mask_ignored, "wrong_choices", {}),
    ("dqn", "duration", discount_per_decision, "wrong_choices", {}),
    ("dqn", "leaver", departed_agents_counted, "rows_excess", {"timesteps": 2048}),
    ("sac", "bandit", mask_of_what_follows_ignored, "value_error", {}),
]
LIMITS = {"value_error": USUAL_VALUE_ERROR, "wrong_choices": 0.0, "rows_excess": 0.0}


@pytest.mark.parametrize(
    ("who", "task", "mistake", "spoils", "changes"),
    MUTANTS,
    ids=[f"{who}-{task}-{mistake.__name__}" for who, task, mistake, *_ in MUTANTS],
)
def test_a_planted_mistake_shows(who, task, mistake, spoils, changes, monkeypatch):
    mistake(monkeypatch)
    result = score(who, task, *train(who, task, changes))
    assert not is_solved(who, task, result)
    assert getattr(result, spoils) > 1.5 * LIMITS[spoils], result
