"""Every transport of the config can be made, has the four methods, and is imported by nobody who does not use it."""

import json
from typing import get_args

import pytest
from learning import python

from slipstream.config.federated import TRANSPORTS, FederatedConfig
from slipstream.federate.folder import federation_folder
from slipstream.federate.rounds import Federation, RoundLimits
from slipstream.federate.transports import make_transport

NAMES = get_args(FederatedConfig.model_fields["transport"].annotation)


def test_the_config_names_the_transports_that_have_traits():
    assert set(NAMES) == set(TRANSPORTS)


@pytest.mark.parametrize("name", NAMES)
def test_every_transport_has_the_methods_of_the_contract(name, tmp_path):
    config = FederatedConfig(
        transport=name,
        root=str(tmp_path),
        address=f"ipc://{tmp_path / 'c.sock'}",
        peers={"0": f"ipc://{tmp_path / '0.sock'}", "1": f"ipc://{tmp_path / '1.sock'}"},
    )
    made = make_transport(
        config, "", lambda: Federation(federation_folder(tmp_path, "run"), RoundLimits(2, 2), None, "mean")
    )
    try:
        assert all(callable(getattr(made, method)) for method in ("catch_up", "exchange", "leave"))
    finally:
        made.close()


LOADED = """
import json, sys
import slipstream.run.federated.transports
before = [name for name in sys.modules if name.startswith("slipstream.federate")]
from slipstream.federate.transports import make_transport
from slipstream.federate.rounds import Federation, RoundLimits
from slipstream.config.federated import FederatedConfig
from pathlib import Path
from slipstream.federate.folder import federation_folder
made = Federation(federation_folder(Path(sys.argv[1]), "run"), RoundLimits(2, 2), None, "mean")
make_transport(FederatedConfig(), "", lambda: made)
print(json.dumps([before, [name for name in sys.modules if name.startswith("slipstream.federate")]]))
"""


def test_a_run_loads_no_module_of_federation_before_it_has_one_and_then_only_its_own_transport(tmp_path):
    done = python("-c", LOADED, str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    assert before == []
    assert "slipstream.federate.files" in after
    others = {"ring", "gossip", "peers", "coordinator", "coordinator_client", "secure", "secure_files", "secure_keys"}
    assert not {f"slipstream.federate.{name}" for name in others} & set(after)
