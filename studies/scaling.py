"""How far workers, replicas, links and a faster learner would carry: measured costs, and a simulation fed with them.

    python studies/scaling.py measure [--repeats 5]    costs and loops on this machine, kept cell by cell
    python studies/scaling.py simulate                 the checks against what was measured, and 1 to 10,000 workers
    python studies/scaling.py page                     the tables of docs/scaling.md and its picture

Without a word all three, one after the other (`make study-scaling`). Measured cells are in docs/results/scaling.json,
what was simulated from them in docs/results/scaling_simulated.json. To measure anew, remove the first of them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from itertools import product
from statistics import median

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import scaling_model as model
from cells import RESULTS, ROOT, Cell, read_cells, run_cells, save_cells
from scaling_measure import PARTS, WORLDS, measure
from scaling_model import LEARNERS, LINKS, MODELS, OVERLAPS, REPLICAS, WAYS, WORKERS, pick, usual

MEASURED, SIMULATED, PAGE = RESULTS / "scaling.json", RESULTS / "scaling_simulated.json", ROOT / "docs" / "scaling.md"
GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.S)
NEAR = 0.2  # a check that is farther off is marked
COLOURS = ("#b5532a", "#3b6ea5", "#2f8f5b")


def simulate() -> None:
    cells, rows = read_cells(MEASURED), []
    for kind in ("checks", "if_workers", "if_replicas"):
        rows += [{"kind": kind, **row} for row in getattr(model, kind)(cells)]
        print(f"simulated: {kind}", flush=True)
    save_cells(SIMULATED, "scaling, simulated", rows)


def table(head: str, rows: Sequence[Sequence[str]]) -> str:
    """Markdown; `head`: columns by |."""
    lines = [head.split("|"), ["---"] * len(head.split("|")), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def short(value: float, unit: str = "") -> str:
    """Three digits: 1.23 M, 45.6 k, 789; 12.3 ms."""
    prefixes = (("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9), ("p", 0.0))
    prefix, size = next((prefix, size) for prefix, size in prefixes if value >= size)
    return f"{value / (size or 1e-12):.3g} {prefix}{unit}".strip()


def cost_table(cells: Sequence[Cell], parts: Sequence[str]) -> str:
    """Medians of the repeats; what is no time says what it is."""
    rows, first = [], usual(cells, parts[0])
    for name in first:
        unit = "" if name == "rows" else "B" if name.endswith("bytes") else "s"
        rows.append([name.replace("_", " "), *(short(usual(cells, part)[name], unit) for part in parts)])
    return table("|".join(["cost", *parts]), rows)


def check_table(rows: Sequence[Cell]) -> str:
    off = [abs(median(row["ratios"]) - 1) for row in rows]
    said = f"{sum(far <= NEAR for far in off)} of {len(rows)} points are within {100 * NEAR:.0f} %, the worst is "
    said += f"{100 * max(off):.0f} % off."
    lines = []
    for row, far in zip(rows, off, strict=True):
        low, usual_ratio, high = row["ratios"][0], median(row["ratios"]), row["ratios"][-1]
        ratio = f"{usual_ratio:.2f}" if far <= NEAR else f"**{usual_ratio:.2f}**"
        measured = short(row["measured"], "s" * (row["part"] == "federation"))
        lines.append([row["part"], row["what"], measured, ratio, f"{low:.2f} to {high:.2f}"])
    head = "part|point|measured: rows a second, or a round|predicted / measured|single repeats"
    return f"{said}\n\n{table(head, lines)}"


def enough(rows: Sequence[Cell]) -> tuple[float, int]:
    """The best rate, and the least number of workers with nine tenths of it."""
    best = max(row["per_s"] for row in rows)
    return best, next(row["workers"] for row in rows if row["per_s"] >= 0.9 * best)


def worker_table(rows: Sequence[Cell]) -> str:
    lines = []
    for world, learner, link in product(WORLDS, LEARNERS, LINKS):
        own = [pick(rows, world=world, learner=learner, link=link, overlap=overlap) for overlap in OVERLAPS]
        best = [f"{short(rate)} ({workers:,})" for rate, workers in map(enough, own)]
        lines.append([f"`{world}`", learner, link, short(own[1][0]["per_s"]), *best, own[1][-1]["waits_for"]])
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
    record = json.loads(MEASURED.read_text())
    parts = {
        "machine": f"Measured on {record['cpu']}, commit `{record['commit']}`, {record['date']}.",
        "costs": cost_table(cells, tuple(WORLDS)),
        "rounds": cost_table(cells, ("federation",)),
        "checks": check_table(pick(rows, kind="checks")),
        "workers": worker_table(pick(rows, kind="if_workers")),
        "replicas": replica_table(pick(rows, kind="if_replicas")),
    }
    return GENERATED.sub(lambda m: f"{m[1]}\n{parts[m[2]]}\n\n{m[3]}", text)


def draw(rows: Sequence[Cell]) -> None:
    """Rows per second by workers in either world, and what is left of the time by replicas."""
    figure, places = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
    for place, world in zip(places, WORLDS, strict=False):
        for (learner, colour), (link, style) in product(
            zip(LEARNERS, COLOURS, strict=True), zip(LINKS, ("o:", "o-"), strict=True)
        ):
            own = pick(rows, kind="if_workers", world=world, learner=learner, link=link, overlap="deterministic")
            place.loglog(WORKERS, [row["per_s"] for row in own], style, c=colour, ms=3, label=f"{learner}, {link}")
        place.set(xlabel="workers, a core each, fixed lag", ylabel="rows per second", title=world)
    for (way, colour), (link, style) in product(zip(WAYS, COLOURS, strict=True), zip(LINKS, ("o:", "o-"), strict=True)):
        own = pick(rows, kind="if_replicas", parameters=MODELS[-1], link=link, way=way)
        shares = [100 * row["efficiency"] for row in own]
        places[2].semilogx(REPLICAS, shares, style, c=colour, ms=3, label=f"{way}, {link}")
    places[2].set(
        xlabel="replicas", ylabel="% of the time spent training", title=f"{MODELS[-1]:,} parameters", ylim=(0, 103)
    )
    for place in places[1:]:
        place.legend(fontsize=7, loc="lower right" if place is places[1] else "lower left")
    figure.suptitle("Simulated from costs measured on two cores; the GPU is assumed", fontsize=11)
    figure.savefig(RESULTS / "scaling.png", dpi=110, metadata={"Software": None})  # the same figures, the same file
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="?", choices=("measure", "simulate", "page"), help="all, if not said")
    parser.add_argument("--repeats", type=int, default=5, help="of every measurement")
    args = parser.parse_args()
    if args.stage in (None, "measure"):
        run_cells("scaling", [{"part": part, "repeat": n} for n in range(args.repeats) for part in PARTS], measure)
    if args.stage in (None, "simulate"):
        simulate()
    if args.stage in (None, "page"):
        rows = read_cells(SIMULATED)
        draw(rows)
        PAGE.write_text(render(PAGE.read_text(), read_cells(MEASURED), rows))


if __name__ == "__main__":
    main()
