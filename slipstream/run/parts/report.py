"""The report of every update: one row of metrics, events, one line on the screen."""

from __future__ import annotations

from slipstream.collect.slab import Slab
from slipstream.collect.teams import judged_agents
from slipstream.run.episode_metrics import episode_end, episode_summary, named
from slipstream.run.part import Part, Update
from slipstream.run.parts.evaluation import tell_evaluation
from slipstream.worlds.registry import proportions


class Report(Part):
    """Writes what an update has come to. A checkpoint of its step comes later: a resumed run must not miss the row."""

    def after_update(self, update: Update) -> None:
        """Write and show it."""
        run, slab, stats = self.run, update.slab, update.stats
        row = {
            **run.position(),
            **episode_summary(slab.episodes, run.worlds.spec.stats, judged_agents(run.cast.teams)),
            **{key: value for name, s in stats.items() for key, value in named(name, s, len(stats)).items()},
            **self._rates(slab),
            **{f"collector/{name}": value for name, value in slab.health.items()},
        }
        run.writer.report(row)
        if run.evaluated is not None:
            tell_evaluation(run)
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
        """Rates, and what the time was spent on."""
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
        run, flags = self.run, proportions(self.run.scenario.world.kind)
        for episode in update.slab.episodes:
            run.writer.event("episode_end", run.counters.steps, **episode_end(episode, run.worlds.spec.stats, flags))
