"""`slipstream drmario sweep`: every game of the registry once, and how long it takes to clear them."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.config.load import load, override
from slipstream.errors import ScenarioError, WorldContractError, suggest
from slipstream.worlds.drmario import best_times, registry
from slipstream.worlds.drmario.config import DrMarioConfig

if TYPE_CHECKING:
    from slipstream.collect.teams import Team
    from slipstream.config.scenario import Scenario
    from slipstream.data.checkpoint import Checkpoint
    from slipstream.data.disk import Cell
    from slipstream.worlds.drmario.cli.playing import PlayedEpisode, PlayerRow
    from slipstream.worlds.vec_env import VecEnv

SCRIPTS = ("greedy", "fastest", "random")
TELL_EVERY_S = 5.0


def sweep(argv: Sequence[str]) -> int:
    """Play the registry's games with a saved policy, with scripts, or with both, and tabulate frames to clear."""
    args = _parser().parse_args(argv)
    levels, risk = _levels(args.levels), _quantiles(args.risk)
    if bool(risk) != (args.evaluator is not None) or (risk and args.run is None):
        raise ScenarioError("--risk needs a run and --evaluator MODEL, and the other way round")
    if not 1 <= args.seeds <= registry.PER_LEVEL or args.games < 1:
        raise ScenarioError(
            f"--seeds {args.seeds} --games {args.games}: 1 to {registry.PER_LEVEL} seeds, at least 1 game of each"
        )
    scenario, saved = _subject(args.run, args.player)
    scenario = _registry_games(scenario, levels, args.max_pills)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)

    import torch

    from slipstream.run.saved_cast import FIRST_JUDGED
    from slipstream.run.setup import make_evaluation_worlds

    torch.set_num_threads(1)  # torch's own threads cost small networks more than they bring
    stream, seeds = scenario.evaluate.seed, registry.registry_seeds()[: args.seeds]
    env = make_evaluation_worlds(scenario, len(levels) * len(seeds) * args.games)
    numbers = registry.episodes_of(env, seeds, args.games, stream, FIRST_JUDGED)
    games = [(level, seed, number) for level in levels for seed in seeds for number in numbers[seed]]
    tables: list[PlayerRow] = []
    rows: list[dict[str, Cell]] = []
    clears: list[best_times.Clear] = []
    casts = _casts(scenario, saved, args.player, env)
    if risk:
        casts[1:1] = _foresighted(scenario, casts[0][1], risk, args.evaluator, env)
    for player, teams in casts:
        played = _play(env, teams, games, levels, stream, player)
        tables += _table(player, games, played, env.spec.stats)
        rows += _rows(player, games, played, env.spec.stats)
        who = player if player in SCRIPTS else f"{args.run.resolve().name} {player}".removesuffix(" learned")
        clears += _clears(who, games, played, env, scenario)
    env.close()
    _show(tables, f"{args.seeds} seeds per level, {args.games} each: frames to clear")
    if args.out is not None:
        _write(args.out, tables, rows)
    if args.db is not None:
        best_times.record(args.db, clears)
        print(f"{len(clears):,} clears were told to {args.db}; slipstream drmario best-times --db {args.db}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "slipstream drmario sweep",
        description="Play every game of the registry (slipstream drmario seeds) once, exploration off, and show "
        "success and frames to clear by level, beside the human records. Mean, deviation, CVaR of the upper tail and "
        "median are over cleared games; success says how many were, and the median of all takes the others as endless.",
        allow_abbrev=False,
    )
    parser.add_argument("run", nargs="?", type=Path, help="a run folder, checkpoint or exported model")
    parser.add_argument("--levels", default="0-20", help="as 0-20 or 0,5,10 (default: 0-20)")
    parser.add_argument("--seeds", type=int, default=registry.PER_LEVEL, help="the registry's first so many per level")
    parser.add_argument(
        "--games", type=int, default=1, help="games per level and seed; they differ in their first frame"
    )
    parser.add_argument("--player", action="append", default=[], metavar="SCRIPT", help=f"also {', '.join(SCRIPTS)}")
    parser.add_argument(
        "--risk", metavar="LEVELS", help="also the run looking one pill ahead, as 0.25,0.5,0.75: of its likely "
        "placements the one with the lowest such quantile of the time left",
    )  # fmt: skip
    parser.add_argument("--evaluator", type=Path, metavar="MODEL", help="what tells the time left, for --risk")
    parser.add_argument("--max-pills", type=int, help="cut games off after so many (default: as in training)")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write sweep.csv, .parquet, .png and games.csv there"
    )
    parser.add_argument("--db", type=Path, metavar="FILE", help="add the clears to this database of best times")
    return parser


# --- what is played ---


def _levels(text: str) -> tuple[int, ...]:
    """Levels from words such as 0-5,10."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (not last or last.isdecimal()) and not (last == "" and "-" in part)):
            raise ScenarioError(
                f"--levels {text}: '{part}' is neither a level nor a range of them; write 0-20 or 0,5,10"
            )
        found += range(int(first), int(last or first) + 1)
    unknown = [level for level in found if level not in registry.LEVELS]
    if unknown or not found:
        known = f"{registry.LEVELS[0]} to {registry.LEVELS[-1]}"
        raise ScenarioError(f"--levels {text}: the registry has the levels {known}, in rising order")
    return tuple(dict.fromkeys(found))


def _quantiles(text: str | None) -> tuple[float, ...]:
    """Levels of quantiles from words such as 0.25,0.5."""
    try:
        found = tuple(dict.fromkeys(float(part) for part in text.split(","))) if text is not None else ()
    except ValueError:
        found = (math.nan,)
    if not all(0 < level < 1 for level in found):
        raise ScenarioError(f"--risk {text}: levels of quantiles lie between 0 and 1; write 0.25,0.5,0.75")
    return found


def _subject(run: Path | None, scripts: Sequence[str]) -> tuple[Scenario, Checkpoint | None]:
    """The scenario to play, and what was learned, if anything was."""
    for script in scripts:
        if script not in SCRIPTS:
            raise ScenarioError(f"--player {script}: the scripts are {', '.join(SCRIPTS)}{suggest(script, SCRIPTS)}")
    if run is None:
        if not scripts:
            raise ScenarioError("nobody plays: name a run folder or model, a script with --player greedy, or both")
        return load("drmario_level_0"), None
    from slipstream.run.saved_cast import load_cast

    scenario, saved = load_cast(run)
    world = scenario.world
    if not isinstance(world, DrMarioConfig):
        raise ScenarioError(f"{run}: was trained on {world.kind}; a sweep plays Dr. Mario")
    if world.players != 1:
        raise ScenarioError(f"{run}: players is {world.players}; a sweep is of games for one player")
    return scenario, saved


def _registry_games(scenario: Scenario, levels: Sequence[int], max_pills: int | None) -> Scenario:
    """The same scenario on the registry's games, a phase for every level."""
    phases = [{"name": f"level {level}", "levels": [level]} for level in levels]
    assert isinstance(scenario.world, DrMarioConfig)
    changes: dict[str, object] = {"world.phases": phases, "world.seeds": "registry", "curriculum": None}
    changes |= {"world.time_left": scenario.world.shows_time_left}  # what its policy was trained to see
    return override(scenario, changes | ({} if max_pills is None else {"world.max_pills": max_pills}))


def _casts(
    scenario: Scenario, saved: Checkpoint | None, scripts: Sequence[str], env: VecEnv
) -> list[tuple[str, list[Team]]]:
    from slipstream.run.saved_cast import script_instead, trained_teams

    learned = [] if saved is None else [("learned", trained_teams(scenario, saved, env.spec))]
    return learned + [(script, script_instead(scenario, script, env.spec)) for script in dict.fromkeys(scripts)]


def _foresighted(
    scenario: Scenario, learned: Sequence[Team], levels: Sequence[float], evaluator: Path, env: VecEnv
) -> list[tuple[str, list[Team]]]:
    """The learned teams, looking one pill ahead."""
    from dataclasses import replace

    from slipstream.run.saved_cast import Loaded
    from slipstream.run.time_to_success import load_times
    from slipstream.worlds.drmario.cli.playing import Foresighted
    from slipstream.worlds.drmario.lookahead import look_ahead

    assert isinstance(scenario.world, DrMarioConfig)
    times, look = load_times(evaluator), look_ahead(scenario.world, env.spec)

    def ahead(team: Team, level: float) -> Team:
        assert isinstance(team.player, Loaded)
        return replace(team, player=Foresighted(team.player.policy, times, level, look))

    return [(f"τ = {level:g}", [ahead(team, level) for team in learned]) for level in levels]


Game = tuple[int, int, int]  # level, seed, number of the episode


def _play(
    env: VecEnv, teams: Sequence[Team], games: Sequence[Game], levels: Sequence[int], stream: int, player: str
) -> list[PlayedEpisode]:
    """Play them all, and make sure that they were the ones that were meant."""
    from slipstream.worlds.drmario.cli.playing import DrawnEpisode, play_each

    began, last = time.monotonic(), time.monotonic()

    def on_progress(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > TELL_EVERY_S or done == len(games):
            last = now
            print(f"{player}: {done:,} of {len(games):,} games, {now - began:.0f} s", flush=True)

    draws = [DrawnEpisode(levels.index(level), number) for level, _, number in games]
    played = play_each(env, teams, draws, stream, on_progress)
    at = [env.spec.stats.index(name) for name in ("level", "seed")]
    for (level, seed, _), game in zip(games, played, strict=True):
        if [game.stats[i] for i in at] != [level, seed]:
            raise WorldContractError(
                f"level {level}, seed {seed} was to be played, but {[game.stats[i] for i in at]} was"
            )
    return played


# --- what came out ---


def _table(
    player: str, games: Sequence[Game], played: Sequence[PlayedEpisode], names: Sequence[str]
) -> list[PlayerRow]:
    from slipstream.worlds.drmario.cli.playing import PlayerRow, spread

    at = names.index("clear_frames")
    frames: dict[int, list[float]] = {}
    for (level, _, _), game in zip(games, played, strict=True):
        frames.setdefault(level, []).append(game.stats[at])
    return [
        PlayerRow(player, level, spread([t for t in own if t == t], len(own)), best_times.human_record_frames(level))
        for level, own in frames.items()
    ]


def _rows(
    player: str, games: Sequence[Game], played: Sequence[PlayedEpisode], names: Sequence[str]
) -> list[dict[str, Cell]]:
    """Every game, for games.csv."""
    shown = ("success", "clear_frames", "frames", "pills", "viruses_left", "top_out", "timeout", "score")
    return [
        {"player": player, "level": level, "seed": seed, **{name: game.stats[names.index(name)] for name in shown}}
        for (level, seed, _), game in zip(games, played, strict=True)
    ]


def _clears(
    run: str, games: Sequence[Game], played: Sequence[PlayedEpisode], env: VecEnv, scenario: Scenario
) -> list[best_times.Clear]:
    assert isinstance(scenario.world, DrMarioConfig)
    names, counter = env.spec.stats, env.spec.frame_fields.index("counter")
    placements = scenario.world.actions == "placement"
    return [
        best_times.Clear(
            level=level,
            seed=seed,
            speed=scenario.world.speed,
            signature=registry.signature(seed),
            frames=int(game.stats[names.index("clear_frames")]),
            pills=int(game.stats[names.index("pills")]),
            run=run,
            game=best_times.pack(int(game.opening[0, counter]), game.actions[:, 0]) if placements else None,
        )
        for (level, seed, _), game in zip(games, played, strict=True)
        if game.stats[names.index("success")]
    ]


def _show(rows: Sequence[PlayerRow], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from slipstream.worlds.drmario.cli.playing import TAILS

    table = Table(title=title, title_justify="left")
    figures = ("E[T]", "sd[T]", *[f"CVaR {level:g}" for level in TAILS], "median [95 %]", "median of all", "human")
    for name in ("player", "level", "games", "success [95 %]", *figures):
        table.add_column(name, justify="left" if name == "player" else "right")
    for row in rows:
        s = row.spread
        share = f"{s.success.estimate:.2f} [{s.success.low:.2f}, {s.success.high:.2f}]"
        middle = _count(s.median.estimate) + (
            f" [{_count(s.median.low)}, {_count(s.median.high)}]" if s.reached > 5 else ""
        )
        table.add_row(
            row.player, str(row.group), str(s.episodes), share, _count(s.mean), _count(math.sqrt(s.variance)),
            *map(_count, s.cvar), middle, _count(s.median_all), _count(row.record),
        )  # fmt: skip
    Console(width=None if Console().is_terminal else 160).print(table)


def _count(frames: float) -> str:
    return "" if frames != frames else "∞" if math.isinf(frames) else f"{frames:,.0f}"


def _write(folder: Path, tables: Sequence[PlayerRow], games: Sequence[dict[str, Cell]]) -> None:
    from slipstream.data.disk import write_csv, write_parquet
    from slipstream.worlds.drmario.cli.playing import as_columns, draw

    rows = [as_columns(row, "level", "frames") for row in tables]
    write_csv(folder / "sweep.csv", rows)
    write_csv(folder / "games.csv", games)
    draw(folder / "sweep.png", tables, "Dr. Mario: frames to clear", "level", "frames", "human record")
    names = ["sweep.csv", "games.csv", "sweep.png"]
    try:
        write_parquet(folder / "sweep.parquet", rows)
        names.append("sweep.parquet")
    except ModuleNotFoundError:
        print("sweep.parquet needs pyarrow, which is not installed: pip install 'slipstream[data]'")
    print(f"{', '.join(names)} are in {folder}")
