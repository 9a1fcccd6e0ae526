"""Verbs that judge: eval, certify and check-world."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.config.load import load
from slipstream.errors import ScenarioError, suggest

if TYPE_CHECKING:
    from slipstream.config.scenario import Scenario
    from slipstream.data.checkpoint import Checkpoint
    from slipstream.judging.judge import Judgement
    from slipstream.stats.sequential import Certificate


def evaluate(argv: Sequence[str]) -> int:
    """Play a trained policy and the world's scripted ones on the same fresh episodes."""
    args = _eval_parser().parse_args(argv)
    if args.episodes < 1:
        raise ScenarioError(f"--episodes {args.episodes}: at least one episode is needed")
    seeds = read_seeds(args.seed, args.seeds)
    scenario, saved = load_subject(args.subject, must_exist=args.scenario is not None)
    if args.scenario is not None:
        world = load(args.scenario)
        scenario = world.model_copy(update={"policies": scenario.policies, "teams": scenario.teams})
    missing = _what_is_missing(scenario, args)
    for sentence in missing:
        print(f"slipstream: {sentence}", file=sys.stderr)
    from slipstream.cli.tables import print_judgement
    from slipstream.judging.judge import as_plain, judge

    record = args.trajectories is not None or args.html is not None
    judgement = judge(scenario, saved, args.episodes, seeds, record=record, analysis=args.analysis)
    if args.json:
        print(json.dumps(as_plain(judgement), indent=2, allow_nan=False))
    else:
        print_judgement(judgement)
        print_outcomes(judgement)
        print_analysis(judgement)
    _write_files(judgement, scenario, args)
    return 2 if missing else 0


def _eval_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "slipstream eval",
        description="Play a run's, checkpoint's or model's policy beside the world's scripted ones; with a scenario's "
        "name, the scripted ones alone. Episodes are the same for every row and were never trained or stopped on.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("subject", help="a run folder, checkpoint, exported model, or a scenario")
    add("--episodes", type=int, default=100, help="episodes per row (default: 100)")
    add("--seed", type=int, help="seed of the episodes (default: the scenario's evaluation seed)")
    add("--seeds", metavar="SEED,…", help="several seeds, such as 42,123; their episodes are pooled")
    add("--scenario", help="judge on this scenario instead of the one it was trained on")
    add("--png", type=Path, help="draw the first row's first episode")
    add("--gif", type=Path, help="the same as an animated GIF, of 300 pictures at most")
    add("--html", type=Path, help="the same as a page with a map and plots")
    add(
        "--trajectories",
        type=Path,
        metavar="FOLDER",
        help="write every step of every episode there: trajectories.parquet, and in airspace traj_ep_*.csv",
    )
    add("--analysis", action="store_true", help="add what the world reads from whole episodes: alerts, collision risk")
    add("--json", action="store_true", help="print JSON instead of a table")
    return parser


def load_subject(subject: str, must_exist: bool = False) -> tuple[Scenario, Checkpoint | None]:
    """The scenario and policies of a run, checkpoint or model; or a scenario by its name or file, without policies."""
    from slipstream.run.saved_cast import load_cast

    path, is_yaml = Path(subject), subject.endswith((".yaml", ".yml"))
    if path.is_dir() or (path.exists() and not is_yaml):
        return load_cast(path)
    if must_exist or ("/" in subject and not is_yaml):
        raise ScenarioError(f"{path}: there is no such run, checkpoint or model; they lie under runs/ and models/")
    return load(subject), None


def read_seeds(seed: int | None, seeds: str | None) -> list[int] | None:
    """One seed, or several from words such as 42,123; None: the scenario's."""
    if seeds is None:
        return None if seed is None else [seed]
    found = [int(word) for word in seeds.split(",") if word.strip().isdecimal()]
    if seed is not None or len(found) != len(seeds.split(",")) or len(set(found)) != len(found):
        raise ScenarioError(f"--seeds {seeds}: whole numbers that differ, such as 42,123, and no --seed beside them")
    return found


def _what_is_missing(scenario: Scenario, args: argparse.Namespace) -> list[str]:
    """Remove from the arguments what this kind of world does not have, and say so; the rest is still done.

    A file that could not be written is refused before minutes are spent on episodes.
    """
    from slipstream.worlds.world import tools_of

    kind, missing = scenario.world.kind, []
    tools = tools_of(kind)
    can = tools.drawings
    there = {"png": (can.picture, "picture"), "gif": (can.renderer, "picture"), "html": (can.page, "page")}
    for flag, (own, what) in there.items():
        if (path := getattr(args, flag)) is None:
            continue
        if own is not None:
            refuse_target(f"--{flag}", path, f".{flag}")
        else:
            hint = "; --gif draws it" if can.renderer is not None and flag != "gif" else ""
            missing.append(f"--{flag}: {scenario.name} ({kind}) has no {what}{hint}")
            setattr(args, flag, None)
    if args.analysis and tools.analysis is None:
        missing.append(f"--analysis: {kind} worlds have no analysis of their own")
        args.analysis = False
    return missing


def refuse_target(flag: str, path: Path | None, *suffixes: str) -> None:
    """Refuse a file that could not be written, before anything is played or read."""
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise ScenarioError(f"{flag} {path}: the name must end in {suffixes[0]}")
    if path.is_dir():
        raise ScenarioError(f"{flag} {path}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ScenarioError(f"{flag} {path}: the folder {path.parent} does not exist; make it first")
    if not os.access(path.parent, os.W_OK):
        raise ScenarioError(f"{flag} {path}: the folder {path.parent} may not be written to")


def _write_files(judgement: Judgement, scenario: Scenario, args: argparse.Namespace) -> None:
    """The pictures, page and trajectories that were asked for."""
    from slipstream.data.disk import replace_file
    from slipstream.worlds.world import tools_of

    told = sys.stderr if args.json else sys.stdout
    policy, spec, can = judgement.rows[0].policy, judgement.spec, tools_of(scenario.world.kind).drawings
    if args.png is not None and can.picture is not None and judgement.frames is not None:
        can.picture(spec, judgement.frames, judgement.backdrop, args.png, scenario.name)
    if args.gif is not None and can.renderer is not None and judgement.frames is not None:
        from slipstream.worlds.film import gif

        pictures = gif(can.renderer(scenario.world), spec, judgement.frames, judgement.backdrop)
        replace_file(args.gif, pictures, durable=False)
    if args.html is not None and can.page is not None:
        page = can.page(scenario.world, spec, judgement.recorded[policy][0], f"{scenario.name}: {policy}")
        replace_file(args.html, page.encode(), durable=False)
    if drawn := [str(path) for path in (args.png, args.gif, args.html) if path is not None]:
        print(f"{policy}, first episode: {', '.join(drawn)}", file=told)
    if args.trajectories is not None:
        from slipstream.judging.judge import write_trajectories

        written = write_trajectories(args.trajectories, scenario.world, spec, judgement.recorded)
        others = f" and {len(written) - 1} CSV files" if len(written) > 1 else ""
        print(f"trajectories: {written[0]}{others}", file=told)


def certify(argv: Sequence[str]) -> int:
    """Show that a rate is above a bar, however often one looks; exit code 0 where it is shown, 1 where it is not."""
    parser = argparse.ArgumentParser(
        "slipstream certify",
        description="Play fresh episodes until it is shown that something happens at more than a given rate, or that "
        "it will not be shown. The chance that any attempt on a run certifies falsely is alpha at most: the k-th "
        "spends alpha / (k (k + 1)). Attempts are kept in the run's certificates.jsonl.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, help="a run folder, or an exported model")
    parser.add_argument("--metric", default="success", help="what must happen in an episode (default: success)")
    parser.add_argument("--at-least", type=float, required=True, metavar="RATE", help="the bar, between 0 and 1")
    parser.add_argument("--alpha", type=float, default=0.05, help="chance of a false certificate (default: 0.05)")
    parser.add_argument("--max-episodes", type=int, default=5000, help="give up after so many (default: 5000)")
    parser.add_argument("--expected", type=float, metavar="RATE", help="the rate you expect: decides sooner if right")
    parser.add_argument("--phase", help="of the world's phases (default: the last)")
    args = parser.parse_args(argv)
    from slipstream.data.arrays_file import content_hash
    from slipstream.run.certify import Candidate, Question, make_stand
    from slipstream.run.certify import certify as play_until_shown
    from slipstream.run.saved_cast import load_cast, trained_teams

    if not args.run.is_dir():
        raise ScenarioError(f"{args.run}: there is no such run or model; they lie under runs/ and models/")
    if not (0 < args.at_least < 1 and 0 < args.alpha < 1 and args.max_episodes >= 1):
        raise ScenarioError(
            f"--at-least {args.at_least:g} --alpha {args.alpha:g} --max-episodes {args.max_episodes}: a rate "
            "and a chance lie between 0 and 1, and at least 1 episode is needed"
        )
    scenario, saved = load_cast(args.run)
    stand = make_stand(scenario, args.max_episodes)
    phases = stand.worlds.spec.phases
    if args.phase is not None and args.phase not in phases:
        known = ", ".join(phases) or "none"
        raise ScenarioError(f"--phase {args.phase}: {scenario.name} has {known}{suggest(args.phase, phases)}")
    phase = None if args.phase is None else phases.index(args.phase)

    def told(standing: Certificate) -> None:
        share = standing.successes / standing.trials
        print(
            f"{standing.trials:>7,} episodes, {share:.3f} {args.metric}, evidence "
            f"{math.exp(standing.log_evidence):.3g} of {1 / standing.alpha:.3g}",
            flush=True,
        )

    question = Question(args.metric, args.at_least, args.alpha, args.max_episodes, args.expected)
    policy = content_hash({name: array for name, array in saved.arrays.items() if name.startswith("policy.")})
    candidate = Candidate(policy, int(saved.meta.get("counters", {}).get("steps", 0)), phase)
    teams = trained_teams(scenario, saved, stand.worlds.spec)
    attempt, standing = play_until_shown(args.run, scenario, stand, teams, question, candidate, told)
    stand.worlds.close()
    found = f"{standing.successes} of {standing.trials} {attempt.population}"
    spends = f"attempt {attempt.attempt} on this run, which spent {attempt.spends:.3g} of alpha {args.alpha:g}"
    if attempt.verdict == "pass":
        print(f"certified: {args.metric} at a rate above {args.at_least:g} ({found}; {spends})")
        return 0
    print(f"not certified: {args.metric} at a rate above {args.at_least:g} was not shown ({found}; {spends})")
    return 1


def check_world(argv: Sequence[str]) -> int:
    """Check that a scenario's world keeps the contract; exit code 1 when it does not."""
    parser = argparse.ArgumentParser(
        "slipstream check-world",
        description="Check a world's shapes, ends, limits, seeds, autoreset and leaks; for worlds you bring, too.",
        allow_abbrev=False,
    )
    parser.add_argument("scenario", help="a scenario's name or file")
    args = parser.parse_args(argv)
    from slipstream.worlds.check import check_world as check
    from slipstream.worlds.limits import check_limits
    from slipstream.worlds.registry import make_worlds
    from slipstream.worlds.repeat import check_leaks, held
    from slipstream.worlds.vec_env import EnvOptions, VecEnv

    scenario = load(args.scenario)

    def make(num_worlds: int, options: EnvOptions) -> VecEnv:
        return make_worlds(scenario.world, num_worlds, options)

    findings = [*check(make), *check_limits(make), *check_leaks(make)]
    for finding in findings:
        print(finding)
    well = "keeps the contract and leaves no files, threads, processes or memory behind"
    if held() is None:
        well = "keeps the contract; leaks were not looked for: install psutil to look for them"
    print(f"{scenario.name}: " + (f"{len(findings)} findings" if findings else well))
    print(_networks(scenario))
    return 1 if findings else 0


def _networks(scenario: Scenario) -> str:
    """What the learners' networks will be, given what the world shows."""
    from slipstream.config.scenario import assign_teams
    from slipstream.nets.torso import network_kind, usual_network
    from slipstream.run.views import by_role, view_of
    from slipstream.worlds.registry import spec_of

    whole, said = spec_of(scenario.world), []
    scenario = by_role(scenario, whole)
    for name, algo in scenario.learning.items():
        spec = view_of(scenario, name, assign_teams(scenario, whole.agents, whole.roles)[name], whole)
        config = algo.network or usual_network(spec)
        kind = network_kind(config.kind)
        read = set(kind.blocks(config, spec))
        shown = [f"{b.name} ({b.dtype}{list(b.shape)}, by name)" if b.name in read else b.name for b in spec.obs]
        shown += [f"rows of others in {rows.block}" for rows in kind.entities(config, spec)]
        facts = kind.layout(config, spec).get("layers")
        chosen = "" if algo.network else ", chosen by what the world shows"
        said.append(f"{name}: {config.kind}{f' ({facts})' if facts else ''}{chosen}; it reads {', '.join(shown)}")
    return "\n".join(f"network of {sentence}" for sentence in said)


def print_outcomes(judgement: Judgement) -> None:
    """How episodes of every policy ended: number, and share with its 95 % interval."""
    from slipstream.cli.tables import Cell, interval, matrix, show

    ways = list(dict.fromkeys(name for row in judgement.rows for name in row.outcomes))
    if not ways:
        return
    cells: list[list[Cell]] = []
    for row in judgement.rows:
        counted = [row.outcomes.get(way) for way in ways]
        cells.append([("0",) if one is None else (f"{one.episodes},", *interval(one.share)) for one in counted])
    policies = [row.policy for row in judgement.rows]
    forms = matrix("policy", policies, ways, cells, ("episodes", "share", "95 % interval"), down="ended")
    show("how episodes ended: number, share [95 % interval]", forms)


def print_analysis(judgement: Judgement) -> None:
    """Figures read from whole episodes, one to a line; a dash where one is undefined."""
    from slipstream.cli.tables import Cell, matrix, show

    names = list(judgement.rows[0].analysis)
    if not names:
        return
    policies = [row.policy for row in judgement.rows]
    cells: list[list[Cell]] = []
    for name in names:
        values = [row.analysis[name] for row in judgement.rows]
        cells.append([("-" if value != value else f"{value:.4g}",) for value in values])
    forms = matrix("figure", [name.replace("_", " ") for name in names], policies, cells, ("value",), down="policy")
    show("read from whole episodes (docs/evaluation.md); -: undefined", forms)
