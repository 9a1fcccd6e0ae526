"""A run's way through its world's phases: who plays which, when the next one comes, and the certificate before it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from slipstream.algos.protocol import Algorithm
from slipstream.collect.pool import Tell
from slipstream.collect.serial import Episode
from slipstream.collect.teams import Team
from slipstream.config.scenario import Scenario
from slipstream.data.arrays_file import content_hash
from slipstream.errors import ScenarioError
from slipstream.run.certify import Candidate, Question, Stand, certify, make_stand
from slipstream.run.curriculum import (
    CurriculumState,
    after_episodes,
    first_assignment,
    following,
    mastered,
    reassigned,
)
from slipstream.worlds.registry import time_goals
from slipstream.worlds.vec_env import VecEnv, timed


class Phases:
    """Where a curriculum stands, and the worlds that follow it; without one, nothing happens here."""

    def __init__(self, scenario: Scenario, worlds: VecEnv, judging: VecEnv | None, run: Path, tell: Tell) -> None:
        """`judging`: the evaluation's worlds."""
        self._scenario, self._config, self._run, self._tell = scenario, scenario.curriculum, run, tell
        self._worlds, self._judging = worlds, judging
        self._stand: Stand | None = None  # made for the first certificate
        self.goals = time_goals(scenario.world) if self._config is not None else None
        self.played = scenario.world  # with the one phase that the latest episodes were of, where that is known
        self.state = self._first()
        self.play()

    def _first(self) -> CurriculumState:
        config, phases = self._config, self._worlds.spec.phases
        if config is None:
            return CurriculumState()
        if config.order == "adaptive":
            return first_assignment(len(phases), self._scenario.collect.num_worlds)
        return CurriculumState(phase=0 if config.start_phase is None else phases.index(config.start_phase))

    def play(self) -> None:
        """Let episodes that start from now on belong to the phases the curriculum says."""
        if self._config is None:
            return
        adaptive = self._config.order == "adaptive"
        count = len(self._worlds.spec.phases)
        self._begin_goals(count if adaptive else self.state.phase + 1)
        if not self._scenario.is_offline:
            phases = self.state.assigned if adaptive else [self.state.phase] * self._worlds.num_worlds
            self._worlds.phases = [timed(phase, self._limit(phase)) for phase in phases]
        if self._judging is not None:
            worlds = self._judging
            judged = [i % count if adaptive else self.state.phase for i in range(worlds.num_worlds)]
            worlds.phases = [timed(phase, self._limit(phase)) for phase in judged]

    def _begin_goals(self, begun: int) -> None:
        """Fix how long episodes may last in phases that begin: what comes later changes nothing about it."""
        if self.goals is not None and len(self.state.limits) < begun:
            limits = self.state.limits
            new = (self.goals.limit(phase) for phase in range(len(limits), begun))
            self.state = msgspec.structs.replace(self.state, limits=(*limits, *new))

    def _limit(self, phase: int) -> int:
        return self.state.limits[phase] if phase < len(self.state.limits) else 0

    def after_update(
        self,
        update: int,
        steps: int,
        episodes: Sequence[Episode],
        evaluation: Mapping[str, float],
        teams: Sequence[Team],
        learners: Mapping[str, Algorithm],
    ) -> bool:
        """Whether the next phase has come, so that everything has to begin anew: no batch may hold two phases."""
        config, spec = self._config, self._worlds.spec
        if config is None:
            return False
        success = spec.stats.index("success")
        if config.order == "adaptive":
            self.state = reassigned(config, self.state, episodes, success, self._scenario.seed, update)
            self.play()
            return False
        self._note(episodes)
        self.state = after_episodes(config, self.state, episodes, success)
        judged = evaluation.get("eval/success_mean", self.state.judged)
        self.state = msgspec.structs.replace(self.state, judged=judged)
        is_last = self.state.phase + 1 == len(spec.phases)
        if is_last and config.certificate is None:
            return False
        why = mastered(config, self.state, update)
        if why is not None and config.certificate is not None:
            why = self._certified(why, update, steps, teams, learners)
        if why is None or is_last:
            return False
        self.state = following(self.state)
        self.play()
        number, name = self.state.phase, spec.phases[self.state.phase]
        limit_s = self._limit(number) * spec.tick_seconds
        within = f" in {limit_s:.1f} s" if limit_s else ""
        sentence = f"phase {number + 1} of {len(spec.phases)}, {name}{within}: {why}"
        self._tell("phase", sentence, phase=number, name=name, why=why, **({"max_seconds": limit_s} if limit_s else {}))
        return True

    def _note(self, episodes: Sequence[Episode]) -> None:
        """What is remembered of episodes, all of which are of the present phase."""
        phase, world = self.state.phase, self._scenario.world
        self.played = world.only_phase(phase)
        if self.goals is not None:
            self.goals.note(phase, self._worlds.spec.stats, [episode.stats for episode in episodes])

    def _certified(
        self, why: str, update: int, steps: int, teams: Sequence[Team], learners: Mapping[str, Algorithm]
    ) -> str | None:
        """Hold the policy still and ask for a certificate; what it was given for, or None."""
        assert self._config is not None
        config = self._config.certificate
        assert config is not None
        if self._stand is None:
            self._stand = make_stand(self._scenario, config.max_episodes)
        acting = ((name, learner.actor_arrays()) for name, learner in learners.items())
        policy = content_hash({f"{name}.{key}": array for name, arrays in acting for key, array in arrays.items()})
        state = self.state
        candidate = Candidate(policy, steps, state.phase, "training", self._limit(state.phase))
        question = Question("success", config.at_least, config.alpha, config.max_episodes, config.expected)
        try:
            attempt, found = certify(self._run, self._scenario, self._stand, teams, question, candidate)
        except ScenarioError as error:  # so many attempts were made that too little of alpha is left
            self._tell("no_more_certificates", f"no more certificates: {error}")
            self.state = msgspec.structs.replace(state, failed_at=sys.maxsize)
            return None
        shown = f"{found.successes} of {found.trials} {attempt.population}"
        if attempt.verdict != "pass":
            self.state = msgspec.structs.replace(state, failed_at=update)
            said = f"success above {config.at_least:g} was not shown ({shown}; attempt {attempt.attempt})"
        else:
            self.state = msgspec.structs.replace(state, certified=(*state.certified, state.phase))
            spends = f"attempt {attempt.attempt}, alpha {found.alpha:.2g}"
            said = f"certified, success above {config.at_least:g} ({shown}; {spends})"
        self._tell("certificate", f"{attempt.phase}: {said}", **msgspec.to_builtins(attempt))
        return f"{why}; {said}" if attempt.verdict == "pass" else None

    def rows(self) -> dict[str, float]:
        """For the metrics."""
        config = self._config
        if config is None:
            return {}
        if config.order == "adaptive":
            named = zip(self._worlds.spec.phases, self.state.rates, strict=True)
            return {f"curriculum/success/{name}": rate for name, rate in named}
        row: dict[str, float] = {"curriculum/phase": self.state.phase}
        if limit := self._limit(self.state.phase):
            row["curriculum/max_seconds"] = limit * self._worlds.spec.tick_seconds
        return row if config.certificate is None else {**row, "curriculum/certified": len(self.state.certified)}

    def close(self) -> None:
        """Let go of the worlds that certificates are played in."""
        if self._stand is not None:
            self._stand.worlds.close()
