"""Steps of episodes as CSV files: of evaluations, and of what learners have learned from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.collect.episodes import Episodes
from slipstream.data.disk import replace_file
from slipstream.run.episode_metrics import plain_trajectory, training_trajectory
from slipstream.run.part import Part, Update
from slipstream.run.parts.evaluation import EpisodeWriter
from slipstream.worlds.registry import trajectory_csv

if TYPE_CHECKING:
    from slipstream.run.context import Run

FOLDER = "trajectories"


def trajectory_writer(run: Run, episodes: int) -> EpisodeWriter:
    """One CSV file for each episode of an evaluation: a row per agent and step."""

    def write(played: Episodes, number: int) -> None:
        spec, folder = run.worlds.spec, run.folder.path / FOLDER
        folder.mkdir(exist_ok=True)
        for index, episode in enumerate(played.recorded):
            text = trajectory_csv(run.scenario.world, spec, episode, index)
            text = plain_trajectory(spec, episode, index) if text is None else text
            file = f"traj_ep_{run.counters.updates:06d}_{index:04d}.csv"
            replace_file(folder / file, text.encode(), durable=False)

    return EpisodeWriter(lambda number: episodes, write)


class TrainingTrajectories(Part):
    """What the learners of the first worlds decided in every slab: a CSV file a policy."""

    def after_update(self, update: Update) -> None:
        """Write the slab."""
        run, folder = self.run, self.run.folder.path / FOLDER
        spec, worlds = run.worlds.spec, run.scenario.log.training_worlds
        folder.mkdir(exist_ok=True)
        with run.writer.surviving_full_disk("trajectories"):
            for name, rollout in update.slab.rollouts.items():
                agents = [spec.agents[agent] for agent in run.cast.records[name].agents]
                text = training_trajectory(spec, agents, rollout, worlds)
                file = f"train_{name}_{run.counters.updates:06d}.csv"
                replace_file(folder / file, text.encode(), durable=False)
