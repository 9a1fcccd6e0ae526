"""Verbs about recorded experience: dataset record, info, merge and import."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.flags import make_parser
from slipstream.cli.main import dispatch
from slipstream.config.load import load
from slipstream.errors import ScenarioError
from slipstream.worlds.world import Verb

if TYPE_CHECKING:
    from slipstream.data.dataset_file import Dataset, DatasetPart, DatasetRecord
    from slipstream.data.dataset_summary import DatasetSummary, ValueSpread

MOST_LINES = 16  # of observations that `info` shows


def dataset(argv: Sequence[str]) -> int:
    """Record, describe, merge or import a dataset."""
    about = (
        "Recorded experience for offline learning; to learn from it:\n"
        "  slipstream train SCENARIO --algo cql --algo.replay.dataset datasets/NAME"
    )
    verbs = (
        Verb("record", "play, and record what happens", _record),
        Verb("info", "describe a dataset", _info),
        Verb("merge", "join datasets of one world", _merge),
        Verb("import", "convert a dataset of Minari", _import),
    )
    return dispatch("slipstream dataset", about, {"verbs": verbs}, argv)


# --- record ---


def _record_parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "dataset record",
        "Play the policy of a run, checkpoint or model, a script of the world, or uniformly random actions, and write "
        "the finished decisions of the learning team as single transitions. The same seed gives the same bits.",
    )
    add = parser.add_argument
    add("subject", help="a run folder, checkpoint, exported model, or a scenario")
    add("-o", "--out", type=Path, required=True, help="folder of the dataset, such as datasets/NAME; must be new")
    add("--transitions", type=int, default=100_000, help="decisions to record (default: 100_000)")
    add("--policy", help="random, learned, or a script such as noop (default: learned, or random for a scenario)")
    noise = parser.add_mutually_exclusive_group()
    noise.add_argument("--noise", action="store_true", help="a learned policy explores as when it was saved (default)")
    noise.add_argument("--greedy", action="store_true", help="a learned policy takes its most likely action")
    add("--seed", type=int, help="seed of worlds and actions (default: the scenario's)")
    add("--num-worlds", type=int, metavar="N", help="worlds played at once; another number gives other rows")
    add("--team", help="whose decisions are kept, by policy, where several learn")
    add("--gamma", type=float, help="discount per tick (default: the scenario's)")
    return parser


def _record(argv: Sequence[str]) -> int:
    args = _record_parser().parse_args(argv)
    from slipstream.data.dataset_file import check_target, save_dataset
    from slipstream.run.progress import best_display
    from slipstream.run.record import record
    from slipstream.runtime.signals import Interrupts

    display = best_display("transitions")

    def announce(asked: DatasetRecord) -> None:
        check_target(args.out, asked.nbytes)
        (part,) = asked.parts
        display.note(
            f"{asked.rows:,} transitions of {asked.row_bytes:,} bytes take {_size(asked.nbytes)} of memory and as much "
            f"on disk; {part.num_worlds} worlds, seed {part.seed}; Ctrl+C writes what there is"
        )

    with Interrupts() as interrupts:
        recorded = record(
            args.subject,
            args.transitions,
            policy=args.policy,
            noise=not args.greedy,
            team=args.team,
            gamma=args.gamma,
            seed=args.seed,
            num_worlds=args.num_worlds,
            announce=announce,
            display=display,
            stop=lambda: interrupts.signal is not None,
        )
        save_dataset(args.out, recorded)
    if len(recorded.rows) < args.transitions:
        print(f"{interrupts.signal}: wrote the {len(recorded.rows):,} of {args.transitions:,} transitions there were")
    _say_written(args.out, recorded)
    return 0


# --- info ---


def _info(argv: Sequence[str]) -> int:
    about = "Describe a dataset: who acted, returns, ends, ranges and actions. Checks every byte of it."
    parser = make_parser("dataset info", about)
    parser.add_argument("path", type=Path, help="the dataset's folder")
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    args = parser.parse_args(argv)
    import msgspec

    from slipstream.data.dataset_file import read_dataset
    from slipstream.data.dataset_summary import describe

    summary = describe(read_dataset(args.path))
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(summary), indent=2).decode())
    else:
        print("\n".join(_lines(args.path, summary)))
    return 0


def _lines(path: Path, summary: DatasetSummary) -> list[str]:
    shaping = f", shaping {summary.shaping_coef:g}" if summary.shaping_coef else ""
    lines = [
        f"{path}: {summary.rows:,} transitions of {summary.world}, {_size(summary.bytes)} "
        f"({summary.row_bytes:,} bytes each)",
        "",
        *[f"  {part.rows:>11,} rows  {_who(part)}" for part in summary.parts],
        "",
    ]
    if summary.returns is None:
        lines.append("return        no episode ended in the recording")
    else:
        returns = summary.returns
        lines.append(
            f"return        mean {returns.mean:.4g}, from {returns.min:.4g} to {returns.max:.4g} "
            f"({returns.episodes:,} episodes, all recorded agents together)"
        )
    lines += [
        f"ends          {summary.terminated:.2%} of the rows terminated, {summary.truncated:.2%} truncated",
        f"reward        {_range(summary.reward)} (gamma {summary.gamma:g}{shaping})",
        *[f"observation   {_range(spread)}  {name}" for name, spread in list(summary.obs.items())[:MOST_LINES]],
    ]
    if len(summary.obs) > MOST_LINES:
        lines.append(f"observation   and {len(summary.obs) - MOST_LINES} more, which --json shows")
    if summary.choices is not None:
        lines += [f"choice        {share:7.2%}  {name}" for name, share in summary.choices.items()]
    for name, shares in (summary.axes or {}).items():
        cells = " ".join(f"{100 * share:.0f}" for share in shares)
        lines.append(f"action        {cells} % in {len(shares)} bins from lowest to highest  {name}")
    return lines


def _who(part: DatasetPart) -> str:
    """One part's origin in a line."""
    how = {True: " with noise", False: " without noise"}[part.noise] if part.policy == "learned" else ""
    taken = f", all of {part.recorded:,}" if part.rows == part.recorded else f", of {part.recorded:,}"
    if part.rows < part.recorded:
        taken += ": the first" if part.draw_seed is None else f": drawn with seed {part.draw_seed}"
    played = "" if part.seed is None else f", seed {part.seed}, {part.num_worlds} worlds"
    return f"{part.policy}{how}, {part.source}{played}{taken}"


def _range(spread: ValueSpread) -> str:
    return f"{spread.min:>10.4g} to {spread.max:<10.4g} mean {spread.mean:<10.4g}"


# --- merge ---


def _merge(argv: Sequence[str]) -> int:
    parser = make_parser(
        "dataset merge",
        "Join datasets of the same world and gamma in the order given. Nothing is shuffled, as learners sample their "
        "batches at random.",
    )
    add = parser.add_argument
    add("datasets", type=Path, nargs="+", help="folders of datasets")
    add("-o", "--out", type=Path, required=True, help="folder of the new dataset; must be new")
    add("--rows", type=int, nargs="+", metavar="N", help="take this many of each: one number per dataset")
    add("--seed", type=int, help="with --rows: draw them at random with this seed instead of taking the first")
    args = parser.parse_args(argv)
    from slipstream.data.dataset_file import check_target, merge, save_dataset

    if args.seed is not None and args.rows is None:
        raise ScenarioError(f"--seed {args.seed}: all rows are taken, so nothing is drawn; say how many with --rows")
    check_target(args.out)
    merged = merge(args.datasets, args.rows, args.seed)
    save_dataset(args.out, merged)
    how = "" if args.rows is None else ", the first of each" if args.seed is None else ", drawn in recorded order"
    print("rows in this order" + how + ":")
    for part in merged.record.parts:
        print(f"  {part.rows:>11,}  {_who(part)}")
    _say_written(args.out, merged)
    return 0


# --- import ---


def _import(argv: Sequence[str]) -> int:
    parser = make_parser("dataset import", "Convert a dataset that Minari has on this machine; nothing is downloaded.")
    add = parser.add_argument
    add("source", help="minari:ID, as `minari list local` shows it")
    add("-o", "--out", type=Path, required=True, help="folder of the dataset; must be new")
    add("--scenario", required=True, help="scenario whose world it was recorded in")
    add("--gamma", type=float, help="discount per step (default: the scenario's)")
    args = parser.parse_args(argv)
    library, _, name = args.source.partition(":")
    if library != "minari" or not name:
        raise ScenarioError(f"{args.source}: only datasets of Minari can be imported; write minari:ID")
    scenario = load(args.scenario)
    from slipstream.data.dataset_file import check_target, save_dataset
    from slipstream.run.minari_import import import_minari

    check_target(args.out)
    imported = import_minari(name, scenario, args.gamma)
    save_dataset(args.out, imported)
    _say_written(args.out, imported)
    return 0


def _say_written(path: Path, written: Dataset) -> None:
    print(f"dataset: {path} ({len(written.rows):,} transitions, {_size(written.record.nbytes)})")
    print(f"look:    slipstream dataset info {path}")


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"
