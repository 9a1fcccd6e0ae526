"""How far workers, replicas, links and a faster learner would carry: measured costs, and a simulation fed with them.

    python studies/scaling.py measure [--repeats 3]    costs and loops on this machine, kept cell by cell
    python studies/scaling.py simulate                 the checks against what was measured, and 1 to 10,000 workers
    python studies/scaling.py page                     docs/scaling.md and its pictures

Without a word all three, one after the other (`make study-scaling`). Measured cells are in docs/results/scaling.json,
what was simulated from them in docs/results/scaling_simulated.json. To measure anew, remove the first of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from cells import RESULTS, Cell, machine, run_cells
from scaling_measure import WORLDS, measure_orders, measure_wire, measure_world
from scaling_model import checks, costs_of, simulate_replay, simulate_replicas, simulate_workers
from scaling_shared import measure_federation, measure_replay

SECONDS = 0.8  # of a measurement
SHARED = {
    "orders": measure_orders,
    "wire": measure_wire,
    "replay": measure_replay,
    "federation": measure_federation,
}
MEASURED, SIMULATED = RESULTS / "scaling.json", RESULTS / "scaling_simulated.json"


def work(cell: Cell) -> Cell:
    part = cell["part"]
    return measure_world(part, SECONDS) if part in WORLDS else SHARED[part](SECONDS)


def measure(repeats: int) -> None:
    cells = [{"part": part, "repeat": repeat} for repeat in range(repeats) for part in (*WORLDS, *SHARED)]
    run_cells("scaling", cells, work)


def read() -> dict[str, Any]:
    """What was measured; a repeat that is not whole is left out."""
    if not MEASURED.exists():
        sys.exit(f"{MEASURED}: nothing was measured yet; start with: python studies/scaling.py measure")
    record: dict[str, Any] = json.loads(MEASURED.read_text())
    parts = {(cell["part"], cell["repeat"]) for cell in record["cells"]}
    whole = {number for _, number in parts if all((part, number) in parts for part in (*WORLDS, *SHARED))}
    record["cells"] = [cell for cell in record["cells"] if cell["repeat"] in whole]
    return record


def simulate() -> None:
    cells = read()["cells"]
    costs = costs_of(cells)
    found = checks(cells, costs)
    for check in found:
        print(f"{check.what:<52}{check.measured:>14,.4g}{check.simulated:>14,.4g} {check.unit:<7}{check.ratio:6.2f}")
    record = {
        "study": "scaling", "simulated": True, "command": " ".join(["python", *sys.argv]), **machine(),
        "checks": [{**check._asdict(), "ratio": check.ratio} for check in found],
        "replicas": simulate_replicas(costs), "replay": simulate_replay(costs), "workers": simulate_workers(costs),
    }  # fmt: skip
    head = {key: value for key, value in record.items() if not isinstance(value, list)}
    lists = [
        f' "{key}": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n ]"
        for key, value in record.items()
        if isinstance(value, list)
    ]
    SIMULATED.write_text(json.dumps(head, indent=1).removesuffix("\n}") + ",\n" + ",\n".join(lists) + "\n}\n")


def page() -> None:
    from scaling_page import PAGE, draw, write_page

    measured = read()
    costs = costs_of(measured["cells"])
    simulated = json.loads(SIMULATED.read_text())
    draw(costs, simulated)
    PAGE.write_text(write_page(measured, costs, checks(measured["cells"], costs), simulated))
    print(f"written: {PAGE}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="?", choices=("measure", "simulate", "page"), help="all, if not said")
    parser.add_argument("--repeats", type=int, default=3, help="of every measurement")
    args = parser.parse_args()
    if args.stage in (None, "measure"):
        measure(args.repeats)
    if args.stage in (None, "simulate"):
        simulate()
    if args.stage in (None, "page"):
        page()


if __name__ == "__main__":
    main()
