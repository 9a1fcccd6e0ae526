"""Between a slab and a learner: the slab itself, or draws from a replay that the slab is added to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from slipstream.algos.protocol import Algorithm, Arrays, Progress, RolloutAlgorithm, Stats
from slipstream.collect.slab import rollout_arrays
from slipstream.config.algos.offpolicy import ReplayLearnerConfig
from slipstream.config.scenario import Scenario
from slipstream.data.arrays_file import not_finite
from slipstream.data.rollout import Rollout
from slipstream.run.parts.quarantine import Quarantine
from slipstream.spec import WorldSpec

if TYPE_CHECKING:
    from slipstream.federate.privacy import PrivacyReport
    from slipstream.replay.buffer import ReplayStore
    from slipstream.replay.process import ReplayHost


class Feed(Protocol):
    """Teaches one learner from slabs. Only `learn` must be written; the rest is for feeds that keep something."""

    @property
    def replay(self) -> ReplayStore | None:
        """What a checkpoint must keep beside the arrays."""
        return None

    @abstractmethod
    def learn(self, rollout: Rollout | None, progress: Progress, blocks: Sequence[int] = ()) -> Stats:
        """Take in a slab, if there is one, and make one update; `blocks` as in `Slab`."""

    def spent(self) -> PrivacyReport | None:
        """What the gradient steps so far have told of any one row; None where none is hidden."""
        return None

    def restart(self) -> None:
        """The worlds have begun new episodes."""
        return

    def state_arrays(self) -> Arrays:
        """What must be saved between updates, beside the learner and the replay's rows."""
        return {}

    def load_state(self, state: Arrays, is_exact: bool) -> None:
        """Go on where `state_arrays` was taken; not `is_exact`: the worlds begin new episodes."""
        return

    def events(self) -> list[dict[str, Any]]:
        """What befell the replay since this was last asked, for the run's log."""
        return []

    def close(self) -> None:
        """End what runs elsewhere for this feed."""
        return


class RolloutFeed(Feed):
    """Gives each slab to the learner as it is, and forgets it."""

    def __init__(self, learner: RolloutAlgorithm, quarantine: Quarantine) -> None:
        self._learner, self._quarantine = learner, quarantine

    def learn(self, rollout: Rollout | None, progress: Progress, blocks: Sequence[int] = ()) -> Stats:
        """One update, unless something in the slab is not finite."""
        assert rollout is not None
        arrays = read_by_learners(rollout)
        if names := not_finite(arrays):
            return self._quarantine.keep(arrays, names, progress)
        return self._quarantine.judge(self._learner.update(rollout, progress), arrays, progress)


def make_feed(
    scenario: Scenario,
    policy: str,
    learner: Algorithm,
    agents: int,
    spec: WorldSpec,
    quarantine: Quarantine,
    make_service: Callable[[], ReplayHost] | None = None,
) -> Feed:
    """The feed an algorithm needs; `make_service` keeps a replay for it alone, None: on this machine."""
    config = scenario.algo_of(policy)
    if not isinstance(config, ReplayLearnerConfig):
        return RolloutFeed(learner, quarantine)  # type: ignore[arg-type]
    from slipstream.run.replay_input import make_replay_feed

    return make_replay_feed(scenario, policy, config, learner, agents, spec, quarantine, make_service)


def read_by_learners(rollout: Rollout) -> Arrays:
    """Everything a learner reads of a slab, by name; its sums are for reports."""
    return {name: array for name, array in rollout_arrays(rollout).items() if name != "reward_sums"}
