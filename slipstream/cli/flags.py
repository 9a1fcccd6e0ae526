"""Flags that several verbs share: parsers, seeds of several runs, `--collect-…`, and `--on` for a Ray cluster."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.errors import ScenarioError

if TYPE_CHECKING:
    from slipstream.scale.ray_place import RayCluster

HELP = ("-h", "--help")


def make_parser(verb: str, description: str | None = None, **more: Any) -> argparse.ArgumentParser:
    """The parser of `slipstream VERB`; flags are not abbreviated, as fields of scenarios may follow them."""
    return argparse.ArgumentParser(f"slipstream {verb}", description=description, allow_abbrev=False, **more)


def split_help(words: Sequence[str]) -> tuple[list[str], bool]:
    """The words without --help, and whether it was among them."""
    return [word for word in words if word not in HELP], any(word in HELP for word in words)


def whole_number(text: str) -> int:
    """A whole number that may be written 1e6 or 100_000."""
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        value = 0.0
    if not 1 <= value < 2**63 or value != int(value):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of steps; try 100_000 or 1e5")
    return int(value)


# --- several runs ---


def add_several_flags(parser: argparse.ArgumentParser, runs: str, root: str, **defaults: str) -> None:
    """How many runs, how many at a time, their seeds and their folder; `defaults` are said in the help."""
    add = parser.add_argument
    add("--repeat", type=int, metavar="N", help=f"number of {runs} (default: {defaults['repeat']})")
    add("--max-parallel", type=int, metavar="N", help=f"how many run at a time (default: {defaults['max_parallel']})")
    add("--auto-seed", action="store_true", help="draw the first seed at random, unless --seed-base gives it")
    add("--seed-base", type=int, metavar="SEED", help=f"first seed (default: {defaults['seed_base']})")
    add("--seed-step", type=int, metavar="N", help=f"distance between seeds (default: {defaults['seed_step']})")
    add("--root", type=Path, help=f"folder for everything (default: {root})")
    add("--dry-run", action="store_true", help="print what would be started, and start nothing")


def first_seed(args: argparse.Namespace) -> int | None:
    """The first seed that the flags give or want drawn; None: neither."""
    return secrets.randbelow(2**31) if args.auto_seed and args.seed_base is None else args.seed_base


# --- collecting: a flag, or else an environment variable (COLLECT_WORKERS), or else the file ---

SHORTHANDS = {
    "workers": "worker processes that collect; 0: the learner's process does",
    "prefetch": "with --collect.overlap free: finished rollouts per worker that may wait for the learner",
    "seed_stride": "worlds of other libraries: distance between the seeds of neighbouring worlds",
}


def add_collect_flags(parser: argparse.ArgumentParser) -> None:
    """--collect-workers, --collect-prefetch and --collect-seed-stride."""
    for key, text in SHORTHANDS.items():
        flag = f"--collect-{key.replace('_', '-')}"
        parser.add_argument(flag, type=int, metavar="N", help=f"{text}; or COLLECT_{key.upper()}")


def collect_changes(known: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """What flags and environment change in a scenario, by dotted path."""
    for key in SHORTHANDS:
        flag, variable = getattr(known, f"collect_{key}"), f"COLLECT_{key.upper()}"
        if flag is not None:
            yield f"collect.{key}", flag
        elif text := os.environ.get(variable):
            try:
                yield f"collect.{key}", int(text)
            except ValueError:
                raise ScenarioError(
                    f"{variable}={text}: must be a whole number; unset it, or try {variable}=2"
                ) from None


# --- where: this machine or a Ray cluster ---


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of every verb that can use a cluster."""
    parser.add_argument("--on", choices=("ray",), help="run on a Ray cluster, as actors (extra ray)")
    parser.add_argument(
        "--ray.address",
        dest="ray_address",
        metavar="ADDRESS",
        help="with --on ray: HOST:PORT of the cluster's head, or auto for the cluster of this machine; default: start "
        "one here, on loopback, and end it with the run",
    )


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Those flags, and the one for evaluators of a run."""
    add_cluster_flags(parser)
    parser.add_argument(
        "--ray.evaluators",
        dest="ray_evaluators",
        type=int,
        default=0,
        metavar="N",
        help="with --on ray: actors that play the evaluation episodes, one CPU each; 0: the run itself does",
    )


@contextmanager
def cluster(args: argparse.Namespace, workers: int) -> Iterator[RayCluster | None]:
    """The cluster that the flags ask for; None: this machine. One that is started here has CPUs for all actors."""
    evaluators = getattr(args, "ray_evaluators", 0)
    if evaluators < 0 or (evaluators and args.on is None):
        why = "has no effect without --on ray" if evaluators > 0 else "must be at least 0"
        raise ScenarioError(f"--ray.evaluators {evaluators}: {why}")
    if args.on is None:
        if args.ray_address is not None:
            raise ScenarioError(f"--ray.address {args.ray_address}: has no effect without --on ray")
        yield None
        return
    from slipstream.scale.cluster import joined

    with joined(args.ray_address, workers, evaluators, _say) as found:
        yield found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
