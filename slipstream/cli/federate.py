"""`slipstream federate`: starts, supervises and resumes the replicas of a federation."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.cli import log
from slipstream.cli.flags import (
    HELP,
    add_cluster_flags,
    add_several_flags,
    cluster,
    first_seed,
    make_parser,
    split_help,
)
from slipstream.config.records import check_name
from slipstream.errors import FederationError

if TYPE_CHECKING:
    from rich.console import Group

    from slipstream.config.scenario import Scenario
    from slipstream.run.federated.replicas import ReplicaPlan, ReplicaState
    from slipstream.runtime.place import Cluster

HOME = Path("federations")
REPEAT = 2
SMOKE = ("convoy_lock_td3", "--collect.num-worlds", "2", "--algo.learning-starts", "500", "--algo.batch-size", "64")
USAGE = """slipstream federate SCENARIO [options] [--field.of.the.scenario VALUE]
       slipstream federate FOLDER            continue one that was stopped
       slipstream federate serve SCENARIO …  coordinate replicas elsewhere (tcp)
       slipstream federate smoke [options]   try it here for a few episodes"""


def federate(argv: Sequence[str]) -> int:
    """Start and supervise replicas of a scenario, resume those of a folder, coordinate, or run a smoke test."""
    words = list(argv)
    if not words or words[0] in HELP:
        _parser().print_help()
        return 0
    if words[0] == "smoke":
        return _smoke(words[1:])
    if words[0] == "serve":
        return _serve(words[1:])
    from slipstream.run.federated.replicas import PLAN_FILE, read_plan

    if (Path(words[0]) / PLAN_FILE).is_file():
        parser = make_parser(f"federate {words[0]}")
        add_cluster_flags(parser)
        args, others = parser.parse_known_args(words[1:])
        if others:
            raise FederationError(
                f"{others[0]}: a federation continues with the settings it started with; leave it out"
            )
        what = read_plan(Path(words[0]))
        with cluster(args, what.max_parallel) as where:
            return _run(Path(words[0]), what, where)
    rest, asks_help = split_help(words[1:])
    known, fields = _parser().parse_known_args(rest)
    if asks_help:
        from slipstream.cli.run import scenario_of, show_fields

        scenario = scenario_of([words[0], *fields])
        _parser().print_help()
        show_fields(scenario, "federate")
        return 0
    for word in fields:
        if word.split("=")[0] in ("--out", "--models", "--runs"):
            raise FederationError(f"{word}: every replica gets a folder of its own under --root; give that instead")
    what, root = _plan([words[0], *fields], known)
    if known.dry_run:
        _print_commands(root, what)
        return 0
    if known.on is not None and what.coordinator:
        raise FederationError("--on ray: replicas on several nodes meet in files that all see; leave the transport out")
    return _begin(root, what, known)


def _plan(words: Sequence[str], known: argparse.Namespace) -> tuple[ReplicaPlan, Path]:
    from slipstream.run.federated.replicas import plan

    given = _variables()
    repeat = known.repeat if known.repeat is not None else int(given.get("FED_TOTAL_CLIENTS", REPEAT))
    if repeat < 2:
        raise FederationError(f"--repeat {repeat}: a federation has at least two replicas")
    scenario = _checked(words, given, repeat)  # what is wrong is refused here, once, not by every replica
    now = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    root = (known.root or Path(given.get("FED_ROOT", HOME / f"{scenario.name}_{now}"))).absolute()
    base, step = first_seed(known), 1 if known.seed_step is None else known.seed_step
    seeds = [(scenario.seed if base is None else base) + index * step for index in range(repeat)]
    parallel = repeat if known.max_parallel is None else known.max_parallel
    prefix = known.wandb_prefix or "client-"
    check_name(f"{prefix}0", "--wandb-prefix")
    return plan(
        words,
        root,
        repeat=repeat,
        max_parallel=parallel,
        seeds=seeds,
        prefix=prefix,
        transport=scenario.federated.transport,
        exports=_exports(known, root),
        given=given,
    ), root


def _variables() -> dict[str, str]:
    """FED_… variables that are set: two stand for --root and --repeat, and the others reach all replicas."""
    from slipstream.config.overrides import VARIABLES, from_environment

    given = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    values = from_environment(given)
    if "FED_CLIENT_ID" in given or values.get("federated.enabled") is False:
        name = "FED_CLIENT_ID" if "FED_CLIENT_ID" in given else "FED_ENABLED"
        raise FederationError(
            f"{name}={given[name]}: federate starts all clients and names them itself; unset it, or start this client "
            "alone with: slipstream train"
        )
    return given


def _checked(words: Sequence[str], given: Mapping[str, str], repeat: int) -> Scenario:
    """What the first replica would train; addresses stand in for those that replicas get."""
    from slipstream.cli.run import scenario_of
    from slipstream.config.aggregators import is_own_rule
    from slipstream.federate.rules.own import find

    places = {"FED_ADDRESS": "ipc://c.sock", "FED_PEERS": ",".join(f"{one}=ipc://{one}.sock" for one in range(repeat))}
    own = {"FED_ENABLED": "1", "FED_TOTAL_CLIENTS": str(repeat), "FED_CLIENT_ID": "0"}
    scenario = scenario_of(words, {**os.environ, **places, **given, **own})
    federated = scenario.federated
    for field, found, wanted, flag in (
        ("clients", federated.clients, repeat, f"--repeat {federated.clients} says how many learn together"),
        ("client", federated.client, "0", "the replicas are named 0, 1, … by themselves"),
        ("enabled", federated.enabled, True, "replicas that learn apart are started by slipstream sweep"),
    ):
        if found != wanted:
            raise FederationError(f"--federated.{field} {found}: {flag}; leave it out")
    if is_own_rule(federated.aggregator):
        find(federated.aggregator)
    if any(word.split("=")[0] == "--federated.root" for word in words):
        raise FederationError(f"--federated.root {federated.root}: replicas meet under --root; give that instead")
    for field, wanted, package in (
        ("secure", federated.secure, "cryptography"),
        ("dp_sgd", federated.dp_sgd is not None, "opacus"),
    ):
        if wanted and find_spec(package) is None:
            raise FederationError(f"federated.{field} needs {package}: pip install 'slipstream[privacy]'")
    return scenario


def _exports(known: argparse.Namespace, root: Path) -> list[str]:
    """Flags of every replica, whose folder's name begins with the prefix already; files go into the root."""
    told = {**vars(known), "wandb_prefix": None}
    if known.wandb:
        told["wandb_group"] = known.wandb_group or root.name
        told["wandb_dir"] = known.wandb_dir or str(root)
    if known.tensorboard:
        told["logdir"] = known.logdir or str(root / "tb")
    return [word for target in log.targets_of(argparse.Namespace(**told)) for word in target.flags]


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "federate",
        "Run several replicas of a scenario that exchange weights every federated.interval episodes.",
        usage=USAGE,
    )
    defaults = {"repeat": str(REPEAT), "max_parallel": "all; fewer take turns"}
    defaults |= {"seed_base": "the scenario's", "seed_step": "1"}
    add_several_flags(parser, "replicas that learn together", f"{HOME}/SCENARIO_TIME", **defaults)
    add_cluster_flags(parser)
    log.add_flags(parser)
    return parser


def _begin(root: Path, what: ReplicaPlan, known: argparse.Namespace) -> int:
    from slipstream.run.federated.replicas import write_plan

    with cluster(known, what.max_parallel) as where:  # before anything is written: there may be no such place
        write_plan(root, what)
        return _run(root, what, where)


def _run(root: Path, what: ReplicaPlan, where: Cluster | None) -> int:
    """Supervise until all have ended; returns the exit code."""
    from rich.console import Console
    from rich.live import Live

    from slipstream.run.federated.replicas import supervise

    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(f"{len(what.replicas)} replicas, {what.max_parallel} at a time, in {root}", highlight=False)
    try:
        if console.is_terminal:
            with Live(console=console, refresh_per_second=2) as live:
                watched = supervise(root, what, lambda now: live.update(_table(now, root)), where)
        else:
            shown: dict[str, str] = {}
            watched = supervise(root, what, lambda now: _say_changes(now, shown), where)
            console.print(_table(watched, root))
    except KeyboardInterrupt:
        print(f"stopped; every replica has saved its state. Continue with: slipstream federate {root}")
        raise
    failed = [one.replica.name for one in watched if one.state == "failed"]
    rounds = _print_rounds(root)
    if not rounds:
        print(f"no round was closed: {_why_none(root)}", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}; see {root / 'logs'}", file=sys.stderr)
    return 1 if failed or not rounds else 0


def _table(watched: Sequence[ReplicaState], root: Path) -> Group:
    from rich.console import Group
    from rich.text import Text

    from slipstream.cli.tables import counted, number, plain
    from slipstream.data.run_folder import newest_figures

    rows = []
    for one in watched:
        row = newest_figures(one.replica.folder(root))
        counts = [f"{row.get(key, 0):,}" for key in ("timesteps_total", "episodes_total")]
        speed = number(row.get("perf/steps_per_s"), 0)
        rows.append([one.replica.name, one.state, str(one.replica.seed), *counts, number(row.get("env/return_mean")),
                     speed, str(one.deaths)])  # fmt: skip
    closed = counted(sum(_closed(root).values()), "round")
    columns = ["replica", "state", "seed", "steps", "episodes", "return", "steps/s", "deaths"]
    return Group(Text(f"federation, {closed} closed"), plain(columns, rows, left=2))


def _say_changes(watched: Sequence[ReplicaState], shown: dict[str, str]) -> None:
    """Without a terminal: print a line whenever the state of a replica changes."""
    for one in watched:
        if shown.get(one.replica.name) != one.state:
            shown[one.replica.name] = one.state
            print(f"{one.replica.name}: {one.state}", flush=True)


def _closed(root: Path) -> dict[str, int]:
    """Number of closed rounds by policy, from the replicas' events."""
    found: dict[str, set[int]] = {}
    for row in _round_events(root):
        if row.get("state") == "closed":
            found.setdefault(row["policy"], set()).add(row["round"])
    return {policy: len(rounds) for policy, rounds in sorted(found.items())}


def _others(root: Path, policy: str) -> Iterator[str]:
    """Rounds of a policy that were decided and did not close, by what became of them, with the first reason."""
    told: dict[str, dict[int, str]] = {}
    for row in _round_events(root):
        if row["policy"] == policy and row.get("state") in ("failed", "not_held"):
            told.setdefault(row["state"], {})[row["round"]] = str(row.get("reason") or "")
    for state, reasons in sorted(told.items()):
        yield f", {len(reasons)} {state.replace('_', ' ')} ({reasons[min(reasons)]})"


def _round_events(root: Path) -> Iterator[dict[str, Any]]:
    """The events of rounds in all replicas' folders."""
    from slipstream.run.federated.replicas import RUNS
    from slipstream.run.metrics import read_rows

    for events in sorted((root / RUNS).glob("*/events.jsonl")):
        yield from (row for row in read_rows(events) if row.get("event") == "round")


def _why_none(root: Path) -> str:
    """The most common reason in the replicas' events, and how often it occurs."""
    from slipstream.cli.tables import counted

    reasons = Counter(str(row.get("reason")) for row in _round_events(root) if row.get("reason"))
    if not reasons:
        return "no replica reached the end of an interval; set a shorter federated.interval, or train longer"
    reason, count = reasons.most_common(1)[0]
    return f"{reason} ({counted(count, 'time')})"


def _print_rounds(root: Path) -> int:
    """Print the rounds and the folders; returns how many rounds closed."""
    from slipstream.run.federated.replicas import LOGS, ROUNDS, RUNS

    closed = _closed(root)
    for policy, count in closed.items():
        print(f"rounds of {policy}: {count} closed{''.join(_others(root, policy))}")
    for history in sorted((root / ROUNDS).glob("*/rounds.jsonl")):
        print(f"rounds: {history}")
    print(f"runs:   {root / RUNS}\nlogs:   {root / LOGS}")
    return sum(closed.values())


def _print_commands(root: Path, what: ReplicaPlan) -> None:
    for replica in what.replicas:
        print(replica.command(root))


def _serve(words: Sequence[str]) -> int:
    """Coordinate; the words after it are those of `slipstream train`, so that both sides agree."""
    if not words or words[0].startswith("-"):
        raise FederationError("serve: name the scenario that the clients train, and its --federated.address")
    from slipstream.cli.run import scenario_of
    from slipstream.run.federated.transports import serve
    from slipstream.run.setup import resolve

    scenario = scenario_of([*words, "--federated.enabled", "--federated.transport", "tcp"])
    serve(resolve(scenario), lambda text: print(text, file=sys.stderr, flush=True))
    return 0


def _smoke(argv: Sequence[str]) -> int:
    """Run two clients for a few episodes; prints how many rounds closed, and what was written where."""
    parser = make_parser("federate smoke", _smoke.__doc__)
    parser.add_argument("--episodes", type=int, default=1, help="training episodes of each client (default: 1)")
    parser.add_argument("--eval-episodes", type=int, default=0, help="episodes of an evaluation; 0: none")
    parser.add_argument("--max-parallel", type=int, default=2, help="clients that run at a time (default: 2)")
    parser.add_argument("--root", type=Path, help=f"folder for everything (default: {HOME}/smoke_TIME)")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and start nothing")
    args = parser.parse_args(argv)
    judged = ["--evaluate.evaluation-interval", "None"]
    if args.eval_episodes:
        judged = ["--evaluate.evaluation-interval", "10", "--evaluate.evaluation-duration", str(args.eval_episodes)]
    words = [*SMOKE, *judged, "--federated.interval", "1", "--stop.episodes", str(args.episodes)]
    given = ["--repeat", "2", "--max-parallel", str(args.max_parallel), "--seed-base", "1"]
    known = _parser().parse_args([*given, *(["--root", str(args.root)] if args.root else [])])
    what, root = _plan(words, known)
    if args.dry_run:
        _print_commands(root, what)
        return 0
    return _begin(root, what, known)
