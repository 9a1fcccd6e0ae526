"""From measured cells to designs: what the simulation is fed with, its checks against measurements, and what if."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any, NamedTuple

from cells import RESULTS, Cell
from scaling_measure import PACE, POINTS, SERVED, WORLDS
from scaling_sim import Collecting, Meeting, Serving, collect, meet, serve

CORES = 2  # of the machine that was measured
SERVICE_COSTS = ((1, None), (1, PACE), (0, None))  # producers (else a learner) that a service is alone with, and pace
BLOCK_BYTES = 256 * 256.0  # 256 rows of what the replay service was measured with
# --- assumed: nothing here was measured ---
GPU = 20.0  # times as fast as one core, in updates
JITTER = 0.05  # of a slab's time and of a replica's training, as a share of it
NODE_WORKERS = 32  # that fetch weights together
TRAIN_S = 30.0  # between two rounds of a federation
TRIP_S = 2e-4  # there and back
LINKS = {"1 Gbit": 1e9 / 8, "10 Gbit": 1e10 / 8}  # bytes per second
# --- what is simulated ---
SIMULATED_WORLDS = ("head_on", "works")
OVERLAPS = ("none", "deterministic", "free")
WAYS = ("coordinator", "ring", "gossip")
WORKERS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
REPLICAS = (1, 2, 4, 10, 30, 100, 300, 1000)
MODELS = (10_000, 1_000_000)  # parameters

Cells = Sequence[Cell]


def pick(rows: Sequence[Cell], **wanted: Any) -> list[Cell]:
    """The rows that have what is wanted."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def figures(cells: Cells, part: str, table: str, key: str, **wanted: Any) -> list[float]:
    """A figure of every repeat, from the row of a part's table that has what is wanted."""
    tables = [cell[table] for cell in pick(cells, part=part)]
    return [pick(rows if isinstance(rows, list) else [rows], **wanted)[0][key] for rows in tables]


def mid(cells: Cells, part: str, table: str, key: str, **wanted: Any) -> float:
    return float(median(figures(cells, part, table, key, **wanted)))


def on_line(x: float, x0: float, y0: float, x1: float, y1: float) -> float:
    """What lies at x on the line through two points; a cost is never below zero."""
    return max(0.0, y0 + (y1 - y0) * (x - x0) / (x1 - x0))


# --- what was measured, as designs that share its two cores ---


def alone(cells: Cells, part: str, key: str) -> float:
    """A figure of collecting in the learner's own process."""
    return mid(cells, part, "costs", key, worlds=WORLDS[part][0], workers=0)


def collecting(cells: Cells, part: str, algo: str = "appo", overlap: str = "none", workers: int = 1) -> Collecting:
    """Workers that share the worlds of one slab."""
    width, rows = WORLDS[part][0], alone(cells, part, "rows")

    def cost(key: str) -> float:
        few, many = (mid(cells, part, "costs", key, worlds=size, workers=1) for size in (width // 8, width))
        return on_line(width / workers, width // 8, few, width, many)

    waits_s = alone(cells, part, "wall_s") - alone(cells, part, "take_s") if part == "waits" else 0.0
    return Collecting(
        workers, int(rows / workers), cost("workers_s"), waits_s / workers, overlap, cost("take_s"),
        update_s=mid(cells, part, f"update_{algo}", "update_s") / rows, slab_bytes=cost("bytes"),
        weight_bytes=cost("weight_bytes"), cores=CORES,
    )  # fmt: skip


def tcp_byte_s(cells: Cells) -> float:
    """Of the learner's core, for a byte that comes in."""
    return float(median(cell["tcp_byte_s"] for cell in pick(cells, part="wire")))


def serving(cells: Cells) -> dict[str, float]:
    """Core seconds of a replay service and its clients per 256 rows, with nobody else there."""

    def per_block(way: str, key: str, **wanted: Any) -> float:
        spent, rates = (figures(cells, "replay", "replay", each, **wanted) for each in (key, f"{way}_per_s"))
        return float(median(256 * cores / rate for cores, rate in zip(spent, rates, strict=True)))

    flat_out, paced, draws = ({"producers": p, "consumers": 1 - p, "pace": pace} for p, pace in SERVICE_COSTS)
    draw_s, give_s = (per_block("out", key, **draws) for key in ("consumers_s", "service_s"))
    whole_s = 256 / mid(cells, "replay", "replay", "out_per_s", **draws)
    return {
        "add_s": per_block("in", "producers_s", **flat_out), "keep_s": per_block("in", "service_s", **flat_out),
        "paced_add_s": per_block("in", "producers_s", **paced), "paced_keep_s": per_block("in", "service_s", **paced),
        "draw_s": draw_s, "give_s": give_s,
        "trip_s": max(0.0, whole_s - draw_s - give_s),
    }  # fmt: skip


def peers(processes: int) -> list[Cell]:
    return pick(json.loads((RESULTS / "federation_peers.json").read_text())["peers"], processes=processes)


def meeting(cells: Cells, replicas: int, parameters: int, way: str, cores: int = CORES) -> Meeting:
    """Costs are from 2 and 4 clients of a coordinator, and from 2 peers in rings and pairs: with more it is checked.

    One client leaves a core to the coordinator, and is no measure for many.
    """

    def round_s(clients: int) -> float:
        at = [mid(cells, "federation", "federation", "round_s", clients=clients, parameters=n) for n in (10**5, 10**6)]
        return on_line(parameters, 1e5, at[0], 1e6, at[1])

    if way == "coordinator":
        each_s = max(0.0, (round_s(4) - round_s(2)) / 2)
        return Meeting(replicas, parameters, way, each_s, max(0.0, round_s(2) - 2 * each_s))
    small, _, large = peers(2)
    byte_s = (large[f"{way}_cpu_ms"] - small[f"{way}_cpu_ms"]) / 1e9 / (large["mb"] - small["mb"])
    add_up_s = 4.0 * parameters * byte_s * max(1.0, replicas / cores)
    if way == "ring":
        return Meeting(replicas, parameters, way, (small["ring_ms"] - small["reduction_ms"]) / 2e3, add_up_s)
    return Meeting(replicas, parameters, way, once_s=small["gossip_ms"] / 1e3 + add_up_s)


class Check(NamedTuple):
    """A point that was measured and predicted."""

    what: str
    unit: str
    measured: tuple[float, float, float]  # the least, the median and the most of the repeats
    predicted: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured[1]


def checks(cells: Cells) -> Iterator[Check]:
    def found(part: str, table: str, key: str, **wanted: Any) -> tuple[float, float, float]:
        values = figures(cells, part, table, key, **wanted)
        return min(values), float(median(values)), max(values)

    for part, (algo, overlap, workers) in product(WORLDS, POINTS):
        design = collecting(cells, part, algo, overlap, workers or 1)
        serial_s = alone(cells, part, "take_s") + design.wait_s + design.update_s * design.rows
        rate = collect(design, updates=40).rows_per_s if workers else design.rows / serial_s
        how = f"{workers} worker{'s' * (workers > 1)}, {overlap}" if workers else "no workers"
        point = found(part, "points", "rows_per_s", algo=algo, overlap=overlap, workers=workers)
        yield Check(f"{part}, {algo}, {how}", "", point, rate)
    costs = serving(cells)
    costs |= {key: costs.pop(f"paced_{key}") for key in ("add_s", "keep_s")}  # blocks come one by one
    for producers in SERVED:
        drawn = found("replay", "replay", "out_per_s", producers=producers, consumers=1)
        how = f"{producers} producer{'s' * (producers > 1)} with {PACE:,.0f} blocks a second"
        yield Check(f"replay service, {how}: drawn", "", drawn, serve(Serving(producers, PACE, **costs)).rows_per_s)
    for parameters in (10**5, 10**6):
        point = found("federation", "federation", "round_s", clients=8, parameters=parameters)
        round_s = meet(meeting(cells, 8, parameters, "coordinator")).seconds
        yield Check(f"coordinator, 8 clients x {parameters:,}: round", "s", point, round_s)
    for row, way in product(peers(4), ("ring", "gossip")):
        best_s, usual_s = row[f"{way}_ms"] / 1e3, row[f"{way}_median_ms"] / 1e3
        round_s = meet(meeting(cells, 4, int(row["mb"] * 2.5e5), way)).seconds
        yield Check(f"{way}, 4 peers x {row['mb']} MB: round", "s", (best_s, usual_s, usual_s), round_s)


# --- what if: everybody has a core ---


def if_workers(cells: Cells) -> Iterator[Cell]:
    """Every worker has the worlds of a whole slab, and sends it by TCP."""
    for world, gpu, link, overlap in product(SIMULATED_WORLDS, (False, True), LINKS, OVERLAPS):
        one = collecting(cells, world, overlap=overlap)
        part_s, update_s = one.part_s + one.slab_bytes * tcp_byte_s(cells), one.update_s / (GPU if gpu else 1.0)
        one = replace(one, part_s=part_s, update_s=update_s, jitter=JITTER, cores=None, link=LINKS[link])
        for workers in WORKERS:
            weights = one.weight_bytes * -(-workers // NODE_WORKERS)
            found = collect(replace(one, workers=workers, weight_bytes=weights))
            key = {"world": world, "gpu": gpu, "link": link, "overlap": overlap, "workers": workers}
            yield {**key, "per_s": found.rows_per_s, "waits_for": found.waits_for, "busy": found.busy}


def if_replicas(cells: Cells) -> Iterator[Cell]:
    for parameters, link, way, replicas in product(MODELS, LINKS, WAYS, REPLICAS):
        one = meeting(cells, replicas, parameters, way, cores=replicas)
        found = meet(replace(one, train_s=TRAIN_S, jitter=JITTER, link=LINKS[link]))
        yield {"parameters": parameters, "link": link, "way": way, "replicas": replicas, **found._asdict()}


def if_replay(cells: Cells) -> Iterator[Cell]:
    """Rows a second that each part could do by itself; a learner learns from a batch for as long as SAC does here."""
    served, receive_s = serving(cells), BLOCK_BYTES * tcp_byte_s(cells)
    learners = json.loads((RESULTS / "learners.json").read_text())["rows"]
    learn_s = pick(learners, algo="sac", batch=256, threads=1)[0]["ours_ms"] / 1e3
    seconds = {"the service": served["keep_s"] + receive_s}
    seconds["the service, if blocks come one by one"] = served["paced_keep_s"] + receive_s
    for world in SIMULATED_WORLDS:
        slab = collecting(cells, world)
        seconds[f"a producer in {world}"] = served["add_s"] + 256 * slab.collect_s / slab.rows
    for link, bytes_per_s in LINKS.items():
        seconds[f"a link of {link}"] = wire_s = BLOCK_BYTES / bytes_per_s
        for name, faster in (("CPU", 1.0), ("GPU", GPU)):
            draw_s = served["draw_s"] + TRIP_S + served["give_s"] + wire_s
            seconds[f"a learner that draws, {name}, {link}"] = draw_s + learn_s / faster
    yield from ({"part": part, "per_s": 256 / spent} for part, spent in seconds.items())
