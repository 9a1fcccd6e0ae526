"""Metrics for TensorBoard and W&B: the flags of train, resume and federate, and the verb for a run that is there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.flags import make_parser
from slipstream.errors import SlipstreamError

if TYPE_CHECKING:
    from slipstream.view.exporters import Target


def log(argv: Sequence[str]) -> int:
    """Export a run's metrics, those that are still to come too."""
    parser = make_parser(
        "log", "Write a run's metrics for TensorBoard or W&B; follows a run that is going on until it ends."
    )
    parser.add_argument("run", type=Path, help="the run's folder, going on or finished")
    add_flags(parser)
    args = parser.parse_args(argv)
    targets = targets_of(args)
    if not targets:
        raise SlipstreamError("log: choose --tensorboard, --wandb or both")
    from slipstream.view.exporters import exporters
    from slipstream.view.run import about

    about(args.run)  # which refuses what is no run
    started = exporters(targets)
    for exporter in started:
        print(exporter.begin(args.run), flush=True)
    for exporter in started:
        exporter.wait()
    return 0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What to export where."""
    add = parser.add_argument_group("export metrics (by a separate process that reads the run folder)").add_argument
    add("--tensorboard", action="store_true", help="write event files for TensorBoard")
    add("--logdir", metavar="DIR", help="folder for the event files; each run gets a subfolder (default: tb)")
    add("--wandb", action="store_true", help="log to W&B; offline, unless you have logged in or set WANDB_MODE")
    add("--wandb-project", metavar="NAME", help="W&B project (default: slipstream)")
    add("--wandb-prefix", metavar="TEXT", help="prefix of the run's name in W&B")
    add("--wandb-group", metavar="NAME", help="W&B group")
    add("--wandb-tags", metavar="A,B", help="W&B tags, separated by commas")
    add("--wandb-dir", metavar="DIR", help="where to make the folder 'wandb' (default: here)")


def targets_of(args: argparse.Namespace) -> list[Target]:
    """What these flags say; those that would have no effect are refused."""
    found: list[Target] = []
    if args.tensorboard:
        from slipstream.view.exporters import Tensorboard

        found.append(Tensorboard(args.logdir or "tb"))
    elif args.logdir is not None:
        raise SlipstreamError(f"--logdir {args.logdir}: has no effect without --tensorboard")
    given = {
        "project": args.wandb_project,
        "prefix": args.wandb_prefix,
        "group": args.wandb_group,
        "tags": _tags(args.wandb_tags),
        "folder": args.wandb_dir,
    }
    told = {key: value for key, value in given.items() if value is not None}
    if args.wandb:
        from slipstream.view.exporters import Wandb

        found.append(Wandb(**told))
    elif told:
        flag = "--wandb-" + next(iter(told)).replace("folder", "dir")
        raise SlipstreamError(f"{flag}: has no effect without --wandb")
    return found


def _tags(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(tag.strip() for tag in text.split(",") if tag.strip())
