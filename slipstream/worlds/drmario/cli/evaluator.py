"""`slipstream drmario evaluator`: learn from played games how long a bottle will take, and show what was learned."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slipstream.cli.flags import make_parser
from slipstream.cli.main import dispatch
from slipstream.config.load import override, to_plain
from slipstream.config.records import check_name
from slipstream.errors import CheckpointError, ScenarioError, suggest
from slipstream.worlds.drmario.config import FRAMES_PER_SECOND, SEEDS, DrMarioConfig
from slipstream.worlds.world import Verb

if TYPE_CHECKING:
    from slipstream.config.scenario import Scenario
    from slipstream.data.checkpoint import Checkpoint
    from slipstream.judging.time_to_success import PlayedPositions
    from slipstream.run.progress import Display
    from slipstream.run.time_to_success import FitReport, Times
    from slipstream.spec import WorldSpec

# Of the console's seeds 70 % are learned from, 15 % calibrated on and 15 % judged on: no game is in two of them.
PARTS = {"fit": (1, 22_937), "calibrate": (22_938, 27_852), "judge": (27_853, SEEDS)}
FEWEST = 16  # games


def evaluator(argv: Sequence[str]) -> int:
    """Train or show a model of the frames left until the bottle is cleared."""
    about = (
        "A model of how many frames it will take to clear the bottle from a position: quantiles, and the probability "
        "of clearing it at all. `shaping.evaluator` uses it as potential."
    )
    verbs = (
        Verb("train", "play games, fit, calibrate, judge", _train),
        Verb("show", "how good a model is, and what it predicts", _show),
    )
    return dispatch("slipstream drmario evaluator", about, {"verbs": verbs}, argv)


# --- train ---


def _train_parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "drmario evaluator train",
        "Play games of a run's, checkpoint's or model's policy, or of a script, exploration off, and learn how many "
        "frames were left at their decisions. A game that is not cleared within the horizon counts as that long. "
        "Games of other seeds calibrate the model, and games of yet others judge it.",
    )
    add = parser.add_argument
    add("subject", help="a run folder, checkpoint, exported model, or a scenario")
    add("-o", "--out", type=Path, required=True, help="folder of the model, such as models/NAME; must be new")
    add("--policy", help="learned, or a script such as greedy (default: learned, where the subject has learned)")
    add("--games", type=int, default=6000, help="to learn from; a quarter more each calibrate and judge (6000)")
    add("--horizon", type=int, default=10_000, help="frames; what is not cleared within them counts as this (10000)")
    add("--epochs", type=int, default=6, help="passes over what was played; the best one is kept (6)")
    add("--seed", type=int, default=0, help="of games, weights and shuffling (0)")
    return parser


class PlayerChoice(NamedTuple):
    """Who plays which scenario."""

    scenario: Scenario
    saved: Checkpoint | None
    policy: str


def _train(argv: Sequence[str]) -> int:
    args = _train_parser().parse_args(argv)
    if args.games < FEWEST or args.horizon < 1 or args.epochs < 1 or not 0 <= args.seed < 2**32:
        raise ScenarioError(
            f"--games {args.games} --horizon {args.horizon} --epochs {args.epochs} --seed {args.seed}: at least "
            f"{FEWEST} games, a horizon and epochs of 1 or more, and a seed from 0 to {2**32 - 1} are needed"
        )
    check_name(args.out.name, "model")
    if os.path.lexists(args.out):
        raise ScenarioError(f"{args.out}: something is already there; choose another name, or remove it first")
    from dataclasses import replace

    import msgspec
    import torch

    from slipstream.judging import time_to_success as learning
    from slipstream.run.time_to_success import FitReport, save_times

    torch.set_num_threads(1)  # the passes are native, and torch's own threads cost more than they bring
    player = _player(args.subject, args.policy)
    counts = {"fit": args.games, "calibrate": max(FEWEST, args.games // 4), "judge": max(FEWEST, args.games // 4)}
    played, spec = _play(player, counts, args.seed)
    settings = learning.FitSettings(args.horizon, epochs=args.epochs, seed=args.seed)
    fitted = learning.fit(
        played["fit"], spec, settings, lambda epoch, loss: print(f"epoch {epoch} of {args.epochs}: loss {loss:.4f}")
    )
    calibrated = learning.calibrate(fitted, played["calibrate"])
    report = FitReport(
        source=str(args.subject),
        policy=player.policy,
        config=to_plain(player.scenario)["world"],
        seed=args.seed,
        epochs=args.epochs,
        fitted=counts["fit"],
        calibrated=counts["calibrate"],
        levels=tuple(learning.LEVELS.tolist()),
        held=learning.judge(fitted, calibrated, played["judge"], played["fit"], args.seed),
    )
    record = msgspec.structs.replace(calibrated.record, report=report)
    save_times(args.out, replace(calibrated, record=record))
    _print_report(report, args.horizon)
    print(f"model:  {args.out}\nuse it: slipstream train SCENARIO --shaping.evaluator {args.out}")
    return 0


def _player(subject: str, policy: str | None) -> PlayerChoice:
    from slipstream.run.record import load_subject

    scenario, saved = load_subject(subject)
    if not isinstance(scenario.world, DrMarioConfig):
        raise ScenarioError(f"{subject}: plays {scenario.world.kind}, and this is about Dr. Mario")
    if policy is None and saved is None:
        raise ScenarioError(
            f"{subject}: is a scenario, in which nothing was learned yet; say who plays, as in --policy greedy"
        )
    return PlayerChoice(scenario, saved, policy or "learned")


def _play(player: PlayerChoice, counts: dict[str, int], seed: int) -> tuple[dict[str, PlayedPositions], WorldSpec]:
    """Games of every part, each of seeds of its own."""
    from slipstream.judging.time_to_success import play
    from slipstream.run.progress import best_display
    from slipstream.run.saved_cast import script_instead, trained_teams
    from slipstream.run.setup import make_evaluation_worlds

    played: dict[str, PlayedPositions] = {}
    for number, (part, (first, last)) in enumerate(PARTS.items()):
        seeds = {"world.first_seed": first, "world.last_seed": last, "world.seeds": ()}
        scenario = override(player.scenario, seeds)
        env = make_evaluation_worlds(scenario, counts[part])
        scripts = env.spec.scripts
        if player.policy != "learned" and player.policy not in scripts:
            known = ", ".join(("learned", *scripts))
            raise ScenarioError(
                f"--policy: {env.spec.name} has no policy '{player.policy}' (it has: {known})"
                + suggest(player.policy, scripts)
            )
        if player.policy != "learned":
            (team, *_) = script_instead(scenario, player.policy, env.spec)
        elif player.saved is not None:
            (team, *_) = trained_teams(scenario, player.saved, env.spec)
        else:
            raise ScenarioError(f"--policy learned: nothing was learned yet in {scenario.name}; name a run or a model")
        display = best_display("games")

        def on_progress(done: int, display: Display = display) -> None:
            display.advance(done, "")

        display.start(f"{player.policy} plays {counts[part]:,} games to {part}", 0, counts[part])
        try:
            played[part] = play(env, team, counts[part], seed + number, on_progress)
        finally:
            display.stop()
            env.close()
    return played, env.spec


# --- show ---


def _show_parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "drmario evaluator show",
        "Show how well a model predicted games it had not seen, and what it predicts at the beginning of games.",
    )
    parser.add_argument("model", type=Path, help="what `slipstream drmario evaluator train` wrote")
    parser.add_argument(
        "--seed", type=int, nargs="+", default=[1, 2, 3], help=f"which of the console's games, 1 to {SEEDS}"
    )
    parser.add_argument("--level", type=int, help="of these games (default: the first the model learned from)")
    parser.add_argument("--png", type=Path, help="draw levels and how often they held")
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead")
    return parser


def _show(argv: Sequence[str]) -> int:
    args = _show_parser().parse_args(argv)
    import msgspec

    from slipstream.judging.time_to_success import draw
    from slipstream.run.time_to_success import load_times

    times = load_times(args.model)
    report = times.record.report
    try:
        config = DrMarioConfig.model_validate({} if report is None else report.config)
    except ValueError as error:  # of another world
        raise CheckpointError(f"{args.model}: has not learned from games of Dr. Mario ({error!s:.80})") from None
    if report is None:
        raise CheckpointError(f"{args.model}: does not say which games it has learned from; train it again")
    if args.json:
        told = {"horizon": times.record.horizon, **msgspec.to_builtins(report)}
        print(msgspec.json.format(msgspec.json.encode(told), indent=1).decode())
    else:
        _print_report(report, times.record.horizon)
        _print_games(times, config, args.level, args.seed)
    if args.png is not None:
        draw(args.png, report, f"frames to clear predicted for {report.policy} ({report.source}), and what came")
        print(f"picture: {args.png}")
    return 0


def _print_report(report: FitReport, horizon: int) -> None:
    from rich.console import Console
    from rich.table import Table

    print(
        f"learned from {report.fitted:,} games of {report.policy} ({report.source}), calibrated on "
        f"{report.calibrated:,}; what was not cleared within {horizon:,} frames counts as that"
    )
    table = Table(title="share of games cleared by the frames given for a level", title_justify="left")
    table.add_column("level", justify="right")
    for held in report.held:
        table.add_column(f"{held.where}, as fitted", justify="right")
        table.add_column("calibrated", justify="right")
    for i, level in list(enumerate(report.levels))[1::2]:
        shares = [share for held in report.held for share in (held.uncalibrated[i], held.calibrated[i])]
        table.add_row(f"{level:.2f}", *(f"{share:.3f}" for share in shares))
    Console().print(table)
    for held in report.held:
        before, after = (
            max(abs(share - level) for share, level in zip(shares, report.levels, strict=True))
            for shares in (held.uncalibrated, held.calibrated)
        )
        print(
            f"{held.where} of {held.episodes:,} games: off by at most {before:.3f} as fitted, {after:.3f} calibrated; "
            f"{held.predicted_ticks:,.0f} frames expected, {held.mean_ticks:,.0f} taken; quantile loss "
            f"{held.pinball:.0f} frames, {held.pinball_blind:.0f} without looking at the position"
        )


def _print_games(times: Times, config: DrMarioConfig, level: int | None, seeds: Sequence[int]) -> None:
    """What a model says at the beginning of games."""
    from rich.console import Console
    from rich.table import Table

    from slipstream.worlds.registry import make_worlds
    from slipstream.worlds.vec_env import EnvOptions

    if level is None:
        level = (config.phases[-1].levels if config.phases else config.levels)[0]
    if not 0 <= level <= 24 or not all(1 <= seed <= SEEDS for seed in seeds):
        raise ScenarioError(f"--level is 0 to 24 and --seed 1 to {SEEDS}")
    table = Table(title=f"level {level}: frames (seconds) to clear it, before the first pill", title_justify="left")
    for column in ("seed", "chance", "mean", "half by", "nine in ten by", "slowest quarter, mean"):
        table.add_column(column, justify="right")
    for seed in seeds:
        game = config.model_copy(update={"levels": (level,), "phases": (), "seeds": (seed,)})
        env = make_worlds(game, 1, EnvOptions(autoreset=False))
        env.reset()
        obs = {name: block[:, 0] for name, block in env.obs.items()}
        quantiles, levels = times.quantiles(obs)[0], times.record.levels
        half, most = (_told(float(quantiles[levels >= at][0]), times.record.horizon) for at in (0.5, 0.9))
        mean, slow = (_told(float(times.cvar(obs, share)[0])) for share in (1.0, 0.25))
        table.add_row(str(seed), f"{times.chance(obs)[0]:.3f}", mean, half, most, slow)
        env.close()
    Console().print(table)


def _told(frames: float, horizon: float = math.inf) -> str:
    return f"{frames:,.0f} ({frames / FRAMES_PER_SECOND:.1f})" if frames < horizon else "later or never"
