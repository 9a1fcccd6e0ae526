"""Runs of a sweep that are federations: their clients, who of them waits for the others, and what came of their rounds.

Where the scenario is federated, every run of every trial is a federation of its own, in a folder like that of
`slipstream federate`: `seed_42/runs/client-0/ …` and `seed_42/rounds/`. Its clients take turns (`federated.park`), so
any number of runs at a time will do, and a round has no deadline, as nothing in a sweep depends on the clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.config.aggregators import is_own_rule
from slipstream.config.base import dotted
from slipstream.config.federated import problems
from slipstream.config.scenario import Scenario, shared_policies
from slipstream.config.sweep import MetricConfig, Sweep
from slipstream.data.run_folder import last_row
from slipstream.errors import ScenarioError, suggest
from slipstream.federate.folder import HISTORY, is_waiting
from slipstream.federate.rules.own import find
from slipstream.run.federated.replicas import ROUNDS, RUNS
from slipstream.run.metrics import read_rows
from slipstream.scale.pool import RunEnded, RunOrder, RunPool

NO_DEADLINE_S = 1e9


class RunClient(NamedTuple):
    """One client of a run; the run itself where it learns alone."""

    name: str  # "" where it learns alone
    folder: Path
    seed: int
    changes: dict[str, Any]  # of the trial's scenario


class Rounds(NamedTuple):
    """What came of a federation's rounds."""

    closed: int  # of the policy that has the fewest
    why: str  # none closed; "" where some have


def count(scenario: Scenario) -> int:
    """How many clients a run of this scenario has."""
    return scenario.federated.clients if scenario.federated.has_others else 1


def clients_of(scenario: Scenario, run: Path, seed: int, distance: int) -> list[RunClient]:
    """The clients of a run, whose seeds lie `distance` apart; one that learns alone is its own only client."""
    if not scenario.federated.has_others:
        return [RunClient("", run, seed, {})]
    return [
        RunClient(
            str(one),
            run / RUNS / f"client-{one}",
            seed + one * distance,
            {**meeting(run), "federated.client": str(one)},
        )
        for one in range(count(scenario))
    ]


def meeting(run: Path) -> dict[str, Any]:
    """How the clients of a run meet."""
    return {"federated.park": True, "federated.timeout_s": NO_DEADLINE_S, "federated.root": str(run / ROUNDS)}


def refusal(scenario: Scenario) -> str:
    """Why the clients of a run could not take turns; "" where they can, or where there is one."""
    federated = scenario.federated
    found = next(problems(federated.model_copy(update={"park": True})), None)
    if not federated.has_others or found is None:
        return ""
    return (
        f"federated.{dotted(found[0])}: {found[1]}. In a sweep the clients of a run take turns (federated.park); sweep "
        "with federated.transport files and without federated.secure, and set those in best.yaml"
    )


def check(sweep: Sweep, base: Scenario) -> None:
    """Refuse a sweep of federations none of which could be held."""
    if said := refusal(base):
        raise ScenarioError(said)
    if base.federated.has_others and is_own_rule(base.federated.aggregator):
        find(base.federated.aggregator)
    agreed = [path for path in sweep.parameters if path.split(".")[0] == "federated"]
    if sweep.method.kind == "pbt" and agreed and base.federated.has_others:
        raise ScenarioError(
            f"parameters.{agreed[0]}: pbt changes values while runs learn, and a federation's are agreed on when it "
            "begins; use another method"
        )


# --- at work ---


@dataclass
class Ordered:
    """A run that was ordered: one process, or those of a federation's clients, which take turns."""

    folder: Path
    orders: dict[str, RunOrder]  # by name
    over: dict[str, RunEnded]
    waiting: set[str]  # for others of the federation; they have no process meanwhile

    @property
    def at_work(self) -> list[RunOrder]:
        """Those that have a process, or get one when there is room."""
        return [order for name, order in self.orders.items() if name not in self.over and name not in self.waiting]


def over_before(orders: Sequence[RunOrder]) -> dict[str, RunEnded]:
    """Clients that were where they were to go before the sweep was stopped, while others of theirs were not."""
    return {order.name: RunEnded(order, None) for order in orders if order.client and is_there(order)}


def note_end(one: Ordered, ended: RunEnded, pool: RunPool) -> None:
    """A process has ended: because its run is where it was to go, waits for others, or was stopped by somebody."""
    order = ended.order
    if ended.problem is not None or is_there(order):
        one.over[order.name] = ended
    elif _waits(one, order):
        one.waiting.add(order.name)
    else:
        pool.submit(order, first=bool(order.client))


def wake(one: Ordered, pool: RunPool) -> None:
    """Let those go on whose round is over, or can be closed by them."""
    for name in sorted(one.waiting):
        if not _waits(one, one.orders[name]):
            one.waiting.remove(name)
            pool.submit(one.orders[name], first=True)


def is_there(order: RunOrder) -> bool:
    """Whether a run that ended in peace has come to where it was to go, and was not just told to stop."""
    run = Path(order.run)
    if order.pause_at is not None and last_row(run).get("timesteps_total", 0) >= order.pause_at:
        return True
    events = run / "events.jsonl"
    return events.exists() and any(event.get("event") == "finished" for event in read_rows(events))


def _waits(one: Ordered, order: RunOrder) -> bool:
    """Whether a client has sent its update for a round that is not over, and that others have still to come to."""
    return any(is_waiting(folder, order.client, len(one.orders)) for folder in _policies(one.folder))


# --- what came of it ---


def rounds_of(scenario: Scenario, run: Path) -> Rounds | None:
    """How many rounds have closed, or why none has; None where a run learns alone."""
    if not scenario.federated.has_others:
        return None
    records = [list(read_rows(path)) if (path := folder / HISTORY).exists() else [] for folder in _policies(run)]
    closed = [sum(row.get("state") == "closed" for row in rows) for rows in records]
    fewest = min(closed) if len(closed) == len(shared_policies(scenario)) else 0
    return Rounds(fewest, "" if fewest else _why_none(scenario, [row for rows in records for row in rows]))


def _why_none(scenario: Scenario, rows: Sequence[dict[str, Any]]) -> str:
    told = Counter(str(row["reason"]) for row in rows if row.get("reason"))
    if told:
        return told.most_common(1)[0][0]
    return (
        f"not all clients came to the end of an interval of {scenario.federated.interval} episodes; set a shorter "
        "federated.interval, or train longer"
    )


def _policies(run: Path) -> Iterator[Path]:
    """Folders of the federations of a run: one for each policy that is shared."""
    root = run / ROUNDS
    return (path for path in sorted(root.iterdir()) if path.is_dir()) if root.is_dir() else iter(())


def judged(metric: MetricConfig, ended: RunEnded) -> tuple[int, float | None, str | None]:
    """Steps, score, and why there is none, of one process's run."""
    metrics = Path(ended.order.run) / "metrics.jsonl"
    rows = list(read_rows(metrics)) if metrics.exists() else []
    steps = int(rows[-1]["timesteps_total"]) if rows else 0
    score, problem = None, ended.problem
    if problem is None and (score := score_of(rows, metric)) is None:
        keys = {key for row in rows for key in row}
        problem = f"no report has a finite {metric.name}{suggest(metric.name, keys)} (docs/metrics.md lists the keys)"
    return steps, score, problem


def score_of(rows: Sequence[Mapping[str, Any]], metric: MetricConfig) -> float | None:
    """A metric over the last reports of a run that have it; None where none has."""
    known = {
        row["timesteps_total"]: float(value)
        for row in rows
        if isinstance(value := row.get(metric.name), int | float) and math.isfinite(value)
    }
    if not known:
        return None
    since = rows[-1]["timesteps_total"] * (1.0 - metric.over)
    late = [value for steps, value in known.items() if steps > since] or [*known.values()][-1:]
    return math.fsum(late) / len(late)
