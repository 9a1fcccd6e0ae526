"""The page of the learning study from its cells: tables, pictures, and what was not blind."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap

import curves
import numpy as np
from cells import Cell
from learning_cells import CURVE_EPISODES, STREAK_LIMIT_S, THREADS, baseline_cells, cells_of, recorder_scenario
from learning_tasks import DATASETS, TASKS, WORLDS, Task
from players import EPISODES

from slipstream.stats.intervals import improvement_interval, iqm, iqm_interval, performance_profile, wilson

THRESHOLDS = np.linspace(0.0, 1.5, 61)
NAMES = {
    "ours": "Slipstream",
    "sb3": "SB3",
    "random": "random",
    "bc": "behaviour cloning",
    "recorder": "the policy that recorded",
    "noop": "noop (scripted)",
    "mvp": "mvp (scripted)",
}


# Tasks for which SB3's zoo made its settings with another budget than they have here.
OTHER_BUDGETS = {"acrobot_ppo", "lunar_lander_ppo", "half_cheetah_ppo", "half_cheetah_td3", "lunar_lander_dqn"}


class Book:
    """The cells of the study by task and side; cells of other settings than today's are left out."""

    def __init__(self, cells: Sequence[Cell], seeds: Sequence[int], budget: int | None) -> None:
        self.stale = 0
        self.rows: dict[tuple[str, str], list[Cell]] = {}
        wanted = {
            (cell["task"], cell["who"], cell["seed"]): cell["recipe"]
            for task in TASKS
            for cell in [
                *cells_of(task, ("ours", "sb3"), seeds, budget),
                *baseline_cells(task.world, ("baseline",), seeds),
            ]
        }
        for cell in cells:
            if wanted.get((cell["task"], cell["who"], cell["seed"])) == cell["recipe"]:
                self.rows.setdefault((cell["task"], cell["who"]), []).append(cell)
            else:
                self.stale += 1

    def of(self, task: str, who: str) -> list[Cell]:
        return self.rows.get((task, who), [])

    def scores(self, task: str, who: str) -> list[float]:
        return [cell["return"] for cell in self.of(task, who)]


# Cells name their machine since then; nothing tells those of the first day apart, so a row may be of two machines.
UNNAMED = (
    "Cells without a machine's name: those of 2026-11-16 were kept in a file headed 2 x AMD EPYC, those of 2026-11-17 "
    "are of 2 x Intel Xeon; CPU seconds of rows that were made on different days are not to be compared."
)


def write_page(cells: Sequence[Cell], seeds: Sequence[int], path: Path, budget: int | None = None) -> None:
    """Write the page to `path` and its pictures beside it."""
    book = Book(cells, seeds, budget)
    lines = [
        "# Learning",
        "",
        *paragraph(f"""
            Our algorithms beside Stable-Baselines3 (SB3), with the same number of steps. Scores are interquartile means
            over seeds {seeds[0]} to {seeds[-1]} with 95 % stratified bootstrap intervals. A seed's score is the mean
            return of {EPISODES} episodes after training, without exploration. All rows of a world play the same
            episodes, none of which training saw. P is the probability that a run of ours beats one of SB3's, with ties
            counting one half. Ours is not worse as long as the interval of P reaches 0.5, and bold if it does not.
            Compare CPU seconds, since two runs of {THREADS} thread shared two cores with builds, and benchmarks
            stopped them at times. Times are medians of training without the evaluations that draw the curves. Ours
            include writing the run folder and checkpoints; SB3 writes nothing."""),
        *_returns(book, budget),
        *_overall(book, path.parent),
        *_streaks(book),
        *_pictures(book, path.parent, budget),
        *_disclosures(book, seeds, path),
    ]
    path.write_text("\n".join(lines))


def paragraph(text: str, indent: str = "") -> list[str]:
    """Text of any shape as lines of a page, and an empty one after it."""
    return [*wrap(" ".join(text.split()), 118, subsequent_indent=indent), *([] if indent else [""])]


# --- returns ---


def _returns(book: Book, budget: int | None) -> Iterator[str]:
    yield "| world | algorithm | who | steps | seeds | IQM [95 %] | P(ours > SB3) [95 %] | s | CPU s | target | met |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for world, about in WORLDS.items():
        tasks = [task for task in TASKS if task.world == world and task.score == "return"]
        for task in tasks:
            for who in ("ours", "sb3"):
                if book.of(task.name, who):
                    yield _return_row(book, task, who, budget or task.budget)
        for who in about.baselines if tasks else ():
            if scores := book.scores(world, who):
                yield f"| {about.title} | – | {NAMES[who]} | – | {len(scores)} | {_iqm(scores)} | | | | | |"
    yield ""


def _return_row(book: Book, task: Task, who: str, steps: int) -> str:
    cells, scores = book.of(task.name, who), book.scores(task.name, who)
    beats = target = met = ""
    if who == "ours":
        theirs = book.scores(task.name, "sb3")
        beats = _improvement(scores, theirs) if theirs else "–"
        if task.target is not None:
            target, met = f"{task.target:g}", "yes" if iqm(scores) >= task.target else "**no**"
    seconds, cpu = (statistics.median(cell[key] for cell in cells) for key in ("seconds", "cpu_seconds"))
    title = WORLDS[task.world].title
    return (
        f"| {title} | {task.title} | {NAMES[who]} | {steps:,} | {len(cells)} | {_iqm(scores)} | {beats} "
        f"| {seconds:.0f} | {cpu:.0f} | {target} | {met} |"
    )


def _iqm(scores: Sequence[float]) -> str:
    value = iqm_interval([[score] for score in scores])
    if len(scores) < 2:
        return f"{value.estimate:.1f}"
    return f"{value.estimate:.1f} [{value.low:.1f}, {value.high:.1f}]"


def _improvement(ours: Sequence[float], theirs: Sequence[float]) -> str:
    if min(len(ours), len(theirs)) < 2:
        return "–"
    value = improvement_interval(ours, theirs)
    text = f"{value.estimate:.2f} [{value.low:.2f}, {value.high:.2f}]"
    return f"**{text}**" if value.high < 0.5 else text


def _overall(book: Book, folder: Path) -> Iterator[str]:
    """All tasks with a peer together: scores as a share of the way from random play to SB3's IQM."""
    columns: dict[str, list[list[float]]] = {"ours": [], "sb3": []}
    same_budget = []
    for task in TASKS:
        sides = {who: book.scores(task.name, who) for who in columns}
        random = book.scores(task.world, "random")
        if task.score != "return" or not random or len(sides["ours"]) < 2 or len(sides["ours"]) != len(sides["sb3"]):
            continue
        low, high = iqm(random), iqm(sides["sb3"])
        for who, column in columns.items():
            column.append([(score - low) / (high - low) for score in sides[who]])
        same_budget.append(task.name not in OTHER_BUDGETS)
    runs = {len(column) for column in columns["ours"]}
    if len(columns["ours"]) < 2 or len(runs) > 1:
        return
    ours, theirs = (np.array(columns[who]).T for who in ("ours", "sb3"))
    same = np.array(same_budget)
    yield from paragraph(
        f"""Where SB3's settings were made for the budget they have here ({same.sum()} tasks), a run of ours beats one
        of SB3's with probability {_improvement(ours[:, same], theirs[:, same]) if same.any() else "–"}. With the other
        {(~same).sum()}, to which SB3's zoo gives several times as many steps, it is {_improvement(ours, theirs)}."""
    )
    scale = "score, from random play (0) to the IQM of SB3 (1)"
    profiles = {who: performance_profile(matrix, THRESHOLDS) for who, matrix in (("ours", ours), ("sb3", theirs))}
    curves.draw_profile(folder / "learning_profile.png", THRESHOLDS.tolist(), profiles, scale)
    yield "The picture is their performance profile: the share of runs above each score."
    yield ""
    yield "![performance profile](learning_profile.png)"
    yield ""


# --- clean flights ---


def _streaks(book: Book) -> Iterator[str]:
    tasks = [task for task in TASKS if task.score in ("streak", "clean") and book.of(task.name, "ours")]
    if not tasks:
        return
    yield "## Clean flights"
    yield ""
    yield from paragraph(f"""
        Seconds of wall time, evaluations included, until 20 evaluation episodes in a row were clean: no loss of
        separation at
        any 1 s substep, and every aircraft at its waypoint. The policy of that moment is then judged on the common
        episodes, all seeds together, with a Wilson interval. A run may take at most {STREAK_LIMIT_S:.0f} s. Offline
        learners do not fly while learning, so they have no streak.""")
    yield "| world | policy | reached it | median s (min – max) | median steps | clean [95 %] | extra distance NM |"
    yield "|---|---|---|---|---|---|---|"
    for world in dict.fromkeys(task.world for task in tasks):
        for task in (task for task in tasks if task.world == world):
            cells = book.of(task.name, "ours")
            good = [cell["seconds"] for cell in cells if cell.get("reached_streak")]
            spread = f"{statistics.median(good):.1f} ({min(good):.1f} – {max(good):.1f})" if good else "–"
            reached = f"{len(good)} of {len(cells)}" if task.score == "streak" else "–"
            steps = statistics.median(cell["steps"] for cell in cells)
            yield (
                f"| {WORLDS[world].title} | {task.title} | {reached} | {spread} | {steps:,.0f} "
                f"| {_clean(cells)} | {_extra(cells)} |"
            )
        for who in WORLDS[world].baselines:
            if cells := book.of(world, who):
                yield f"| {WORLDS[world].title} | {NAMES[who]} | | | | {_clean(cells)} | {_extra(cells)} |"
    yield ""


def _clean(cells: Sequence[Cell]) -> str:
    share = wilson(round(sum(cell["clean"] for cell in cells) * EPISODES), len(cells) * EPISODES)
    return f"{share.estimate:.1%} [{share.low:.1%}, {share.high:.1%}]"


def _extra(cells: Sequence[Cell]) -> str:
    return f"{statistics.median(cell['extra_distance_nm'] for cell in cells):.2f}"


# --- pictures and disclosures ---


def _pictures(book: Book, folder: Path, budget: int | None) -> Iterator[str]:
    yield "## Curves"
    yield ""
    yield from paragraph(f"""
        Mean return of {CURVE_EPISODES} evaluation episodes, exploration off: the line is the interquartile mean over
        seeds, the band holds the middle half of them.""")
    for world, about in WORLDS.items():
        panels = [
            curves.Panel(f"{task.title}, {budget or task.budget:,} steps", sides, task.target)
            for task in TASKS
            if task.world == world and task.score == "return" and (sides := _curves(book, task))
        ]
        if panels:
            random = book.scores(world, "random")
            name = f"learning_{world}.png"
            curves.draw(folder / name, about.title, about.scale, panels, iqm(random) if random else None)
            yield f"![{about.title}]({name})"
            yield ""


def _curves(book: Book, task: Task) -> dict[str, list[curves.Curve]]:
    sides = {who: [cell["curve"] for cell in book.of(task.name, who) if cell["curve"]] for who in ("ours", "sb3")}
    return {who: lines for who, lines in sides.items() if lines}


def _mixture(name: str) -> str:
    about = DATASETS[name]
    scenario = recorder_scenario(name)
    until = f"at {scenario.timesteps:,} steps" if scenario.stop.zero_conflict_streak is None else "at its first streak"
    random = f" and {about['random']:,} of uniformly random play" if about["random"] else ""
    return f"{about['scenario']} from {about['learned']:,} transitions of {scenario.algo.kind.upper()} {until}{random}"


def _command(task: Task) -> str:
    """What repeats the training of a task by hand, apart from a dataset."""
    changes = "".join(f" --{name} {value}" for name, value in task.overrides.items())
    words = f"slipstream train {task.scenario} --algo {task.kind or task.algo}{changes}"
    return words if task.score == "streak" else f"{words} --timesteps {task.budget}"


def _disclosures(book: Book, seeds: Sequence[int], path: Path) -> Iterator[str]:
    yield "## How"
    yield ""
    yield f"- Reported seeds: {', '.join(map(str, seeds))}. What was tuned, and on which seeds, by task:"
    for task in TASKS:
        if book.of(task.name, "ours"):
            yield f"  - {WORLDS[task.world].title}, {task.title} (`{_command(task)}`): {task.tuned}."
    yield from paragraph(
        """- SB3 runs with its zoo's published hyper-parameters (`studies/learning_tasks.py` has them), which were tuned
        for the zoo's own budgets: PPO on Acrobot, LunarLander and HalfCheetah and TD3 on HalfCheetah for 1M steps, DQN
        on LunarLander for 100k. simple_spread is not in the zoo and runs with SB3's defaults, one policy for all
        agents.""",
        indent="  ",
    )
    yield from paragraph(f"- {WORLDS['simple_spread'].title}: {WORLDS['simple_spread'].scale}.", indent="  ")
    yield from paragraph(
        f"""- Offline: {_mixture("pendulum_mixed")}; {_mixture("head_on_flown")}. Each is recorded once and the same for
        every seed and every learner. SAC offline is CQL without its conservative term.""",
        indent="  ",
    )
    short = [
        f"{task.name} {who} ({len(cells)})"
        for task in TASKS
        for who in ("ours", "sb3")
        if (cells := book.of(task.name, who)) and len(cells) < len(seeds)
    ]
    if short:
        yield from paragraph(f"- Not all seeds are done: {', '.join(short)}.", indent="  ")
    if book.stale:
        yield f"- `{path.stem}.json` also keeps {book.stale} cells of earlier settings; no number here is of them."
    cells = [cell for rows in book.rows.values() for cell in rows]
    commits = sorted({cell["commit"] for cell in cells})
    machines = sorted({cell["cpu"] for cell in cells if "cpu" in cell})
    named = f"Machines that cells name: {', '.join(machines)}. " if machines else ""
    yield from paragraph(
        f"""- Command: `make study-learning`; cells in `{path.stem}.json`, each with its commit ({", ".join(commits)}).
        {named}{UNNAMED}""",
        indent="  ",
    )
    yield ""
