"""A sweep at work: which runs to start now, their results, and continuing after a stop.

What is known is one file, `trials.json`: the values of every trial and the scores of every run. `plan` is a function of
it alone, so a sweep that goes on does what it would have done. A trial's runs are ordinary runs, in
`trials/<number>/seed_<seed>/`; where trials are compared before their end, they pause with a checkpoint, and those that
go on are, bit for bit, runs that never paused. A run of a federated scenario is a whole federation (clients.py).
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from slipstream.config.load import dump, load, override
from slipstream.config.records import from_json
from slipstream.config.scenario import Scenario
from slipstream.config.sweep import Asha, Pbt, Sweep, Tpe, dump_sweep, load_sweep
from slipstream.data.disk import replace_file
from slipstream.errors import ScenarioError
from slipstream.runtime.platform import lock
from slipstream.scale import clients
from slipstream.scale.clients import Ordered
from slipstream.scale.pool import RunEnded, RunOrder, RunPool
from slipstream.scale.suggest import Score, Values, exploited, first_values, promoted, suggested

SWEEP_FILE, BASE_FILE, STATE_FILE, LOCK_FILE = "sweep.yaml", "base.yaml", "trials.json", ".lock"
TRIALS, LOGS, MODELS = "trials", "logs", "models"
LINEAGE_FILE = "lineage.json"  # in a run that goes on from another's checkpoint
LOOK_S = 0.1
VERSION = 1


class Change(msgspec.Struct, frozen=True):
    """From this generation on a trial goes on from another's checkpoint, with other values."""

    rung: int
    parent: int
    values: Values


class Trial(msgspec.Struct, frozen=True):
    """One combination of values."""

    number: int
    values: Values
    problem: str | None = None  # why the scenario does not take them
    changes: tuple[Change, ...] = ()

    @property
    def newest(self) -> Values:
        """Its values by now."""
        return self.changes[-1].values if self.changes else self.values


class RungResult(msgspec.Struct, frozen=True):
    """What came of one run, up to one of the points where trials are compared."""

    trial: int
    rung: int
    repeat: int
    steps: int
    score: float | None  # of a federation, the mean of its clients' scores
    problem: str | None = None
    rounds: int | None = None  # of a federation that have closed; None: it learns alone
    why: str = ""  # none has closed


class State(msgspec.Struct, frozen=True):
    """All that is known of a sweep."""

    trials: tuple[Trial, ...] = ()
    results: tuple[RungResult, ...] = ()
    format: str = "slipstream.sweep"
    version: int = VERSION


class TrialOutcome(NamedTuple):
    """What came of a trial's runs, all of which are over."""

    scores: tuple[float, ...]
    steps: int
    problem: str | None
    rounds: tuple[int, ...] = ()  # closed, of each run that is a federation
    why: str = ""  # none has closed in one of them

    @property
    def score(self) -> Score:
        """Their mean; None where one of them failed."""
        return None if self.problem is not None else math.fsum(self.scores) / len(self.scores)


class TrialTask(NamedTuple):
    """A trial that is to be brought to a rung."""

    trial: int
    rung: int


@dataclass(frozen=True)
class Work:
    """A sweep in its folder."""

    root: Path
    sweep: Sweep
    base: Scenario

    @property
    def rungs(self) -> tuple[int, ...]:
        """Steps at which trials are compared; the last ones are their whole budget."""
        return self.sweep.method.stages(self.base.timesteps)

    def run(self, trial: int, repeat: int) -> Path:
        """The folder of a run."""
        return self.root / TRIALS / f"{trial:04d}" / f"seed_{self.sweep.seeds[repeat]}"


# --- the folder ---


def begin(root: Path, sweep: Sweep, base: Scenario) -> Work:
    """Make a sweep's folder, with all that is needed to go on; one that is in use is refused."""
    if root.exists() and any(root.iterdir()):
        raise ScenarioError(
            f"{root}: is not empty; choose another --root, or continue it with: slipstream sweep {root}"
        )
    for folder in (TRIALS, LOGS):
        (root / folder).mkdir(parents=True, exist_ok=True)
    resolved = sweep.model_copy(update={"scenario": BASE_FILE, "overrides": {}, "seed_base": seed_base(sweep, base)})
    replace_file(root / BASE_FILE, dump(base).encode())
    replace_file(root / SWEEP_FILE, dump_sweep(resolved).encode())
    return Work(root, resolved, base)


def seed_base(sweep: Sweep, base: Scenario) -> int:
    """Seed of the first run of every trial."""
    return base.seed if sweep.seed_base is None else sweep.seed_base


def reopen(root: Path) -> Work:
    """A sweep that was begun before."""
    read = load_sweep(root / SWEEP_FILE)
    return Work(root, read.sweep, read.base)


def read_state(root: Path) -> State:
    """What is known; nothing where nothing has come of it yet."""
    try:
        state = from_json((root / STATE_FILE).read_bytes(), State)
    except FileNotFoundError:
        return State()
    except (OSError, msgspec.DecodeError) as error:
        raise ScenarioError(f"{root / STATE_FILE}: cannot be read ({error}); is {root} a sweep's folder?") from None
    if state.version != VERSION:
        raise ScenarioError(f"{root / STATE_FILE}: is of version {state.version}, and this Slipstream reads {VERSION}")
    return state


def _write_state(root: Path, state: State) -> None:
    """Results by number, so that the file does not show who was first."""
    ordered = tuple(sorted(state.results, key=lambda one: (one.trial, one.rung, one.repeat)))
    state = msgspec.structs.replace(state, results=ordered)
    replace_file(root / STATE_FILE, msgspec.json.format(msgspec.json.encode(state), indent=1))


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Refuse a second process in the same folder."""
    fd = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        if not lock(fd):
            raise ScenarioError(f"{root}: another process runs this sweep; wait for it, or stop it with Ctrl+C")
        yield
    finally:
        os.close(fd)


# --- what is to be done ---


def plan(work: Work, state: State) -> tuple[State, list[TrialTask]]:
    """What to do next by the results so far: the state with trials that are new or changed, and the missing runs."""
    state = _with_new_trials(work, state)
    known = outcomes(work, state)
    entrants: Sequence[int] = range(len(state.trials))
    for rung in range(len(work.rungs)):
        missing = [TrialTask(trial, rung) for trial in entrants if (trial, rung) not in known]
        if missing or rung + 1 == len(work.rungs):
            return state, missing
        scores = {trial: known[trial, rung].score for trial in entrants}
        if all(score is None for score in scores.values()):
            return state, []
        if isinstance(work.sweep.method, Asha):
            entrants = promoted(scores, work.sweep.method.eta, work.sweep.metric.mode)
        elif isinstance(work.sweep.method, Pbt):
            state = _with_changes(work, state, rung + 1, scores)
    return state, []


def outcomes(work: Work, state: State) -> dict[tuple[int, int], TrialOutcome]:
    """By trial and rung, where all runs are over."""
    runs: dict[tuple[int, int], list[RungResult]] = {}
    for result in state.results:
        runs.setdefault((result.trial, result.rung), []).append(result)
    found = {
        (trial.number, 0): TrialOutcome((), 0, trial.problem) for trial in state.trials if trial.problem is not None
    }
    for task, own in runs.items():
        if len(own) < work.sweep.repeat:
            continue
        own.sort(key=lambda one: one.repeat)
        problems = [one.problem for one in own if one.problem is not None]
        scores = tuple(one.score for one in own if one.score is not None)
        rounds = tuple(one.rounds for one in own if one.rounds is not None)
        why = next((one.why for one in own if one.why), "")
        found[task] = TrialOutcome(
            scores, max(one.steps for one in own), problems[0] if problems else None, rounds, why
        )
    return found


def _with_new_trials(work: Work, state: State) -> State:
    """Adds the trials that can start by now: all of them, or the next batch of TPE once the last one is over."""
    sweep, method, there = work.sweep, work.sweep.method, len(state.trials)
    if isinstance(method, Tpe):
        known = outcomes(work, state)
        if there >= method.trials or any((trial.number, 0) not in known for trial in state.trials):
            return state
        told = [(trial.values, known[trial.number, 0].score) for trial in state.trials]
        values = suggested(sweep.parameters, method, sweep.seed, sweep.metric.mode, told)
    elif there:
        return state
    else:
        values = first_values(sweep)
    trials = [Trial(there + index, own, _refusal(work, own)) for index, own in enumerate(values)]
    return msgspec.structs.replace(state, trials=(*state.trials, *trials))


def _refusal(work: Work, values: Values) -> str | None:
    """Why the scenario does not take these values together, if so."""
    try:
        return clients.refusal(load(work.root / BASE_FILE, values)) or None
    except ScenarioError as error:
        return str(error)


def _with_changes(work: Work, state: State, rung: int, scores: Mapping[int, Score]) -> State:
    """The next generation of a population."""
    assert isinstance(work.sweep.method, Pbt)
    if any(change.rung == rung for trial in state.trials for change in trial.changes):
        return state
    sweep, method = work.sweep, work.sweep.method
    told = {trial.number: (trial.newest, scores[trial.number]) for trial in state.trials}
    changes = exploited(sweep.parameters, method, sweep.seed, rung, sweep.metric.mode, told)
    for trial, (parent, values) in changes.items():
        if _refusal(work, values) is not None:
            changes[trial] = (parent, told[parent][0])
    trials = [
        msgspec.structs.replace(one, changes=(*one.changes, Change(rung, *changes[one.number])))
        if one.number in changes
        else one
        for one in state.trials
    ]
    return msgspec.structs.replace(state, trials=tuple(trials))


# --- doing it ---

Show = Callable[[State, frozenset[str]], None]  # what is known, and names of the runs at work


@dataclass
class _OrderedRun(Ordered):
    """A run that was ordered, and what for."""

    task: TrialTask
    repeat: int


def run(work: Work, pool: RunPool, threads: int, show: Show) -> State:
    """Run trials until all are done, or until Ctrl+C; every run has saved its state by then."""
    asked: list[_OrderedRun] = []
    with _alone(work.root):
        state, planned = read_state(work.root), None
        try:
            while True:
                if state is not planned:
                    state, tasks = plan(work, state)
                    _write_state(work.root, state)
                    if not tasks:
                        return state
                    _take_over(work, state, tasks[0].rung)
                    at_work = {(one.task, one.repeat) for one in asked}
                    for new in _missing(work, state, tasks, threads):
                        if (new.task, new.repeat) not in at_work:
                            asked.append(new)
                            for order in new.at_work:
                                pool.submit(order)
                    planned = state
                owners = {name: one for one in asked for name in one.orders}
                for ended in pool.poll():
                    clients.note_end(owners[ended.order.name], ended, pool)
                for one in asked:
                    clients.wake(one, pool)
                done = [one for one in asked if not one.at_work]
                asked = [one for one in asked if one not in done]
                if done:
                    results = [_result(work, state, one) for one in done]
                    state = msgspec.structs.replace(state, results=(*state.results, *results))
                show(state, pool.running())
                time.sleep(LOOK_S)
        finally:
            pool.close()


def _missing(work: Work, state: State, tasks: Sequence[TrialTask], threads: int) -> Iterator[_OrderedRun]:
    """The runs of these tasks that have no result yet."""
    done = {(result.trial, result.rung, result.repeat) for result in state.results}
    for task in tasks:
        scenario = _scenario(work, state, task.trial)
        file = work.root / TRIALS / f"{task.trial:04d}" / "scenario.yaml"
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            replace_file(file, dump(scenario).encode())
        pause_at = None if task.rung + 1 == len(work.rungs) else work.rungs[task.rung]
        for repeat, seed in enumerate(work.sweep.seeds):
            if (*task, repeat) in done:
                continue
            orders = []
            apart = work.sweep.repeat * work.sweep.seed_step
            for client in clients.clients_of(scenario, work.run(task.trial, repeat), seed, apart):
                name = f"{task.trial:04d}_seed_{seed}" + (f"_client_{client.name}" if client.name else "")
                where = (str(file), str(client.folder), str(work.root / MODELS))
                orders.append(RunOrder(name, *where, client.seed, threads, pause_at, client.name, client.changes))
            by_name = {order.name: order for order in orders}
            yield _OrderedRun(work.run(task.trial, repeat), by_name, clients.over_before(orders), set(), task, repeat)


def _scenario(work: Work, state: State, trial: int) -> Scenario:
    """What a trial trains by now."""
    return load(work.root / BASE_FILE, state.trials[trial].newest)


def _take_over(work: Work, state: State, rung: int) -> None:
    """Replace the runs of the worst trials of a generation by copies of the best, once each, before any continues."""
    for trial in state.trials:
        change = next((change for change in trial.changes if change.rung == rung), None)
        for repeat in range(work.sweep.repeat) if change is not None else ():
            assert change is not None
            own, lineage = work.run(trial.number, repeat), msgspec.json.encode(change)
            if (own / LINEAGE_FILE).exists() and (own / LINEAGE_FILE).read_bytes() == lineage:
                continue
            copy = own.with_name(f".tmp-{own.name}")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(work.run(change.parent, repeat), copy)
            base = _scenario(work, state, trial.number)
            for client in clients.clients_of(base, copy, 0, 1):
                meeting = clients.meeting(own) if client.name else {}
                scenario = override(load(client.folder / "scenario.yaml"), {**change.values, **meeting})
                replace_file(client.folder / "scenario.yaml", dump(scenario).encode())
            replace_file(copy / LINEAGE_FILE, lineage)
            shutil.rmtree(own, ignore_errors=True)
            copy.rename(own)


def _result(work: Work, state: State, one: _OrderedRun) -> RungResult:
    """What came of a run; of a federation, all of whose clients are over or wait for one that went no further."""
    results = []
    for name, order in one.orders.items():
        steps, score, problem = clients.judged(work.sweep.metric, one.over.get(name, RunEnded(order, None)))
        if order.client and problem is not None:
            problem = f"client {order.client}: {problem}"
        results.append((steps, score, problem))
    problem = next((problem for _, _, problem in results if problem is not None), None)
    if problem is None and one.waiting and one.task.rung + 1 == len(work.rungs):
        problem = f"client {one.orders[min(one.waiting)].client} waits for others that have ended"
    scores = [score for _, score, _ in results if score is not None]
    score = None if problem is not None else math.fsum(scores) / len(scores)
    found = clients.rounds_of(_scenario(work, state, one.task.trial), one.folder)
    closed, why = (None, "") if found is None else found
    steps = max(steps for steps, _, _ in results)
    return RungResult(*one.task, one.repeat, steps, score, problem, closed, why)
