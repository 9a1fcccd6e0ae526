"""Rows of metrics as TensorBoard's event files."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from slipstream.errors import SlipstreamError
from slipstream.view.exporters import Tensorboard
from slipstream.view.run import About


def open_sink(target: Tensorboard, run: About, last_step: int) -> EventFiles:
    """A new event file in the run's folder; TensorBoard reads all that are there as one."""
    try:
        from tensorboard import version  # noqa: F401  # a folder that is called tensorboard has none
    except ImportError:
        raise SlipstreamError("tensorboard is not installed; pip install 'slipstream[tb]'") from None
    return EventFiles(str(target.files / run.path.name), run, last_step)


class EventFiles:
    """Satisfies slipstream.view.exporter.Sink."""

    def __init__(self, folder: str, run: About, last_step: int) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # without torch, whose import is slow

        self.last_step = last_step
        self._writer: Any = EventFileWriter(folder)
        # So that TensorBoard's "relative" axis is training time, also of a run that is exported long afterwards.
        self._began = datetime.fromisoformat(run.sessions[0]["started_at"]).timestamp() if run.sessions else 0.0

    def cut(self, step: int) -> None:
        """TensorBoard drops what earlier files say of later steps (torch calls this purge_step)."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))
        self.last_step = step

    def write(self, step: int, row: dict[str, int | float]) -> None:
        """One event with a scalar for every number."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=key, simple_value=value) for key, value in row.items()]
        time = self._began + row.get("time_total_s", 0.0)
        self._writer.add_event(Event(wall_time=time, step=step, summary=Summary(value=values)))
        self.last_step = step

    def flush(self) -> bool:
        """Whether it is on the disk: yes."""
        self._writer.flush()
        return True

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
