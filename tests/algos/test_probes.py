"""PPO solves every probe world to its closed form in about a second, and known mistakes would show.

A probe is judged by what the policy earns beside the world's own best script, and by the critic's error against the
closed form stated in core/probe. A mutant is PPO or the collector with one mistake planted; it must miss the mark that
the right one hits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from learning import PROBES, Parts, build, recast, scenario_of

from slipstream.collect.episodes import play
from slipstream.collect.serial import Recorder
from slipstream.nets import actor as actor_module
from slipstream.train import setup
from slipstream.worlds.registry import make_worlds
from slipstream.worlds.vec_env import EnvOptions

HORIZON = 8
RETURN_GAP = 0.03
VALUE_ERROR = {"target": 0.1}  # exploration never quite ends on a continuous axis
USUAL_VALUE_ERROR = 0.04  # the right learner is at about half of it


class Score(NamedTuple):
    """How far a trained policy and its critic are from the optimum."""

    return_gap: float  # share of the best return that is missing; negative: more than is possible
    value_error: float  # root mean square, relative to the values' own
    wrong_choices: float  # long choices of `duration`, masked ones of `bandit`, per episode
    rows_excess: float  # decisions that entered updates beyond those that agents took


def closed_form(task: str, obs: np.ndarray, gamma: float) -> np.ndarray:
    """V of every observation under the best policy, as core/probe states it."""

    def ticks(count: np.ndarray) -> np.ndarray:
        return (1 - gamma**count) / (1 - gamma)

    if task in ("alternating", "coordination", "target"):
        return ticks(obs[:, 2] * HORIZON)
    if task in ("constant", "duration"):
        return np.full(len(obs), 1 / (1 - gamma))
    if task == "bandit":
        return obs[:, :3] @ [1.0, 0.5, 0.3] + 0.6 * (gamma - gamma ** (obs[:, 3] * HORIZON)) / (1 - gamma)
    if task == "corridor":
        return gamma ** (12 * (1 - obs[:, 0]) - 1)
    if task == "delayed":
        return gamma ** (obs[:, 2] * HORIZON - 1) * np.where(obs[:, 2] == 1, 1, obs[:, 1])
    assert task == "leaver"
    left = obs[:, 1] * HORIZON
    return ticks(left) + obs[:, 2] * 2 * gamma ** (left - 1)


def train(task: str, changes: dict[str, Any] | None = None) -> tuple[Parts, float]:
    """Train as the scenario says; also the share of decisions in updates beyond those that were taken."""
    parts = build(scenario_of(f"probe_{task}", {"seed": 1, **(changes or {})}))
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


def score(task: str, parts: Parts, rows_excess: float) -> Score:
    scenario = parts.scenario
    worlds = setup.make_evaluation_worlds(scenario, 64)
    everyone = tuple(range(worlds.spec.num_agents))
    best_team = setup.scripted_team("best", everyone, "best", worlds.spec, "script")
    mine, best = play(worlds, parts.cast.teams, 64, seed=5), play(worlds, [best_team], 64, seed=5)
    wrong = {"duration": "long_choices", "bandit": "masked_choices"}.get(task)

    obs = decisions_of_best(scenario.world)
    value = parts.learner._values(*parts.learner._inputs({"obs": obs}, None, len(obs)))
    expected = closed_form(task, obs.astype(np.float64), scenario.algo.gamma)
    if task == "corridor":  # shaping moves every value by its potential, and nothing else
        expected -= scenario.collect.shaping_coef * (obs[:, 0].astype(np.float64) - 1)
    return Score(
        return_gap=1 - mine.team_returns.mean() / best.team_returns.mean(),
        value_error=float(np.sqrt(np.mean((value - expected) ** 2) / np.mean(expected**2))),
        wrong_choices=float(mine.stat(wrong).mean()) if wrong else 0.0,
        rows_excess=rows_excess,
    )


def decisions_of_best(world: Any) -> np.ndarray:
    """Observations at the decisions of agents that play the best script."""
    env = make_worlds(world, 64, EnvOptions(seed=99))
    env.reset()
    seen = []
    for _ in range(16):
        seen.append(env.obs["obs"][env.acting != 0])
        env.act_scripted("best", list(range(env.spec.num_agents)))
        env.step()
    return np.concatenate(seen)


def is_solved(task: str, result: Score) -> bool:
    return (
        abs(result.return_gap) < RETURN_GAP
        and result.value_error < VALUE_ERROR.get(task, USUAL_VALUE_ERROR)
        and result.wrong_choices == 0
        and result.rows_excess <= 0
    )


@pytest.mark.parametrize("task", PROBES)
def test_ppo_solves_the_probe(task):
    result = score(task, *train(task))
    assert is_solved(task, result), result


def test_ppo_solves_the_corridor_with_shaping_and_the_critic_knows_the_shaped_value():
    result = score("corridor", *train("corridor", {"collect.shaping_coef": 1.0}))
    assert is_solved("corridor", result), result


def test_ppo_solves_coordination_with_a_centralised_critic():
    parts, excess = train("coordination", {"algo.centralised_critic": True, "timesteps": 12288})
    worlds = setup.make_evaluation_worlds(parts.scenario, 64)
    assert play(worlds, parts.cast.teams, 64, seed=5).team_returns.min() == 2 * HORIZON
    assert excess <= 0


def test_ppo_solves_coordination_with_a_policy_per_role():
    roles = {"first": {"kind": "learning"}, "second": {"kind": "learning"}}
    teams = {"same": "first", "complement": "second"}
    parts = build(recast(scenario_of("probe_coordination"), roles, teams))
    while parts.updates * parts.scenario.rollout_steps < parts.scenario.timesteps:
        parts.advance()
    worlds = setup.make_evaluation_worlds(parts.scenario, 64)
    assert play(worlds, parts.cast.teams, 64, seed=5).team_returns.min() == 2 * HORIZON


def test_ppo_does_as_well_as_the_action_table_lets_it():
    parts, _ = train("target", {"algo.discrete_actions": True, "algo.entropy_coef": 0.01})
    worlds = setup.make_evaluation_worlds(parts.scenario, 256)
    # The nearest of ±0.5 misses a uniform target by 1/4 at most per axis: 1 - 1/12 per tick.
    assert play(worlds, parts.cast.teams, 256, seed=5).team_returns.mean() / HORIZON > 1 - 1 / 12 - 0.02


# --- mutants ---

Patch = pytest.MonkeyPatch


def _wrap(patch: Patch, name: str, after: Callable[[Recorder, int], None]) -> None:
    real = getattr(Recorder, name)

    def wrapped(self: Recorder, row: int, *args: Any) -> None:
        real(self, row, *args)
        after(self, row)

    patch.setattr(Recorder, name, wrapped)


def truncation_taken_for_termination(patch: Patch) -> None:
    def mistake(recorder: Recorder, row: int) -> None:
        recorder.rollout.terminated[row] |= recorder.rollout.truncated[row]

    _wrap(patch, "outcome", mistake)


def truncation_bootstraps_from_the_next_episode(patch: Patch) -> None:
    def mistake(recorder: Recorder, row: int) -> None:
        recorder.rollout.truncated[row] = 0  # the row after it is the first of the next episode

    _wrap(patch, "outcome", mistake)


def mask_ignored(patch: Patch) -> None:
    patch.setattr(actor_module, "masked", lambda logits, mask: logits)


def discount_per_decision(patch: Patch) -> None:
    def mistake(recorder: Recorder, row: int) -> None:
        recorder.rollout.duration[row] = 1

    _wrap(patch, "outcome", mistake)


def reward_not_discounted_within_a_decision(patch: Patch) -> None:
    patch.setattr(setup, "_tick_discount", lambda scenario: 1.0)


def departed_agents_counted(patch: Patch) -> None:
    def decided(recorder: Recorder, row: int) -> None:
        recorder.rollout.decided[row] = 1

    def paid(recorder: Recorder, row: int) -> None:
        recorder.rollout.paid[row] = 1

    _wrap(patch, "decide", decided)
    _wrap(patch, "outcome", paid)


def shaping_kept_at_termination(patch: Patch) -> None:
    real = Recorder._shaping

    def mistake(self: Recorder, row: int, terminated: Any, truncated: Any) -> Any:
        return real(self, row, np.zeros_like(terminated), truncated)

    patch.setattr(Recorder, "_shaping", mistake)


MUTANTS = [
    # task, mistake, what it must spoil, changes
    ("constant", truncation_taken_for_termination, "value_error", {}),
    ("corridor", truncation_taken_for_termination, "value_error", {}),
    ("corridor", truncation_bootstraps_from_the_next_episode, "value_error", {}),
    ("bandit", mask_ignored, "wrong_choices", {}),
    ("duration", discount_per_decision, "wrong_choices", {}),
    ("duration", reward_not_discounted_within_a_decision, "wrong_choices", {}),
    ("alternating", discount_per_decision, "value_error", {}),
    ("leaver", departed_agents_counted, "rows_excess", {}),
    ("corridor", shaping_kept_at_termination, "value_error", {"collect.shaping_coef": 1.0}),
]
LIMITS = {"value_error": USUAL_VALUE_ERROR, "wrong_choices": 0.0, "rows_excess": 0.0}


@pytest.mark.parametrize(
    ("task", "mistake", "spoils", "changes"), MUTANTS, ids=[f"{task}-{m.__name__}" for task, m, *_ in MUTANTS]
)
def test_a_planted_mistake_shows(task, mistake, spoils, changes, monkeypatch):
    mistake(monkeypatch)
    result = score(task, *train(task, changes))
    assert not is_solved(task, result)
    assert getattr(result, spoils) > 1.5 * LIMITS[spoils], result
