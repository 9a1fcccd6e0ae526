"""A round of a federation: how long it takes, beside copying the same bytes.

    python bench/federation.py aggregate [--clients 8] [--parameters 1000000] [--repeats 9]

Float32 arrays of a few layers, one thread. Every rule is timed in turn with a copy of all clients' arrays (the memcpy
limit: each number has to be read once), in processor time of that thread, and of the repeats the median counts. `round`
is what a closer does: the rule, merged moments where they are averaged, and the figures for the report. Writes
docs/results/federation_bench.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, machine

LAYERS = 4
LIARS = 1


def made(clients: int, parameters: int) -> dict[str, dict[str, Any]]:
    """Clients near each other, with one liar."""
    rng = np.random.default_rng(1)
    size = parameters // LAYERS
    centre = [rng.normal(size=size).astype(np.float32) for _ in range(LAYERS)]
    return {
        f"c{client}": {
            f"layer.{i}": array + rng.normal(size=size).astype(np.float32) * np.float32(0.1 if client else 10.0)
            for i, array in enumerate(centre)
        }
        for client in range(clients)
    }


def rules(clients: dict[str, dict[str, Any]]) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    from slipstream.config.aggregators import AGGREGATORS
    from slipstream.federate.rules import Known, merge_by

    weights = {client: 1.0 + 0.1 * index for index, client in enumerate(sorted(clients))}
    known = Known(liars=LIARS, weights=weights)
    plain = Known(liars=LIARS)
    calls: dict[str, Callable[[], Any]] = {
        rule: partial(merge_by, rule, clients, known if traits.reads_weights else plain)
        for rule, traits in AGGREGATORS.items()
        if len(clients) >= traits.needed(LIARS)
    }
    for rule in ("mean", "trimmed_mean", "multi_krum"):
        for optimiser in ("local", "average"):
            calls[f"round: {rule}, moments {optimiser}"] = whole_round(clients, rule, optimiser)
    return calls


def whole_round(clients: dict[str, dict[str, Any]], rule: Any, optimiser: Any) -> Callable[[], Any]:
    """All that a closer does with arrays that have been read."""
    from slipstream.data.merge_rules import Rule
    from slipstream.federate.aggregate import Base, MergeSettings, aggregate
    from slipstream.federate.update import ClientUpdate

    table: dict[str, Rule] = {}
    states: dict[str, dict[str, Any]] = {}
    for client, arrays in clients.items():
        state = dict(arrays)
        table |= {name: Rule("merge") for name in arrays}
        if optimiser == "average":
            table["optim.step"] = Rule("optim_step", "optim")
            state["optim.step"] = np.array(10 + len(states), np.float32)
            for name, array in arrays.items():
                table[f"optim.{name}.exp_avg"] = Rule("first_moment", "optim", 0.9)
                table[f"optim.{name}.exp_avg_sq"] = Rule("second_moment", "optim", 0.999)
                state |= {f"optim.{name}.exp_avg": array, f"optim.{name}.exp_avg_sq": np.square(array)}
        states[client] = state
    base = Base("base", next(iter(clients.values())))

    def close() -> Any:
        updates = [ClientUpdate(client, 1, "base", client, state) for client, state in states.items()]
        return aggregate(MergeSettings(rule, LIARS, optimiser=optimiser), table, updates, base)

    return close


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds of processor time of one call, which others on the machine do not lengthen as they do wall time."""
    start = time.thread_time()
    call()
    return (time.thread_time() - start) * 1e3


def aggregate(clients: int, parameters: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of every rule and of copying the same bytes, in one run."""
    everyone = made(clients, parameters)
    copies = {client: {name: np.empty_like(array) for name, array in own.items()} for client, own in everyone.items()}

    def copy() -> None:
        for client, own in everyone.items():
            for name, array in own.items():
                np.copyto(copies[client][name], array)

    calls = rules(everyone)
    times: dict[str, list[float]] = {name: [] for name in ("memcpy", *calls)}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            times["memcpy"].append(timed(copy))
            times[name].append(timed(call))
    median = {name: float(np.median(values)) for name, values in times.items()}
    megabytes = sum(array.nbytes for own in everyone.values() for array in own.values()) / 1e6
    print(f"{clients} clients x {parameters} parameters, {megabytes:.0f} MB")
    rows = []
    for name, value in median.items():
        rows.append({"what": name, "ms": value, "best_ms": min(times[name]), "memcpys": value / median["memcpy"]})
        print(f"  {name:42} {value:8.1f} ms   {rows[-1]['memcpys']:6.1f} x memcpy   best {min(times[name]):8.1f} ms")
    return {"clients": clients, "parameters": parameters, "megabytes": megabytes, "repeats": repeats, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("aggregate", help="ms per rule beside memcpy of the same bytes")
    verb.add_argument("--clients", type=int, default=8)
    verb.add_argument("--parameters", type=int, default=1_000_000)
    verb.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    result = aggregate(args.clients, args.parameters, args.repeats)
    path = RESULTS / "federation_bench.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    record["aggregate"] = {**machine(), **result}
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
