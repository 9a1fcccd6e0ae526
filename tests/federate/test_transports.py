"""Every transport has a file of its own with the four methods, and is imported by nobody who does not use it."""

import json
from pathlib import Path
from typing import get_args

import pytest
from learning import python

from slipstream.config.federated import FederatedConfig
from slipstream.config.transports import TRANSPORTS
from slipstream.federate import transports
from slipstream.federate.folder import run_folder
from slipstream.federate.rounds import Federation, RoundRules
from slipstream.federate.transports import Meeting, make_transport

NAMES = get_args(FederatedConfig.model_fields["transport"].annotation)


def test_every_transport_of_the_config_has_a_file_and_every_file_is_one_of_them():
    files = {path.stem for path in Path(transports.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == set(NAMES) == set(TRANSPORTS)


@pytest.mark.parametrize("name", NAMES)
def test_every_transport_has_the_methods_of_the_contract(name, tmp_path):
    config = FederatedConfig(
        transport=name,
        root=str(tmp_path),
        address=f"ipc://{tmp_path / 'c.sock'}",
        peers={"0": f"ipc://{tmp_path / '0.sock'}", "1": f"ipc://{tmp_path / '1.sock'}"},
    )
    made = make_transport(
        Meeting(config, "", lambda: Federation(run_folder(tmp_path, "run"), RoundRules(2, 2), None, "mean"))
    )
    try:
        assert all(callable(getattr(made, method)) for method in ("catch_up", "exchange", "leave"))
    finally:
        made.close()


LOADED = """
import json, sys
import slipstream.run.transports
before = [name for name in sys.modules if name.startswith("slipstream.federate")]
from slipstream.federate.transports import Meeting, make_transport
from slipstream.federate.rounds import Federation, RoundRules
from slipstream.config.federated import FederatedConfig
from slipstream.config.transports import TRANSPORTS
from pathlib import Path
from slipstream.federate.folder import run_folder
made = Federation(run_folder(Path(sys.argv[1]), "run"), RoundRules(2, 2), None, "mean")
make_transport(Meeting(FederatedConfig(), "", lambda: made))
print(json.dumps([before, [name for name in sys.modules if name.startswith("slipstream.federate")]]))
"""


def test_a_run_loads_no_module_of_federation_before_it_has_one_and_then_only_its_own_transport(tmp_path):
    done = python("-c", LOADED, str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    assert before == []
    assert "slipstream.federate.files" in after
    others = {"ring", "gossip", "peers", "coordinator", "coordinator_client", "secure", "secure_files", "shamir"}
    assert not {f"slipstream.federate.{name}" for name in others} & set(after)
