"""What is written where a run ends by an error: in its events, its log and its record, for whoever looks later."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from slipstream.run import folder as run_folder
from slipstream.run.folder import RunFolder
from slipstream.run.metrics import MetricsWriter
from slipstream.run.supervision import last_row

TOLD = 2000  # characters of an error's message that are kept
LINES = 12  # of a traceback, its last ones


@contextmanager
def told(run: RunFolder, note: Callable[[str], None]) -> Iterator[None]:
    """Record an error that ends the present session of a run, and pass it on; what cannot be written is left out."""
    try:
        yield
    except Exception as error:
        with suppress(Exception):
            _record(run, error)
        with suppress(Exception):
            note(f"the run crashed, which its training_log.txt tells; continue with: slipstream resume {run.path}")
        raise


def describe(error: BaseException) -> dict[str, str]:
    """What kind of error it was, and what it said."""
    return {"kind": type(error).__name__, "message": str(error)[:TOLD]}


def last_lines(error: BaseException) -> str:
    """Where it happened."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return "\n".join(lines[-LINES:])


def _record(run: RunFolder, error: Exception) -> None:
    what, last = describe(error), last_row(run.path)
    steps, now = int(last.get("timesteps_total", 0)), datetime.now().astimezone()
    sentence = f"crashed: {what['kind']}: {what['message']}"
    with MetricsWriter(run.path, lambda text: None) as writer:
        writer.event("crashed", steps, **what)
        writer.log(f"{sentence}\n{last_lines(error)}")
    seconds = float(last.get("time_total_s", 0.0))
    run_folder.end_session(run, now, seconds, sentence, steps, crashed=what)
