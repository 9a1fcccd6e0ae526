"""The curriculum of a run: which worlds play which phase, when the next phase begins, and its certificate.

In turn, a phase is played until it is mastered; if the scenario asks for a certificate, run/certify.py decides.
Adaptively, all phases are played at once, those with less success more often.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from slipstream.algos.protocol import Algorithm
from slipstream.collect.serial import Episode
from slipstream.collect.slab import under
from slipstream.config.parts import CurriculumConfig
from slipstream.config.records import from_value
from slipstream.data.arrays_file import content_hash
from slipstream.data.checkpoint import Checkpoint
from slipstream.errors import ScenarioError
from slipstream.run.certify import Candidate, Question, Stand, certify, make_stand
from slipstream.run.parts import Part, Update
from slipstream.run.parts.evaluation import Evaluation
from slipstream.run.policy_file import policy_arrays
from slipstream.worlds.vec_env import timed
from slipstream.worlds.world import tools_of

if TYPE_CHECKING:
    from slipstream.run.context import Run


LEAST_WEIGHT = 0.1  # of a phase that always succeeds, beside 1.1 for one that never does


class CurriculumState(msgspec.Struct, frozen=True):
    """State of a curriculum; saved in checkpoints."""

    phase: int = 0
    latest: tuple[bool, ...] = ()  # whether the latest episodes of this phase succeeded, the newest last
    judged: float | None = None  # share of successes in this phase's latest evaluation
    failed_at: int | None = None  # update after which this phase was last refused a certificate
    certified: tuple[int, ...] = ()  # phases, in order
    limits: tuple[int, ...] = ()  # by phase, as far as they began: ticks an episode may last; 0: as the phase has it
    # adaptive:
    rates: tuple[float, ...] = ()  # success of late, by phase
    playing: tuple[int, ...] = ()  # phase of each world's running episode
    assigned: tuple[int, ...] = ()  # phase of each world's next one
    # Of checkpoints before phases were restarted whole: read and not used.
    stale: tuple[int, ...] = ()


# --- in turn ---


def after_episodes(
    config: CurriculumConfig, state: CurriculumState, episodes: Sequence[Episode], success: int
) -> CurriculumState:
    """The state after episodes have ended; `success` is which of their figures says whether they succeeded."""
    latest = (*state.latest, *(episode.stats[success] > 0 for episode in episodes))
    return msgspec.structs.replace(state, latest=latest[-config.window :])


def mastered(config: CurriculumConfig, state: CurriculumState, update: int) -> str | None:
    """Why the phase looks mastered; None if it does not, or if a certificate has failed recently."""
    if len(state.latest) < config.window:
        return None
    share = sum(state.latest) / len(state.latest)
    if share < config.success_rate:
        return None
    if config.evaluation_success is not None and (state.judged is None or state.judged < config.evaluation_success):
        return None
    certificate = config.certificate
    if certificate is not None:
        if state.phase in state.certified:
            return None
        if state.failed_at is not None and update < state.failed_at + certificate.retry_updates:
            return None
    judged = "" if state.judged is None else f", {state.judged:.0%} of the latest evaluation"
    return f"{share:.0%} of the last {len(state.latest)} episodes succeeded{judged}"


def following(state: CurriculumState) -> CurriculumState:
    """The state at the beginning of the next phase."""
    return CurriculumState(phase=state.phase + 1, certified=state.certified, limits=state.limits)


# --- adaptive ---


def first_assignment(phases: int, num_worlds: int) -> CurriculumState:
    """The state at the start: worlds are spread evenly over the phases."""
    spread = tuple(i % phases for i in range(num_worlds))
    return CurriculumState(rates=(0.0,) * phases, playing=spread, assigned=spread)


def reassigned(
    config: CurriculumConfig,
    state: CurriculumState,
    episodes: Sequence[Episode],
    success: int,
    seed: int,
    update: int,
) -> CurriculumState:
    """The state after episodes have ended, and what each world plays next.

    Phases get worlds in proportion to their failures, by one systematic sample and a shuffle; `seed` and `update` key
    both. Success rates are averages whose half-life is `config.window` episodes.
    """
    rates, playing = list(state.rates), list(state.playing)
    new = 1.0 - math.pow(0.5, 1.0 / config.window)
    for episode in episodes:
        phase = playing[episode.world]
        rates[phase] += new * ((episode.stats[success] > 0) - rates[phase])
        playing[episode.world] = state.assigned[episode.world]  # what began after it
    weights = np.array([1.0 + LEAST_WEIGHT - rate for rate in rates])
    draws = np.random.Generator(np.random.Philox(key=[seed, update]))
    worlds = len(playing)
    points = (np.arange(worlds) + draws.random()) / worlds
    phases = np.minimum(np.searchsorted(np.cumsum(weights / weights.sum()), points), len(rates) - 1)
    assigned = tuple(draws.permutation(phases).tolist())
    return msgspec.structs.replace(state, rates=tuple(rates), playing=tuple(playing), assigned=assigned)


class Curriculum(Part):
    """Keeps the state of the curriculum and sets the phases of worlds."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        assert run.scenario.curriculum is not None
        self._scenario, self._config, self._worlds = run.scenario, run.scenario.curriculum, run.worlds
        evaluation = run.find(Evaluation)
        self._evaluator = None if evaluation is None else evaluation.evaluator
        self._stand: Stand | None = None  # made for the first certificate
        rules = tools_of(run.scenario.world.kind).time_rules
        self.goals = None if rules is None else rules.goals(run.scenario.world)
        self.progress = self._first()
        self.play()  # before the worlds begin their first episodes

    def begin(self) -> None:
        """Set the phases of a resumed run."""
        if not self.run.is_new:
            self.play()

    def after_update(self, update: Update) -> None:
        """Begin new episodes everywhere when the next phase begins: no batch may hold two phases."""
        run = self.run
        with run.timed("certify"):
            is_next = self._follow(update.slab.episodes)
        if not is_next:
            return
        if run.source is not None:
            run.source.restart()
        for feed in run.feeds.values():
            feed.restart()
        # What was best at an easier phase is no measure for this one.
        run.count(best_return=None, best=())

    def state(self) -> Checkpoint:
        """The curriculum's state."""
        goals = {} if self.goals is None else self.goals.arrays()
        arrays = {f"curriculum.{key}": array for key, array in goals.items()}
        return Checkpoint(arrays, {"curriculum": msgspec.to_builtins(self.progress)})

    def load(self, saved: Checkpoint) -> None:
        """Go on as saved; older checkpoints have none."""
        if "curriculum" not in saved.meta:
            return
        self.progress = from_value(saved.meta["curriculum"], CurriculumState)
        if self.goals is not None:
            self.goals.load(under(saved.arrays, "curriculum."))

    def _first(self) -> CurriculumState:
        config, phases = self._config, self._worlds.spec.phases
        if config.order == "adaptive":
            return first_assignment(len(phases), self._scenario.collect.num_worlds)
        return CurriculumState(phase=0 if config.start_phase is None else phases.index(config.start_phase))

    def play(self) -> None:
        """Set the phases of episodes that start from now on."""
        adaptive = self._config.order == "adaptive"
        count = len(self._worlds.spec.phases)
        self._begin_goals(count if adaptive else self.progress.phase + 1)
        if not self._scenario.is_offline:
            phases = self.progress.assigned if adaptive else [self.progress.phase] * self._worlds.num_worlds
            self._worlds.phases = [timed(phase, self._limit(phase)) for phase in phases]
        if self._evaluator is not None:
            worlds = self._evaluator.worlds
            judged = [i % count if adaptive else self.progress.phase for i in range(worlds.num_worlds)]
            worlds.phases = [timed(phase, self._limit(phase)) for phase in judged]

    def _begin_goals(self, begun: int) -> None:
        """Fix the time limits of phases that begin; they do not change later."""
        if self.goals is not None and len(self.progress.limits) < begun:
            limits = self.progress.limits
            new = (self.goals.limit(phase) for phase in range(len(limits), begun))
            self.progress = msgspec.structs.replace(self.progress, limits=(*limits, *new))

    def _limit(self, phase: int) -> int:
        return self.progress.limits[phase] if phase < len(self.progress.limits) else 0

    def _follow(self, episodes: Sequence[Episode]) -> bool:
        """Update the state after episodes; True if the next phase begins."""
        config, spec, update = self._config, self._worlds.spec, self.run.counters.updates
        success = spec.stats.index("success")
        if config.order == "adaptive":
            self.progress = reassigned(config, self.progress, episodes, success, self._scenario.seed, update)
            self.play()
            return False
        self._note(episodes)
        self.progress = after_episodes(config, self.progress, episodes, success)
        judged = self.run.evaluation.get("eval/success_mean", self.progress.judged)
        self.progress = msgspec.structs.replace(self.progress, judged=judged)
        is_last = self.progress.phase + 1 == len(spec.phases)
        if is_last and config.certificate is None:
            return False
        why = mastered(config, self.progress, update)
        if why is not None and config.certificate is not None:
            why = self._certified(why)
        if why is None or is_last:
            return False
        self.progress = following(self.progress)
        self.play()
        number, name = self.progress.phase, spec.phases[self.progress.phase]
        limit_s = self._limit(number) * spec.tick_seconds
        within = f" in {limit_s:.1f} s" if limit_s else ""
        sentence = f"phase {number + 1} of {len(spec.phases)}, {name}{within}: {why}"
        most = {"max_seconds": limit_s} if limit_s else {}
        self.run.announce("phase", sentence, phase=number, name=name, why=why, **most)
        return True

    def _note(self, episodes: Sequence[Episode]) -> None:
        """Remember figures of episodes, all of the present phase."""
        phase, world = self.progress.phase, self._scenario.world
        self.run.played = world.only_phase(phase)
        if self.goals is not None:
            self.goals.note(phase, self._worlds.spec.stats, [episode.stats for episode in episodes])

    def _certified(self, why: str) -> str | None:
        """Try to certify the policy as it is; the reason with the evidence, or None."""
        run, config, update = self.run, self._config.certificate, self.run.counters.updates
        assert config is not None
        if self._stand is None:
            self._stand = make_stand(self._scenario, config.max_episodes)
        policy = judged_hash(run.cast.learners)
        state = self.progress
        candidate = Candidate(policy, run.counters.steps, state.phase, "training", self._limit(state.phase))
        teams = run.cast.teams if self._evaluator is None else self._evaluator.teams
        question = Question("success", config.at_least, config.alpha, config.max_episodes, config.expected)
        try:
            attempt, found = certify(run.folder.path, self._scenario, self._stand, teams, question, candidate)
        except ScenarioError as error:  # so many attempts were made that too little of alpha is left
            run.announce("no_more_certificates", f"no more certificates: {error}")
            self.progress = msgspec.structs.replace(state, failed_at=sys.maxsize)
            return None
        shown = f"{found.successes} of {found.trials} {attempt.population}"
        if attempt.verdict != "pass":
            self.progress = msgspec.structs.replace(state, failed_at=update)
            said = f"success above {config.at_least:g} was not shown ({shown}; attempt {attempt.attempt})"
        else:
            self.progress = msgspec.structs.replace(state, certified=(*state.certified, state.phase))
            spends = f"attempt {attempt.attempt}, alpha {found.alpha:.2g}"
            said = f"certified, success above {config.at_least:g} ({shown}; {spends})"
        run.announce("certificate", f"{attempt.phase}: {said}", **msgspec.to_builtins(attempt))
        return f"{why}; {said}" if attempt.verdict == "pass" else None

    def rows(self) -> dict[str, float]:
        """Metrics curriculum/…."""
        config = self._config
        if config.order == "adaptive":
            named = zip(self._worlds.spec.phases, self.progress.rates, strict=True)
            return {f"curriculum/success/{name}": rate for name, rate in named}
        row: dict[str, float] = {"curriculum/phase": self.progress.phase}
        if limit := self._limit(self.progress.phase):
            row["curriculum/max_seconds"] = limit * self._worlds.spec.tick_seconds
        return row if config.certificate is None else {**row, "curriculum/certified": len(self.progress.certified)}

    def close(self) -> None:
        """Close the worlds that certificates are played in."""
        if self._stand is not None:
            self._stand.worlds.close()


def judged_hash(learners: Mapping[str, Algorithm]) -> str:
    """Of the weights that are judged, averaged ones included."""
    arrays = [policy_arrays(name, learner).items() for name, learner in learners.items()]
    return content_hash({key.removeprefix("policy."): array for own in arrays for key, array in own})
