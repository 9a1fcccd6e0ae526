"""Certifying what was learned: fresh episodes until a rate is shown to be above a bar, with a stated chance of error.

Every attempt on a run is written down in its `certificates.jsonl` before it begins, plays episodes that no training, no
table and no other attempt has seen, and spends its own share of alpha, so that all attempts on a run together certify
falsely with probability alpha at most.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from slipstream.collect.episodes import play
from slipstream.config.errors import CheckpointError, ScenarioError, suggest
from slipstream.config.scenario import Scenario
from slipstream.stats import Certificate, Certifier, spent
from slipstream.train import checkpoint
from slipstream.train.saved_cast import trained_teams
from slipstream.train.setup import make_evaluation_worlds
from slipstream.worlds.registry import proportions

# Judging begins at 2^31 (saved_cast.py); certificates where no table gets to. An attempt has room for ROOM episodes.
FIRST_CERTIFIED = 2**31 + 2**30
ROOM = 2**20
BATCH = 64
LEDGER = "certificates.jsonl"

Told = Callable[[Certificate], None]


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


def read_ledger(folder: Path) -> list[Attempt]:
    """The attempts made so far, in order; a later line of one attempt replaces an earlier one."""
    file = folder / LEDGER
    if not file.exists():
        return []
    found: dict[int, Attempt] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            entry = msgspec.json.decode(line, type=Attempt)
        except msgspec.DecodeError as error:
            raise CheckpointError(
                f"{file}, line {number}: this is no attempt: {error}; without a whole ledger nobody knows how much of "
                "alpha is spent"
            ) from None
        found[entry.attempt] = entry
    return [found[k] for k in sorted(found)]


def certify(
    folder: Path,
    scenario: Scenario,
    saved: checkpoint.Checkpoint,
    metric: str,
    bar: float,
    alpha: float,
    most_trials: int,
    told: Told | None = None,
) -> tuple[Attempt, Certificate]:
    """Play until the verdict; `told` hears how it stands after every batch."""
    known = proportions(scenario.world.kind)
    worlds = make_evaluation_worlds(scenario, min(BATCH, most_trials))
    if metric not in known or metric not in worlds.spec.stats:
        able = ", ".join(name for name in known if name in worlds.spec.stats) or "none"
        raise ScenarioError(
            f"--metric {metric}: only what happened or did not in an episode can be certified; in {scenario.name} that "
            f"is {able}{suggest(metric, known)}"
        )
    number = len(read_ledger(folder)) + 1
    test = Certifier(bar, spent(alpha, number), most_trials)
    try:
        test.check()
    except ValueError as error:
        raise ScenarioError(f"attempt {number} on this run: {error}; try --max-episodes of that") from None
    if most_trials > ROOM:
        raise ScenarioError(f"--max-episodes {most_trials}: an attempt has room for {ROOM}")
    counters = saved.meta.get("counters")
    steps = int(counters.get("steps", 0)) if isinstance(counters, dict) else 0
    attempt = Attempt(number, metric, bar, alpha, test.alpha, steps)
    _write(folder, attempt)
    teams = trained_teams(scenario, saved, worlds.spec)
    first = FIRST_CERTIFIED + (number - 1) * ROOM
    standing = test.judge(0, 0)
    while standing.verdict == "open":
        count = min(BATCH, most_trials - standing.trials)
        played = play(worlds, teams, count, scenario.evaluate.seed, first + standing.trials)
        for happened in played.stat(metric):  # in order: the first verdict counts, whatever the batch
            standing = test.judge(standing.successes + int(happened > 0.5), standing.trials + 1)
            if standing.verdict != "open":
                break
        if told is not None:
            told(standing)
    worlds.close()
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


def _write(folder: Path, attempt: Attempt) -> None:
    with (folder / LEDGER).open("ab") as file:
        file.write(msgspec.json.encode(attempt) + b"\n")
