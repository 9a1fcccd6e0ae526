"""From measured cells to designs: costs, the checks of the simulation against what was measured, and what if."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Any, NamedTuple

from cells import RESULTS, Cell
from scaling_measure import WORLDS
from scaling_sim import Collecting, Rate, collect, gbit
from scaling_sim_shared import Meeting, Serving, meet, serve_replay

CORES = 2  # of the machine that was measured
# --- assumed: nothing here was measured ---
GPU = 20.0  # times as fast as one core, in updates
JITTER = 0.05  # of a slab's time and of a replica's training, as a share of it
NODE_WORKERS = 32
TRAIN_S = 30.0  # between two rounds of a federation
LINKS = {"1 Gbit": gbit(1), "10 Gbit": gbit(10)}  # 0.1 ms each way
WORKERS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
REPLICAS = (1, 2, 4, 10, 30, 100, 300, 1000)
PRODUCERS = (1, 10, 100, 1000, 10_000)
MODELS = (10_000, 1_000_000)  # parameters


class Line(NamedTuple):
    """A cost that grows with a count."""

    at_zero: float
    each: float

    def __call__(self, count: float) -> float:
        return self.at_zero + self.each * count


def line(points: Sequence[tuple[float, float]]) -> Line:
    """Least squares; a cost is never below zero."""
    xs, ys = zip(*points, strict=True)
    mid, height = sum(xs) / len(xs), sum(ys) / len(ys)
    each = sum((x - mid) * (y - height) for x, y in points) / sum((x - mid) ** 2 for x in xs)
    return Line(max(0.0, height - each * mid), each) if each > 0 else Line(height, 0.0)


@dataclass(frozen=True)
class World:
    """Core seconds of a slab by the number of worlds in it, and of learning from it."""

    serial_s: Line
    worker_s: Line  # the same with writing it into the shelf
    wait_s: Line  # no core is used meanwhile
    part_s: Line  # of the learner: order, answer, copy
    bytes: Line
    weight_bytes: float
    update_s: dict[str, float]  # of a row, by algorithm
    shares: dict[str, float]  # of collecting: act, world, record
    crowded: float
    worlds: int
    rows: int  # of a slab of all worlds


@dataclass(frozen=True)
class Costs:
    """All that the simulation is fed with."""

    worlds: dict[str, World]
    order: Line  # of the learner per part, by workers
    tcp_byte_s: float
    copy_byte_s: float
    serving: Serving
    coordinator_s: dict[int, Line]  # by parameters: of a round, by clients
    disk_s: dict[int, Line]  # the same, waiting
    client_s: dict[int, float]
    ring: dict[str, float]


def mid(cells: Sequence[Any], *path: Any) -> float:
    """The median over repeats of what stands at a place of every cell."""
    found = []
    for value in cells:
        for key in path:
            value = value[key]
        found.append(value)
    return float(median(found))


def of(cells: Sequence[Cell], part: str) -> list[Cell]:
    return [cell for cell in cells if cell["part"] == part]


def world_costs(cells: Sequence[Cell], part: str) -> World:
    own = of(cells, part)
    width, _ = WORLDS[part]
    rows = {(one["worlds"], one["workers"]): i for i, one in enumerate(own[0]["costs"])}
    serial = {w: i for (w, workers), i in rows.items() if workers == 0}
    worker = {w: i for (w, workers), i in rows.items() if workers == 1}

    def by_worlds(places: dict[int, int], key: str) -> Line:
        return line([(w, mid(own, "costs", i, key)) for w, i in places.items()])

    waits = [(w, mid(own, "costs", i, "wall_s") - mid(own, "costs", i, "take_s")) for w, i in serial.items()]
    all_rows = int(own[0]["costs"][serial[width]]["rows"])
    return World(
        serial_s=by_worlds(serial, "take_s"),
        worker_s=by_worlds(worker, "workers_s"),
        wait_s=line(waits) if part == "waits" else Line(0.0, 0.0),
        part_s=by_worlds(worker, "take_s"),
        bytes=by_worlds(worker, "bytes"),
        weight_bytes=mid(own, "costs", worker[width], "weight_bytes"),
        update_s={algo: mid(own, f"update_{algo}", "update_s") / all_rows for algo in ("ppo", "appo")},
        shares={key: mid(own, "costs", serial[width], f"{key}_share") for key in ("act", "world", "record")},
        crowded=min(1.0, mid(own, "crowded")) if "crowded" in own[0] else 1.0,
        worlds=width,
        rows=all_rows,
    )


def serving_costs(cells: Sequence[Cell]) -> Serving:
    """Blocks one by one have a turn of the service each; as fast as they come, four share one."""
    own = of(cells, "replay")
    rows = {(one["producers"], one["consumers"], one["paced"]): i for i, one in enumerate(own[0]["replay"])}
    block, batch = int(own[0]["block"]), int(own[0]["batch"])
    made = Serving(producers=1, block_rows=block, batch_rows=batch, row_bytes=own[0]["row_bytes"], cores=1)

    def at(consumers: int, paced: bool, key: str) -> float:
        return mid(own, "replay", rows[1, consumers, paced], key)

    def each(paced: bool, who: str) -> float:
        return block * at(0, paced, who) / at(0, paced, "in_per_s")

    alone_s, full_s = each(True, "service_s"), each(False, "service_s")
    keep_s = max(0.0, (made.turn * full_s - alone_s) / (made.turn - 1))
    draws = at(1, False, "out_per_s") / batch
    give_s = max(0.0, at(1, False, "service_s") - at(1, False, "in_per_s") / block * full_s) / draws
    return replace(
        made,
        add_s=each(False, "producers_s"),
        turn_s=max(0.0, alone_s - keep_s),
        keep_s=keep_s,
        draw_s=at(1, False, "consumers_s") / draws,
        give_s=give_s,
    )


def peer_costs() -> dict[str, float]:
    """Of two processes: the best time to find each other, for others only lengthen it; processor time per byte."""
    rows = json.loads((RESULTS / "federation_peers.json").read_text())["peers"]
    two = {row["mb"]: row for row in rows if row["processes"] == 2}
    small, large = two[0.3], two[40.0]

    def byte_s(way: str) -> float:
        return float(large[f"{way}_cpu_ms"] - small[f"{way}_cpu_ms"]) / 1e3 / 39.7e6

    return {
        "meet_s": (small["ring_ms"] - small["reduction_ms"]) / 2e3,
        "reduce_byte_s": byte_s("ring"),
        "pair_s": small["gossip_ms"] / 1e3,
        "pair_byte_s": byte_s("gossip"),
    }


def costs_of(cells: Sequence[Cell]) -> Costs:
    """Medians over the repeats."""
    worlds = {part: world_costs(cells, part) for part in WORLDS}
    orders, wire, meetings = of(cells, "orders"), of(cells, "wire"), of(cells, "federation")
    each = [
        (row["workers"], mid(orders, "orders", i, "take_s") / row["workers"])
        for i, row in enumerate(orders[0]["orders"])
    ]
    places = {(row["clients"], row["parameters"]): i for i, row in enumerate(meetings[0]["federation"])}

    def met(clients: int, parameters: int, key: str) -> float:
        return mid(meetings, "federation", places[clients, parameters], key)

    sizes = sorted({parameters for _, parameters in places})
    few = (1, 2)  # clients; with more the simulation is checked

    def waited(clients: int, size: int) -> float:
        used = met(clients, size, "coordinator_s") + met(clients, size, "client_s")
        return max(0.0, met(clients, size, "round_s") - used)

    return Costs(
        worlds=worlds,
        order=line(each),
        tcp_byte_s=mid(wire, "tcp_byte_s"),
        copy_byte_s=mid(wire, "copy_byte_s"),
        serving=serving_costs(cells),
        coordinator_s={size: line([(n, met(n, size, "coordinator_s")) for n in few]) for size in sizes},
        disk_s={size: line([(n, waited(n, size)) for n in few]) for size in sizes},
        client_s={size: met(1, size, "client_s") for size in sizes},
        ring=peer_costs(),
    )


# --- what was measured, simulated ---


def here(costs: Costs, part: str, algo: str, overlap: Any, workers: int) -> float:
    """Rows per second of a loop on the machine that was measured; no workers: one thread does all."""
    world = costs.worlds[part]
    if workers == 0:
        return world.rows / (
            world.serial_s(world.worlds) + world.wait_s(world.worlds) + world.update_s[algo] * world.rows
        )
    width = world.worlds / workers
    return collect(
        Collecting(
            workers=workers,
            rows=world.rows // workers,
            collect_s=world.worker_s(width),
            wait_s=world.wait_s(width),
            overlap=overlap,
            part_s=world.part_s(width),
            update_row_s=world.update_s[algo],
            cores=CORES,
            crowded=world.crowded,
        ),
        updates=40,
    ).per_s


class Check(NamedTuple):
    """A point that was measured and simulated."""

    what: str
    unit: str
    measured: float
    low: float  # of the repeats
    high: float
    simulated: float

    @property
    def ratio(self) -> float:
        return self.simulated / self.measured


def checks(cells: Sequence[Cell], costs: Costs) -> list[Check]:
    found = []

    def add(what: str, unit: str, values: Sequence[float], simulated: float) -> None:
        found.append(Check(what, unit, float(median(values)), min(values), max(values), simulated))

    for part in WORLDS:
        own = of(cells, part)
        for i, point in enumerate(own[0]["points"]):
            algo, overlap, workers = point["algo"], point["overlap"], point["workers"]
            rates = [cell["points"][i]["rows_per_s"] for cell in own]
            name = f"{part}, {algo}, " + (
                f"{workers} worker{'s' if workers > 1 else ''}, {overlap}" if workers else "no workers"
            )
            add(name, "rows/s", rates, here(costs, part, algo, overlap, workers))
    served = of(cells, "replay")
    for i, row in enumerate(served[0]["replay"]):
        if not row["consumers"]:
            continue
        rate, out = serve_replay(replace(costs.serving, producers=row["producers"]), 2.0)
        name = f"replay service, {row['producers']} in, 1 out"
        add(f"{name}: in", "rows/s", [cell["replay"][i]["in_per_s"] for cell in served], rate.per_s)
        add(f"{name}: out", "rows/s", [cell["replay"][i]["out_per_s"] for cell in served], out)
    met = of(cells, "federation")
    for i, row in enumerate(met[0]["federation"]):
        if row["clients"] <= 2:
            continue
        here_too = meeting(costs, row["clients"], row["parameters"], "star")
        spans = [cell["federation"][i]["round_s"] for cell in met]
        name = f"coordinator, {row['clients']} clients x {row['parameters']:,}: round"
        add(name, "s", spans, meet(replace(here_too, train_s=0.0, cores=CORES)).seconds)
    for row in json.loads((RESULTS / "federation_peers.json").read_text())["peers"]:
        if row["processes"] == 4:
            for way in ("ring", "gossip"):
                design = meeting(costs, 4, int(row["mb"] * 2.5e5), way)
                usual = row[f"{way}_median_ms"] / 1e3
                found.append(
                    Check(
                        f"{way}, 4 peers x {row['mb']} MB: round", "s", usual, row[f"{way}_ms"] / 1e3, usual,
                        meet(replace(design, train_s=0.0, cores=CORES)).seconds,
                    )
                )  # fmt: skip
    return found


def meeting(costs: Costs, replicas: int, parameters: int, way: Any) -> Meeting:
    """A federation whose costs between the sizes that were measured lie on a line."""

    def at(values: dict[int, float]) -> float:
        return line(sorted(values.items()))(parameters)

    keep, wait = costs.coordinator_s, costs.disk_s
    ring = costs.ring
    return Meeting(
        replicas=replicas, train_s=TRAIN_S, parameters=parameters, way=way,
        send_s=at(costs.client_s), keep_s=at({size: one.each for size, one in keep.items()}),
        disk_s=at({size: one.each for size, one in wait.items()}),
        close_s=at({size: keep[size].at_zero + one.at_zero for size, one in wait.items()}),
        reduce_byte_s=ring["reduce_byte_s" if way == "ring" else "pair_byte_s"],
        meet_s=ring["meet_s" if way == "ring" else "pair_s"],
    )  # fmt: skip


# --- what if ---


def cluster(costs: Costs, part: str, workers: int, overlap: Any, link: str, gpu: bool) -> Collecting:
    """Every worker has a core of its own and as many worlds as one process had here; slabs come in by TCP."""
    world = costs.worlds[part]
    size = world.bytes(world.worlds)
    return Collecting(
        workers=workers,
        rows=world.rows,
        collect_s=world.worker_s(world.worlds),
        wait_s=world.wait_s(world.worlds),
        overlap=overlap,
        part_s=world.part_s(world.worlds) + size * costs.tcp_byte_s,
        scan_s=costs.order.each,
        update_row_s=world.update_s["appo"] / (GPU if gpu else 1.0),
        slab_bytes=size,
        weight_bytes=world.weight_bytes,
        node_workers=NODE_WORKERS,
        jitter=JITTER,
        link=LINKS[link],
    )


def simulate_workers(costs: Costs) -> list[Cell]:
    rows = []
    for part in ("head_on", "works"):
        for gpu in (False, True):
            for link in LINKS:
                for overlap in ("none", "deterministic", "free"):
                    for workers in WORKERS:
                        design = cluster(costs, part, workers, overlap, link, gpu)
                        rate = collect(design)
                        head = {"world": part, "gpu": gpu, "link": link, "overlap": overlap, "workers": workers}
                        rows.append({**head, **told(rate)})
                    print(f"simulated: {part}, {'GPU' if gpu else 'CPU'}, {link}, {overlap}", flush=True)
    return rows


def told(rate: Rate) -> Cell:
    busy = {name: round(share, 3) for name, share in rate.busy.items()}
    return {"per_s": rate.per_s, "bottleneck": rate.bottleneck, "busy": busy, "lag": round(rate.lag, 2)}


def simulate_replay(costs: Costs) -> list[Cell]:
    """Producers on machines of their own; one learner draws all the time, and learns for as long as SAC does here."""
    learn = json.loads((RESULTS / "learners.json").read_text())["rows"]
    learn_s = next(r["ours_ms"] / 1e3 for r in learn if (r["algo"], r["batch"], r["threads"]) == ("sac", 256, 1))
    block_bytes = costs.serving.block_rows * costs.serving.row_bytes
    served = replace(costs.serving, keep_s=costs.serving.keep_s + block_bytes * costs.tcp_byte_s, cores=inf)
    rows = []
    for part in ("head_on", "works"):
        world = costs.worlds[part]
        row_s = world.worker_s(world.worlds) / world.rows
        for gpu in (False, True):
            for link in LINKS:
                for producers in PRODUCERS:
                    design = replace(
                        served,
                        producers=producers,
                        make_s=row_s * served.block_rows,
                        learn_s=learn_s / (GPU if gpu else 1.0),
                        link=LINKS[link],
                    )
                    seconds = max(1.0, 8 * design.make_s)
                    rate, out = serve_replay(design, seconds)
                    rows.append(
                        {
                            "world": part,
                            "gpu": gpu,
                            "link": link,
                            "producers": producers,
                            **told(rate),
                            "out_per_s": out,
                        }
                    )
    return rows


def simulate_replicas(costs: Costs) -> list[Cell]:
    rows = []
    for parameters in MODELS:
        for link in LINKS:
            for way in ("star", "ring", "gossip"):
                for replicas in REPLICAS:
                    design = replace(meeting(costs, replicas, parameters, way), jitter=JITTER, link=LINKS[link])
                    found = meet(design)
                    rows.append(
                        {"parameters": parameters, "link": link, "way": way, "replicas": replicas, **found._asdict()}
                    )
    return rows
