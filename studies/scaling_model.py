"""From measured costs to designs: the points they must predict, and what if there were more of everything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

import numpy as np
from cells import RESULTS, Cell
from scaling_measure import LOOPS, MEGABYTES, PARAMETERS, WORLDS
from scaling_sim import Collecting, Meeting, collect, meet

CORES = 2  # of the machine that was measured
# --- assumed: nothing here was measured ---
GPU = 20.0  # times as fast as one core, in updates
JITTER = 0.05  # of a slab's time and of a replica's training, as a share of it
NODE_WORKERS = 32  # that fetch weights together
TRAIN_S = 30.0  # between two rounds of a federation
LINKS = {"1 Gbit": 1e9 / 8, "10 Gbit": 1e10 / 8}  # bytes per second
# --- what is simulated ---
LEARNERS = ("APPO, CPU", "APPO, GPU", "SAC, GPU")
SAC_UPDATES = 0.25  # per row, each from 256 rows that are drawn
OVERLAPS = ("none", "deterministic", "free")
WAYS = ("coordinator", "ring", "gossip")
WORKERS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
REPLICAS = (1, 2, 4, 10, 30, 100, 300, 1000)
MODELS = (10_000, 1_000_000)  # parameters

Costs = Mapping[str, float]


def pick(rows: Sequence[Cell], **wanted: Any) -> list[Cell]:
    """The rows that have what is wanted."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def usual(cells: Sequence[Cell], part: str) -> Costs:
    """The costs of a part, each the median of its repeats."""
    own = [cell["costs"] for cell in pick(cells, part=part)]
    return {name: median(costs[name] for costs in own) for name in own[0]}


def collecting(c: Costs, algo: str = "appo", overlap: str = "none", workers: int = 1) -> Collecting:
    """One worker with the worlds of a whole slab, or two with half of them each, on the cores that were measured."""
    return Collecting(
        workers, int(c["rows"] / workers), c[f"worker_s, 1/{workers}"], overlap, c[f"part_s, 1/{workers}"],
        update_s=c[f"{algo}_update_s"] / c["rows"], slab_bytes=c["slab_bytes"] / workers,
        weight_bytes=c["weight_bytes"], cores=CORES,
    )  # fmt: skip


def meeting(c: Costs, replicas: int, parameters: int, way: str, cores: int = CORES) -> Meeting:
    """What 2 and 8 clients of a coordinator, or peers, took on two cores says what each costs, and the round besides.

    In a ring everybody calls everybody, which is work: where peers are a crowd on few cores, it takes turns there.
    """

    def at(name: str, peers: int) -> float:
        """On the lines through what was measured with several sizes."""
        coordinator = {f"{size:,}": float(size) for size in PARAMETERS}
        sizes = coordinator if way == "coordinator" else {f"{mb:g} MB": 2.5e5 * mb for mb in MEGABYTES}
        return float(np.interp(parameters, list(sizes.values()), [c[f"{name}, {peers} x {size}"] for size in sizes]))

    def split(two: float, eight: float, more: float) -> tuple[float, float]:
        """Of what two and eight took, what each of so many more does, and what they have in common."""
        each_s = max(0.0, (eight - two) / more)
        return each_s, max(0.0, two - 2 * each_s)

    crowd = max(1.0, replicas / cores)
    if way == "coordinator":
        return Meeting(replicas, parameters, way, *split(at(way, 2), at(way, 8), 8 - 2))
    if way == "gossip":  # a pair is a pair, however many there are; others only take its cores
        return Meeting(replicas, parameters, way, 0.0, at(way, 2) + (crowd - 1.0) * at("gossip cpu", 2))
    each_s, once_s = split(at("ring finding", 2), at("ring finding", 8), 8 * 8 / CORES - 2)
    return Meeting(replicas, parameters, way, crowd * each_s, once_s + crowd * at("ring moving", 2))


def predict(part: str, c: Costs) -> dict[str, float]:
    """The points that were measured beside these costs, by name."""
    if part in WORLDS:
        rates = {name: collect(collecting(c, *one), updates=40).rows_per_s for name, one in LOOPS.items() if one[2]}
        return {"ppo, no workers": c["rows"] / (c["take_s"] + c["ppo_update_s"]), **rates}
    if part != "federation":
        return {}
    rounds = {f"coordinator, 4 x {size:,}": meeting(c, 4, size, "coordinator") for size in PARAMETERS}
    for mb, way in product(MEGABYTES, WAYS[1:]):
        rounds[f"{way}, 4 x {mb:g} MB"] = meeting(c, 4, int(mb * 2.5e5), way)
    return {name: meet(one).seconds for name, one in rounds.items()}


def checks(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Every point beside what was predicted; a loop by the costs of its own repeat, as the machine changes its speed.

    A round by the medians of all repeats: peers look every 20 ms, and a single cost is a look more or less.
    """
    for part in dict.fromkeys(cell["part"] for cell in cells):
        own = pick(cells, part=part)
        predicted = [predict(part, cell["costs"] if part in WORLDS else usual(cells, part)) for cell in own]
        for name in predicted[0]:
            measured = [cell["points"][name] for cell in own]
            ratios = [one[name] / there for one, there in zip(predicted, measured, strict=True)]
            yield {"part": part, "what": name, "measured": median(measured), "ratios": sorted(ratios)}


# --- what if: everybody has a core ---


def if_workers(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Every worker has the worlds of a whole slab, and sends it by TCP."""
    byte_s = usual(cells, "wire")["tcp_byte_s"]
    learners = json.loads((RESULTS / "learners.json").read_text())["rows"]
    sac_s = SAC_UPDATES * pick(learners, algo="sac", batch=256, threads=1)[0]["ours_ms"] / 1e3
    for world, learner, link, overlap in product(WORLDS, LEARNERS, LINKS, OVERLAPS):
        one = collecting(usual(cells, world), overlap=overlap)
        update_s = (sac_s if "SAC" in learner else one.update_s) / (GPU if "GPU" in learner else 1.0)
        part_s = one.part_s + one.slab_bytes * byte_s
        one = replace(one, part_s=part_s, update_s=update_s, jitter=JITTER, cores=None, link=LINKS[link])
        for workers in WORKERS:
            weights = one.weight_bytes * -(-workers // NODE_WORKERS)
            found = collect(replace(one, workers=workers, weight_bytes=weights))
            key = {"world": world, "learner": learner, "link": link, "overlap": overlap, "workers": workers}
            yield {**key, "per_s": found.rows_per_s, "waits_for": found.waits_for}


def if_replicas(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Replicas that train for a while between rounds, each on a machine of its own."""
    c = usual(cells, "federation")
    for parameters, link, way, replicas in product(MODELS, LINKS, WAYS, REPLICAS):
        one = meeting(c, replicas, parameters, way, cores=replicas)
        found = meet(replace(one, train_s=TRAIN_S, jitter=JITTER, link=LINKS[link]))
        yield {"parameters": parameters, "link": link, "way": way, "replicas": replicas, **found._asdict()}
