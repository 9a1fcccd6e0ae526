"""`--on`: where a run's workers are, this machine or a Ray cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slipstream.config.errors import ScenarioError

if TYPE_CHECKING:
    from slipstream.train.place import Place


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of every verb that can use a cluster."""
    parser.add_argument("--on", choices=("ray",), help="run workers as actors of a Ray cluster (extra ray)")
    parser.add_argument(
        "--ray.address",
        dest="ray_address",
        metavar="ADDRESS",
        help="with --on ray: HOST:PORT of a cluster's head, or auto for the one this machine belongs to; without it "
        "one is started here, on loopback, and ended with the run",
    )


@contextmanager
def place(args: argparse.Namespace, workers: int) -> Iterator[Place]:
    """The place that flags ask for; a cluster of our own has CPUs for so many workers."""
    if args.on is None:
        if args.ray_address is not None:
            raise ScenarioError(f"--ray.address {args.ray_address}: is of no use without --on ray")
        from slipstream.train.place import HERE

        yield HERE
        return
    from slipstream.scale.cluster import joined

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with joined(args.ray_address, workers) as cluster:
        from slipstream.scale.actors import Actors
        from slipstream.scale.learner_actors import LearnerOnNode
        from slipstream.scale.replay_actor import ServiceOnNode
        from slipstream.train.place import Place

        say(cluster.sentence)
        yield Place(Actors, lambda: ServiceOnNode(say), LearnerOnNode, cluster.address, cluster.nodes)
