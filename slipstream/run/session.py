"""A session: one process that works on a run, from a scenario (`train`) or from a checkpoint (`resume`)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.config.load import dump, load, override, to_json, to_plain
from slipstream.config.scenario import Scenario
from slipstream.config.stopping import RULE_FIELDS
from slipstream.data import checkpoint
from slipstream.data.checkpoint import Checkpoint
from slipstream.data.disk import replace_file
from slipstream.data.run_folder import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    EVENTS_FILE,
    FRAMES_FOLDER,
    METRICS_FILE,
    PROGRESS_FILE,
    SCENARIO_FILE,
    last_row,
)
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.run import folder as run_folder
from slipstream.run.context import Run, RunOptions, describe_error, last_lines
from slipstream.run.folder import RunFolder
from slipstream.run.learner_input import make_feed
from slipstream.run.loop import Result, TrainingLoop
from slipstream.run.metrics import MetricsWriter, columns_for, cut_back
from slipstream.run.parts import make_parts
from slipstream.run.parts.quarantine import make_quarantine
from slipstream.run.progress import Screen
from slipstream.run.saving import Saver
from slipstream.run.setup import Cast, complete, make_cast, make_training_worlds, resolve
from slipstream.run.sources import make_source
from slipstream.runtime.signals import Interrupts, SignalStop
from slipstream.spec import WorldSpec
from slipstream.worlds.vec_env import VecEnv

if TYPE_CHECKING:
    from slipstream.runtime.place import Cluster

ROWS = (METRICS_FILE, PROGRESS_FILE, EVENTS_FILE)


# Where a run sees that a signal came. Entering it starts to catch signals; a `Trainer` gives one whose entering does
# nothing, because it catches signals itself while it trains.
Listening = AbstractContextManager[Interrupts]


@contextmanager
def begin_run(
    scenario: Scenario, options: RunOptions, listening: Listening, root: Path = Path("runs"), out: Path | None = None
) -> Iterator[TrainingLoop]:
    """The loop of a new run, in a folder made under `root`, or in `out`, which is new or empty."""
    scenario = resolve(scenario)
    worlds = make_training_worlds(scenario, reward_parts=options.debugger is not None)
    scenario = complete(scenario, worlds.spec)
    cast = _make_cast(scenario, worlds.spec, is_new=True)
    begun_with = [*_noted(scenario), *_initialised(scenario, cast)]
    _observe_first(scenario, cast)
    now = datetime.now().astimezone()
    with (
        listening as interrupts,
        run_folder.create(
            root,
            scenario.name,
            scenario.algo.kind,
            now,
            scenario_yaml=dump(scenario),
            config=to_plain(scenario),
            metadata=run_folder.describe_run(seed=scenario.seed, command=sys.argv, now=now),
            out=out,
        ) as folder,
    ):
        screen = Screen(options.display, interrupts)
        with (
            _recording_crash(folder, screen.note),
            open_run(scenario, folder, worlds, cast, screen, interrupts, options) as run,
        ):
            for sentence in begun_with:
                run.announce("initialised", sentence)
            yield TrainingLoop(run, f"training {scenario.name} with {scenario.algo.kind} in {folder.path}")


@contextmanager
def reopen_run(
    path: Path, options: RunOptions, listening: Listening, timesteps: int | None = None, force: bool = False
) -> Iterator[TrainingLoop]:
    """The loop of a run that goes on from its newest good checkpoint; see `resume`."""
    named, wanted = named_run(path)
    with listening as interrupts, run_folder.open_existing(named) as folder:
        screen = Screen(options.display, interrupts)
        scenario = resolve(load(folder.path / SCENARIO_FILE, preset="default"))
        saved = _find_checkpoint(folder, wanted, force, screen.note)
        if timesteps is not None:
            scenario = _extended(scenario, saved, timesteps, screen.note)
            replace_file(folder.path / SCENARIO_FILE, dump(scenario).encode())
            replace_file(folder.path / CONFIG_FILE, to_json(scenario).encode())
        _refuse_missing_callbacks(folder.path, saved, len(scenario.callbacks) + len(options.callbacks))
        worlds = make_training_worlds(scenario, reward_parts=saved is not None and bool(saved.meta.get("reward_parts")))
        scenario = complete(scenario, worlds.spec)
        cast = _make_cast(scenario, worlds.spec, is_new=saved is None)
        if saved is None:
            _initialised(scenario, cast)
            _observe_first(scenario, cast)
        with open_run(scenario, folder, worlds, cast, screen, interrupts, options, saved) as run:
            done = run.counters.steps
            run_folder.begin_session(folder, sys.argv, datetime.now().astimezone(), done)
            if not worlds.exact_resume:
                screen.note(
                    f"{worlds.spec.name} cannot be saved in mid-episode: its worlds go on with their next episodes"
                )
            with _recording_crash(folder, screen.note):
                yield TrainingLoop(run, f"resuming {scenario.name} at step {done:,} in {folder.path}")


def train(scenario: Scenario, *, root: Path = Path("runs"), out: Path | None = None, **options: Any) -> Result:
    """Train a scenario from the start to its end, in a new folder under `root` or in `out`; `options` as RunOptions."""
    asked = RunOptions(**options)
    interrupts = Interrupts() if asked.debugger is None else asked.debugger.interrupts
    with begin_run(scenario, asked, interrupts, root, out) as loop:
        result = loop.run_to_end()
    return _unless_stopped(result, interrupts)


def resume(path: Path, *, timesteps: int | None = None, force: bool = False, **options: Any) -> Result:
    """Continue a run from its newest good checkpoint, to its budget or to `timesteps` steps; `options` as RunOptions.

    A run without one begins again. `path` may also be one of the run's checkpoints. If there are later ones, `force`
    moves them and later metrics to a folder beside; without `force` that is refused.
    """
    interrupts = Interrupts()
    with reopen_run(path, RunOptions(**options), interrupts, timesteps, force) as loop:
        result = loop.run_to_end()
    return _unless_stopped(result, interrupts)


@contextmanager
def open_run(
    scenario: Scenario,
    folder: RunFolder,
    worlds: VecEnv,
    cast: Cast,
    display: Screen,
    interrupts: Interrupts,
    options: RunOptions,
    saved: Checkpoint | None = None,
) -> Iterator[Run]:
    """Make everything a run needs, load the checkpoint if there is one, and close everything at the end."""
    with ExitStack() as made:  # what must be closed, also where not all of it can be made
        made.callback(worlds.close)
        cluster = options.cluster
        if scenario.learners > 1:
            cast = _in_step(scenario, cast, cluster, made)
        writer = made.enter_context(MetricsWriter(folder.path, display.note, columns_for(worlds.spec.stats)))
        run = Run(scenario, folder, worlds, cast, display, interrupts, options, writer, is_new=saved is None)
        made.callback(run.close_parts)  # where not all that follows can be made; closing again does nothing
        make_parts(run)
        on_tick = None if options.debugger is None else options.debugger.on_tick
        run.source = make_source(scenario, worlds, cast, run.announce, on_tick, cluster)
        if run.source is not None:
            made.callback(run.source.close)
        for name, learner in cast.learners.items():
            agents, quarantine = len(cast.records[name].agents), make_quarantine(run, name)
            run.feeds[name] = make_feed(scenario, name, learner, agents, cast.records[name].world, quarantine, cluster)
            made.callback(run.feeds[name].close)
        run.saver = Saver(run)
        if saved is not None:
            run.saver.load(saved)
        made.callback(run.close_parts)  # the usual end: before the source and the feeds, which parts use
        yield run


def _in_step(scenario: Scenario, cast: Cast, cluster: Cluster | None, made: ExitStack) -> Cast:
    """The cast with data-parallel learners: each leads copies of itself in other processes."""
    from slipstream.run.processes.data_parallel import replicate

    leader, learners = replicate(scenario, cast.learners, cluster)
    made.callback(leader.close)
    return replace(cast, learners=learners)


def _make_cast(scenario: Scenario, spec: WorldSpec, is_new: bool) -> Cast:
    """Build every policy; all clients of a federation begin with the same weights."""
    cast = make_cast(scenario, spec)
    if any(algo.replay_config and algo.replay_config.demonstrations for algo in scenario.learning.values()):
        from slipstream.run.demonstrations import refuse_bad_demonstrations

        refuse_bad_demonstrations(scenario, spec, cast.shaping)  # before a run folder is made
    if is_new and scenario.federated.has_others:
        from slipstream.run.federated.client import begin_alike

        begin_alike(scenario, cast, spec)
    return cast


def _initialised(scenario: Scenario, cast: Cast) -> list[str]:
    """Give learners the weights that the scenario says they begin with; returns what there is to tell of it."""
    if scenario.init_from is None:
        return []
    from slipstream.run.init_from import initialise

    return initialise(scenario.init_from, cast.learners)


def _noted(scenario: Scenario) -> list[str]:
    """Where hyper-parameters come from that nobody wrote into the scenario."""
    if scenario.preset is None or scenario.preset.startswith("published"):  # those were asked for
        return []
    return [f"settings that nothing else says are those of {scenario.preset}; --preset default ignores them"]


def _observe_first(scenario: Scenario, cast: Cast) -> None:
    if scenario.collect.seed_statistics and scenario.init_from is None:
        from slipstream.run.first_statistics import observe_at_random

        observe_at_random(scenario, cast)


def _unless_stopped(result: Result, interrupts: Interrupts) -> Result:
    """The result; a signal that came after the run had ended is passed on to the caller."""
    if interrupts.number is not None and not result.interrupted:
        raise SignalStop(interrupts.number)
    return result


def _extended(scenario: Scenario, saved: Checkpoint | None, timesteps: int, note: Callable[[str], None]) -> Scenario:
    """The scenario with a larger budget, and without the stop rules if one of them has ended the run."""
    done = 0 if saved is None else _steps_of(saved)
    if timesteps <= done:
        raise ScenarioError(f"--timesteps {timesteps}: this run has already done {done} steps; ask for more than that")
    changes: dict[str, Any] = {"timesteps": timesteps}
    if saved is not None and (rule := saved.meta.get("ended_by_rule")):
        changes |= {f"stop.{name}": None for name in RULE_FIELDS}
        note(f"the run had ended early ({rule}); its stopping rules are off from here on")
    return override(scenario, changes)


# --- where a run goes on ---


def named_run(path: Path) -> tuple[Path, Path | None]:
    """The run folder that a path belongs to, and the checkpoint if it names one; for a model, the run it came from."""
    if path.name == CHECKPOINTS_FOLDER and (path.parent / SCENARIO_FILE).is_file():
        return path.parent, None
    if not (path / checkpoint.META_FILE).is_file():
        return path, None
    meta, run = checkpoint.read_meta(path), path.absolute().parent.parent
    if meta.get("kind") == "model":
        home = Path(str(meta.get("run", "")))
        if (home / SCENARIO_FILE).is_file():
            return home, None
        raise CheckpointError(
            f"{path}: this is a model, which holds what acts and not what learning needs (optimiser, counters), and "
            f"its run is not where it was ({home}); give the folder of that run"
        )
    if not (run / SCENARIO_FILE).is_file():
        raise CheckpointError(
            f"{path}: this checkpoint lies in no run folder, and its run cannot go on without the files there; give "
            "runs/…/checkpoints/NAME"
        )
    return path.parent.parent, path


def _find_checkpoint(
    run: RunFolder, wanted: Path | None, force: bool, note: Callable[[str], None]
) -> Checkpoint | None:
    """The checkpoint to resume from: the one asked for, or the newest good one; None if none was ever saved."""
    checkpoint.clean_stray(run.checkpoints)

    def check(found: Checkpoint) -> None:
        if not found.meta.get("segments"):
            return
        from slipstream.replay.segments import check_segments

        check_segments(run.path / "replay", found.meta)

    if wanted is not None:
        saved = checkpoint.load(wanted)
        check(saved)
        _go_back(run, wanted, _steps_of(saved), force, note)
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


def _refuse_missing_callbacks(run: Path, saved: Checkpoint | None, given: int) -> None:
    """Refuse to go on without callbacks that the checkpoint keeps something of: the run would not be the same."""
    kept = {} if saved is None else saved.meta.get("callbacks") or {}
    states = kept.get("states", [])
    if len(states) > given and (any(states) or kept.get("changed")):
        raise CheckpointError(
            f"{run}: was trained with {len(states)} callbacks, whose memory its checkpoint keeps, and {given} are "
            "given; give those again that were given in Python (slipstream.resume(…, callbacks=[…]))"
        )


def _steps_of(saved: Checkpoint) -> int:
    """Steps of a checkpoint; 0 if it does not say: `Saver.load` will refuse it."""
    counters = saved.meta.get("counters")
    return int(counters.get("steps", 0)) if isinstance(counters, dict) else 0


def _go_back(run: RunFolder, wanted: Path, steps: int, force: bool, note: Callable[[str], None]) -> None:
    """Move what came after a checkpoint to a folder beside; refused without `force`."""
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
    shutil.copytree(run.path / FRAMES_FOLDER, aside / FRAMES_FOLDER)
    (aside / CHECKPOINTS_FOLDER).mkdir()
    for path in later:
        os.rename(path, aside / CHECKPOINTS_FOLDER / path.name)
    note(f"going back to step {steps:,}: what came after it is in {aside}")


# --- a session that ends by an error ---


@contextmanager
def _recording_crash(run: RunFolder, note: Callable[[str], None]) -> Iterator[None]:
    """Record an error that ends the session in the run's events, log and metadata, and raise it again."""
    try:
        yield
    except Exception as error:
        with suppress(Exception):  # what cannot be written is left out
            _record_crash(run, error)
        with suppress(Exception):
            note(f"the run crashed, which its training_log.txt tells; continue with: slipstream resume {run.path}")
        raise


def _record_crash(run: RunFolder, error: Exception) -> None:
    what, last = describe_error(error), last_row(run.path)
    steps, now = int(last.get("timesteps_total", 0)), datetime.now().astimezone()
    sentence = f"crashed: {what['kind']}: {what['message']}"
    with MetricsWriter(run.path, lambda text: None) as writer:
        writer.event("crashed", steps, **what)
        writer.log(f"{sentence}\n{last_lines(error)}")
    seconds = float(last.get("time_total_s", 0.0))
    run_folder.end_session(run, now, seconds, sentence, steps, crashed=what)
