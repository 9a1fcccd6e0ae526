"""Which federated settings work together: every transport, privacy, secure sum, learner and optimiser strategy.

The same for every rule, a user's own among them, with every server step. Three clients in one process train apart,
exchange weights, train on, and exchange again. The result is how many rounds closed with all three, or why the scenario
was refused.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from cells import Cell
from learning import Parts, build, digest, scenario_of, tiny

from slipstream.algos.registry import rules_for
from slipstream.config.aggregators import AGGREGATORS
from slipstream.config.load import override
from slipstream.config.scenario import Scenario
from slipstream.errors import ScenarioError
from slipstream.federate.coordinator import Coordinator
from slipstream.federate.rules import Known
from slipstream.run.federated.client import FederationClient, begin_alike
from slipstream.run.federated.transports import make_federation
from slipstream.run.setup import make_cast
from slipstream.runtime.address import listen, parse_address
from slipstream.spec import WorldSpec

ALGOS = {
    "ppo": "probe_bandit", "appo": "probe_bandit", "impala": "probe_target", "reinforce": "probe_bandit",
    "sac": "probe_target", "td3": "probe_target", "dqn": "probe_bandit", "cql": "probe_target",
}  # fmt: skip
TRANSPORTS = ("files", "tcp", "ring", "gossip")
STRATEGIES = ("local", "average", "reset")
OWN = f"{Path(__file__).stem}:halfway"
SERVERS = ("none", "fedadam", "fedyogi", "reptile")
BY = {"aggregator": "weighted_mean"}
EXTRAS: dict[str, dict[str, Any]] = {
    "weights samples": {**BY, "weights": "samples"},
    "weights reward_delta": {**BY, "weights": "reward_delta"},
    "weights numbers": {**BY, "weights": {"0": 1.0, "1": 2.0, "2": 0.5}},
    "maml": {"maml": 0.5},
    "proximal_mu": {"proximal_mu": 0.1},
    "merge_mu": {"merge_mu": 1.0},
    "distill": {"distill": {"observations": 50, "episodes": 1, "epochs": 1}},
    "dp_sgd": {"dp_sgd": {}},
    "staleness": {"staleness": 0.5},
}
CLIENTS, ROUNDS, INTERVAL = 3, 2, 4
PRIVACY = {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}


class Learned(NamedTuple):
    """A client's parts, and its learner as it was before any meeting."""

    parts: Parts
    state: Mapping[str, Any]


def learned(algo: str) -> list[Learned]:
    """Clients that began alike and have learned apart for a moment; CQL also runs online."""
    found = []
    for client in range(CLIENTS):
        parts = build(scenario_of(ALGOS[algo], {**tiny(algo), "seed": 100 + client}))
        begin_alike(override(parts.scenario, {"federated.enabled": True}), parts.cast, parts.env.spec)
        for _ in range(3):
            parts.advance()
        found.append(Learned(parts, parts.learner.state_dict()))
    return found


def all_cells(algos: Sequence[str] = tuple(ALGOS)) -> list[Cell]:
    """Every combination, those that are refused too."""
    return [
        {"algo": algo, "transport": transport, "privacy": privacy, "secure": secure, "strategy": strategy}
        for algo, transport, privacy, secure, strategy in itertools.product(
            algos, TRANSPORTS, ("none", "client"), (False, True), STRATEGIES
        )
    ]


def halfway(clients: Mapping[str, Mapping[str, Any]], known: Known) -> dict[str, Any]:
    """A user's own rule: between the first client and the last aggregate, where there is one."""
    first = clients[min(clients)]
    last = known.last or first
    return {name: (array + last[name]) / 2 for name, array in first.items()}


def rule_cells(algos: Sequence[str] = tuple(ALGOS)) -> list[Cell]:
    """Every rule and server step in every way to meet."""
    return [
        {"algo": algo, "transport": transport, "privacy": privacy, "secure": secure, "strategy": "local",
         "aggregator": rule, "server": server}
        for algo, transport, privacy, secure, rule, server in itertools.product(
            algos, TRANSPORTS, ("none", "client"), (False, True), (*AGGREGATORS, OWN), SERVERS
        )
    ]  # fmt: skip


def extra_cells(algos: Sequence[str] = tuple(ALGOS)) -> list[Cell]:
    """Every other way to learn together in every way to meet."""
    return [
        {
            "algo": algo,
            "transport": transport,
            "privacy": privacy,
            "secure": secure,
            "strategy": "local",
            "extra": extra,
        }
        for algo, transport, privacy, secure, extra in itertools.product(
            algos, TRANSPORTS, ("none", "client"), (False, True), EXTRAS
        )
    ]


def meet(cell: Cell, clients: Sequence[Learned]) -> Cell:
    """What comes of it: rounds that closed with all, updates that privacy counted, whether all agree; or a refusal."""
    for client in clients:
        client.parts.learner.load_state_dict(dict(client.state))
    if why := refusal(cell, clients[0].parts.scenario, clients[0].parts.env.spec):
        return {"refused": why}
    shelf = "/dev/shm" if os.path.isdir("/dev/shm") else None  # memory, where there is some: nothing here is to last
    with tempfile.TemporaryDirectory(prefix="fed", dir=shelf) as folder:
        scenarios = [_scenario(cell, one.parts.scenario, name, Path(folder)) for name, one in enumerate(clients)]
        told: list[Mapping[str, Any]] = []
        with coordinating(scenarios[0], clients[0].parts.learner):
            members = [
                FederationClient(
                    scenario,
                    one.parts.cast.learners,
                    [0],
                    lambda event, _, **said: told.append({**said, "event": event}),
                )
                for scenario, one in zip(scenarios, clients, strict=True)
            ]
            try:
                for number in range(1, ROUNDS + 1):
                    with ThreadPoolExecutor(CLIENTS) as pool:
                        list(pool.map(lambda member, n=number: member.exchange(n * INTERVAL, n * 128), members))
                    if number < ROUNDS:
                        for one in clients:
                            one.parts.advance()
            finally:
                for member in members:
                    member.close()
    ended = [one for one in told if one["event"] == "round" and one["state"] == "closed" and one["took_part"]]
    counted = [one["rounds"] for one in told if one["event"] == "privacy"]
    why = sorted({one["reason"] for one in told if one["event"] == "round" and one["reason"]})
    return {
        "rounds": len(ended) // CLIENTS,
        "counted": max(counted, default=0),
        "agree": len({digest(_weights(one.parts.learner.state_dict())) for one in clients}) == 1,
        **({"why": why[0]} if why else {}),
    }


def refusal(cell: Cell, scenario: Scenario, spec: WorldSpec | None = None) -> str:
    """Why a run of a combination would be refused at its start, by the schema or by its learner; "" where it is not."""
    try:
        found = _scenario(cell, scenario, 0, Path("folder"))
        if spec is not None:
            make_cast(found, spec)
    except ScenarioError as error:
        return str(error).splitlines()[-1].strip().removeprefix("override: ").removeprefix("federated: ")
    return ""


def _scenario(cell: Cell, scenario: Scenario, client: int, folder: Path) -> Scenario:
    server = {"kind": cell["server"]} if cell.get("server", "none") != "none" else None
    federated: dict[str, Any] = {
        "enabled": True, "clients": CLIENTS, "client": str(client), "interval": INTERVAL, "timeout_s": 20.0,
        "root": str(folder / "rounds"), "transport": cell["transport"], "optimizer_strategy": cell["strategy"],
        "secure": cell["secure"], "aggregator": cell.get("aggregator", "mean"), "server": server,
        "privacy": PRIVACY if cell["privacy"] == "client" else None, "schedule": "all",
    }  # fmt: skip
    if cell["transport"] == "tcp":
        federated["address"] = f"ipc://{folder / 'c.sock'}"
    elif cell["transport"] != "files":
        federated["peers"] = {str(peer): f"ipc://{folder / f'{peer}.sock'}" for peer in range(CLIENTS)}
    return override(scenario, {"federated": {**federated, **EXTRAS.get(cell.get("extra", ""), {})}})


@contextmanager
def coordinating(scenario: Scenario, learner: Any) -> Iterator[None]:
    """With a coordinator beside, where the transport needs one."""
    if scenario.federated.transport != "tcp":
        yield
        return
    assert scenario.federated.address is not None
    server, _ = listen(parse_address(scenario.federated.address), "")
    rules = rules_for(learner.state_dict())
    stops, lives = os.pipe()
    coordinator = Coordinator(server, make_federation(scenario, "main", rules), "", watch=stops)
    beside = threading.Thread(target=coordinator.run, daemon=True)
    beside.start()
    try:
        yield
    finally:
        os.close(lives)
        beside.join()
        os.close(stops)


def _weights(state: Mapping[str, Any]) -> dict[str, Any]:
    rules = rules_for(state)
    return {name: array for name, array in state.items() if rules[name].kind == "merge"}


def as_table(cells: Sequence[Cell]) -> str:
    """A line for every way to meet, a column for every algorithm: rounds that closed, or the number of a refusal."""
    algos = list(dict.fromkeys(cell["algo"] for cell in cells))
    lines = [
        "| transport | privacy | secure | moments | " + " | ".join(algos) + " |",
        "|---|---|---|---|" + "---|" * len(algos),
    ]
    reasons: list[str] = []
    rows: dict[tuple[Any, ...], dict[str, str]] = {}
    for cell in cells:
        row = rows.setdefault((cell["transport"], cell["privacy"], cell["secure"], cell["strategy"]), {})
        row[cell["algo"]] = _word(cell, reasons)
    for (transport, privacy, secure, strategy), row in rows.items():
        shown = " | ".join(row.get(algo, "") for algo in algos)
        lines.append(f"| {transport} | {privacy} | {'yes' if secure else 'no'} | {strategy} | {shown} |")
    return "\n".join([*lines, "", *_numbered(reasons)])


def rule_table(cells: Sequence[Cell]) -> str:
    """A line for the rules that fare alike in a way to meet, a column for every server step; all learners together."""
    reasons: list[str] = []
    fared: dict[tuple[Any, ...], dict[str, list[str]]] = {}
    for cell in cells:
        way = (cell["transport"], cell["privacy"], cell["secure"], cell["aggregator"])
        fared.setdefault(way, {}).setdefault(cell["server"], []).append(_word(cell, reasons))
    rows: dict[tuple[Any, ...], list[str]] = {}
    for (*way, rule), by_server in fared.items():
        words = tuple(" / ".join(dict.fromkeys(by_server[server])) for server in SERVERS)
        rows.setdefault((*way, words), []).append("your own" if rule == OWN else rule)
    lines = [
        "| transport | privacy | secure | rule | " + " | ".join(f"server {one}" for one in SERVERS) + " |",
        "|---|---|---|---|" + "---|" * len(SERVERS),
    ]
    for (transport, privacy, secure, words), rules in rows.items():
        told = " | ".join(words)
        lines.append(f"| {transport} | {privacy} | {'yes' if secure else 'no'} | {', '.join(rules)} | {told} |")
    return "\n".join([*lines, "", *_numbered(reasons)])


def extra_table(cells: Sequence[Cell]) -> str:
    """A line for every other way to learn together, a column for every way to meet; learners where they differ."""
    reasons: list[str] = []
    ways = list(dict.fromkeys((cell["transport"], cell["privacy"], cell["secure"]) for cell in cells))
    fared: dict[str, dict[tuple[Any, ...], dict[str, list[str]]]] = {}
    for cell in cells:
        words = fared.setdefault(cell["extra"], {}).setdefault((cell["transport"], cell["privacy"], cell["secure"]), {})
        words.setdefault(_word(cell, reasons), []).append(cell["algo"])
    names = list(fared)
    lines = ["| transport | privacy | secure | " + " | ".join(names) + " |", "|---|---|---|" + "---|" * len(names)]
    for way in ways:
        told = []
        for name in names:
            words = fared[name][way]
            alike = len(words) == 1
            told.append("; ".join(word if alike else f"{word}: {', '.join(algos)}" for word, algos in words.items()))
        lines.append(f"| {way[0]} | {way[1]} | {'yes' if way[2] else 'no'} | " + " | ".join(told) + " |")
    return "\n".join([*lines, "", *_numbered(reasons)])


def _word(cell: Cell, reasons: list[str]) -> str:
    """What came of a cell: rounds that closed, or the number of its refusal, which is noted."""
    said = str(cell.get("refused", "")).replace(f"{cell.get('aggregator')} compares", "the rule compares")
    said = said.replace(f"a row of {cell['algo']} is", "a row of this learner is")
    if not said:
        return f"{cell['rounds']} closed"
    if said not in reasons:
        reasons.append(said)
    return f"refused ({reasons.index(said) + 1})"


def _numbered(reasons: Sequence[str]) -> list[str]:
    return [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]


def together(cells: Sequence[Cell]) -> list[Cell]:
    """One cell for all learners that came to the same, for a shorter file."""
    found: dict[str, Cell] = {}
    for cell in cells:
        alike = {key: value for key, value in cell.items() if key != "algo"}
        found.setdefault(repr(alike), {"algos": [], **alike})["algos"].append(cell["algo"])
    return list(found.values())
