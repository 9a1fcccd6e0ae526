"""The verb `replay`: serve a replay that several runs share, say how one stands, and try it out with workers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.replay.messages import Stats


def replay(argv: Sequence[str]) -> int:
    """Serve, show how a service stands, or try one out."""
    parser = argparse.ArgumentParser(
        "slipstream replay", description="A replay in a process of its own, for several runs.", allow_abbrev=False
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{serve,stats,smoke}")
    serve = verbs.add_parser("serve", help="serve until Ctrl+C, from the last snapshot", allow_abbrev=False)
    add = serve.add_argument
    add("--address", default="ipc://replay.sock", help="ipc://PATH or tcp://HOST:PORT (default: ipc://replay.sock)")
    add(
        "--token-file", type=Path, help="file with a word of 16 characters or more that clients must know; tcp needs it"
    )
    add(
        "--snapshot", type=Path, metavar="FOLDER", help="save there what to start from again; default: nothing is saved"
    )
    add("--every", type=float, default=30.0, metavar="SECONDS", help="between snapshots (default: 30)")
    add("--memory", type=float, metavar="GB", help="for rows and windows (default: half of what is free)")
    stats = verbs.add_parser("stats", help="show tables, lanes and waits of a service", allow_abbrev=False)
    stats.add_argument("address", help="where it listens")
    stats.add_argument("--token-file", type=Path, help="file with its token")
    stats.add_argument("--json", action="store_true", help="print JSON instead")
    smoke = verbs.add_parser(
        "smoke", help="run workers and a service together for a while and check their metrics", allow_abbrev=False
    )
    smoke.add_argument("--seconds", type=float, default=60.0, help="of training (default: 60)")
    smoke.add_argument("--collect-workers", type=int, default=2, metavar="N", help="workers (default: 2)")
    args = parser.parse_args(argv)
    return {"serve": _serve, "stats": _stats, "smoke": _smoke}[args.verb](args)


def _serve(args: argparse.Namespace) -> int:
    from slipstream.replay.process import read_token, serve
    from slipstream.replay.service import ServiceLimits

    memory = None if args.memory is None else int(args.memory * 1e9)
    rules = ServiceLimits(token=read_token(args.token_file), memory=memory, snapshot_s=args.every)
    serve(args.address, rules, args.snapshot, say=lambda text: print(text, file=sys.stderr, flush=True))
    return 0


def _stats(args: argparse.Namespace) -> int:
    import msgspec

    from slipstream.replay.link import ask
    from slipstream.replay.messages import AskStatistics, Stats
    from slipstream.replay.process import read_token

    stats = ask(args.address, read_token(args.token_file), AskStatistics(check=True))
    assert isinstance(stats, Stats)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(stats), indent=2).decode())
    else:
        print("\n".join(_lines(stats)))
    return 0


def _smoke(args: argparse.Namespace) -> int:
    from slipstream.cli.smoke import smoke, table

    seen = smoke(args.seconds, args.collect_workers)
    print("\n".join(table(seen)))
    wrong = [f"{each.expected.key}: {each.problem}" for each in seen if each.problem]
    for problem in wrong:
        print(f"slipstream: {problem}", file=sys.stderr)
    return 1 if wrong else 0


def _lines(stats: Stats) -> list[str]:
    saved = "no snapshot" if stats.snapshot_age_s is None else f"last snapshot {stats.snapshot_age_s:.0f} s ago"
    lines = [
        f"up for {stats.seconds:.0f} s, {stats.clients} connections, {stats.dropped} ended for what they sent, {saved}"
    ]
    for name, table in stats.tables.items():
        lines += [
            "",
            f"table {name}: {table.rows:,} of {table.capacity:,} rows, {table.bytes / 1e6:,.1f} MB; "
            f"{table.added:,} added, {table.drawn:,} drawn ({table.sample_insert_ratio:.2f} per row added)",
        ]
        for lane in table.lanes:
            share = lane.drawn / max(table.drawn, 1)
            notes = [f"weight {lane.weight:g}"]
            notes += [] if lane.performance is None else [f"performance {lane.performance:.4g}"]
            notes += [f"{lane.lost:,} lost"] if lane.lost else []
            notes += [] if lane.connected else ["not connected"]
            lines.append(
                f"  {lane.rows:>11,} rows  {lane.added:>13,} added  {share:6.1%} of draws  {lane.client}/{lane.agent}"
                f" ({', '.join(notes)})"
            )
        lines += [f"  waits: {wait}" for wait in table.waits]
    return lines
