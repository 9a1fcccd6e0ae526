"""Where a run is to go on: which run and which checkpoint a path names, and what steps aside for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from slipstream.data import checkpoint
from slipstream.data.checkpoint import Checkpoint
from slipstream.errors import CheckpointError
from slipstream.run import folder as run_folder
from slipstream.run.folder import RunFolder
from slipstream.run.metrics import cut_back

ROWS = (run_folder.METRICS_FILE, run_folder.PROGRESS_FILE, run_folder.EVENTS_FILE)


def named(path: Path) -> tuple[Path, Path | None]:
    """The run that a path names, and its checkpoint where it names one; of a model the run that it came from."""
    if path.name == run_folder.CHECKPOINTS_FOLDER and (path.parent / run_folder.SCENARIO_FILE).is_file():
        return path.parent, None
    if not (path / checkpoint.META_FILE).is_file():
        return path, None
    meta, run = checkpoint.read_meta(path), path.absolute().parent.parent
    if meta.get("kind") == "model":
        home = Path(str(meta.get("run", "")))
        if (home / run_folder.SCENARIO_FILE).is_file():
            return home, None
        raise CheckpointError(
            f"{path}: this is a model, which holds what acts and not what learning needs (optimiser, counters), and "
            f"its run is not where it was ({home}); give the folder of that run"
        )
    if not (run / run_folder.SCENARIO_FILE).is_file():
        raise CheckpointError(
            f"{path}: this checkpoint lies in no run folder, and its run cannot go on without the files there; give "
            "runs/…/checkpoints/NAME"
        )
    return path.parent.parent, path


def find(run: RunFolder, wanted: Path | None, force: bool, note: Callable[[str], None]) -> Checkpoint | None:
    """The checkpoint to go on from: the one that is wanted, or the newest good one; None where none was ever saved."""
    checkpoint.clean_stray(run.checkpoints)

    def check(found: Checkpoint) -> None:
        if not found.meta.get("segments"):
            return
        from slipstream.replay.segments import check_segments

        check_segments(run.path / "replay", found.meta)

    if wanted is not None:
        saved = checkpoint.load(wanted)
        check(saved)
        _go_back(run, wanted, steps_of(saved), force, note)
        return saved
    if not checkpoint.list_checkpoints(run.checkpoints):
        note("this run was ended before it had saved a checkpoint, so it begins again from its scenario.yaml")
        cut_back(run.path, 0)
        run_folder.drop_tracks_after(run, 0)
        return None
    latest = checkpoint.load_latest(run.checkpoints, check)
    for skipped in latest.skipped:
        note(f"{skipped.path.name} is not usable and was passed over: {skipped.reason}")
    checkpoint.set_aside(latest.skipped)
    return latest.checkpoint


def steps_of(saved: Checkpoint) -> int:
    """How far a checkpoint is; 0 where it does not say, which is found out later."""
    counters = saved.meta.get("counters")
    return int(counters.get("steps", 0)) if isinstance(counters, dict) else 0


def _go_back(run: RunFolder, wanted: Path, steps: int, force: bool, note: Callable[[str], None]) -> None:
    """Take out of the run what came after a checkpoint, into a folder beside; only where that was asked for."""
    later = [path for path in checkpoint.list_checkpoints(run.checkpoints) if int(path.name.split("_")[-1]) > steps]
    if not later:
        return
    newest = later[0].name
    if not force:
        raise CheckpointError(
            f"{wanted}: its run has gone on since, to {newest}; with --force it goes on from step {steps:,}, and later "
            f"checkpoints and metrics are put aside in its folder; slipstream resume {run.path} goes on from {newest}"
        )
    aside = run.path / f"until_{newest}_{datetime.now():%Y%m%d-%H%M%S}"
    aside.mkdir()
    for name in ROWS:
        if (run.path / name).exists():
            shutil.copy2(run.path / name, aside / name)
    shutil.copytree(run.path / run_folder.FRAMES_FOLDER, aside / run_folder.FRAMES_FOLDER)
    (aside / run_folder.CHECKPOINTS_FOLDER).mkdir()
    for path in later:
        os.rename(path, aside / run_folder.CHECKPOINTS_FOLDER / path.name)
    note(f"going back to step {steps:,}: what came after it is in {aside}")
