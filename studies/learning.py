"""Do the learners learn? Every algorithm on its tasks beside Stable-Baselines3: same steps, five seeds, one machine.

    python studies/learning.py                                    # everything that is missing, hours; resumable
    python studies/learning.py --only cartpole_ppo,pendulum_sac   # these tasks
    python studies/learning.py --only cartpole_ppo --seeds 1 --budget 5000 --out try.json

Cells are kept in docs/results/learning.json and skipped when the study is started again; the page and its pictures are
written from them at the end, also when it is interrupted. Tuning uses seeds 1 to 3 and a file of its own (--out).
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from cells import RESULTS, read_cells, run_cells
from learning_cells import baseline_cells, cells_of, run_cell
from learning_tasks import TASKS

SEEDS = (11, 12, 13, 14, 15)
SIDES = ("ours", "sb3", "baseline")


def main() -> None:
    args = arguments()
    chosen = [task for task in TASKS if not args.only or task.name in args.only or task.world in args.only]
    cells = [cell for task in chosen for cell in cells_of(task, args.who, args.seeds, args.budget)]
    for world in dict.fromkeys(task.world for task in chosen):
        cells += baseline_cells(world, args.who, args.seeds)
    try:
        run_cells("learning", cells, partial(run_cell, budget=args.budget), args.jobs, args.out)
    finally:
        from learning_page import write_page

        write_page(read_cells(args.out), args.seeds, args.out.with_suffix(".md"), args.budget)
        print(f"written: {args.out.with_suffix('.md')}")


def arguments() -> argparse.Namespace:
    names = [task.name for task in TASKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_words, default=(), help=f"tasks, by comma: {', '.join(names)}; or worlds")
    parser.add_argument("--who", type=_words, default=SIDES, help=f"sides, by comma: {', '.join(SIDES)}")
    parser.add_argument("--seeds", type=lambda text: tuple(map(int, _words(text))), default=SEEDS, help="by comma")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time; more than 1 spoils the seconds")
    parser.add_argument("--budget", type=int, help="steps instead of each task's own, to try things; needs --out")
    parser.add_argument("--out", type=Path, default=RESULTS / "learning.json", help="where the cells are kept")
    args = parser.parse_args()
    unknown = [*set(args.only) - set(names) - {task.world for task in TASKS}, *set(args.who) - set(SIDES)]
    if unknown:
        parser.error(f"there is no {', '.join(map(repr, unknown))}; tasks are {', '.join(names)}")
    official = args.out == RESULTS / "learning.json"
    if official and (args.budget is not None or not set(args.seeds) <= set(SEEDS)):
        parser.error("another budget or other seeds are not the study's: say where to keep their cells with --out")
    return args


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


if __name__ == "__main__":
    main()
