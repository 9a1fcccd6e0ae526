"""Rounds without a coordinator, and rounds through Flower: how long they take.

    python bench/federation_peers.py peers [--repeats 5]       ring and gossip beside gloo's own all_reduce, one machine
    python bench/federation_peers.py consensus [--clients 8] [--rounds 12]     how fast gossiping peers come to agree
    python bench/federation_peers.py round [--clients 8] [--parameters 1000000] [--rounds 5]     needs Flower and Ray

`peers` starts 2 and then 4 processes, which do the same things in turn, each from a barrier on. For each thing the
slowest process counts, and of the repeats the best; the median is kept too, and processor time per process, which says
more where the machine is shared. `ring` is a whole round: meeting, new group, reduction, agreement; `reduction` is the
part of it that moves and merges arrays, as all_reduce does. `gossip` is a round in which all meet in pairs.

`consensus` has peers gossip about 1,000 random numbers each, by every schedule: the root mean square distance from
their mean after every round, as a share of that before the first. Peers are threads of one process; nothing is timed.

`round` is the same round four times: on Flower's simulation (Ray, one core per client), where all clients are sent the
arrays and send them back changed, and our mean merges them; with as many processes that meet in a folder on the disk,
or at a coordinator, every file synced as in a run; and all clients' bytes copied once. Times are of the wall, from
the first client's start to the last one's end, medians of the rounds after the first. Run it in the environment of
`make test-flower`: .venv-flower/bin/python. Writes docs/results/federation_peers.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from cells import RESULTS, machine

SIZES_MB = (0.3, 4.0, 40.0)
PROCESSES = (2, 4)
NAMES = ("all_reduce", "reduction", "ring", "gossip")
FILE = RESULTS / "federation_peers.json"


def free_ports(count: int) -> list[int]:
    """Below those that connections going out are given: one of them could take a port before its peer listens."""
    ports: list[int] = []
    for port in random.sample(range(20_000, 32_000), 12_000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"there are no {count} free ports")


def whole(there: tuple[str, ...], expected: int) -> None:
    """A figure of a round in which somebody was missing is none."""
    assert len(there) == expected, f"{there} were there, {expected} expected"


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float]) -> tuple[float, float]:
    """Seconds that went by, and of the processor for all threads of this process."""
    wall, cpu = clocks()
    return wall - began[0], cpu - began[1]


def take_part(pipe: Any, rank: int, ports: list[int], repeats: int) -> None:
    """One process: whatever it is told to time, it times so often."""
    import torch
    import torch.distributed

    from slipstream.federate import ring_group
    from slipstream.federate.gossip import Gossip
    from slipstream.federate.peers import Schedule
    from slipstream.federate.ring import Ring

    torch.set_num_threads(1)
    dist: Any = torch.distributed
    size = (len(ports) - 1) // 2
    me = f"c{rank}"
    ring = Ring(me, {f"c{i}": f"tcp://127.0.0.1:{ports[i]}" for i in range(size)}, "bench")
    addresses = {f"c{i}": f"tcp://127.0.0.1:{ports[size + i]}" for i in range(size)}
    gossip = Gossip(me, addresses, "bench", Schedule("matching"))
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", ports[-1], is_master=rank == 0, wait_for_workers=False)
    group = dist.ProcessGroupGloo(store, rank, size, options)
    reductions: list[tuple[float, float]] = []
    reduce = ring_group.MeetingGroup.reduce

    def timed_reduce(self: Any, *args: Any) -> Any:
        group.barrier().wait()
        began = clocks()
        result = reduce(self, *args)
        reductions.append(since(began))
        return result

    ring_group.MeetingGroup.reduce = timed_reduce  # type: ignore[method-assign]
    for megabytes in SIZES_MB:
        arrays = {f"layer.{i}": np.random.default_rng(rank).normal(size=int(megabytes * 1e6 / 16)) for i in range(4)}
        arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
        tensor = torch.cat([torch.from_numpy(array) for array in arrays.values()])

        calls: dict[str, Callable[[int], Any]] = {
            "all_reduce": lambda number, tensor=tensor: group.allreduce([tensor]).wait(),
            "ring": lambda number, arrays=arrays: whole(ring.reduce(arrays, number)[1].members, size),
            "gossip": lambda number, arrays=arrays: whole(gossip.exchange(arrays, number)[1].met, 1),
        }
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
        for repeat in range(repeats + 1):
            for name, call in calls.items():
                group.barrier().wait()
                began = clocks()
                call(repeat)
                if repeat:  # the first one makes buffers
                    took[name].append(since(began))
        took["reduction"] = reductions[-repeats:]
        pipe.send(took)
    group.barrier().wait()
    ring.close()
    gossip.close()


def measure_peers(repeats: int, processes: Sequence[int] = PROCESSES) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    rows = []
    for size in processes:
        ports = free_ports(2 * size + 1)
        pipes, peers = [], []
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            peers.append(context.Process(target=take_part, args=(theirs, rank, ports, repeats), daemon=True))
            peers[-1].start()
            theirs.close()
            pipes.append(ours)
        try:
            for megabytes in SIZES_MB:
                took = [pipe.recv() for pipe in pipes]
                row: dict[str, Any] = {"processes": size, "mb": megabytes}
                for name in NAMES:
                    slowest = [max(one[name][repeat][0] for one in took) for repeat in range(repeats)]
                    row[f"{name}_ms"] = round(1e3 * min(slowest), 2)
                    row[f"{name}_median_ms"] = round(1e3 * statistics.median(slowest), 2)
                    work = [cpu for one in took for _, cpu in one[name]]
                    row[f"{name}_cpu_ms"] = round(1e3 * statistics.median(work), 2)
                rows.append(row)
                shown = {key: value for key, value in row.items() if not key.endswith("median_ms")}
                print("  ".join(f"{key} {value:>8}" for key, value in shown.items()), flush=True)
        finally:
            for peer in peers:
                peer.join(10)
                peer.kill()
    return rows


def measure_flower(clients: int, parameters: int, rounds: int) -> dict[str, Any]:
    import logging

    from slipstream.federate import flower
    from slipstream.federate.aggregate import mean

    flower._flower("common")
    from flwr.simulation import run_simulation  # type: ignore[import-not-found, unused-ignore]

    logging.getLogger("flwr").setLevel(logging.ERROR)

    def make_fit() -> Callable[..., Any]:
        def fit(arrays: Any, config: Any) -> Any:
            return {name: array + 1 for name, array in arrays.items()}, 1, {}

        return fit

    seconds: list[float] = []

    def note(report: Any, arrays: Any, details: Any) -> None:
        assert len(report.accepted) == clients, report
        seconds.append(report.seconds)

    merging: list[float] = []

    def merge(updates: Any, reference: Any) -> Any:
        began = time.perf_counter()
        merged = mean({update.client: update.arrays for update in updates})
        merging.append(time.perf_counter() - began)
        return merged, None

    initial = {f"layer.{i}": np.zeros(parameters // 4, np.float32) for i in range(4)}
    rules = flower.FlowerRules(min_train_nodes=clients, quorum=clients, nodes_s=120, round_s=120)
    server = flower.server_app(merge, initial, rounds + 1, rules, note)
    app = flower.client_app(make_fit())
    config = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, app, clients, backend_config=config)
    return {
        "round_ms": round(1e3 * statistics.median(seconds[1:]), 1),  # the first starts Ray's workers
        "first_round_ms": round(1e3 * seconds[0], 1),
        "of_it_merging_ms": round(1e3 * statistics.median(merging[1:]), 1),
    }


def meet(
    pipe: Any, barrier: Any, way: str, place: str, client: int, clients: int, parameters: int, rounds: int
) -> None:
    """One client of a federation in a process of its own: sends a changed model and takes what comes of it."""
    from slipstream.federate.coordinator_client import CoordinatorTransport
    from slipstream.federate.files import Files
    from slipstream.federate.rounds import RoundLimits, Transport
    from slipstream.federate.update import ClientUpdate
    from slipstream.runtime.address import parse_address

    here: Transport
    if way == "coordinator":
        address = parse_address(f"ipc://{place}/socket")
        here = CoordinatorTransport(address, str(client), "bench", RoundLimits(clients, clients, timeout_s=120.0))
    else:
        here = Files(federation_of(Path(place), clients))
    arrays = {f"layer.{i}": np.zeros(parameters // 4, np.float32) for i in range(4)}
    base, took = "", []
    for number in range(1, rounds + 2):
        barrier.wait(120)
        began = time.perf_counter()
        model = here.catch_up(base)
        changed = {name: array + 1 for name, array in arrays.items()}
        said = here.exchange(ClientUpdate(str(client), model.round, base, f"{client}-{number}", changed, 1.0, {}))
        assert said is not None
        assert said.took_part, said.reason
        assert said.model.arrays is not None
        arrays, base = dict(said.model.arrays), said.model.base
        took.append((began, time.perf_counter()))
    assert all((array == rounds + 1).all() for array in arrays.values())
    pipe.send(took)


def federation_of(place: Path, clients: int) -> Any:
    from slipstream.data.merge_rules import Rule
    from slipstream.federate import folder
    from slipstream.federate.aggregate import MergeSettings, aggregate
    from slipstream.federate.defence import Defence
    from slipstream.federate.rounds import Federation, RoundLimits

    def merge(updates: Any, base: Any) -> Any:
        return aggregate(MergeSettings(), {f"layer.{i}": Rule("merge") for i in range(4)}, updates, base)

    rules = RoundLimits(clients, clients, timeout_s=120.0)
    made = Federation(folder.federation_folder(place, "bench"), rules, merge, "mean", Defence(None, None, None))
    folder.join(made)
    return made


def coordinate(place: str, clients: int, watch: int) -> None:
    from slipstream.federate.coordinator import Coordinator
    from slipstream.runtime.address import listen, parse_address

    server, _ = listen(parse_address(f"ipc://{place}/socket"), "bench")
    Coordinator(server, federation_of(Path(place), clients), "bench", watch=watch).run()


def measure_ours(way: str, clients: int, parameters: int, rounds: int) -> float:
    """Milliseconds of a round, the median of those after the first."""
    context = multiprocessing.get_context("fork")  # nothing has threads yet, and starting is not what is measured
    with tempfile.TemporaryDirectory() as place:
        barrier, pipes, processes = context.Barrier(clients), [], []
        theirs, ours = os.pipe()
        if way == "coordinator":
            processes.append(context.Process(target=coordinate, args=(place, clients, theirs), daemon=True))
            processes[0].start()
            while not Path(place, "socket").exists():
                time.sleep(0.01)
        for client in range(clients):
            get, put = context.Pipe(duplex=False)
            arguments = (put, barrier, way, place, client, clients, parameters, rounds)
            processes.append(context.Process(target=meet, args=arguments, daemon=True))
            processes[-1].start()
            put.close()
            pipes.append(get)
        took = [pipe.recv() for pipe in pipes]
        for process in processes:
            if way == "coordinator" and process is processes[0]:
                process.terminate()
            process.join(10)
        os.close(theirs)
        os.close(ours)
    spans = [max(one[k][1] for one in took) - min(one[k][0] for one in took) for k in range(1, rounds + 1)]
    return round(1e3 * statistics.median(spans), 1)


def measure_round(clients: int, parameters: int, rounds: int) -> dict[str, Any]:
    everything = [np.zeros(parameters, np.float32) for _ in range(clients)]
    into = [np.empty_like(array) for array in everything]
    copies = []
    for _ in range(9):
        began = time.perf_counter()
        for array, there in zip(everything, into, strict=True):
            np.copyto(there, array)
        copies.append(time.perf_counter() - began)
    row: dict[str, Any] = {
        "clients": clients, "parameters": parameters, "rounds": rounds,
        "memcpy_ms": round(1e3 * statistics.median(copies), 2),
        "folder_ms": measure_ours("folder", clients, parameters, rounds),
        "coordinator_ms": measure_ours("coordinator", clients, parameters, rounds),
    }  # fmt: skip
    row |= {f"flower_{key}": value for key, value in measure_flower(clients, parameters, rounds).items()}
    for key in ("folder", "coordinator"):
        row[f"flower_over_{key}"] = round(row["flower_round_ms"] / row[f"{key}_ms"], 2)
    print("  ".join(f"{key} {value}" for key, value in row.items()))
    return row


def measure_consensus(clients: int, rounds: int) -> dict[str, list[float]]:
    """How far peers are from their mean before the first round and after each, by schedule; the first is 1."""
    from concurrent.futures import ThreadPoolExecutor
    from typing import get_args

    from slipstream.federate.gossip import Gossip
    from slipstream.federate.peers import Kind, Schedule

    curves: dict[str, list[float]] = {}
    for kind in get_args(Kind):
        addresses = {f"c{i}": f"tcp://127.0.0.1:{port}" for i, port in enumerate(free_ports(clients))}
        group = {name: Gossip(name, addresses, "x" * 32, Schedule(kind), 30.0) for name in addresses}
        held = {name: {"w": np.random.default_rng(i).normal(size=1000)} for i, name in enumerate(group)}
        spreads = []
        with ThreadPoolExecutor(clients) as pool:
            for number in range(1, rounds + 2):
                rows = np.stack([arrays["w"] for arrays in held.values()])
                spreads.append(float(np.sqrt(((rows - rows.mean(0)) ** 2).sum() / clients)))
                if number <= rounds:
                    work = {n: pool.submit(group[n].exchange, held[n], number) for n in group}
                    held = {name: one.result()[0] for name, one in work.items()}
        for peer in group.values():
            peer.close()
        curves[kind] = [float(f"{spread / spreads[0]:.4g}") for spread in spreads]
        print(kind, *curves[kind])
    return curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    peers = verbs.add_parser("peers")
    peers.add_argument("--repeats", type=int, default=5)
    agreeing = verbs.add_parser("consensus")
    agreeing.add_argument("--clients", type=int, default=8)
    agreeing.add_argument("--rounds", type=int, default=12)
    through = verbs.add_parser("round")
    through.add_argument("--clients", type=int, default=8)
    through.add_argument("--parameters", type=int, default=1_000_000)
    through.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    found: Any
    if args.verb == "peers":
        found = measure_peers(args.repeats)
    elif args.verb == "consensus":
        found = measure_consensus(args.clients, args.rounds)
    else:
        found = measure_round(args.clients, args.parameters, args.rounds)
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    FILE.write_text(json.dumps({**known, args.verb: found, f"{args.verb}_machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
