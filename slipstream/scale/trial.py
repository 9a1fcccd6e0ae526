"""One run of a sweep, begun or gone on with; and its life in a process of its own.

python -m slipstream.scale.trial      with an order as JSON on standard input
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch.fx.experimental.symbolic_shapes  # noqa: F401  torch does so at the first gradient: here, once for all

from slipstream.config.load import load, override
from slipstream.config.records import from_json
from slipstream.data.run_folder import is_being_written, newest_checkpoint
from slipstream.errors import SlipstreamError
from slipstream.run import session
from slipstream.runtime.process import report
from slipstream.runtime.signals import SignalStop, catching, restore_signals
from slipstream.scale.pool import REFUSED, RunOrder


def work(order: RunOrder) -> None:
    """Do what an order says, in this process."""
    run, models = Path(order.run), Path(order.models)
    if newest_checkpoint(run):
        session.resume(run, models=models, pause_at=order.pause_at)
        return
    if not is_being_written(run):
        shutil.rmtree(run, ignore_errors=True)  # of one that was killed before it had saved anything
    scenario = load(Path(order.scenario), {"seed": order.seed, **order.changes})
    threads = {"learner_threads": scenario.learner_threads, "collect.world_threads": scenario.collect.world_threads}
    shared = {key: order.threads for key, value in threads.items() if value == "auto"}  # which change no result
    session.train(override(scenario, shared), out=run, models=models, pause_at=order.pause_at)


def main(payload: bytes, descriptors: Sequence[int]) -> None:
    """A run in a process that was forked for it."""
    restore_signals()
    run(from_json(payload, RunOrder))


def run(order: RunOrder) -> None:
    """A run in a process of its own, from its beginning or its checkpoint to its end."""
    sys.argv = ["slipstream", "train", order.scenario, "--seed", str(order.seed), "--out", order.run]  # for metadata
    try:
        with catching():
            work(order)
    except SlipstreamError as error:
        print(f"slipstream: {error}", file=sys.stderr, flush=True)
        report(str(error))
        os._exit(REFUSED)
    except SignalStop as stop:  # before it had begun, or when it had ended
        os._exit(128 + stop.number)


if __name__ == "__main__":
    run(from_json(sys.stdin.buffer.read(), RunOrder))
