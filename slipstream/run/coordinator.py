"""`slipstream federate serve`: coordinates the federation of a scenario, for clients of transport tcp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slipstream.algos.merge_rules import rules_for
from slipstream.config.load import override
from slipstream.config.scenario import Scenario, shared_policies
from slipstream.errors import FederationError
from slipstream.federate.coordinator import Coordinator
from slipstream.replay.process import read_token
from slipstream.run.setup import make_cast, make_training_worlds
from slipstream.run.transports import make_federation
from slipstream.runtime import signals
from slipstream.runtime.address import listen, parse_address


def serve(scenario: Scenario, say: Callable[[str], None]) -> None:
    """Coordinate until a signal comes; goes on where an earlier coordinator of the same folder was."""
    config = scenario.federated
    (policy, *others) = shared_policies(scenario)
    if others or config.address is None:
        raise FederationError(
            "a coordinator serves one policy at one address: give --federated.address tcp://127.0.0.1:7777, and "
            f"name one of {', '.join(shared_policies(scenario))} in federated.agents"
        )
    worlds = make_training_worlds(override(scenario, {"collect.num_worlds": 1}))
    rules = rules_for(make_cast(scenario, worlds.spec).learners[policy].state_dict())
    worlds.close()
    token = read_token(None if config.token_file is None else Path(config.token_file))
    server, address = listen(parse_address(config.address), token)
    coordinator = Coordinator(server, make_federation(scenario, policy, rules), token, say=say)

    def stop(number: int, frame: object) -> None:
        coordinator.stopping = True

    signals.listen(stop)
    say(f"coordinating {config.clients} clients of {scenario.name} ({policy}) at {address}")
    coordinator.run()
