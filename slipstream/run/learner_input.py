"""How rollouts reach a learner: as they are (here), or through a replay buffer (replay_input.py)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from slipstream.algos.protocol import Algorithm, Progress, RolloutAlgorithm, Stats
from slipstream.collect.slab import rollout_arrays
from slipstream.config.algos.offpolicy import ReplayLearnerConfig
from slipstream.config.scenario import Scenario
from slipstream.data.arrays_file import not_finite
from slipstream.data.rollout import Rollout
from slipstream.run.parts.quarantine import Quarantine
from slipstream.spec import WorldSpec
from slipstream.types import Arrays

if TYPE_CHECKING:
    from slipstream.federate.privacy import PrivacyReport
    from slipstream.replay.buffer import ReplayStore
    from slipstream.runtime.place import Cluster


class Feed(Protocol):
    """Feeds rollouts to one learner. Only `learn` must be written; the rest is for feeds that keep state."""

    quarantine: Quarantine  # where it sets aside what is not finite

    @property
    def replay(self) -> ReplayStore | None:
        """The replay buffer whose rows a checkpoint must keep, if there is one."""
        return None

    @abstractmethod
    def learn(self, rollout: Rollout | None, progress: Progress, first_worlds: Sequence[int] = ()) -> Stats:
        """Take a rollout, if there is one, and make one update; `first_worlds` as in `Slab`."""

    def spent(self) -> PrivacyReport | None:
        """The privacy spent by gradient steps so far; None without DP-SGD."""
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
        """Events of the replay since the last call, for events.jsonl."""
        return []

    def close(self) -> None:
        """End connections and processes of this feed."""
        return


class RolloutFeed(Feed):
    """Gives each rollout to the learner and keeps nothing."""

    def __init__(self, learner: RolloutAlgorithm, quarantine: Quarantine) -> None:
        self._learner, self.quarantine = learner, quarantine

    def learn(self, rollout: Rollout | None, progress: Progress, first_worlds: Sequence[int] = ()) -> Stats:
        """One update, unless the rollout holds NaN or infinity."""
        assert rollout is not None
        arrays = read_by_learners(rollout)
        if names := not_finite(arrays):
            return self.quarantine.keep(arrays, names, progress)
        return self.quarantine.check_update(self._learner.update(rollout, progress), arrays, progress)


def make_feed(
    scenario: Scenario,
    policy: str,
    learner: Algorithm,
    agents: int,
    spec: WorldSpec,
    quarantine: Quarantine,
    cluster: Cluster | None = None,
) -> Feed:
    """The feed that the policy's algorithm needs; a replay service of its own runs on the cluster, if there is one."""
    config = scenario.algo_of(policy)
    if not isinstance(config, ReplayLearnerConfig):
        return RolloutFeed(learner, quarantine)  # type: ignore[arg-type]
    from slipstream.run.replay_input import make_replay_feed

    return make_replay_feed(scenario, policy, config, learner, agents, spec, quarantine, cluster)


def read_by_learners(rollout: Rollout) -> Arrays:
    """The arrays of a rollout that learners read, by name."""
    return {name: array for name, array in rollout_arrays(rollout).items() if name != "reward_sums"}
