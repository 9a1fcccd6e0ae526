"""How far workers, replicas, links and a faster learner would carry: measured costs, and a simulation fed with them.

    python studies/scaling.py measure [--repeats 3]    costs and loops on this machine, kept cell by cell
    python studies/scaling.py simulate                 the checks against what was measured, and 1 to 10,000 workers
    python studies/scaling.py page                     the tables of docs/scaling.md and its pictures

Without a word all three, one after the other (`make study-scaling`). Measured cells are in docs/results/scaling.json,
what was simulated from them in docs/results/scaling_simulated.json. To measure anew, remove the first of them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import scaling_model as model
from cells import RESULTS, ROOT, Cell, read_cells, run_cells, save_cells
from scaling_measure import PACE, PARTS, WORLDS, measure
from scaling_model import LINKS, MODELS, OVERLAPS, REPLICAS, SIMULATED_WORLDS, WAYS, WORKERS, pick

MEASURED, SIMULATED, PAGE = RESULTS / "scaling.json", RESULTS / "scaling_simulated.json", ROOT / "docs" / "scaling.md"
GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.S)
NEAR = 0.2  # a check that is farther off is marked
TITLES = {"head_on": "head_on (a microsecond a step)", "works": "works (a millisecond a step)"}
COLOURS = ("#b5532a", "#3b6ea5", "#2f8f5b")


def simulate() -> None:
    cells, rows = read_cells(MEASURED), []
    if not cells:
        sys.exit(f"{MEASURED}: nothing was measured yet; start with: python studies/scaling.py measure")
    for check in model.checks(cells):
        print(f"{check.what:<52}{check.measured[1]:>14,.4g}{check.predicted:>14,.4g}{check.ratio:6.2f}", flush=True)
        rows.append({"kind": "check", **check._asdict(), "ratio": check.ratio})
    for kind in ("workers", "replay", "replicas"):
        rows += [{"kind": kind, **row} for row in getattr(model, f"if_{kind}")(cells)]
        print(f"simulated: {kind}", flush=True)
    save_cells(SIMULATED, "scaling, simulated", rows)


# --- the page ---


def table(head: str, rows: Sequence[Sequence[str]]) -> str:
    """Markdown; `head`: columns by |."""
    lines = [head.split("|"), ["---"] * len(head.split("|")), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def short(value: float, unit: str = "") -> str:
    """Three digits: 1.23 M, 45.6 k, 789; 12.3 ms."""
    prefixes = (("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 0.0))
    prefix, size = next((prefix, size) for prefix, size in prefixes if value >= size)
    return f"{value / (size or 1e-9):.3g} {prefix}{unit}".strip()


def seconds(*values: float) -> list[str]:
    return [short(value, "s") if value else "-" for value in values]


def cost_table(cells: Sequence[Cell]) -> str:
    record, rows = json.loads(MEASURED.read_text()), []
    for world in WORLDS:
        ppo, appo = (model.collecting(cells, world, algo) for algo in ("ppo", "appo"))
        slab_s = model.alone(cells, world, "take_s")
        split = [slab_s * model.alone(cells, world, f"{key}_share") / ppo.rows for key in ("world", "act", "record")]
        costs = [*split, ppo.update_s, appo.update_s, slab_s, ppo.collect_s, ppo.part_s, ppo.wait_s]
        rows.append([f"`{world}`", *seconds(*costs)])
    head = "world|step|inference|recording|PPO update|APPO update|slab alone|by a worker|learner's part|waiting"
    where = f"{record['cpu']}, commit `{record['commit']}`, {record['date']}"
    return f"Core seconds on {where}, medians of the repeats, one thread each.\n\n{table(head, rows)}"


def other_costs(cells: Sequence[Cell]) -> str:
    add_s, keep_s, late_add_s, late_keep_s, draw_s, give_s, trip_s = model.serving(cells).values()
    costs = {
        "a megabyte received by TCP": [1e6 * model.tcp_byte_s(cells)],
        "256 rows into a replay service, as fast as it goes: client; service": [add_s, keep_s],
        f"256 rows into it {PACE:,.0f} times a second: client; service": [late_add_s, late_keep_s],
        "256 rows out of it: client; service; on their way": [draw_s, give_s, trip_s],
    }
    for size, way in product((10**5, 10**6), WAYS):
        one = model.meeting(cells, 2, size, way)
        costs[f"{way}, {size:,} parameters: for each replica; once a round"] = [one.each_s, one.once_s]
    return table("what|seconds", [[what, "; ".join(seconds(*each))] for what, each in costs.items()])


def check_table(rows: Sequence[Cell]) -> str:
    far = [row["what"] for row in rows if abs(row["ratio"] - 1) > NEAR]
    worst = f"{100 * max(abs(row['ratio'] - 1) for row in rows):.0f} %"
    said = f"{len(rows) - len(far)} of {len(rows)} points are within {100 * NEAR:.0f} %, the worst is {worst} off."
    said += f" **Not within:** {'; '.join(far)}." if far else ""
    lines = []
    for row in rows:
        least, usual, most, predicted = (short(value, row["unit"]) for value in (*row["measured"], row["predicted"]))
        ratio = f"**{row['ratio']:.2f}**" if row["what"] in far else f"{row['ratio']:.2f}"
        lines.append([row["what"], usual, f"{least} to {most}", predicted, ratio])
    head = "point (rows per second, or seconds of a round)|measured|range|predicted|predicted / measured"
    return f"{said}\n\n{table(head, lines)}"


def enough(rows: Sequence[Cell]) -> tuple[float, int]:
    """The best rate, and the least number of workers with nine tenths of it."""
    best = max(row["per_s"] for row in rows)
    return best, next(row["workers"] for row in rows if row["per_s"] >= 0.9 * best)


def worker_table(rows: Sequence[Cell]) -> str:
    lines = []
    for world, gpu, link in product(SIMULATED_WORLDS, (False, True), LINKS):
        own = [pick(rows, world=world, gpu=gpu, link=link, overlap=overlap) for overlap in OVERLAPS]
        best = [f"{short(rate)} ({workers:,})" for rate, workers in map(enough, own)]
        one, last = own[1][0], own[1][-1]
        lines.append([f"`{world}`", "GPU" if gpu else "CPU", link, short(one["per_s"]), *best, last["waits_for"]])
    return table("world|learner|link|1 worker, fixed lag|in turn|fixed lag|free|waits for", lines)


def replica_table(rows: Sequence[Cell]) -> str:
    lines = []
    for parameters, link, way in product(MODELS, LINKS, WAYS):
        own = pick(rows, parameters=parameters, link=link, way=way)
        shares = [f"{100 * row['efficiency']:.0f} %" for row in own if row["replicas"] in (4, 30, 100, 1000)]
        lines.append([f"{parameters:,}", link, way, *shares, short(own[-1]["seconds"], "s"), own[-1]["waits_for"]])
    return table("parameters|link|way|4|30|100|1,000|a round of 1,000|most of the time lost", lines)


def render(text: str, cells: Sequence[Cell], rows: Sequence[Cell]) -> str:
    """The page with its generated parts made anew; words are written there."""
    alone = [[row["part"], short(row["per_s"])] for row in pick(rows, kind="replay")]
    parts = {
        "costs": cost_table(cells),
        "others": other_costs(cells),
        "checks": check_table(pick(rows, kind="check")),
        "workers": worker_table(pick(rows, kind="workers")),
        "replay": table("part|rows a second", alone),
        "replicas": replica_table(pick(rows, kind="replicas")),
    }
    return GENERATED.sub(lambda m: f"{m[1]}\n{parts[m[2]]}\n\n{m[3]}", text)


# --- pictures ---


def finish(figure: Any, title: str, name: str) -> None:
    for place in figure.axes:
        place.set_xscale("log")
        place.grid(alpha=0.3)
    figure.axes[1].legend(fontsize=8, loc="lower left" if "replicas" in name else "lower right")
    figure.suptitle(title, fontsize=11)
    figure.savefig(RESULTS / name, dpi=110, metadata={"Software": None})  # the same figures give the same file
    plt.close(figure)


def draw_workers(rows: Sequence[Cell]) -> None:
    figure, places = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    lines = [(gpu, "10 Gbit", way) for gpu in (False, True) for way in OVERLAPS[:2]] + [(True, "1 Gbit", OVERLAPS[1])]
    for place, world in zip(places, SIMULATED_WORLDS, strict=True):
        for gpu, link, overlap in lines:
            own = pick(rows, world=world, gpu=gpu, link=link, overlap=overlap)
            label = f"{'GPU (assumed)' if gpu else 'CPU'}, {'in turn' if overlap == 'none' else 'fixed lag'}, {link}"
            colour = COLOURS[0] if overlap == "none" else COLOURS[1] if link == "10 Gbit" else "#777777"
            style = "o:" if link == "1 Gbit" else "o--" if gpu else "o-"
            place.loglog(WORKERS, [row["per_s"] for row in own], style, c=colour, ms=3, label=label)
        place.set(xlabel="workers, a core each", ylabel="rows per second", title=TITLES[world])
    finish(figure, "Simulated from costs measured on two cores", "scaling_workers.png")


def draw_replicas(rows: Sequence[Cell]) -> None:
    figure, places = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for place, parameters in zip(places, MODELS, strict=True):
        for (way, colour), link in product(zip(WAYS, COLOURS, strict=True), LINKS):
            own = pick(rows, parameters=parameters, link=link, way=way)
            shares, style = [100 * row["efficiency"] for row in own], "o-" if link == "1 Gbit" else "o--"
            place.plot(REPLICAS, shares, style, c=colour, ms=3, label=f"{way}, {link}")
        place.set(xlabel="replicas", title=f"{parameters:,} parameters", ylim=(0, 103))
    places[0].set_ylabel(f"% of time training, a round every {model.TRAIN_S:g} s")
    finish(figure, "Simulated from costs measured on one machine", "scaling_replicas.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="?", choices=("measure", "simulate", "page"), help="all, if not said")
    parser.add_argument("--repeats", type=int, default=3, help="of every measurement")
    args = parser.parse_args()
    if args.stage in (None, "measure"):
        run_cells("scaling", [{"part": part, "repeat": n} for n in range(args.repeats) for part in PARTS], measure)
    if args.stage in (None, "simulate"):
        simulate()
    if args.stage in (None, "page"):
        rows = read_cells(SIMULATED)
        draw_workers(pick(rows, kind="workers"))
        draw_replicas(pick(rows, kind="replicas"))
        PAGE.write_text(render(PAGE.read_text(), read_cells(MEASURED), rows))


if __name__ == "__main__":
    main()
