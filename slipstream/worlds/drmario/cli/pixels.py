"""slipstream drmario pixels: teach a network to read bottles from pictures, read one, draw examples."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slipstream import __version__
from slipstream.errors import ScenarioError, suggest

if TYPE_CHECKING:
    from slipstream.worlds.drmario.pixel_net import Figures
    from slipstream.worlds.drmario.pixels import Lesson

SHOWN_EVERY_S = 10.0
KEPT_BACK = 5  # one capture in so many is judged on and not learned from


class Took(NamedTuple):
    """What learning took."""

    batches: int
    seconds: float
    core_seconds: float


def pixels(argv: Sequence[str]) -> int:
    """Everything about pictures."""
    verbs = {"train": train, "read": read, "draw": draw}
    if not argv or argv[0] in ("-h", "--help"):
        print(
            "usage: slipstream drmario pixels VERB …\n\n"
            "  train     teach a model to read bottles from worn pictures, or from captures of yours too\n"
            "  read      read a picture with a model and print the bottle in characters\n"
            "  draw      draw pictures with their labels, as a folder of captures\n\n"
            "slipstream drmario pixels VERB --help tells more"
        )
        return 0
    if argv[0] not in verbs:
        raise ScenarioError(f"there is no verb 'drmario pixels {argv[0]}'{suggest(argv[0], verbs)}")
    return verbs[argv[0]](argv[1:])


def train(argv: Sequence[str]) -> int:
    """Teach a model and say how well it reads games it never saw."""
    args = _train_words(argv)

    import torch

    from slipstream.data.disk import replace_file
    from slipstream.worlds.drmario import pixel_net

    torch.set_num_threads(1)
    lessons, net, before, rate = pixel_net.lessons(args.seed), None, 0, pixel_net.LEARNING_RATE
    judged = {"held out": pixel_net.held_out_lesson(args.judged)}
    if args.captures is not None:
        learned, judged["captures"] = _captures(args.captures)
        lessons = pixel_net.mixed_lessons(lessons, learned, args.seed)
    if args.start is not None:
        net, meta = pixel_net.load_model(args.start)
        before, rate = meta.steps, pixel_net.LEARNING_RATE / 4  # what it knows is not to be shaken out of it
    net = pixel_net.new_net(args.seed) if net is None else net
    found = {"held out, plain rule": _judge_plain_rule(judged["held out"])}
    found |= {f"{name}, before": pixel_net.judge_net(net, lesson) for name, lesson in judged.items()}
    start, busy = time.monotonic(), time.process_time()
    seconds = 60 * args.minutes
    steps = pixel_net.teach(
        net, lessons, steps=args.steps, seconds=seconds, learning_rate=rate, report=_progress(start)
    )
    took = Took(steps, time.monotonic() - start, time.process_time() - busy)
    found |= {f"{name}, after": pixel_net.judge_net(net, lesson) for name, lesson in judged.items()}

    args.out.mkdir(parents=True, exist_ok=True)
    figures, maker = found["held out, after"], f"slipstream {__version__}"
    for name, content in pixel_net.pack(net, steps=before + steps, figures=figures, made_with=maker).items():
        replace_file(args.out / name, content)
    print(_table(found))
    print(f"{steps} batches in {took.seconds:.0f} s, {took.core_seconds:.0f} s of one core")
    print(f"slipstream drmario pixels read {args.out} PICTURE.png reads with it")
    if args.report is not None:
        replace_file(args.report, _report(argv, took, args.judged, found))
    return 0


def _train_words(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "slipstream drmario pixels train",
        description="Teach a small U-Net to read bottles from pictures that our renderer draws, moved, blurred, tinted "
        "and noisy, and judge it on games that it never saw, beside a plain rule.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the model is written")
    long = parser.add_mutually_exclusive_group()
    long.add_argument("--minutes", type=float, default=3.0, help="how long to learn (default 3)")
    long.add_argument("--steps", type=int, help="or so many batches: the same bits for the same seed")
    parser.add_argument("--captures", type=Path, metavar="FOLDER", help="learn from these pictures too, half and half")
    parser.add_argument("--from", dest="start", type=Path, metavar="FOLDER", help="go on from this model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--judged", type=int, default=512, help="on how many pictures of held-out games (default 512)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the figures as JSON")
    args = parser.parse_args(argv)
    if args.minutes <= 0 or (args.steps is not None and args.steps < 1) or args.judged < 1:
        raise ScenarioError("nothing is learned in no time: --minutes, --steps and --judged are above 0")
    return args


def read(argv: Sequence[str]) -> int:
    """Print what a model sees in a picture."""
    parser = argparse.ArgumentParser(
        "slipstream drmario pixels read",
        description="Read a picture and print the bottle: '..' empty, or a mark (^ v < > halves, o single, * going, "
        "@ virus) and a colour (y, r, b).",
        allow_abbrev=False,
    )
    parser.add_argument("model", type=Path, help="what `slipstream drmario pixels train` wrote")
    parser.add_argument("picture", type=Path, help="a PNG of the bottle and the next pill, in any size")
    args = parser.parse_args(argv)

    from slipstream.worlds.drmario import pixel_net
    from slipstream.worlds.drmario.pixels import LETTERS, board_to_text, read_picture

    net, _ = pixel_net.load_model(args.model)
    found = pixel_net.read(net, read_picture(args.picture)[None])
    print("\n".join(board_to_text(found.boards[0])))
    print("next " + "".join(LETTERS[colour] for colour in found.previews[0].tolist()))
    return 0


def draw(argv: Sequence[str]) -> int:
    """Write a folder of captures from our own renderer."""
    parser = argparse.ArgumentParser(
        "slipstream drmario pixels draw",
        description="Draw pictures of games with their labels, in the form that `train --captures` reads.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where they go")
    parser.add_argument("--count", type=int, default=20, help="how many (default 20)")
    parser.add_argument("--clean", action="store_true", help="as drawn: not moved, blurred, tinted or noisy")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    if not 1 <= args.count <= 10_000:
        raise ScenarioError(f"--count {args.count}: 1 to 10,000 pictures")

    import numpy as np

    from slipstream.data.disk import replace_file
    from slipstream.worlds.drmario.pixels import (
        LABELS_FILE,
        Lesson,
        labels_of,
        rasterise,
        sample_positions,
        wear,
        write_pictures,
    )

    positions = sample_positions(args.count, args.seed)
    pictures = rasterise(positions)
    pictures = pictures if args.clean else wear(pictures, np.random.default_rng(args.seed))
    labels = write_pictures(args.out, Lesson(pictures, labels_of(positions)))
    replace_file(args.out / LABELS_FILE, labels)
    print(f"{args.count} pictures and {LABELS_FILE} in {args.out}")
    return 0


def _captures(folder: Path) -> tuple[Lesson, Lesson]:
    """A folder's pictures: those to learn from, and those that are kept to judge on."""
    from slipstream.worlds.drmario.pixels import Lesson, read_captures

    captures = read_captures(folder)
    learned = [k for k in range(len(captures.pictures)) if k % KEPT_BACK]
    if not learned:
        raise ScenarioError(f"{folder}: one picture, which is kept to judge on; add more to learn from")
    return (
        Lesson(captures.pictures[learned], captures.labels[learned]),
        Lesson(captures.pictures[::KEPT_BACK], captures.labels[::KEPT_BACK]),
    )


def _progress(start: float) -> Callable[[int, float], None]:
    shown = start

    def report(step: int, loss: float) -> None:
        nonlocal shown
        if time.monotonic() - shown >= SHOWN_EVERY_S:
            shown = time.monotonic()
            print(f"{shown - start:6.0f} s  batch {step:5d}  loss {loss:.4f}", flush=True)

    return report


def _judge_plain_rule(held_out: Lesson) -> Figures:
    """Nearest mean colour in the middle of a cell, by as many pictures as it is judged on."""
    import numpy as np

    from slipstream.worlds.drmario import pixel_net
    from slipstream.worlds.drmario.pixels import sample_positions

    seen = pixel_net.lesson_from(sample_positions(len(held_out.pictures), 0), np.random.default_rng(1))
    return pixel_net.judge(pixel_net.read_by_colour(pixel_net.fit_baseline(seen), held_out.pictures), held_out.labels)


def _table(found: dict[str, Figures]) -> str:
    head = f"{'':<22}{'cells':>10}{'filled':>10}{'bottles':>10}{'next pill':>11}"
    rows = [
        f"{name:<22}{f.cells:>10.2%}{f.filled_cells:>10.2%}{f.boards:>10.2%}{f.previews:>11.2%}"
        for name, f in found.items()
    ]
    return "\n".join([head, *rows])


def _report(argv: Sequence[str], took: Took, judged: int, found: dict[str, Figures]) -> bytes:
    import msgspec

    record = {
        "format": "slipstream drmario pixels report",
        "version": 1,
        "command": shlex.join(["slipstream", "drmario", "pixels", "train", *argv]),
        "date": time.strftime("%Y-%m-%d"),
        "batches": took.batches,
        "seconds": round(took.seconds, 1),
        "core_seconds": round(took.core_seconds, 1),
        "judged_on": judged,
        "figures": {name: {key: round(value, 5) for key, value in f._asdict().items()} for name, f in found.items()},
    }
    return msgspec.json.format(msgspec.json.encode(record)) + b"\n"
