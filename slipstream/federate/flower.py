"""The bridge to Flower (extra `flower`): a run as a ClientApp, an aggregation rule as a server strategy.

Flower moves messages between sites and decides when rounds happen; what a client does with the arrays it is sent, and
what becomes of the answers, stays ours. Both come as functions, so any run and any rule will do:

    fit(arrays, config) -> arrays, number of examples, metrics        on a client
    aggregate(updates, reference) -> arrays, report                   on the server; updates are sorted by client

Clients of ours and clients written with Flower alone take part in the same federation: they answer a train message with
one ArrayRecord, and one MetricRecord with `num-examples`. Ours add a ConfigRecord that says who they are; the id of
others is made of their node's. What is malformed is refused with a reason, and the round goes on without it; Flower's
own strategies end the run there.

flwr is imported when something is made, and its telemetry is off unless FLWR_TELEMETRY_ENABLED says otherwise.
"""

from __future__ import annotations

import io
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from slipstream.errors import FederationError
from slipstream.federate.peers import why_not_finite
from slipstream.federate.update import ClientUpdate, check_id
from slipstream.types import Arrays

Fit = Callable[[Arrays, Mapping[str, Any]], tuple[Arrays, float, Mapping[str, float]]]
Aggregate = Callable[[Sequence[ClientUpdate], Arrays], tuple[Arrays, Any]]

ARRAYS, CONFIG, METRICS, ABOUT = "arrays", "config", "metrics", "slipstream"  # names of records in messages
EXAMPLES = "num-examples"
NPY_HEADER = 4096  # bytes before the numbers of an array, at most
POLL_S = 0.5


class FlowerReport(msgspec.Struct, frozen=True):
    """One round, as the server saw it."""

    round: int
    asked: int
    accepted: tuple[str, ...]
    refused: dict[str, str]  # client: why its answer does not count
    reason: str  # why nothing changed; empty where there is an aggregate
    seconds: float


class FlowerRules(NamedTuple):
    """When a round happens, and when it counts."""

    min_train_nodes: int  # a round begins with all nodes that are there, once there are so many
    quorum: int  # answers that count; with fewer nothing changes
    nodes_s: float = 600.0  # nodes are waited for so long
    round_s: float = 3600.0  # answers are waited for so long


# --- on a client ---


def client_app(fit: Fit, client: str = "") -> Any:
    """A ClientApp that answers train messages by `fit`."""
    app = _flower("clientapp").ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        return answer(fit, message, context, client)

    return app


def answer(fit: Fit, message: Any, context: Any, client: str = "") -> Any:
    """The answer to one train message; for a ClientApp of one's own.

    `fit` is told everything Flower knows: the run's and the node's settings and what the server sent with the arrays.
    """
    flower = _flower("app")
    config = {**context.run_config, **context.node_config, **_only(message.content.config_records, "ConfigRecord")}
    sent = _only(message.content.array_records, "ArrayRecord")
    arrays, examples, metrics = fit({name: array.numpy() for name, array in sent.items()}, config)
    if EXAMPLES in metrics:
        raise FederationError(f"metrics: {EXAMPLES} is what fit returns second, and no metric")
    about = {"nonce": secrets.token_hex(8), **({"client": check_id(client, "client")} if client else {})}
    content = {
        ARRAYS: to_record(arrays),
        METRICS: flower.MetricRecord({EXAMPLES: float(examples), **{key: float(metrics[key]) for key in metrics}}),
        ABOUT: flower.ConfigRecord(about),
    }
    return flower.Message(content=flower.RecordDict(content), reply_to=message)


# --- on the server ---


def server_app(
    aggregate: Aggregate,
    initial: Arrays,
    rounds: int,
    rules: FlowerRules,
    on_round: Callable[[FlowerReport, Arrays, Any], None] = lambda report, arrays, details: None,
    config: Mapping[str, Any] | None = None,
) -> Any:
    """A ServerApp that does so many rounds; `on_round` is told of each, with what clients go on from next."""
    app = _flower("serverapp").ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        strategy(aggregate, rules, on_round).start(
            grid=grid,
            initial_arrays=to_record(initial),
            num_rounds=rounds,
            timeout=rules.round_s,
            train_config=_flower("app").ConfigRecord(dict(config or {})),
        )

    return app


def strategy(
    aggregate: Aggregate,
    rules: FlowerRules,
    on_round: Callable[[FlowerReport, Arrays, Any], None] = lambda report, arrays, details: None,
) -> Any:
    """A strategy of Flower's message interface that merges by a rule of ours."""
    flower, base = _flower("app"), _flower("serverapp.strategy").Strategy
    if not 1 <= rules.quorum <= rules.min_train_nodes:
        raise FederationError(
            f"quorum: {rules.quorum} answers of {rules.min_train_nodes} nodes; it is at least 1, and at most as many "
            "as are asked"
        )

    class Slipstream(base):  # type: ignore[misc, valid-type]
        """Asks everybody, refuses what is malformed, and merges the rest in the order of clients."""

        reference: Arrays
        asked: int
        began: float

        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
            self.began = time.monotonic()
            self.reference = {name: array.numpy() for name, array in arrays.items()}
            nodes = _wait_for_nodes(grid, rules)
            self.asked = len(nodes)
            config["server-round"] = server_round
            content = flower.RecordDict({ARRAYS: arrays, CONFIG: config})
            train = flower.MessageType.TRAIN
            return [flower.Message(content=content, message_type=train, dst_node_id=node) for node in nodes]

        def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
            updates, refused = read_replies(replies, server_round, self.reference)
            merged, details, reason = self.reference, None, ""
            if len(updates) < rules.quorum:
                reason = f"{len(updates)} of {self.asked} answers count, and the quorum is {rules.quorum}"
            else:
                try:
                    merged, details = aggregate(updates, self.reference)
                except FederationError as error:
                    reason = str(error)
            accepted = tuple(update.client for update in updates)
            seconds = time.monotonic() - self.began
            on_round(FlowerReport(server_round, self.asked, accepted, refused, reason, seconds), merged, details)
            metrics = flower.MetricRecord({"accepted": len(accepted), "refused": len(refused)})
            return None if reason else to_record(merged), metrics

        def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
            return []  # evaluation is a run's own business

        def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> Any:
            return None

        def summary(self) -> None:
            _flower("common").log(INFO, "\t└──> from %s nodes, quorum %s", rules.min_train_nodes, rules.quorum)

    return Slipstream()


def _wait_for_nodes(grid: Any, rules: FlowerRules) -> list[int]:
    """All nodes, once there are enough; Flower's own strategies wait for them without end."""
    deadline = time.monotonic() + rules.nodes_s
    while len(nodes := sorted(grid.get_node_ids())) < rules.min_train_nodes:
        if time.monotonic() >= deadline:
            raise FederationError(
                f"{len(nodes)} nodes came within {rules.nodes_s:g} s, and {rules.min_train_nodes} are needed; "
                "start more SuperNodes, or ask for fewer"
            )
        time.sleep(POLL_S)
    return nodes


def read_replies(replies: Iterable[Any], number: int, reference: Arrays) -> tuple[list[ClientUpdate], dict[str, str]]:
    """What counts, sorted by client, and why the rest does not."""
    updates: dict[str, ClientUpdate] = {}
    refused: dict[str, str] = {}
    for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
        client = f"node-{reply.metadata.src_node_id}"
        try:
            if reply.has_error():
                raise FederationError(f"it failed: {reply.error.reason!s:.200}")
            update = _read_reply(reply.content, client, number, reference)
            if update.client in updates:
                raise FederationError(f"another node answered as {update.client} before")
            updates[update.client] = update
        except Exception as error:  # nothing that a client sends may end a round
            refused[client] = str(error) or type(error).__name__
    return [updates[client] for client in sorted(updates)], refused


def _read_reply(content: Any, client: str, number: int, reference: Arrays) -> ClientUpdate:
    sent = _only(content.array_records, "ArrayRecord")
    odd = sorted(sent.keys() ^ reference.keys())
    if odd:
        raise FederationError(f"{odd[0]!r:.80} is {'not expected' if odd[0] in sent else 'missing'}")
    arrays = {name: read_array(sent[name], name, like) for name, like in reference.items()}
    if (reason := why_not_finite(arrays)) is not None:
        raise FederationError(reason)
    metrics = _only(content.metric_records, "MetricRecord")
    facts = {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}
    examples = facts.pop(EXAMPLES, math.nan)
    if not (math.isfinite(examples) and examples >= 0):
        raise FederationError(f"{EXAMPLES} is {metrics.get(EXAMPLES)!r:.40}, where a number of 0 or more is expected")
    about = content.config_records.get(ABOUT, {})
    name = check_id(about.get("client", client), "client")
    if name != client and name.startswith("node-"):
        raise FederationError(f"it calls itself {name!r}, which is how nodes without a name are called")
    finite = {key: value for key, value in facts.items() if math.isfinite(value)}
    update_id = str(about.get("nonce", ""))[:64]
    return ClientUpdate(name, number, "", update_id, arrays, examples, {**finite, "samples": examples})


def read_array(sent: Any, name: str, like: NDArray[Any]) -> NDArray[Any]:
    """An array as Flower sends it, if it is what is expected; its header is read before its numbers are."""
    if sent.stype != "numpy.ndarray" or len(sent.data) > like.nbytes + NPY_HEADER:
        raise FederationError(f"{name} came as {sent.stype!r:.40} in {len(sent.data):,} bytes")
    file = io.BytesIO(sent.data)
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = read(file, max_header_size=NPY_HEADER)
    except (ValueError, KeyError) as error:
        raise FederationError(f"{name} is no array: {error!s:.100}") from None
    if (shape, dtype) != (like.shape, like.dtype) or len(sent.data) != file.tell() + like.nbytes:
        raise FederationError(f"{name} is {dtype}{list(shape)}, where {like.dtype}{list(like.shape)} is expected")
    numbers = np.frombuffer(sent.data, dtype, offset=file.tell())
    return numbers.reshape(shape, order="F" if fortran else "C").copy()


# --- both ---


def to_record(arrays: Arrays) -> Any:
    """Arrays as Flower sends them."""
    flower = _flower("app")
    return flower.ArrayRecord({name: flower.Array(np.asarray(array)) for name, array in arrays.items()})


def _only(records: Mapping[str, Any], kind: str) -> Any:
    if len(records) != 1:
        raise FederationError(f"{len(records)} records of kind {kind}, where one is expected")
    return next(iter(records.values()))


def _flower(part: str) -> Any:
    """A part of Flower, imported when it is needed."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        import importlib

        return importlib.import_module(f"flwr.{part}")
    except ImportError as error:
        raise FederationError(f"Flower is not installed ({error}); pip install 'slipstream[flower]'") from None
