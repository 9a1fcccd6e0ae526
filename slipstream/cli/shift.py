"""The verb that tries policies in worlds they were not trained on."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.judge import load_subject, read_seeds
from slipstream.config.load import load
from slipstream.errors import ScenarioError, suggest

if TYPE_CHECKING:
    from rich.table import Table

    from slipstream.config.scenario import Scenario
    from slipstream.judging.shift import Effect, PolicyOnScenario
    from slipstream.worlds.tools import Shift, SkippedShift


def shift(argv: Sequence[str]) -> int:
    """Play a policy and scripts in changed worlds, or several policies on several scenarios."""
    parser = argparse.ArgumentParser(
        "slipstream shift",
        description="Play a trained policy, beside scripts, in worlds that differ from the one it was trained in: "
        "airspace: speed, heading, position, waypoint, type, wind; racing: friction, mass, scanner, tracks; drmario: "
        "speeds, levels. All rows play the same episodes, so that changes are paired. With --matrix: every policy on "
        "every scenario.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("subjects", nargs="+", metavar="RUN", help="a run folder, checkpoint, exported model; or a scenario's name")
    add("--matrix", nargs="+", metavar="SCENARIO", help="play every policy on each of these instead")
    add("--episodes", type=int, default=100, help="episodes per row and seed (default: 100)")
    add("--seed", type=int, help="seed of the episodes (default: the scenario's evaluation seed)")
    add("--seeds", metavar="SEED,…", help="several seeds, such as 42,123; their episodes are pooled")
    add("--kinds", metavar="KIND,…", help="only these kinds of shift, such as speed,wind")
    add("--who", metavar="AGENT,…", help="only shifts of these agents; all is one of them")
    add("--full", action="store_true", help="all sizes instead of a few of each kind")
    add("--scripts", metavar="NAME,…", help="scripts played beside it (default: the usual ones of the world)")
    add("--out", type=Path, metavar="FOLDER", help="write tables (CSV, JSON), pictures and a page there")
    args = parser.parse_args(argv)
    if args.episodes < 1:
        raise ScenarioError(f"--episodes {args.episodes}: at least one episode is needed")
    seeds = read_seeds(args.seed, args.seeds)
    started = time.monotonic()
    if args.matrix:
        return _matrix(args, seeds, argv, started)
    if len(args.subjects) > 1:
        raise ScenarioError(f"{len(args.subjects)} policies: shifts need one policy; for several use --matrix SCENARIO")
    return _study(args, seeds, argv, started)


def _study(args: argparse.Namespace, seeds: list[int] | None, argv: Sequence[str], started: float) -> int:
    from slipstream.judging.shift import UNSHIFTED, grouped, run, unshifted
    from slipstream.judging.shift_files import write_study
    from slipstream.worlds.world import tools_of

    scenario, saved = load_subject(args.subjects[0])
    chosen, skipped = _choose(args, scenario)
    scripts = _scripts(args.scripts, scenario)
    seeds = seeds or [scenario.evaluate.seed]
    study = run(scenario, saved, chosen, skipped, scripts, args.episodes, seeds, _told)
    shown = tools_of(study.kind).shift_figures_of(study.spec)
    print(
        f"{study.scenario}: {study.episodes} episodes per row, the same in every row; {study.distinct} of them start "
        f"differently; {len(chosen)} shifts, {len(skipped)} left out"
    )
    if study.distinct == 1 and study.episodes > 1:
        print("all episodes are copies of one: let starts vary, with world.position_jitter_nm")
    on_screen = shown[:3]  # files have them all
    _print_effects([*unshifted(study, on_screen), *grouped(study, on_screen)], on_screen, UNSHIFTED)
    if args.out is not None:
        written = write_study(args.out, study, _about(argv, args.subjects, seeds, started))
        print(f"written: {', '.join(str(path) for path in written)}")
    return 0


def _matrix(args: argparse.Namespace, seeds: list[int] | None, argv: Sequence[str], started: float) -> int:
    from slipstream.judging.shift import matrix
    from slipstream.judging.shift_files import write_matrix
    from slipstream.run.saved_cast import load_cast
    from slipstream.worlds.registry import spec_of
    from slipstream.worlds.world import tools_of

    for flag in ("kinds", "who", "full"):
        if getattr(args, flag):
            raise ScenarioError(f"--{flag}: chooses among shifts, and --matrix plays none")
    models = {}
    for subject in args.subjects:
        own, saved = load_cast(Path(subject))
        label = Path(subject).resolve().name
        models[label if label not in models else str(subject)] = (own, saved)
    scenarios = {name: load(name) for name in args.matrix}
    kinds = {scenario.world.kind for scenario in scenarios.values()}
    if len(kinds) > 1:
        raise ScenarioError(f"--matrix: {' and '.join(sorted(kinds))} have no policy in common; name one kind of world")
    first = next(iter(scenarios.values()))
    scripts = _scripts(args.scripts, first)
    seeds = seeds or [first.evaluate.seed]
    places = matrix(models, scenarios, scripts, args.episodes, seeds, _told)
    shown = tools_of(first.world.kind).shift_figures_of(spec_of(first.world))
    _print_matrix(places, shown[0], args.episodes * len(seeds))
    for place in places:
        if place.reason:
            print(f"{place.policy} on {place.scenario}: {place.reason}")
    if args.out is not None:
        written = write_matrix(args.out, places, shown, _about(argv, args.subjects, seeds, started))
        print(f"written: {', '.join(str(path) for path in written)}")
    return 0


# --- what to play ---


def _choose(args: argparse.Namespace, scenario: Scenario) -> tuple[list[Shift], list[SkippedShift]]:
    """The world's shifts that were asked for."""
    from slipstream.worlds.world import tools_of

    found, skipped = tools_of(scenario.world.kind).shifts(scenario.world, args.full)
    if not found:
        raise ScenarioError(f"{scenario.name}: {scenario.world.kind} worlds have no shifts; try --matrix")
    for flag, asked, known in (
        ("--kinds", args.kinds, {each.kind for each in found}),
        ("--who", args.who, {each.who for each in found}),
    ):
        for word in asked.split(",") if asked else ():
            if word not in known:
                raise ScenarioError(
                    f"{flag} {word}: there are {', '.join(sorted(known))}{suggest(word, sorted(known))}"
                )
    kinds = args.kinds.split(",") if args.kinds else None
    who = args.who.split(",") if args.who else None
    chosen = [each for each in found if (kinds is None or each.kind in kinds) and (who is None or each.who in who)]
    if not chosen:
        raise ScenarioError(f"--kinds {args.kinds} --who {args.who}: no shift is both")
    return chosen, list(skipped) if kinds is None and who is None else []


def _scripts(asked: str | None, scenario: Scenario) -> tuple[str, ...]:
    from slipstream.worlds.registry import spec_of
    from slipstream.worlds.world import tools_of

    spec = spec_of(scenario.world)
    if asked is None:
        return tuple(name for name in tools_of(scenario.world.kind).scripts_of(spec) if name in spec.scripts)
    names = tuple(word for word in asked.split(",") if word)
    for name in names:
        if name not in spec.scripts:
            known = ", ".join(spec.scripts) or "none"
            raise ScenarioError(f"--scripts {name}: {spec.name} has {known}{suggest(name, spec.scripts)}")
    return names


def _about(argv: Sequence[str], subjects: Sequence[str], seeds: Sequence[int], started: float) -> dict[str, object]:
    """What was run, for the files."""
    from slipstream.run.folder import describe_run

    told = describe_run(seed=seeds[0], command=list(argv), now=datetime.now(UTC))
    return {
        "command": shlex.join(["slipstream", "shift", *argv]),
        "subjects": ", ".join(subjects),
        "seeds": ", ".join(map(str, seeds)),
        "commit": told["git_commit"],
        "cpu": f"{told['cpu']}, {told['cpu_count']} cores",
        "seconds": round(time.monotonic() - started, 1),
    }


# --- output ---


def _told(done: int, total: int) -> None:
    """Progress, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r{done} of {total} played", end="" if done < total else "\r" + " " * 30 + "\r", file=sys.stderr)


def _print_effects(effects: Sequence[Effect], shown: Sequence[str], base: str) -> None:
    """A table of all figures, or one for each if that is too wide."""
    from slipstream.cli.tables import fits, make_console, plain
    from slipstream.draw.page import interval

    def table(names: Sequence[str]) -> Table:
        rows, before = [], None
        for effect in effects:
            first = effect.name != before
            number = str(effect.shifts) if effect.name != base and first else ""
            cells = [interval(cell) for name in names for cell in (effect.figures[name], effect.changes[name])]
            rows.append([effect.name.replace("_", " ") if first else "", number, effect.policy, *cells])
            before = effect.name
        heads = [head for name in names for head in (name.replace("_", " "), "change")]
        return plain(["shift", "n", "policy", *heads], rows, left=3)

    console = make_console()
    console.print("mean [95 % interval], and the change against the same episodes unshifted")
    whole = table(shown)
    for found in [whole] if fits(whole, console.width) else [table([name]) for name in shown]:
        console.print(found)


def _print_matrix(places: Sequence[PolicyOnScenario], figure: str, episodes: int) -> None:
    from slipstream.cli.tables import Cell, interval, matrix, show

    columns = list(dict.fromkeys(place.scenario for place in places))
    policies = list(dict.fromkeys(place.policy for place in places))
    cells: list[list[Cell]] = []
    for policy in policies:
        own = [place for place in places if place.policy == policy]
        known = [interval(place.figures[figure]) if place.figures else ("-",) for place in own]
        cells.append([(*cell, "*") if place.home else cell for cell, place in zip(known, own, strict=True)])
    title = f"{figure.replace('_', ' ')}: {episodes} episodes per cell, mean [95 % interval]; *: trained there"
    show(title, matrix("policy", policies, columns, cells, ("mean", "95 % interval", ""), down="scenario"))
