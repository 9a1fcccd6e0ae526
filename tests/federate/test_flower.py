"""Flower: our clients and Flower's in one federation, and answers that no client should send.

What needs Flower's runtime is run by `make test-flower`, in an environment of its own: Flower holds back packages that
others need newer.
"""

import contextlib
import io
import json
import math
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from peer_group import free_addresses

from slipstream.errors import FederationError
from slipstream.federate import flower
from slipstream.federate.aggregate import mean


def reply(node, arrays, examples=10.0, client=None, metrics=None, error=None, **records):
    """A reply as the strategy sees it, without Flower."""
    sent = {name: to_array(array) for name, array in arrays.items()}
    numbers = {"num-examples": examples} if metrics is None else metrics
    content = SimpleNamespace(
        array_records=records.get("array_records", {"arrays": sent}),
        metric_records=records.get("metric_records", {"metrics": numbers}),
        config_records={} if client is None else {"slipstream": {"client": client}},
    )
    return SimpleNamespace(
        metadata=SimpleNamespace(src_node_id=node),
        has_error=lambda: error is not None,
        error=SimpleNamespace(reason=error),
        content=content,
    )


def to_array(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=array.dtype == object)
    return SimpleNamespace(stype="numpy.ndarray", data=file.getvalue())


REFERENCE = {"w": np.zeros((2, 3), np.float32), "n": np.zeros(1, np.int64)}


def good(value):
    return {"w": np.full((2, 3), value, np.float32), "n": np.array([value], np.int64)}


def test_answers_are_sorted_by_client_and_carry_what_they_claim():
    replies = [
        reply(9, good(1), examples=30, client="site-b", metrics={"num-examples": 30, "return": -2.5, "list": [1.0]}),
        reply(5, good(2)),
        reply(7, good(3), client="site-a"),
    ]
    updates, refused = flower.read_replies(replies, 4, REFERENCE)
    assert refused == {}
    assert [update.client for update in updates] == ["node-5", "site-a", "site-b"]
    assert updates[2].weight == 30
    assert updates[2].facts == {"return": -2.5, "samples": 30}
    assert updates[1].round == 4
    assert np.array_equal(updates[1].arrays["w"], good(3)["w"])


def test_an_array_in_another_order_of_memory_is_the_same_array():
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    sent = to_array(np.asfortranarray(numbers))
    assert np.array_equal(flower.read_array(sent, "w", REFERENCE["w"]), numbers)


def bomb():
    """A header that speaks of more numbers than there is memory for."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
    return SimpleNamespace(stype="numpy.ndarray", data=file.getvalue())


def with_array(name, array):
    sent = {key: to_array(value) for key, value in good(1).items()}
    return {"arrays": {**sent, name: array}}


BAD = {
    "failed": (reply(1, {}, error="it ran out of memory"), "it ran out of memory"),
    "shape": (reply(1, {**good(1), "w": np.zeros((3, 2), np.float32)}), "float32[3, 2]"),
    "dtype": (reply(1, {**good(1), "w": np.zeros((2, 3))}), "w"),
    "missing": (reply(1, {"w": good(1)["w"]}), "'n'"),
    "more": (reply(1, {**good(1), "z": np.zeros(1)}), "'z'"),
    "nan": (reply(1, {**good(1), "w": np.full((2, 3), np.nan, np.float32)}), "w[0, 0] is nan"),
    "pickle": (reply(1, {}, array_records=with_array("w", to_array(np.array([{}] * 6, object)))), "w"),
    "garbage": (reply(1, {}, array_records=with_array("w", SimpleNamespace(stype="numpy.ndarray", data=b"no"))), "w"),
    "bomb": (reply(1, {}, array_records=with_array("w", bomb())), "float32[1099511627776]"),
    "long": (reply(1, {**good(1), "w": np.zeros(10_000, np.float32)}), "40,128 bytes"),
    "stype": (reply(1, {}, array_records=with_array("w", SimpleNamespace(stype="pickle", data=b""))), "'pickle'"),
    "two records": (reply(1, {}, array_records={"a": {}, "b": {}}), "2 records of kind ArrayRecord"),
    "no metrics": (reply(1, good(1), metric_records={}), "0 records of kind MetricRecord"),
    "no examples": (reply(1, good(1), metrics={"return": 1.0}), "num-examples is None"),
    "examples": (reply(1, good(1), examples=-1.0), "num-examples is -1.0"),
    "infinite": (reply(1, good(1), examples=math.inf), "num-examples is inf"),
    "a list": (reply(1, good(1), metrics={"num-examples": [1.0]}), "num-examples is [1.0]"),
    "a path": (reply(1, good(1), client="../../etc"), "'../../etc'"),
    "a number": (reply(1, good(1), client=7), " 7:"),
    "a node": (reply(1, good(1), client="node-2"), "'node-2'"),
    "nothing": (SimpleNamespace(metadata=SimpleNamespace(src_node_id=1)), "has_error"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_malformed_is_refused_with_a_reason_and_the_rest_counts(what):
    bad, reason = BAD[what]
    updates, refused = flower.read_replies([bad, reply(2, good(1))], 1, REFERENCE)
    assert [update.client for update in updates] == ["node-2"]
    assert reason in refused["node-1"]


def test_a_name_counts_once():
    replies = [reply(8, good(1), client="site-a"), reply(3, good(2), client="site-a")]
    updates, refused = flower.read_replies(replies, 1, REFERENCE)
    assert updates[0].arrays["n"].tolist() == [2]  # the node with the smaller id, whoever answered first
    assert refused == {"node-8": "another node answered as site-a before"}


def test_without_flower_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(FederationError, match=r"slipstream\[flower\]"):
        flower.to_record({})


# --- with Flower ---


def simulate(server, client, nodes):
    pytest.importorskip("flwr", reason="Flower is in an environment of its own: make test-flower")
    from flwr.simulation import run_simulation

    run_simulation(server, client, nodes, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})


def mean_of(updates, reference):
    return mean({update.client: update.arrays for update in updates}), "as told"


def mixed_clients(targets):
    """An app whose nodes 0 and 1 are ours, and whose others are written with Flower alone."""
    pytest.importorskip("flwr", reason="Flower is in an environment of its own: make test-flower")
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from slipstream.federate.flower import answer

    app = ClientApp()

    def fit(arrays, config):
        target = targets[config["partition-id"]]
        return {name: array + (target - array) / 2 for name, array in arrays.items()}, 10, {"loss": 1.0}

    @app.train()
    def train(message, context):
        place = context.node_config["partition-id"]
        if place < 2:
            return answer(fit, message, context, client=f"site-{place}")
        arrays = message.content["arrays"].to_numpy_ndarrays()
        moved = [(array + targets[place]) / 2 for array in arrays]
        record = ArrayRecord({name: Array(a) for name, a in zip(message.content["arrays"], moved, strict=True)})
        content = {"model": record, "numbers": MetricRecord({"num-examples": 5})}
        return Message(content=RecordDict(content), reply_to=message)

    return app


def test_three_mixed_clients_do_ten_rounds_on_flowers_own_runtime():
    """Each goes half of the way to a target of its own: what is left of the way to their mean halves every round."""
    targets = [1.0, 2.0, 6.0]
    client = mixed_clients(targets)
    seen = []
    rules = flower.FlowerRules(min_train_nodes=3, quorum=3, nodes_s=60, round_s=60)
    initial = {"b": np.array([100.0]), "a": np.full((4, 2), -7.0)}
    server = flower.server_app(mean_of, initial, 10, rules, lambda *told: seen.append(told))
    simulate(server, client, 3)
    assert [report.round for report, _, _ in seen] == list(range(1, 11))
    for number, (report, arrays, details) in enumerate(seen, start=1):
        assert report.asked == 3
        assert report.accepted[1:] == ("site-0", "site-1")
        assert report.accepted[0].startswith("node-")
        assert (report.refused, report.reason, details) == ({}, "", "as told")
        for name, start in initial.items():
            np.testing.assert_allclose(arrays[name], 3.0 + (start - 3.0) / 2**number, rtol=1e-12)


def test_below_the_quorum_or_without_a_result_nothing_changes():
    pytest.importorskip("flwr", reason="Flower is in an environment of its own: make test-flower")
    seen = []

    def merge(updates, reference):
        if len(updates) == 3:
            raise FederationError("three is no number")
        return mean_of(updates, reference)

    rule = flower.strategy(merge, flower.FlowerRules(4, 2), lambda *told: seen.append(told))
    rule.reference, rule.asked, rule.began = {"w": np.zeros(2)}, 4, 0.0
    replies = [reply(node, {"w": np.full(2, 6.0)}) for node in range(4)]
    merged = [rule.aggregate_train(1, replies[:count])[0] for count in (1, 2, 3)]
    assert merged[0] is merged[2] is None
    assert merged[1]["w"].numpy().tolist() == [6.0, 6.0]
    reasons = ["1 of 4 answers count, and the quorum is 2", "", "three is no number"]
    assert [report.reason for report, _, _ in seen] == reasons
    assert seen[0][1]["w"].tolist() == [0.0, 0.0]


def test_a_quorum_that_can_never_be_is_refused():
    pytest.importorskip("flwr", reason="Flower is in an environment of its own: make test-flower")
    with pytest.raises(FederationError, match="3 answers of 2 nodes"):
        flower.strategy(mean_of, flower.FlowerRules(min_train_nodes=2, quorum=3))


def malformed_clients():
    pytest.importorskip("flwr", reason="Flower is in an environment of its own: make test-flower")
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from slipstream.federate.flower import answer

    app = ClientApp()

    def fit(arrays, config):
        place = config["partition-id"]
        if place == 1:
            raise RuntimeError("this site is on fire")
        if place == 2:
            return {"w": arrays["w"] * np.nan}, 1, {}
        return {"w": arrays["w"] + config["server-round"]}, 1, {}

    @app.train()
    def train(message, context):
        if context.node_config["partition-id"] != 3:
            return answer(fit, message, context)
        odd = ArrayRecord({"w": Array(dtype="float64", shape=(3,), stype="numpy.ndarray", data=b"garbage")})
        content = {"arrays": odd, "more": odd, "numbers": MetricRecord({})}
        return Message(content=RecordDict(content), reply_to=message)

    return app


def test_malformed_answers_do_not_end_the_round():
    client = malformed_clients()
    seen = []
    rules = flower.FlowerRules(min_train_nodes=5, quorum=2, nodes_s=60, round_s=60)
    server = flower.server_app(mean_of, {"w": np.zeros(3)}, 2, rules, lambda *told: seen.append(told))
    simulate(server, client, 5)
    assert [len(report.accepted) for report, _, _ in seen] == [2, 2]
    assert seen[-1][1]["w"].tolist() == [3.0, 3.0, 3.0]
    reasons = " | ".join(seen[0][0].refused.values())
    assert len(seen[0][0].refused) == 3
    assert "it failed" in reasons
    assert "w[0] is nan" in reasons
    assert "2 records of kind ArrayRecord" in reasons


APP = """
from json import dumps
from pathlib import Path

import numpy as np

from slipstream.federate.aggregate import mean
from slipstream.federate.flower import Rules, client_app, server_app


def fit(arrays, config):
    target = config["partition-id"]
    return {name: (array + target) / 2 for name, array in arrays.items()}, 10, {}


def merge(updates, reference):
    return mean({update.client: update.arrays for update in updates}), None


def note(report, arrays, details):
    with Path("@rounds@").open("a") as file:
        file.write(dumps([report.round, len(report.accepted), arrays["w"].tolist()]) + "\\n")


client = client_app(fit)
server = server_app(merge, {"w": np.zeros(2)}, 2, Rules(min_train_nodes=2, quorum=2, nodes_s=60, round_s=120), note)
"""

PROJECT = """
[project]
name = "fed"
version = "1.0.0"
description = "Two sites"
license = "MIT"
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "us"

[tool.flwr.app.components]
serverapp = "fed.app:server"
clientapp = "fed.app:client"
"""


def end(processes):
    """End what was started here, and all that it started: Flower's executors are sessions of their own."""
    family = [child for process in processes for child in psutil.Process(process.pid).children(recursive=True)]
    for process in [*processes, *family]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for process in processes:
        process.wait()
    psutil.wait_procs(family, timeout=20)


def test_a_superlink_and_two_supernodes_run_the_app_without_fetching_anything(tmp_path):
    pytest.importorskip("flwr", reason="Flower is in an environment of its own: make test-flower")
    tools = Path(sys.executable).parent
    link, *nodes = (int(address.rpartition(":")[2]) for address in free_addresses(3).values())
    home, app, rounds = tmp_path / "home", tmp_path / "app", tmp_path / "rounds.jsonl"
    for folder in (home, app / "fed"):
        folder.mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "fed" / "__init__.py").touch()
    (app / "fed" / "app.py").write_text(APP.replace("@rounds@", str(rounds)))
    (home / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n')
    nowhere = "http://127.0.0.1:9"  # where nothing can be fetched from
    env = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PATH": f"{tools}:{os.environ['PATH']}"}
    env |= {"UV_OFFLINE": "1", "UV_DEFAULT_INDEX": nowhere, "https_proxy": nowhere}

    def start(tool, *words):
        said = (tmp_path / f"{tool}{len(started)}.log").open("w")
        started.append(subprocess.Popen([tools / tool, "--insecure", *words], env=env, stdout=said, stderr=said))

    started: list[subprocess.Popen[bytes]] = []
    try:
        start("flower-superlink", "--port", str(link), "--disable-runtime-dependency-installation")
        for place, port in enumerate(nodes):
            config = f"partition-id={2 + 2 * place}"
            address = f"127.0.0.1:{link}"
            start("flower-supernode", "--superlink", address, "--port", str(port), "--node-config", config)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and socket.socket().connect_ex(("127.0.0.1", link)):
            time.sleep(0.2)
        run = [tools / "flwr", "run", app, "here", "--stream"]
        subprocess.run(run, env=env, check=False, timeout=200, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    finally:
        end(started)
    assert [json.loads(line) for line in rounds.read_text().splitlines()] == [[1, 2, [1.5, 1.5]], [2, 2, [2.25, 2.25]]]
