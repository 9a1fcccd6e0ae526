"""`slipstream sweep`: runs a scenario with many values and shows which are best."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.cli.flags import (
    HELP,
    add_cluster_flags,
    add_collect_flags,
    add_several_flags,
    cluster,
    collect_changes,
    first_seed,
    make_parser,
    split_help,
)
from slipstream.errors import ScenarioError

if TYPE_CHECKING:
    from rich.console import Console, Group

    from slipstream.config.scenario import Scenario
    from slipstream.config.sweep import Sweep
    from slipstream.scale.ray_place import RayCluster
    from slipstream.scale.results import TrialRow
    from slipstream.scale.sweep import State, Work

HOME = Path("sweeps")
MOST_ROWS = 30  # of the table on the screen
USAGE = """slipstream sweep SWEEP [options] [--field.of.the.scenario VALUE]
       slipstream sweep FOLDER               continue a sweep that was stopped"""


def sweep(argv: Sequence[str]) -> int:
    """Try a scenario with many values, or continue a sweep in its folder."""
    words = list(argv)
    if not words or words[0] in HELP:
        _parser().print_help()
        return 0
    if words[0].startswith("-"):
        raise ScenarioError("name a sweep first: a file, or the name of one that comes with Slipstream")
    if (Path(words[0]) / "sweep.yaml").is_file():
        return _go_on(Path(words[0]), words[1:])
    rest, asks_help = split_help(words[1:])
    return _begin(words[0], *_parser().parse_known_args(rest), asks_help)


def _begin(name: str, known: argparse.Namespace, fields: Sequence[str], asks_help: bool) -> int:
    from slipstream.config.load import override
    from slipstream.config.overrides import cli_overrides
    from slipstream.config.sweep import check_budget, check_parameters, load_sweep
    from slipstream.scale import clients

    given = {key: getattr(known, key) for key in ("repeat", "seed_step", "max_parallel")}
    given["seed_base"] = first_seed(known)
    read = load_sweep(name, {key: value for key, value in given.items() if value is not None})
    if shorthands := dict(collect_changes(known)):
        read = read._replace(base=override(read.base, shorthands))
    if fields:
        read = read._replace(base=cli_overrides(read.base, fields, prog=f"slipstream sweep {name}"))
    if asks_help:
        from slipstream.cli.run import show_fields

        _parser().print_help()
        show_fields(read.base, "sweep")
        return 0
    check_budget(read)
    check_parameters(read)
    clients.check(read.sweep, read.base)
    now = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    root = (known.root or HOME / f"{read.sweep.name}_{now}").absolute()
    if known.dry_run:
        return _describe(read.sweep, read.base)
    from slipstream.scale.sweep import begin

    with cluster(known, read.sweep.max_parallel or 0) as found:  # before anything is written: there may be none
        return _run(begin(root, read.sweep, read.base), found)


def _go_on(root: Path, words: Sequence[str]) -> int:
    from slipstream.scale.sweep import Work, reopen

    parser = make_parser("sweep FOLDER")
    parser.add_argument("--max-parallel", type=int, metavar="N", help="how many run at a time from now on")
    add_cluster_flags(parser)
    known, other = parser.parse_known_args(words)
    if other:
        raise ScenarioError(
            f"{other[0]}: a sweep continues with the settings it started with, except --max-parallel and --on"
        )
    work = reopen(root.absolute())
    if known.max_parallel is not None:
        work = Work(work.root, work.sweep.model_copy(update={"max_parallel": known.max_parallel}), work.base)
    with cluster(known, work.sweep.max_parallel or 0) as found:
        return _run(work, found)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "sweep",
        "Train a scenario with many values and find out which are best. A sweep is a YAML file (docs/sweeps.md), or "
        "the name of one that comes with Slipstream: convoy_lock_td3_sweep.",
        usage=USAGE,
    )
    defaults = dict.fromkeys(("repeat", "seed_base", "seed_step"), "the file's")
    several = {**defaults, "max_parallel": "the file's, or one for each CPU"}
    add_several_flags(parser, "runs of each trial, each with its own seed", f"{HOME}/SWEEP_TIME", **several)
    add_collect_flags(parser)
    add_cluster_flags(parser)
    return parser


def _describe(sweep: Sweep, base: Scenario) -> int:
    """What would be done: how many runs, and the first trials as far as they are known."""
    from slipstream.scale.results import text_of
    from slipstream.scale.suggest import first_values

    method, first = sweep.method, first_values(sweep)
    many = method.trials if method.kind == "tpe" else len(first)
    print(
        f"{sweep.name}: {method.kind}, {many} trials of {_each(sweep, base)}, at most {base.timesteps:,} steps each, "
        f"of {base.name}"
    )
    for number, values in enumerate(first[:MOST_ROWS]):
        print(f"  {number}: " + ", ".join(f"{path} {text_of(value)}" for path, value in values.items()))
    return 0


def _each(sweep: Sweep, base: Scenario) -> str:
    """What a trial is made of."""
    kind = "federation" if base.federated.has_others else "run"
    text = f"{sweep.repeat} {kind}s" if sweep.repeat > 1 else f"one {kind}"
    if not base.federated.has_others:
        return text
    many = "several" if "federated.clients" in sweep.parameters else base.federated.clients
    return f"{text} of {many} clients"


# --- at work ---


def _run(work: Work, cluster: RayCluster | None) -> int:
    """Run until all trials are done, on a cluster if there is one; returns the exit code."""
    from rich.console import Console
    from rich.live import Live

    from slipstream.runtime import platform
    from slipstream.runtime.fork_server import Forks
    from slipstream.scale.pool import ProcessPool
    from slipstream.scale.results import table
    from slipstream.scale.sweep import LOGS, run

    cores = platform.cores() if cluster is None else cluster.cpus
    parallel = work.sweep.max_parallel or cores
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(
        f"{work.sweep.name}: {work.sweep.method.kind}, {parallel} runs at a time, in {work.root}", highlight=False
    )
    if work.base.federated.enabled and not work.base.federated.has_others:
        print(
            "federated: every run is the only client of its federation, so there are no rounds; set federated.clients"
        )
    threads = max(1, cores // parallel) if cluster is None else 1  # an actor has one CPU
    live = Live(console=console, refresh_per_second=2, transient=True)  # what stays is printed at the end

    def show(now: State, names: frozenset[str]) -> None:
        live.update(_table(work, table(work, now, names), console.width))

    try:
        with nullcontext(cluster) if cluster is not None else closing(Forks()) as where:
            pool = ProcessPool(work.root / LOGS, parallel, where)
            if console.is_terminal:
                with live:
                    state = run(work, pool, threads, show)
            else:
                said: set[int] = set()
                state = run(work, pool, threads, lambda now, names: _say_new(work, now, said))
    except KeyboardInterrupt:
        console.print(live.get_renderable())
        print(f"stopped; every run has saved its state. Continue with: slipstream sweep {work.root}")
        raise
    return _finish(work, state, console)


def _say_new(work: Work, state: State, said: set[int]) -> None:
    """Without a terminal: print a line for every run that has ended."""
    from slipstream.cli.tables import counted

    for result in state.results[len(said) :] if len(state.results) > len(said) else ():
        said.add(len(said))
        what = f"failed: {result.problem}" if result.score is None else f"{work.sweep.metric.name} {result.score:.4g}"
        if result.rounds is not None:
            what += f", {counted(result.rounds, 'round')} closed"
        seed = work.sweep.seeds[result.repeat]
        print(f"trial {result.trial}, seed {seed}, {result.steps:,} steps: {what}", flush=True)


def _finish(work: Work, state: State, console: Console) -> int:
    """The table, its files, the picture and the best scenario."""
    from slipstream.scale.results import table, write_best, write_table

    rows, root = table(work, state), work.root
    console.print(_table(work, rows, console.width))
    write_table(work, rows)
    failed = [row for row in rows if row.state == "failed"]
    for row in failed[:5]:
        print(f"trial {row.trial} failed: {row.problem}", file=sys.stderr)
    if len(failed) == len(rows):
        print(f"all {len(rows)} trials failed; their logs are in {root / 'logs'}", file=sys.stderr)
        return 1
    best = write_best(work, rows)
    print(f"table:   {root / 'table.csv'} (and .json)\npicture: {root / 'sweep.png'}\nbest:    {root / 'best.yaml'}")
    print("the best of many trials looks better than it is; train it with a new seed to judge it:")
    print(f"  {_fresh(work, best)}")
    return _say_rounds(rows)


def _fresh(work: Work, best: Scenario) -> str:
    """The command that trains the best scenario with seeds that the sweep did not have."""
    sweep, file, many = work.sweep, work.root / "best.yaml", best.federated.clients
    if not best.federated.has_others:
        return f"slipstream train {file} --seed {sweep.seeds[-1] + sweep.seed_step}"
    seed = sweep.seeds[0] + sweep.repeat * many * sweep.seed_step
    return f"slipstream federate {file} --repeat {many} --seed-base {seed} --seed-step {sweep.seed_step}"


def _say_rounds(rows: Sequence[TrialRow]) -> int:
    """Where no round has closed; the exit code, which is 1 where none has in any trial that was to federate."""
    federated = [row for row in rows if row.rounds]
    alone = [row for row in federated if 0 in row.rounds]
    for why in dict.fromkeys(row.why for row in alone):
        which = ", ".join(str(row.trial) for row in alone if row.why == why)
        print(f"no round was closed in a run of trial {which}, whose clients learned alone: {why}", file=sys.stderr)
    return 1 if federated and not any(sum(row.rounds) for row in federated) else 0


def _table(work: Work, rows: Sequence[TrialRow], width: int) -> Group:
    """The best trials: a column for each value, or, with too little room, all of them in one that wraps between two."""
    from rich.console import Group
    from rich.text import Text

    from slipstream.cli.tables import fitting, interval, plain

    done = sum(row.state in ("finished", "stopped", "failed") for row in rows)
    title = f"{work.sweep.name}: {done} of {len(rows)} trials are over"
    names = list(work.sweep.parameters)
    short = _short(names)
    wide, narrow = [], []
    has_rounds = any(row.rounds for row in rows)
    more = ["rounds"] if has_rounds else []
    for row in rows[:MOST_ROWS]:
        score = " ".join(interval(row.score)) if math.isfinite(row.score.estimate) else "–"
        values = [_brief(row.values[name]) for name in names]
        about = [row.state, f"{row.steps:,}", str(row.runs), *([_span(row.rounds)] if has_rounds else [])]
        wide.append([str(row.trial), *values, *about, score])
        pairs = "  ".join(f"{name}={value}" for name, value in zip(short, values, strict=True))
        narrow.append([str(row.trial), score, row.state, f"{row.steps:,}", *about[3:], pairs])
    metric = work.sweep.metric.name
    heads = ["state", "steps", "runs", *more, metric]
    forms = [plain(["trial", *named, *heads], wide, left=0) for named in (names, short)]
    forms.append(plain(["trial", metric, "state", "steps", *more, "values"], narrow, left=0, text=1))
    others = [Text(f"and {len(rows) - MOST_ROWS} more")] if len(rows) > MOST_ROWS else []
    return Group(Text(title), fitting(forms, width), *others)


def _span(rounds: Sequence[int]) -> str:
    """Rounds that have closed: of one run, or the fewest and the most of several."""
    return "–".join(str(one) for one in sorted({min(rounds), max(rounds)})) if rounds else ""


def _short(names: Sequence[str]) -> list[str]:
    """The last part of each dotted name, where that says which is meant."""
    last = [name.rpartition(".")[2] for name in names]
    return [short if last.count(short) == 1 else name for short, name in zip(last, names, strict=True)]


def _brief(value: Any) -> str:
    """A value on the screen, with four significant digits; files have all of them."""
    from slipstream.scale.results import text_of

    return f"{value:.4g}" if isinstance(value, float) else text_of(value).replace(", ", ",")
