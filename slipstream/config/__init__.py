"""The frozen schema of scenarios, how YAML becomes one, and the errors that say what is wrong."""

from slipstream.config.algos import PpoConfig, schedule_at
from slipstream.config.load import (
    ScenarioInfo,
    dump,
    from_plain,
    list_scenarios,
    load,
    override,
    to_json,
    to_plain,
)
from slipstream.config.scenario import Scenario, assign_teams, check_batch
from slipstream.errors import (
    CheckpointError,
    RunFolderError,
    ScenarioError,
    SlipstreamError,
    WorldContractError,
    suggest,
)

__all__ = [
    "CheckpointError",
    "PpoConfig",
    "RunFolderError",
    "Scenario",
    "ScenarioError",
    "ScenarioInfo",
    "SlipstreamError",
    "WorldContractError",
    "assign_teams",
    "check_batch",
    "dump",
    "from_plain",
    "list_scenarios",
    "load",
    "override",
    "schedule_at",
    "suggest",
    "to_json",
    "to_plain",
]
