"""Which class learns for which `kind` of config."""

from typing import Any

from slipstream.algos.appo import Appo
from slipstream.algos.cql import Cql
from slipstream.algos.dqn import Dqn
from slipstream.algos.impala import Impala
from slipstream.algos.ppo import Ppo
from slipstream.algos.reinforce import Reinforce
from slipstream.algos.sac import Sac
from slipstream.algos.td3 import Td3

ALGORITHMS: dict[str, Any] = {
    "ppo": Ppo,
    "appo": Appo,
    "impala": Impala,
    "reinforce": Reinforce,
    "sac": Sac,
    "td3": Td3,
    "dqn": Dqn,
    "cql": Cql,
}
