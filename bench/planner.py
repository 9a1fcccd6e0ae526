"""The planner beside plain breadth-first search: equal on every board, and how much faster.

    python bench/planner.py [--boards 1000] [--include-python]

Boards are generated levels, rubble and shelves with holes, at all speeds, a third of them with buttons held over and a
quarter with A and B allowed together (tests/worlds/drmario/drmario_games.py). Writes docs/results/planner.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from slipstream import _core

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "studies"), str(ROOT / "tests" / "worlds" / "drmario")]

from cells import RESULTS, machine  # noqa: E402
from drmario_games import fuzzed  # noqa: E402
from plain_planner import plan_plainly  # noqa: E402

Costs = np.ndarray[Any, Any]


def main() -> None:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", type=int, default=1000, help="how many")
    parser.add_argument("--include-python", action="store_true", help="plain Python too, on one board in a hundred")
    args = parser.parse_args()
    rng = np.random.default_rng(20_26)
    differ, fast_us, plain_ms, python_s = 0, [], [], []
    for i in range(args.boards):
        board, state = fuzzed(rng)
        use_ab = bool(rng.random() < 0.25)
        start = time.process_time()
        fast = asked(_core.drmario_plan, board, state, use_ab)
        fast_us.append(1e6 * (time.process_time() - start))
        start = time.process_time()
        plain = asked(_core.drmario_plan_plainly, board, state, use_ab)
        plain_ms.append(1e3 * (time.process_time() - start))
        differ += int((fast != plain).any())
        if args.include_python and i % 100 == 0:
            start = time.process_time()
            python = plan_plainly(board.reshape(-1).tolist(), **state, use_ab=use_ab)
            python_s.append(time.process_time() - start)
            differ += int((plain != python).any())
        if i % 50 == 49:
            print(f"{i + 1} of {args.boards} boards, {differ} differ", flush=True)
    record: dict[str, Any] = {
        "benchmark": "planner", "command": " ".join(["python bench/planner.py", *sys.argv[1:]]), **machine(),
        "boards": args.boards, "differ": differ, "planner_us": median(fast_us), "plain_search_ms": median(plain_ms),
        "ratio": median(p * 1e3 / f for p, f in zip(plain_ms, fast_us, strict=True)),
    }  # fmt: skip
    print(
        f"\n{args.boards} boards, {differ} differ; medians per board: planner {record['planner_us']:.0f} us, plain "
        f"search {record['plain_search_ms']:.0f} ms, {record['ratio']:,.0f} times as long"
    )
    if python_s:
        record["python_s"] = median(python_s)
        print(f"plain Python {record['python_s']:.1f} s ({len(python_s)} boards)")
    (RESULTS / "planner.json").write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(differ > 0)


def asked(planner: Callable[..., Costs], board: Costs, state: dict[str, Any], use_ab: bool) -> Costs:
    """What a planner of the core says."""
    rest = (state.get(name, 0) for name in ("speed_counter", "hor_velocity", "held"))
    odd = state["parity"] == 0
    return planner(board.reshape(-1), (15, 3, 0), state["threshold"], odd, *rest, use_ab)


if __name__ == "__main__":
    main()
