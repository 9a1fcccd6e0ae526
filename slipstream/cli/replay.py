"""The verb `replay`: serve a replay that several runs share, say how one stands, and try it out with workers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.flags import make_parser
from slipstream.cli.main import dispatch
from slipstream.worlds.world import Verb

if TYPE_CHECKING:
    from slipstream.replay.messages import Stats


def replay(argv: Sequence[str]) -> int:
    """Serve, show how a service stands, or try one out."""
    verbs = (
        Verb("serve", "serve until Ctrl+C, from the last snapshot", _serve),
        Verb("stats", "show the tables, lanes and waits of a service", _stats),
        Verb("smoke", "run workers and a service together for a while, and check their metrics", _smoke),
    )
    about = "A replay buffer in its own process, which several runs can share."
    return dispatch("slipstream replay", about, {"verbs": verbs}, argv)


def _serve(argv: Sequence[str]) -> int:
    parser = make_parser("replay serve", "Serve a replay buffer until Ctrl+C, starting from the last snapshot.")
    add = parser.add_argument
    add("--address", default="ipc://replay.sock", help="ipc://PATH or tcp://HOST:PORT (default: ipc://replay.sock)")
    add("--token-file", type=Path, help="file with a token of 16 characters or more; required for tcp")
    add("--snapshot", type=Path, metavar="FOLDER", help="where to save snapshots to restart from (default: none)")
    add("--every", type=float, default=30.0, metavar="SECONDS", help="between snapshots (default: 30)")
    add("--memory", type=float, metavar="GB", help="limit for rows and windows (default: half of what is free)")
    args = parser.parse_args(argv)
    from slipstream.replay.process import serve
    from slipstream.replay.service import ServiceLimits
    from slipstream.runtime.address import read_token

    memory = None if args.memory is None else int(args.memory * 1e9)
    limits = ServiceLimits(token=read_token(args.token_file), memory=memory, snapshot_s=args.every)
    serve(args.address, limits, args.snapshot, log=lambda text: print(text, file=sys.stderr, flush=True))
    return 0


def _stats(argv: Sequence[str]) -> int:
    parser = make_parser("replay stats", "Show the tables, lanes and waits of a service.")
    parser.add_argument("address", help="its address")
    parser.add_argument("--token-file", type=Path, help="file with its token")
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    args = parser.parse_args(argv)
    import msgspec

    from slipstream.replay.link import ask
    from slipstream.replay.messages import AskStatistics, Stats
    from slipstream.runtime.address import read_token

    stats = ask(args.address, read_token(args.token_file), AskStatistics(check=True))
    assert isinstance(stats, Stats)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(stats), indent=2).decode())
    else:
        print("\n".join(_lines(stats)))
    return 0


def _smoke(argv: Sequence[str]) -> int:
    parser = make_parser("replay smoke", "Run workers and a service together for a while, and check their metrics.")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training (default: 60)")
    parser.add_argument("--collect-workers", type=int, default=2, metavar="N", help="number of workers (default: 2)")
    args = parser.parse_args(argv)
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
                f"  {lane.rows:>11,} rows  {lane.added:>13,} added  {share:6.1%} of draws  {lane.client}/{lane.policy}"
                f" ({', '.join(notes)})"
            )
        lines += [f"  waits: {wait}" for wait in table.waits]
    return lines
