"""Files of single episodes: frames for viewers, and steps as CSV of evaluations and of what learners learned from."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from slipstream.collect.episodes import Episodes
from slipstream.data.disk import replace_file
from slipstream.data.rollout import Rollout
from slipstream.data.run_folder import Ground, Track
from slipstream.run.folder import write_track
from slipstream.run.parts import Part, Update
from slipstream.run.parts.evaluation import EpisodeWriter
from slipstream.spec import WorldSpec
from slipstream.types import F64
from slipstream.worlds.vec_env import Backdrop, Recorded
from slipstream.worlds.world import tools_of

if TYPE_CHECKING:
    from slipstream.run.context import Run


MOST_VALUES = 1_000_000  # of an episode; ten bytes each stay below run_folder.MAX_RECORD_BYTES


def as_track(spec: WorldSpec, index: int, timesteps_total: int, frames: F64, backdrop: Backdrop | None) -> Track:
    """An episode's frames [T, A, F]; of one that is too long only every n-th, with ticks n times as long."""
    every = -(-frames.size // MOST_VALUES)
    return Track(
        index=index,
        timesteps_total=timesteps_total,
        fields=spec.frame_fields,
        agents=spec.agents,
        tick_seconds=spec.tick_seconds * every,
        states=np.round(frames[::every], 6).tolist(),
        backdrop=None if backdrop is None else as_ground(backdrop),
    )


def as_ground(backdrop: Backdrop) -> Ground:
    """The grid, run-length encoded."""
    cells = np.concatenate([[False], (backdrop.occupied != 0).ravel()])
    changes = np.flatnonzero(cells[1:] != cells[:-1])
    ends = np.concatenate([[0], changes, [backdrop.occupied.size]])
    rows, columns = backdrop.occupied.shape
    return Ground(rows, columns, backdrop.resolution_m, backdrop.origin, np.diff(ends).tolist())


def track_writer(run: Run) -> EpisodeWriter:
    """Keeps the first episode of every few evaluations for the viewers."""
    log = run.scenario.log
    every = log.frames_every or 1

    def write(episodes: Episodes, number: int) -> None:
        frames, backdrop = episodes.frames[0], episodes.backdrops[0]
        track = as_track(run.worlds.spec, number // every, run.counters.steps, frames, backdrop)
        write_track(run.folder.path, track, log.frames_keep)

    return EpisodeWriter(lambda number: int(number % every == 0), write)


FOLDER = "trajectories"
MAX_LOGGED_FEATURES = 1024  # of an observation block, in a CSV file: not pictures


def trajectory_writer(run: Run, episodes: int) -> EpisodeWriter:
    """One CSV file for each episode of an evaluation: a row per agent and step."""

    def write(played: Episodes, number: int) -> None:
        spec, folder, config = run.worlds.spec, run.folder.path / FOLDER, run.scenario.world
        own = tools_of(config.kind).trajectory_csv
        folder.mkdir(exist_ok=True)
        for index, episode in enumerate(played.recorded):
            text = plain_trajectory(spec, episode, index) if own is None else own(config, spec, episode, index)
            file = f"traj_ep_{run.counters.updates:06d}_{index:04d}.csv"
            replace_file(folder / file, text.encode(), durable=False)

    return EpisodeWriter(lambda number: episodes, write)


class TrainingTrajectories(Part):
    """The decisions of learners in the first worlds, as a CSV file per slab and policy."""

    def after_update(self, update: Update) -> None:
        """Write the slab."""
        run, folder = self.run, self.run.folder.path / FOLDER
        worlds = run.scenario.log.training_worlds
        folder.mkdir(exist_ok=True)
        with run.writer.surviving_full_disk("trajectories"):
            for name, rollout in update.slab.rollouts.items():
                record = run.cast.records[name]
                agents = [record.world.agents[agent] for agent in record.agents]
                text = training_trajectory(record.world, agents, rollout, worlds)
                file = f"train_{name}_{run.counters.updates:06d}.csv"
                replace_file(folder / file, text.encode(), durable=False)


def plain_trajectory(spec: WorldSpec, played: Recorded, number: int) -> str:
    """Frames as CSV, for worlds that have no log format of their own."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["episode_id", "step_idx", "sim_time_s", "agent_id", *spec.frame_fields])
    for step, frame in enumerate(played.frames):
        for agent, values in zip(spec.agents, frame.tolist(), strict=True):
            rows.writerow([number, step, step * spec.tick_seconds, agent, *values])
    return text.getvalue()


def training_trajectory(spec: WorldSpec, agents: Sequence[str], rollout: Rollout, worlds: int) -> str:
    """The decisions of a rollout's first worlds as CSV, as the learner sees them; rewards hold the shaping.

    Row 0 holds decisions of the rollout before whose outcome was still open. What a decision led to stands on the
    first row of its agent with `paid` 1.
    """
    blocks = [block for block in spec.obs if block.size <= MAX_LOGGED_FEATURES]
    discrete = rollout.action.ndim == 3
    axes = ["action"] if discrete else [f"action_{name}" for name in _names(spec.action.names, spec.action.size)]
    features = [f"{b.name}_{name}" for b in blocks for name in _names(() if b.named_planes else b.features, b.size)]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    outcome = ("paid", "reward", "duration", "terminated", "truncated")
    rows.writerow(["row", "world", "agent_id", "version", "decided", *axes, "logp", *outcome, *features])
    count = min(worlds, rollout.shape[1])
    for row, world, (column, agent) in itertools.product(range(rollout.shape[0]), range(count), enumerate(agents)):
        at = row, world, column
        if not (rollout.decided[at] or rollout.paid[at]):
            continue
        action = [rollout.action[at].item()] if discrete else rollout.action[at].tolist()
        seen = [value for block in blocks for value in rollout.obs[block.name][at].reshape(-1).tolist()]
        ends = [getattr(rollout, name)[at].item() for name in outcome]
        decision = (int(rollout.version[row, world]), int(rollout.decided[at]), *action, rollout.logp[at].item())
        rows.writerow([row, world, agent, *decision, *ends, *seen])
    return text.getvalue()


def _names(given: Sequence[str], size: int) -> Sequence[str]:
    return given if len(given) == size else [str(i) for i in range(size)]
