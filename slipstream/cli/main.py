"""The command `slipstream`: one verb per thing a user does."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, cast

from slipstream import __version__
from slipstream.runtime.signals import catching

if TYPE_CHECKING:
    from slipstream.worlds.world import WorldVerb

Verb = Callable[[Sequence[str]], int]

# By group: each verb, the function of slipstream.cli that does it, and what it is for. Worlds bring verbs of their own.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "run": {
        "train": ("run.train", "train one or several scenarios"),
        "resume": ("run.resume", "continue a run exactly where it stopped"),
        "sweep": ("sweep.sweep", "try a scenario with many values, and find the best"),
    },
    "judge": {
        "eval": ("judge.evaluate", "play a trained policy beside the scripted ones, with intervals"),
        "certify": ("judge.certify", "show that a rate is above a bar, with a stated chance of error"),
        "shift": ("shift.shift", "try policies in changed worlds, or on other scenarios, with paired intervals"),
        "arena": ("arena.arena", "let policies play against each other: who is stronger, with Elo ratings"),
        "compare": ("compare.compare", "compare runs by algorithm or setting, with intervals over seeds"),
        "report": ("report.report", "write one HTML file about runs: curves, figures, replays, problem signs"),
        "bench": ("bench.bench", "measure how fast a scenario's worlds step here, and what many of them bring"),
        "check-world": ("judge.check_world", "check that a world keeps its contract"),
    },
    "share": {
        "federate": ("federate.federate", "run several replicas that learn together, and watch over them"),
        "export": ("export.export", "write a policy as ONNX for other programs, and check that it acts the same"),
        "dataset": ("data.dataset", "record, describe, merge or import experience to learn from offline"),
        "replay": ("replay.replay", "serve a replay that several runs share, or show how one stands"),
    },
    "look": {
        "watch": ("watch.watch", "follow a run on the terminal, live or finished"),
        "view": ("view.view", "show runs in a browser: curves, replays, comparisons, federations"),
        "scenarios": ("scenarios.scenarios", "list or describe scenarios; make, check, draw and import them"),
        "log": ("log.log", "write a run's metrics for TensorBoard or W&B, live or afterwards"),
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code. Mistakes of the user are one sentence and exit code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with catching(to_the_end=argv is None):
            return _run(words)
    except KeyboardInterrupt as stop:
        with suppress(OSError):  # the terminal may be gone
            print(f"slipstream: interrupted{f' ({stop})' if str(stop) else ''}", file=sys.stderr)
        return 128 + getattr(stop, "number", signal.SIGINT)


def function(name: str) -> Verb:
    """The function of a verb; only now is what it needs imported, when signals are heard already."""
    module, own = name.split(".")
    return cast(Verb, getattr(import_module(f"slipstream.cli.{module}"), own))


def _verbs_of_worlds() -> Iterator[WorldVerb]:
    from slipstream.worlds.entry_points import worlds

    own = {name for group in GROUPS.values() for name in group}
    return (verb for world in worlds().values() for verb in world.verbs if verb.name not in own)


def _verb_of_a_world(name: str) -> Verb | None:
    return next((verb.run for verb in _verbs_of_worlds() if verb.name == name), None)


def _run(words: list[str]) -> int:
    from slipstream.errors import SlipstreamError, suggest

    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    verbs = {name: verb for group in GROUPS.values() for name, (verb, _) in group.items()}
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    if words[0] == "--version":
        print(f"slipstream {__version__}")
        return 0
    run = function(verbs[words[0]]) if words[0] in verbs else _verb_of_a_world(words[0])
    if run is None:
        known = [*verbs, *(verb.name for verb in _verbs_of_worlds())]
        print(
            f"slipstream: there is no verb '{words[0]}'{suggest(words[0], known)} (slipstream --help lists them)",
            file=sys.stderr,
        )
        return 2
    try:
        return run(words[1:])
    except SlipstreamError as error:
        if debug:
            raise
        print(f"slipstream: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        return 0
    except OSError as error:  # a path that cannot be read or written
        if debug:
            raise
        print(
            f"slipstream: {error.filename}: {error.strerror}" if error.filename else f"slipstream: {error}",
            file=sys.stderr,
        )
        return 2


def _help() -> str:
    lines = ["slipstream trains agents that share a world.", "", "usage: slipstream VERB … [--debug]", ""]
    for group, members in GROUPS.items():
        lines.append(f"{group}:")
        lines += [f"  {name:<13}{text}" for name, (_, text) in members.items()]
        lines.append("")
    lines += ["worlds:", *[f"  {verb.name:<13}{verb.text}" for verb in _verbs_of_worlds()], ""]
    lines.append("slipstream VERB --help tells more; start with: slipstream train head_on")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
