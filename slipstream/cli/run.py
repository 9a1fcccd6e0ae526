"""Verbs that make a run go: train and resume."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.cli import log
from slipstream.cli.flags import (
    add_collect_flags,
    add_run_flags,
    cluster,
    collect_changes,
    make_parser,
    split_help,
    whole_number,
)
from slipstream.config.algos import KINDS
from slipstream.config.load import load, override
from slipstream.config.overrides import cli_changes, from_environment
from slipstream.errors import ScenarioError, suggest

if TYPE_CHECKING:
    from slipstream.config.scenario import Scenario
    from slipstream.run.loop import Result
    from slipstream.run.parts.exporters import RunExporter
    from slipstream.runtime.place import Cluster
    from slipstream.view.exporters import Target

UIS = ("plain", "tui", "none", "debug")
UI_HELP = "what is shown meanwhile: a bar or lines (plain), the views of slipstream watch (tui), nothing (none)"
PUBLISHED = ("head_on", "parallel", "t_formation", "canonical_crossing", "converging")  # what `all` stands for


def train(argv: Sequence[str]) -> int:
    """Train every scenario named, with every algorithm named; ends with a table."""
    names, rest = _leading_words(argv)
    parser = _train_parser()
    rest, asks_help = split_help(rest)
    if asks_help and names in ([], ["all"]):
        parser.print_help()
        return 0
    if not names:
        raise ScenarioError(_name_it_first("train", rest))
    names = list(PUBLISHED) if names == ["all"] else names
    known, fields = parser.parse_known_args(rest)
    algos = [_algorithm(word) for word in known.algo] if known.algo else [None]
    if known.out is not None and len(names) * len(algos) > 1:
        raise ScenarioError(f"--out {known.out}: one folder cannot hold {len(names) * len(algos)} runs; leave it out")
    scenarios = [_scenario(name, known, algo, fields) for name in names for algo in algos]
    if asks_help:
        parser.print_help()
        for scenario in scenarios:
            show_fields(scenario, "train")
        return 0
    if known.ui in ("tui", "debug") and is_terminal():
        if len(scenarios) > 1:
            raise ScenarioError(f"--ui {known.ui}: shows one run, and {len(scenarios)} are asked for; leave it out")
        if known.ui == "debug" and known.on is not None:
            raise ScenarioError(f"--on {known.on}: --ui debug steps worlds of this process; leave one of them out")
        if known.ui == "debug":
            from slipstream.cli.debug import debug

            return debug(scenarios[0], runs=known.runs, models=known.models, out=known.out)
        from slipstream.cli.watch import train_watched

        return train_watched(["train", *argv], scenarios[0], known.runs, known.out)
    results: list[Result] = []
    went_well = True
    with cluster(known, max(scenario.collect.workers or 0 for scenario in scenarios)) as where:
        scenarios = [_for_place(scenario, where) for scenario in scenarios]
        for scenario in scenarios:
            results.append(_train_one(scenario, known, where))
            went_well &= _show(results[-1], scenario)
            if results[-1].interrupted:  # a person who stops one run does not want the next to begin
                break
    if len(results) > 1:
        _compare(scenarios[: len(results)], results)
    return _code(results[-1]) if went_well else 1


def scenario_of(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> Scenario:
    """What `slipstream train WORDS` would train, where they name one scenario."""
    names, rest = _leading_words(words)
    if not names:
        raise ScenarioError(_name_it_first("federate", rest))
    if len(names) != 1:
        raise ScenarioError(f"{' '.join(names)}: name one scenario first, as in head_on; here are {len(names)}")
    (name,) = names
    known, fields = _train_parser().parse_known_args(rest)
    return _scenario(name, known, _algorithm(known.algo[0]) if known.algo else None, fields, environment)


def show_fields(scenario: Scenario, verb: str) -> None:
    """The second half of a help page: what can be set in this scenario, and what is."""
    from slipstream.config.help import print_fields

    print(f"\nfields of {scenario.name} with {scenario.algo.kind}, and their values:\n")
    print_fields(scenario, f"slipstream {verb} {scenario.name}")


def resume(argv: Sequence[str]) -> int:
    """Continue a run from its newest good checkpoint, or from the one that is named."""
    parser = make_parser("resume", "Continue a run exactly where it stopped.")
    parser.add_argument(
        "run",
        type=Path,
        help="the run's folder, such as runs/head_on_ppo_20261115-120000, one of its checkpoints, or its model",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="with a checkpoint that is not the newest: put later checkpoints and metrics aside and go on from it",
    )
    parser.add_argument("--timesteps", type=whole_number, help="new budget in steps, counted from the run's beginning")
    parser.add_argument("--models", type=Path, default=Path("models"), help="where the final model is written")
    parser.add_argument("--ui", choices=UIS[:3], default="plain", help=UI_HELP)
    add_run_flags(parser)
    log.add_flags(parser)
    args = parser.parse_args(argv)
    if args.ui == "tui" and is_terminal():
        from slipstream.cli.watch import resume_watched
        from slipstream.run.session import named_run

        return resume_watched(["resume", *argv], named_run(args.run)[0])
    targets = log.targets_of(args)
    from slipstream.run.progress import best_display
    from slipstream.run.session import named_run
    from slipstream.run.session import resume as continue_run

    display = None if args.ui == "none" else best_display()
    workers = load(named_run(args.run)[0] / "scenario.yaml", preset="default").collect.workers or 0 if args.on else 0
    with cluster(args, workers) as where:
        result = continue_run(
            args.run,
            timesteps=args.timesteps,
            force=args.force,
            models=args.models,
            display=display,
            exporters=_exporters(targets),
            cluster=where,
        )
    return _code(result) if _show(result, load(result.run / "scenario.yaml")) else 1


def is_terminal() -> bool:
    """Whether a person sits there, with more than a teletype (views are drawn on stderr)."""
    streams = sys.stdin, sys.stdout, sys.stderr
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") != "dumb"


def _exporters(targets: Sequence[Target]) -> Sequence[RunExporter]:
    """Those that flags ask for."""
    if not targets:
        return ()
    from slipstream.view.exporters import exporters

    return exporters(targets)


def _code(result: Result) -> int:
    """Of the process: a run that waits for the others of its federation is neither done nor failed."""
    from slipstream.config.stopping import StopKind

    if result.ended.kind is not StopKind.PARKED:
        return 0
    from slipstream.run.federated.replicas import PARKED_CODE

    return PARKED_CODE


def _for_place(scenario: Scenario, where: Cluster | None) -> Scenario:
    """Where a cluster is to collect for a scenario that has no workers, a worker on every node does."""
    if where is None or scenario.collect.workers:
        return scenario
    return override(scenario, {"collect.workers": min(where.nodes, scenario.collect.num_worlds)})


def _train_one(scenario: Scenario, known: argparse.Namespace, where: Cluster | None) -> Result:
    targets = log.targets_of(known)
    from slipstream.run.progress import best_display
    from slipstream.run.session import train as run

    return run(
        scenario,
        root=known.runs,
        models=known.models,
        out=known.out,
        display=None if known.ui == "none" else best_display(),
        exporters=_exporters(targets),
        cluster=where,
    )


def _show(result: Result, scenario: Scenario) -> bool:
    """The end of a run as a person wants it: a table, a picture and what to type next; whether all of it went well."""
    if result.interrupted:  # the loop has said how to go on
        return True
    failures = list(result.failures)
    said = [f"run:    {result.run}", *([f"model:  {result.model}"] if result.model is not None else [])]
    judged = result.run if result.model is None else result.model
    if scenario.evaluate.evaluation_interval is None:  # who wants no evaluation is not given one
        said += [f"judge it: slipstream eval {judged}", f"look at it: slipstream view {result.run}"]
    else:
        said += _judged(result, scenario, failures)
        said += [
            "look further:",
            f"  slipstream eval {judged} --episodes 500",
            f"  slipstream resume {result.run} --timesteps {2 * max(result.counters.steps, 1)}",
            f"  slipstream view {result.run}   (or report, for one HTML file)",
        ]
    print("\n".join(said))
    if failures:
        print(f"slipstream: not all of the end could be written: {', '.join(failures)}; see above", file=sys.stderr)
    return not failures


def _judged(result: Result, scenario: Scenario, failures: list[str]) -> list[str]:
    """Judge the final policy beside scripts, and keep table and picture; each is tried, whatever became of others."""
    from slipstream.cli.tables import print_judgement
    from slipstream.data.disk import replace_file
    from slipstream.data.run_folder import JUDGEMENT_FILE
    from slipstream.judging.judge import as_plain, judge
    from slipstream.run.saved_cast import load_cast
    from slipstream.worlds.world import tools_of

    judgement = None
    with _attempting("the judgement", failures):
        judgement = judge(*load_cast(result.run), episodes=100)
        print_judgement(judgement)
    if judgement is not None:
        with _attempting(JUDGEMENT_FILE, failures):
            kept = {"steps": result.counters.steps, **as_plain(judgement)}
            text = json.dumps(kept, indent=2, allow_nan=False).encode()
            replace_file(result.run / JUDGEMENT_FILE, text, durable=False)
        with _attempting("tracks.png", failures):
            draw, path = tools_of(judgement.kind).drawings.picture, result.run / "tracks.png"
            if draw is not None and judgement.frames is not None:
                draw(judgement.spec, judgement.frames, judgement.backdrop, path, scenario.name)
                return [f"tracks: {path}"]
    return []


@contextmanager
def _attempting(what: str, failures: list[str]) -> Iterator[None]:
    """A part of the end whose failure is told and takes no other part with it."""
    try:
        yield
    except BrokenPipeError:  # nobody reads on
        raise
    except Exception as error:
        failures.append(what)
        traceback.print_exc()
        print(f"slipstream: {what} failed: {type(error).__name__}: {error}", file=sys.stderr)


def _compare(scenarios: Sequence[Scenario], results: Sequence[Result]) -> None:
    from slipstream.cli.tables import plain, show

    columns = ["scenario", "algorithm", "steps", "seconds", "evaluation return", "clean", "stopped because"]
    rows = []
    for scenario, result in zip(scenarios, results, strict=True):
        clean = result.evaluation.get("eval/clean_fraction")
        about = [scenario.name, scenario.algo.kind, f"{result.counters.steps:,}", f"{result.counters.seconds:.1f}"]
        judged = f"{result.evaluation.get('eval/return_mean', float('nan')):.2f}"
        rows.append([*about, judged, "–" if clean is None else f"{clean:.0%}", result.reason])
    # Each run has said why it stopped: what goes first where there is little room.
    show("comparison", [plain(columns, rows, left=2, text=1), plain(columns[:-1], [row[:-1] for row in rows], left=2)])


def _train_parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "train",
        f"Train scenarios by name (see slipstream scenarios) or YAML file; 'all' trains {', '.join(PUBLISHED)}.",
        usage="slipstream train SCENARIO … [options] [--field.of.the.scenario VALUE]",
        epilog="slipstream train SCENARIO --help also shows that scenario's own fields with its values.",
        add_help=False,
    )
    add = parser.add_argument
    add("--algo", nargs="+", metavar="NAME", help=f"algorithms ({', '.join(KINDS)}); several are compared")
    add("--preset", help="hyper-parameters: published (by device), published_cpu or published_gpu")
    add("--timesteps", type=whole_number, help="budget in environment steps, spent in whole rollouts")
    add("--seed", type=int, help="seed of everything drawn in training")
    add("--checkpoint-every", type=whole_number, metavar="STEPS", help="steps between periodic checkpoints")
    add("--gpu", action=argparse.BooleanOptionalAction, default=None, help="use a GPU; default: if there is one")
    add(
        "--num-workers",
        type=int,
        metavar="N",
        help="threads that step the worlds (0 or 1: the learner's own); processes that collect are --collect-workers",
    )
    add_collect_flags(parser)
    add("--log-trajectories", action="store_true", help="write the track of every evaluation episode as CSV")
    add("--out", type=Path, help="folder of the run; must be new or empty")
    add("--ui", choices=UIS, default="plain", help=f"{UI_HELP}; debug: step it by hand, look into worlds")
    add("--runs", type=Path, default=Path("runs"), help="where run folders are made (default: runs)")
    add("--models", type=Path, default=Path("models"), help="where final models are written (default: models)")
    add("-h", "--help", action="store_true", help="show this page")
    add_run_flags(parser)
    log.add_flags(parser)
    return parser


def _name_it_first(verb: str, rest: Sequence[str]) -> str:
    """What to say where no scenario is named; --scenario NAME is how other programs have it."""
    named = [after for word, after in itertools.pairwise(rest) if word == "--scenario"]
    named += [word.partition("=")[2] for word in rest if word.startswith("--scenario=")]
    name = named[0] if named else "head_on"
    found = "--scenario is no flag: " if named else ""
    example = f"slipstream {verb} {name}" + ("" if named else " --timesteps 100_000")
    return f"{verb}: {found}name a scenario first, as in: {example}"


def _scenario(
    name: str,
    known: argparse.Namespace,
    algo: str | None,
    fields: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> Scenario:
    """The scenario as the flags have it; `fields` are those that set its own fields."""
    changes: dict[str, Any] = {}
    if algo is not None:
        changes["algo.kind"] = algo
    if known.timesteps is not None:
        changes["timesteps"] = known.timesteps
    if known.seed is not None:
        changes["seed"] = known.seed
    if known.checkpoint_every is not None:
        changes["checkpoint.checkpoint_every"] = known.checkpoint_every
    if known.gpu is not None:
        changes["device"] = "cuda" if known.gpu else "cpu"
    elif known.preset == "published":  # the preset depends on the device, so it is resolved now
        changes["device"] = _best_device()
    if known.num_workers is not None:
        if known.num_workers < 0:
            raise ScenarioError(
                f"--num-workers {known.num_workers}: cannot be negative; 0 or 1 is the learner's own thread"
            )
        changes["collect.world_threads"] = max(1, known.num_workers)
    changes |= dict(collect_changes(known)) | from_environment(environment)
    if known.log_trajectories:
        changes["log.log_trajectories"] = True
    scenario = load(name, changes, preset=known.preset)
    if not fields:
        return scenario
    changed = cli_changes(scenario, fields)
    kind = changed.get("algo", {}).get("kind", scenario.algo.kind)
    if kind != scenario.algo.kind:  # with the settings tuned for it, as --algo has them
        scenario = load(name, {**changes, "algo.kind": _algorithm(kind)}, preset=known.preset)
    return override(scenario, changed)


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _algorithm(word: str) -> str:
    name = word.lower()
    if name not in KINDS:
        raise ScenarioError(
            f"--algo: there is no algorithm '{word}' (known: {', '.join(KINDS)})" + suggest(name, KINDS)
        )
    return name


def _leading_words(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Scenario names come first; everything from the first flag on is options."""
    count = next((i for i, word in enumerate(argv) if word.startswith("-")), len(argv))
    return list(argv[:count]), list(argv[count:])
