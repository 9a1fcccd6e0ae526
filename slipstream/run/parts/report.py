"""Reports of every update: a row of metrics, events, and a line on the screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.algos.protocol import Stats
from slipstream.collect.serial import Episode
from slipstream.collect.slab import Slab
from slipstream.collect.teams import judged_agents
from slipstream.errors import SlipstreamError
from slipstream.run.parts import Part, Update
from slipstream.run.parts.evaluation import log_evaluation
from slipstream.worlds.world import tools_of


class Report(Part):
    """Writes the row of an update. Checkpoints of its step come later: a resumed run must not miss the row."""

    def after_update(self, update: Update) -> None:
        """Write and show it."""
        run, slab, stats = self.run, update.slab, update.stats
        row = {
            **run.first_columns(),
            **episode_summary(slab.episodes, run.worlds.spec.stats, judged_agents(run.cast.teams)),
            **{key: value for name, s in stats.items() for key, value in named(name, s, len(stats)).items()},
            **self._rates(slab),
            **{f"collector/{name}": value for name, value in slab.health.items()},
        }
        run.writer.report(row)
        if run.evaluated is not None:
            log_evaluation(run)
        for name, feed in run.feeds.items():
            for event in feed.events():
                run.writer.event("replay", run.counters.steps, policy=name, **event)
        self._show(row.get("env/return_mean"), run.evaluation.get("eval/return_mean"))

    def _show(self, trained: float | None, evaluated: float | None) -> None:
        shown = {"return": trained, "eval": evaluated}
        text = "  ".join(f"{name} {value:.2f}" for name, value in shown.items() if value is not None)
        asked, found = self.run.scenario.stop, self.run.stop_state
        if asked.zero_conflict_streak is not None:
            text += f"  clean streak {found.streak}/{asked.zero_conflict_streak}"
        if asked.clean_evaluations is not None:
            text += f"  clean evaluations {found.evaluations}/{asked.clean_evaluations}"
        self.run.display.advance(self.run.counters.steps, text)

    def _rates(self, slab: Slab) -> dict[str, float]:
        """Steps per second, and the share of time by phase."""
        scenario, spec, seconds = self.run.scenario, self.run.worlds.spec, self.run.take_seconds()
        waited = seconds.pop("collect", 0.0)  # its parts are act, world and record
        if scenario.collect.overlap != "none" or scenario.collect.workers:  # those were spent elsewhere
            seconds = {k: v for k, v in seconds.items() if k not in ("act", "world", "record")} | {"wait": waited}
        total = max(sum(seconds.values()), 1e-9)
        rates = {
            "perf/steps_per_s": scenario.rollout_steps / total,
            "perf/agent_steps_per_s": scenario.rollout_steps * spec.num_agents / total,
        }
        if spec.has_durations:
            decided = sum(int(rollout.decided[1:].sum()) for rollout in slab.rollouts.values())
            rates |= {"perf/sps_frames_total": slab.ticks / total, "perf/dps_decisions_total": decided / total}
        return {**rates, **{f"perf/time_{phase}_frac": s / total for phase, s in sorted(seconds.items())}}


class EpisodeLog(Part):
    """An event for every training episode that ends."""

    def after_update(self, update: Update) -> None:
        """Write them."""
        run, flags = self.run, tools_of(self.run.scenario.world.kind).proportions
        for episode in update.slab.episodes:
            run.writer.event("episode_end", run.counters.steps, **episode_end(episode, run.worlds.spec.stats, flags))


class WorldRecords(Part):
    """Lets the world keep its records; a failure is logged once, and the run goes on."""

    _is_lost = False

    def after_update(self, update: Update) -> None:
        """Keep records of this update's episodes."""
        run, rows = self.run, [episode.stats for episode in update.slab.episodes]
        own = tools_of(run.scenario.world.kind).records
        assert own is not None  # or there is no such part
        try:
            own.keep(run.played, run.folder.path, run.worlds.spec.stats, rows, run.folder.path.name)
        except SlipstreamError as error:
            if not self._is_lost:
                run.tell(f"records are not kept from here on: {error}")
            self._is_lost = True


def episode_summary(episodes: Sequence[Episode], stats: Sequence[str], agents: Sequence[int]) -> dict[str, float]:
    """Means over the training episodes that ended since the last report; empty when none did."""
    if not episodes:
        return {}
    returns = np.array([sum(e.returns[agent] for agent in agents) for e in episodes])
    row = {
        "env/return_mean": float(returns.mean()),
        "env/return_median": float(np.median(returns)),
        "env/return_min": float(returns.min()),
        "env/return_max": float(returns.max()),
        "env/length_mean": float(np.mean([e.length for e in episodes])),
    }
    for i, name in enumerate(stats):
        known = [e.stats[i] for e in episodes if np.isfinite(e.stats[i])]  # a lap time, where there was a lap
        row[f"env/{name}_mean"] = float(np.mean(known)) if known else math.nan
    return row


def episode_end(episode: Episode, stats: Sequence[str], flags: Sequence[str]) -> dict[str, Any]:
    """How an episode ended; the reason is the first of the world's 0/1 figures that happened, None where none did."""
    happened = [name for name, value in zip(stats, episode.stats, strict=True) if name in flags and value > 0]
    return {
        "world": episode.world,
        "episode": episode.index,
        "return": sum(episode.returns),
        "frames": episode.length,
        "decisions": sum(episode.decisions),
        "terminal_reason": happened[0] if happened else None,
    }


def named(policy: str, stats: Stats, policies: int) -> dict[str, float]:
    """Keys of a learner's statistics: train/…, or train/<policy>/… if several learn; groups such as replay/ stay."""
    named = {}
    for key, value in stats.items():
        group, rest = key.split("/", 1) if "/" in key else ("train", key)
        named[f"{group}/{rest}" if policies == 1 else f"{group}/{policy}/{rest}"] = value
    return named
