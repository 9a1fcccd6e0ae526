"""The end of a run: the model, what a person is told, and how the session ended in metadata.json."""

from __future__ import annotations

from datetime import datetime

from slipstream.run import folder as run_folder
from slipstream.run.model_folder import export
from slipstream.run.part import Part
from slipstream.run.progress import clock


class ModelExport(Part):
    """Exports the final model, where the run is done."""

    def close(self) -> None:
        """Write it; a failure is told, and takes nothing else with it."""
        run = self.run
        if run.stop is None or not run.is_finished:
            return
        with run.attempting("the model"), run.writer.surviving_full_disk("export"):
            run.model = export(run, run.stop.sentence)
        run.writer.event("finished", run.counters.steps, reason=run.stop.sentence, **run.evaluation)


class SessionRecord(Part):
    """Tells how a session ended."""

    def close(self) -> None:
        """Tell people, then programs."""
        run, stop = self.run, self.run.stop
        if stop is None:
            return
        text = f"stopped after {run.counters.steps:,} steps and {clock(run.counters.seconds)}: {stop.sentence}"
        if not run.is_finished:
            saved = "everything is saved" if run.saver.is_saved else "the last good checkpoint stays"
            text += f"\n{saved}; continue with: slipstream resume {run.folder.path}"
        run.tell(text)
        with run.writer.surviving_full_disk("metadata"):
            run_folder.end_session(
                run.folder,
                datetime.now().astimezone(),
                run.counters.seconds,
                stop.sentence,
                run.counters.steps,
                kind=stop.kind.value,
                interrupted=not run.is_finished,
            )
