"""Tries to certify the policy after good evaluations, for the rule `stop.certificate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from slipstream.errors import ScenarioError
from slipstream.run.certify import Candidate, Question, Stand, certify, make_stand
from slipstream.run.parts import Part, Update
from slipstream.run.parts.curriculum import judged_hash
from slipstream.run.parts.evaluation import Evaluation

if TYPE_CHECKING:
    from slipstream.run.context import Run


class CertifiedStop(Part):
    """Plays new episodes after a good evaluation until a rate is shown or given up."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        assert run.scenario.stop.certificate is not None
        self._rule = run.scenario.stop.certificate
        self._stand: Stand | None = None  # made for the first attempt

    def after_update(self, update: Update) -> None:
        """Attempt it, unless the last attempt failed a moment ago; what it shows is in `run.stop_state`."""
        run, rule = self.run, self._rule
        failed = run.stop_state.certificate_failed
        if run.evaluated is None or run.evaluated.figures[rule.figure] < rule.at_least:
            return
        if failed is None or run.counters.updates >= failed + rule.retry_updates:
            self._attempt()

    def _attempt(self) -> None:
        run, rule = self.run, self._rule
        evaluation = run.find(Evaluation)
        assert evaluation is not None
        if self._stand is None:
            self._stand = make_stand(run.scenario, rule.max_episodes)
        question = Question(rule.figure, rule.at_least, rule.alpha, rule.max_episodes, rule.expected)
        candidate = Candidate(judged_hash(run.cast.learners), run.counters.steps, by="training")
        teams = evaluation.evaluator.teams
        try:
            attempt, found = certify(run.folder.path, run.scenario, self._stand, teams, question, candidate)
        except ScenarioError as error:  # so many attempts were made that too little of alpha is left
            run.announce("no_more_certificates", f"no more certificates: {error}")
            run.stop_state = msgspec.structs.replace(run.stop_state, certificate_failed=sys.maxsize)
            return
        shown = f"{rule.figure} in more than {rule.at_least:.3g} of episodes"
        counts = f"{found.successes} of {found.trials} {attempt.population}, attempt {attempt.attempt}"
        if attempt.verdict == "pass":
            sentence = f"certified: {shown} ({counts})"
            run.stop_state = msgspec.structs.replace(run.stop_state, certified=sentence)
        else:
            sentence = f"{shown} was not shown ({counts})"
            run.stop_state = msgspec.structs.replace(run.stop_state, certificate_failed=run.counters.updates)
        run.announce("certificate", sentence, **msgspec.to_builtins(attempt))

    def close(self) -> None:
        """Close the worlds that it is played in."""
        if self._stand is not None:
            self._stand.worlds.close()
