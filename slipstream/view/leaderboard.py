"""The leaderboard of a scenario: runs, federations and scripts by their return over fresh episodes.

A run that ended was judged on fresh episodes beside the scripts (`judgement.json`). Until then all there is are the
episodes of its last evaluation, on which it may have stopped because they went well: such a run has no rank among
judged ones. A federation is one entry, for its clients share weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from slipstream.errors import ScenarioError
from slipstream.stats.intervals import Interval, iqm_interval, wilson
from slipstream.view.catalogue import RunSummary
from slipstream.view.origin import tried
from slipstream.view.run import Judged
from slipstream.worlds.world import tools_of

RETURN = "eval/return_mean"
Source = Literal["judged", "evaluated"]
NONE = float("nan")
STATES = ("running", "crashed", "stopped")  # of a federation: the first that one of its clients has


@dataclass(frozen=True)
class LeaderboardEntry:
    """A row of a board."""

    kind: Literal["run", "federation", "script"]
    name: str
    id: str | None  # of the run, or of the federation's page
    algo: str
    seed: int | None
    state: str
    steps: int | None
    source: Source
    episodes: int  # behind the figures
    value: Interval  # return; no interval for one evaluation or several clients
    share: Interval | None  # of successful or clean episodes
    note: str = ""
    rank: int | None = None  # None: not ranked
    pool: str = ""  # runs of one pool differ in the seed only; "": in no pool


def board(scenario: str, runs: Sequence[RunSummary], federations: Mapping[str, str]) -> dict[str, Any]:
    """One scenario's entries from the best to the worst, and groups over seeds.

    Args:
        scenario: Its name.
        runs: Those with a judgement or an evaluation.
        federations: Pages of federations by the folder of their rounds.
    """
    share = _told_share(runs)
    shared: dict[str, list[RunSummary]] = {}
    entries: list[LeaderboardEntry] = []
    for run in runs:
        if run.origin.federation is None:
            entries.append(_run(run, share))
        else:
            shared.setdefault(run.origin.federation.rounds, []).append(run)
    entries += [_federation(rounds, own, share, federations) for rounds, own in shared.items()]
    ranked = rank([entry for entry in entries if entry.value.estimate == entry.value.estimate])
    beside = next((entry.id for entry in ranked if entry.source == "judged" and entry.kind == "run"), None)
    scripts, differ = _scripts(runs, beside, share)
    return {
        "scenario": scenario,
        "share": share,
        "entries": [_plain(entry) for entry in _in_order([*ranked, *scripts])],
        "groups": _groups(ranked),
        "note": differ,
    }


def rank(entries: Sequence[LeaderboardEntry]) -> list[LeaderboardEntry]:
    """Sort entries by return, judged ones first, and rank those of the best source; ties share a rank."""
    firm: Source = "judged" if any(entry.source == "judged" for entry in entries) else "evaluated"
    values = [_as_shown(entry.value.estimate) for entry in entries if entry.source == firm]
    return _in_order(
        replace(entry, rank=1 + sum(value > _as_shown(entry.value.estimate) for value in values))
        if entry.source == firm
        else entry
        for entry in entries
    )


def _as_shown(value: float) -> float:
    """The value as the page shows it, so that equal texts tie."""
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value)


def _in_order(entries: Iterable[LeaderboardEntry]) -> list[LeaderboardEntry]:
    return sorted(entries, key=lambda entry: (entry.source != "judged", -entry.value.estimate, entry.kind == "script"))


# --- entries ---


def _run(run: RunSummary, share: str | None) -> LeaderboardEntry:
    source, episodes, value, part = _figures(run, share)
    trial = run.origin.trial
    return LeaderboardEntry(
        kind="run",
        name=run.name,
        id=run.id,
        algo=run.algo,
        seed=run.seed,
        state=run.state,
        steps=run.steps,
        source=source,
        episodes=episodes,
        value=value,
        share=part,
        note="" if trial is None else tried(trial.values),
        pool=f"{run.algo} {run.settings}",
    )


def _federation(
    rounds: str, runs: Sequence[RunSummary], share: str | None, pages: Mapping[str, str]
) -> LeaderboardEntry:
    figures = [_figures(run, share) for run in runs]
    firm: Source = "judged" if all(source == "judged" for source, *_ in figures) else "evaluated"
    if firm == "evaluated":  # one is not judged yet: use the evaluations of all
        figures = [_evaluated(run, share) for run in runs]
    returns = [value.estimate for _, _, value, _ in figures]
    parts = [part.estimate for *_, part in figures if part is not None]
    first = runs[0].origin
    assert first.federation is not None
    of_trial = "" if first.trial is None or not first.trial.values else f"{tried(first.trial.values)}; "
    ends = f"{min(returns):.4g}", f"{max(returns):.4g}"
    spread = " from {} to {}".format(*ends) if ends[0] != ends[1] else ""
    return LeaderboardEntry(
        kind="federation",
        name=runs[0].name.rpartition(", ")[0],  # without the client's
        id=pages.get(rounds),
        algo=", ".join(dict.fromkeys(run.algo for run in runs)),
        seed=None,
        state=next((state for state in STATES if any(run.state == state for run in runs)), runs[0].state),
        steps=max(run.steps for run in runs),
        source=firm,
        episodes=min(episodes for _, episodes, _, _ in figures),
        value=Interval(sum(returns) / len(returns), NONE, NONE),
        share=Interval(sum(parts) / len(parts), NONE, NONE) if parts else None,
        note=f"{of_trial}mean of {len(runs)} clients{spread}",
    )


def _scripts(runs: Sequence[RunSummary], beside: str | None, share: str | None) -> tuple[list[LeaderboardEntry], str]:
    """The scripts' rows beside the best run, and a note if other runs were judged beside different ones."""
    judged = {run.id: run.judged[1:] for run in runs if run.judged}
    own = judged.get(beside or "") or next(iter(judged.values()), ())
    entries = [
        LeaderboardEntry(
            kind="script",
            name=row.policy,
            id=None,
            algo="script",
            seed=None,
            state="",
            steps=None,
            source="judged",
            episodes=row.episodes,
            value=row.figures["return"],
            share=row.figures.get(_bare(share)),
        )
        for row in own
        if _is_known(row)
    ]
    if all(rows == own for rows in judged.values()):
        return entries, ""
    name = next((run.name for run in runs if run.id == beside), "the first run")
    return entries, f"Runs here were judged on different episodes or settings; the scripts are those beside {name}."


# --- figures ---


def _figures(run: RunSummary, share: str | None) -> tuple[Source, int, Interval, Interval | None]:
    if run.judged and _is_known(run.judged[0]):
        row = run.judged[0]
        return "judged", row.episodes, row.figures["return"], row.figures.get(_bare(share))
    return _evaluated(run, share)


def _evaluated(run: RunSummary, share: str | None) -> tuple[Source, int, Interval, Interval | None]:
    told = run.evaluation
    many = int(told.get("eval/episodes", 0))
    part = wilson(round(told[share] * many), many) if share is not None and share in told and many else None
    return "evaluated", many, Interval(told.get(RETURN, NONE), NONE, NONE), part


def _told_share(runs: Sequence[RunSummary]) -> str | None:
    """The most telling evaluation figure that is a share of episodes: success, or clean."""
    try:
        names = tools_of(runs[0].kind).proportions
    except ScenarioError:
        return None
    keys = [f"eval/{name}{ending}" for name in names[:2] for ending in ("_mean", "_fraction")]
    return next((key for key in keys if any(key in run.evaluation for run in runs)), None)


def _groups(entries: Sequence[LeaderboardEntry]) -> list[dict[str, Any]]:
    """Ranked runs that differ in the seed only, the longest of each seed, with their IQM."""
    seeds: dict[str, dict[int | None, LeaderboardEntry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.steps or 0):
        if entry.pool and entry.rank is not None:
            seeds.setdefault(entry.pool, {})[entry.seed] = entry
    pools = [[*own.values()] for own in seeds.values() if len(own) > 1]
    groups = [
        {
            "algo": own[0].algo,
            "note": own[0].note,
            "runs": len(own),
            "iqm": iqm_interval([[entry.value.estimate] for entry in own])._asdict(),
        }
        for own in pools
    ]
    return sorted(groups, key=lambda group: -group["iqm"]["estimate"])


def _is_known(row: Judged) -> bool:
    value = row.figures.get("return")
    return value is not None and value.estimate == value.estimate


def _bare(share: str | None) -> str:
    return "" if share is None else share.removeprefix("eval/").removesuffix("_mean").removesuffix("_fraction")


def _plain(entry: LeaderboardEntry) -> dict[str, Any]:
    share = None if entry.share is None else entry.share._asdict()
    return {**asdict(entry), "value": entry.value._asdict(), "share": share}
