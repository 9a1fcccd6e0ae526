"""Certifying what was learned: fresh episodes until a rate is shown to be above a bar, with a stated chance of error.

Every attempt on a run, by `slipstream certify` or by a curriculum while it trains, is written down in the run's
`certificates.jsonl` before it begins, plays episodes that no training, no table and no other attempt has seen, and
spends its own share of alpha, so that all attempts on a run together certify falsely with probability alpha at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from slipstream.collect.episodes import play
from slipstream.collect.teams import Team
from slipstream.config.records import from_json
from slipstream.config.scenario import Scenario
from slipstream.data.disk import write_all
from slipstream.errors import CheckpointError, ScenarioError, suggest
from slipstream.run.setup import make_evaluation_worlds
from slipstream.stats.sequential import Certificate, Certifier, spent
from slipstream.worlds.vec_env import VecEnv, timed
from slipstream.worlds.world import tools_of

# Judging begins at 2^31 (saved_cast.py); certificates where no table gets to. An attempt has room for ROOM episodes.
FIRST_CERTIFIED = 2**31 + 2**30
ROOM = 2**20
BATCH = 64
LEDGER = "certificates.jsonl"

Told = Callable[[Certificate], None]


class Question(NamedTuple):
    """Does something happen in an episode at more than a given rate?"""

    metric: str
    bar: float
    alpha: float  # of the whole run
    most_trials: int
    expected: float | None = None  # the rate to look for, above the bar; None: any


class Candidate(NamedTuple):
    """The policy to be certified."""

    policy: str  # hash of what acts
    steps: int  # of training behind it
    phase: int | None = None  # of the world's phases; None: the last
    by: Literal["verb", "training"] = "verb"
    time_limit: int = 0  # ticks an episode may last; 0: as the phase has it


class Attempt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a ledger: what was asked and, once it is over, what was found."""

    attempt: int
    metric: str
    bar: float
    alpha: float  # of the whole run
    spends: float  # of it, this attempt
    steps: int  # of training behind the policy
    verdict: str = "begun"
    successes: int = 0
    trials: int = 0
    log_evidence: float = 0.0
    log_doubt: float = 0.0
    policy: str = ""  # hash of what acted; attempts of before have none
    by: str = "verb"  # or training
    phase: str = ""
    population: str = ""  # which episodes were drawn, in words


def read_ledger(folder: Path) -> list[Attempt]:
    """The attempts made so far, in order; a later line of one attempt replaces an earlier one."""
    file = folder / LEDGER
    if not file.exists():
        return []
    found: dict[int, Attempt] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            entry = from_json(line, Attempt)
        except msgspec.DecodeError as error:
            raise CheckpointError(
                f"{file}, line {number}: this is no attempt: {error}; without a whole ledger nobody knows how much of "
                "alpha is spent"
            ) from None
        found[entry.attempt] = entry
    return [found[k] for k in sorted(found)]


class Stand(NamedTuple):
    """Worlds with fresh episodes to certify in, and a description of those episodes."""

    worlds: VecEnv
    population: str


def make_stand(scenario: Scenario, most_trials: int) -> Stand:
    """Worlds whose episodes training has not seen, as far as such worlds have any."""
    world, population = tools_of(scenario.world.kind).unseen(scenario.world)
    fresh = scenario.model_copy(update={"world": world})
    return Stand(make_evaluation_worlds(fresh, min(BATCH, most_trials)), population)


def certify(
    folder: Path,
    scenario: Scenario,
    stand: Stand,
    teams: Sequence[Team],
    question: Question,
    candidate: Candidate,
    told: Told | None = None,
) -> tuple[Attempt, Certificate]:
    """Play until there is a verdict; `told` is called with the state of the test after every batch."""
    metric, worlds = question.metric, stand.worlds
    known = tools_of(scenario.world.kind).proportions
    if metric not in known or metric not in worlds.spec.stats:
        able = ", ".join(name for name in known if name in worlds.spec.stats) or "none"
        raise ScenarioError(
            f"--metric {metric}: only what happened or did not in an episode can be certified; in {scenario.name} that "
            f"is {able}{suggest(metric, known)}"
        )
    number = attempt_number(read_ledger(folder), question, candidate)
    test = Certifier(question.bar, spent(question.alpha, number), question.most_trials, expected=question.expected)
    try:
        test.check()
    except ValueError as error:
        raise ScenarioError(f"attempt {number} on this run: {error}; try --max-episodes of that") from None
    if question.most_trials > ROOM:
        raise ScenarioError(f"--max-episodes {question.most_trials}: an attempt has room for {ROOM}")
    phase = len(worlds.spec.phases) - 1 if candidate.phase is None else candidate.phase
    attempt = Attempt(
        number,
        metric,
        question.bar,
        question.alpha,
        test.alpha,
        candidate.steps,
        policy=candidate.policy,
        by=candidate.by,
        phase=worlds.spec.phases[phase] if worlds.spec.phases else "",
        population=stand.population,
    )
    _write(folder, attempt)
    worlds.phases = [timed(max(0, phase), candidate.time_limit)] * worlds.num_worlds
    standing = _play(worlds, teams, test, metric, scenario.evaluate.seed, FIRST_CERTIFIED + (number - 1) * ROOM, told)
    attempt = msgspec.structs.replace(
        attempt,
        verdict=standing.verdict,
        successes=standing.successes,
        trials=standing.trials,
        log_evidence=standing.log_evidence,
        log_doubt=standing.log_doubt,
    )
    _write(folder, attempt)
    return attempt, standing


def _play(
    worlds: VecEnv, teams: Sequence[Team], test: Certifier, metric: str, seed: int, first: int, told: Told | None
) -> Certificate:
    standing = test.judge(0, 0)
    while standing.verdict == "open":
        count = min(BATCH, test.most_trials - standing.trials)
        played = play(worlds, teams, count, seed, first + standing.trials)
        for happened in played.stat(metric):  # in order: the first verdict counts, whatever the batch
            standing = test.judge(standing.successes + int(happened > 0.5), standing.trials + 1)
            if standing.verdict != "open":
                break
        if told is not None:
            told(standing)
    return standing


def attempt_number(ledger: Sequence[Attempt], question: Question, candidate: Candidate) -> int:
    """The number of this attempt. One that a resumed run repeats with the same policy keeps its number."""
    if candidate.by == "training":
        asked = (question.metric, question.bar, question.alpha, candidate.steps, candidate.policy, "training")
        for e in ledger:
            if asked == (e.metric, e.bar, e.alpha, e.steps, e.policy, e.by):
                return e.attempt
    return len(ledger) + 1


def _write(folder: Path, attempt: Attempt) -> None:
    with (folder / LEDGER).open("ab", buffering=0) as file:
        write_all(file.fileno(), msgspec.json.encode(attempt) + b"\n")
