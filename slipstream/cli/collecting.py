"""Shorthands of fields of `collect`: a flag, or else an environment variable (COLLECT_WORKERS), or else the file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from slipstream.errors import ScenarioError

SHORTHANDS = {
    "workers": "processes that collect (0: the learner's own); threads that step worlds are --num-workers of train",
    "prefetch": "with --collect.overlap free: rollouts of each worker that may wait for the learner",
    "seed_stride": "worlds of other libraries: distance between the seeds of neighbours",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """--collect-workers, --collect-prefetch and --collect-seed-stride."""
    for key, text in SHORTHANDS.items():
        flag = f"--collect-{key.replace('_', '-')}"
        parser.add_argument(flag, type=int, metavar="N", help=f"{text}; or COLLECT_{key.upper()}")


def changes(known: argparse.Namespace) -> Iterator[tuple[str, int]]:
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
                    f"{variable}={text}: is not a whole number; unset it, or try {variable}=2"
                ) from None
