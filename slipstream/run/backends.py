"""Where the parts of a run are that need not be in its own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from slipstream.collect.pool import Tell
from slipstream.config.scenario import Scenario
from slipstream.replay.process import OwnService, ReplayHost
from slipstream.run.data_parallel import LOOPBACK, Start, start_process
from slipstream.run.evaluation import Judges
from slipstream.run.workers import MakeWorkplace


class Backends(NamedTuple):
    """A machine or a cluster."""

    make_home: MakeWorkplace | None = None  # of workers; None: on this machine, as `collect.mode` says
    make_service: Callable[[], ReplayHost] = OwnService  # of a replay that no address is given for
    start_learner: Start = start_process  # of those in step with the run's own
    host: str = LOOPBACK  # where they meet
    nodes: int = 1
    make_judges: Callable[[Scenario, Tell], Judges] | None = None  # None: the run plays evaluations


LOCAL = Backends()
