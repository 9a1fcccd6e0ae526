"""The verb that lets policies play against each other."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.cli.judge import refuse_target
from slipstream.config.load import load
from slipstream.errors import ScenarioError

if TYPE_CHECKING:
    from slipstream.judging.arena import Duel, League
    from slipstream.stats.intervals import Interval
    from slipstream.stats.ratings import EloTest, Score

FORMAT = "slipstream.arena"
VERSION = 1


def arena(argv: Sequence[str]) -> int:
    """Play policies against each other: two until one is shown to be stronger, more of them all against all."""
    parser = argparse.ArgumentParser(
        "slipstream arena",
        description="Let policies play against each other. Every seed is played twice with sides swapped, on episodes "
        "that nothing else uses. Two contenders play until a sequential test (SPRT) says who is stronger, or that "
        "neither is; three and more play everybody against everybody for Elo ratings. The higher return wins.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "contenders", nargs="+", metavar="WHO", help="a run folder, checkpoint, exported model, or script:NAME"
    )
    parser.add_argument("--scenario", help="where they play (default: the scenario of the first run)")
    parser.add_argument("--max-games", type=int, default=1000, help="of any two, at most (default: 1000)")
    parser.add_argument("--seed", type=int, help="seed of the games (default: the scenario's evaluation seed)")
    parser.add_argument("--margin", type=float, default=0.0, help="returns no further apart are a draw (default: 0)")
    parser.add_argument("--elo0", type=float, help="two contenders: the smaller difference to tell apart (default: 0)")
    parser.add_argument("--elo1", type=float, help="the larger difference (default: 50)")
    parser.add_argument("--alpha", type=float, help="chance to call one of two equals the stronger (default: 0.05)")
    parser.add_argument("--beta", type=float, help="chance to miss a difference of elo1 (default: 0.05)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result for programs, too")
    args = parser.parse_args(argv)
    test = _check(args)
    from slipstream.judging.arena import duel, league, load_contenders, make_arena

    words: list[str] = args.contenders
    scenario, contenders = load_contenders(words, load(args.scenario) if args.scenario else None)
    ring = make_arena(scenario, contenders, args.max_games, args.seed, args.margin)
    told = {"scenario": scenario.name, "seed": ring.seed, "margin": args.margin, "contenders": words}
    print(f"{scenario.name}: {', '.join(words)}; every seed is played twice with sides swapped")
    if len(words) == 2:
        duelled = duel(ring, test, lambda standing: print(_progress(standing, test), flush=True))
        _print_duel(words, duelled, test)
        told |= _duel_record(duelled, test)
    else:
        done = league(ring, lambda i, j, score: print(_met(words, i, j, score), flush=True))
        _print_league(words, done)
        told |= _league_record(done)
    ring.worlds.close()
    if args.json is not None:
        from slipstream.data.disk import replace_file

        text = json.dumps({"format": FORMAT, "version": VERSION, **told}, indent=2, allow_nan=False)
        replace_file(args.json, text.encode() + b"\n", durable=False)
    return 0


def _check(args: argparse.Namespace) -> EloTest:
    """Check the arguments before anything is loaded; returns the sequential test."""
    asked = {name: value for name in ("elo0", "elo1", "alpha", "beta") if (value := getattr(args, name)) is not None}
    if len(args.contenders) < 2:
        raise ScenarioError(f"{args.contenders[0]}: name two contenders or more; eval judges one policy")
    if len(args.contenders) > 2 and asked:
        raise ScenarioError(
            f"--{next(iter(asked))}: the sequential test is between two, and {len(args.contenders)} contenders play "
            "everybody against everybody"
        )
    refuse_target("--json", args.json)
    if args.max_games < 2 or args.max_games % 2:
        raise ScenarioError(f"--max-games {args.max_games}: games come in pairs, sides swapped; give an even number")
    if not 0 <= args.margin < math.inf:
        raise ScenarioError(f"--margin {args.margin:g}: is a difference of returns, from 0 on")
    if args.seed is not None and not 0 <= args.seed < 2**63:
        raise ScenarioError(f"--seed {args.seed}: must be from 0 to {2**63 - 1:,}")
    low, high = asked.get("elo0", 0.0), asked.get("elo1", 50.0)
    alpha, beta = asked.get("alpha", 0.05), asked.get("beta", 0.05)
    if not 0 <= low < high <= 2000:
        raise ScenarioError(f"--elo0 {low:g} --elo1 {high:g}: are Elo points from 0 to 2000, the first the smaller")
    if not (0 < alpha < 1 and 0 < beta < 1 and alpha / 2 + beta < 1):
        raise ScenarioError(f"--alpha {alpha:g} --beta {beta:g}: are chances of error between 0 and 1, such as 0.05")
    from slipstream.judging.arena import MOST_GAMES
    from slipstream.stats.ratings import EloTest

    if args.max_games > MOST_GAMES:
        raise ScenarioError(f"--max-games {args.max_games}: there is room for {MOST_GAMES:,}")
    return EloTest(low, high, alpha / 2.0, beta)  # either of two equals may be called the stronger


# --- for people ---


def _progress(standing: Duel, test: EloTest) -> str:
    return (
        f"{standing.score.games:>7,} games, {_tally(standing.score)}, Elo {_elo(standing.elo)}, log ratio "
        f"{max(standing.log_ratios):.2f} of {test.bounds[1]:.2f}"
    )


def _met(words: Sequence[str], i: int, j: int, score: Score) -> str:
    return f"{score.games:>7,} games, {_tally(score)}: {words[i]} against {words[j]}"


def _tally(score: Score) -> str:
    return f"{score.wins} won, {score.draws} drawn, {score.losses} lost"


def _elo(value: Interval) -> str:
    return f"{_points(value.estimate)} [{_points(value.low)}, {_points(value.high)}]"


def _points(value: float) -> str:
    if math.isinf(value):
        return "+∞" if value > 0 else "-∞"
    return f"{round(value):+d}"


def _print_duel(words: Sequence[str], found: Duel, test: EloTest) -> None:
    from slipstream.cli.tables import plain, show

    score, games = found.score, found.score.games
    mirrored = (score.losses, score.draws, score.wins)
    turned = found.elo._replace(estimate=-found.elo.estimate, low=-found.elo.high, high=-found.elo.low)
    rows = [
        (word, *map(str, tally), f"{100 * mean:.1f} %", _elo(difference))
        for word, tally, mean, difference in (
            (words[0], score, score.mean, found.elo),
            (words[1], mirrored, 1.0 - score.mean, turned),
        )
    ]
    show(f"{games:,} games", [plain(("", "won", "drawn", "lost", "score", "Elo ahead [95 % interval]"), rows)])
    if found.stronger == "open":
        print(f"not settled in {games:,} games; --max-games gives it more")
    elif found.stronger == "neither":
        print(f"settled after {games:,} games: neither is stronger by {test.high:g} Elo points")
    else:
        print(f"settled after {games:,} games: {words[0 if found.stronger == 'first' else 1]} is stronger")


def _print_league(words: Sequence[str], found: League) -> None:
    from slipstream.cli.tables import plain, show

    order = sorted(range(len(words)), key=lambda i: -found.ratings[i].estimate)
    games = found.scores[0][1].games
    rows = []
    for i in order:
        against = [found.scores[i][j] for j in order if j != i]
        mean = sum(score.mean for score in against) / len(against)
        cells = ["" if i == j else f"{100 * found.scores[i][j].mean:.1f} %" for j in order]
        rows.append((words[i], _elo(found.ratings[i]), f"{100 * mean:.1f} %", *cells))
    title = f"{games:,} games between any two; score of the row against the column"
    numbers = [f"{place}." for place in range(1, len(words) + 1)]
    rows = [(f"{number} {row[0]}", *row[1:]) for number, row in zip(numbers, rows, strict=True)]
    show(title, [plain(("", "Elo [95 % interval]", "score", *numbers), rows)])


# --- for programs ---


def _duel_record(found: Duel, test: EloTest) -> dict[str, Any]:
    return {
        "games": found.score.games,
        "score": found.score._asdict(),
        "pairs": list(found.pairs),
        "elo": found.elo.plain(),
        "stronger": found.stronger,
        "log_ratios": list(found.log_ratios),
        "test": {"elo0": test.low, "elo1": test.high, "alpha": 2.0 * test.alpha, "beta": test.beta},
    }


def _league_record(found: League) -> dict[str, Any]:
    return {
        "games": found.scores[0][1].games,
        "scores": [[score._asdict() for score in row] for row in found.scores],
        "elo": [rating.plain() for rating in found.ratings],
    }
