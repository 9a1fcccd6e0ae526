"""`--on`: where workers, replicas and trials are, this machine or a Ray cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from slipstream.errors import ScenarioError

if TYPE_CHECKING:
    from slipstream.run.backends import Backends
    from slipstream.scale.cluster import Cluster


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of every verb that can use a cluster."""
    parser.add_argument("--on", choices=("ray",), help="run the work as actors of a Ray cluster (extra ray)")
    parser.add_argument(
        "--ray.address",
        dest="ray_address",
        metavar="ADDRESS",
        help="with --on ray: HOST:PORT of a cluster's head, or auto for the one this machine belongs to; without it "
        "one is started here, on loopback, and ended with the run",
    )


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Those flags, and what a run can have besides."""
    add_flags(parser)
    parser.add_argument(
        "--ray.evaluators",
        dest="ray_evaluators",
        type=int,
        default=0,
        metavar="N",
        help="with --on ray: so many actors play the evaluations, a CPU each; 0: the run itself does",
    )


@contextmanager
def cluster(args: argparse.Namespace, actors: int) -> Iterator[Cluster | None]:
    """The cluster that flags ask for, if any; one of our own has CPUs for so many actors."""
    if args.on is None:
        if args.ray_address is not None:
            raise ScenarioError(f"--ray.address {args.ray_address}: is of no use without --on ray")
        yield None
        return
    from slipstream.scale.cluster import joined

    with joined(args.ray_address, actors) as found:
        _say(found.sentence)
        yield found


@contextmanager
def place(args: argparse.Namespace, workers: int) -> Iterator[Backends | None]:
    """Where flags ask that a run with so many workers has its processes; None: on this machine."""
    evaluators = args.ray_evaluators
    if evaluators < 0 or (evaluators and args.on is None):
        why = "is of no use without --on ray" if evaluators > 0 else "a number of actors is 0 or more"
        raise ScenarioError(f"--ray.evaluators {evaluators}: {why}")
    with cluster(args, workers + evaluators) as found:
        if found is None:
            yield None
            return
        from slipstream.run.backends import Backends
        from slipstream.scale.actors import Actors
        from slipstream.scale.judge_actors import JudgesOnNodes
        from slipstream.scale.learner_actors import LearnerOnNode
        from slipstream.scale.replay_actor import ServiceOnNode

        yield Backends(
            partial(Actors, say=_say),
            lambda: ServiceOnNode(_say),
            LearnerOnNode,
            found.address,
            found.nodes,
            partial(JudgesOnNodes, evaluators) if evaluators else None,
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
