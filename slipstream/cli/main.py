"""The command `slipstream`: one verb per thing a user does."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from slipstream import __version__
from slipstream.errors import ScenarioError, SlipstreamError, suggest
from slipstream.runtime.signals import catching
from slipstream.worlds.world import Verb, worlds

# Our own verbs, by group. Worlds bring verbs in the same form.
GROUPS: dict[str, tuple[Verb, ...]] = {
    "run": (
        Verb("train", "train one or several scenarios", "slipstream.cli.run:train"),
        Verb("resume", "continue a run exactly where it stopped", "slipstream.cli.run:resume"),
        Verb("sweep", "try a scenario with many values, and find the best", "slipstream.cli.sweep:sweep"),
    ),
    "judge": (
        Verb("eval", "evaluate a trained policy beside scripted ones, with intervals", "slipstream.cli.judge:evaluate"),
        Verb("certify", "show that a success rate is above a bound, by a test", "slipstream.cli.judge:certify"),
        Verb("shift", "try policies in changed worlds or other scenarios, in pairs", "slipstream.cli.shift:shift"),
        Verb("arena", "let policies play against each other, with Elo ratings", "slipstream.cli.arena:arena"),
        Verb("compare", "compare runs by algorithm or setting, over seeds", "slipstream.cli.compare:compare"),
        Verb("report", "write an HTML file about runs: curves, figures, replays", "slipstream.cli.report:report"),
        Verb("bench", "measure how fast the worlds of a scenario step here", "slipstream.cli.bench:bench"),
        Verb("check-world", "check that a world keeps its contract", "slipstream.cli.judge:check_world"),
    ),
    "share": (
        Verb("federate", "run and supervise replicas that learn together", "slipstream.cli.federate:federate"),
        Verb("export", "write a policy as ONNX, and check that it acts the same", "slipstream.cli.export:export"),
        Verb("dataset", "record, describe, merge or import data for offline learning", "slipstream.cli.data:dataset"),
        Verb("replay", "serve a replay buffer that several runs share", "slipstream.cli.replay:replay"),
    ),
    "look": (
        Verb("watch", "follow a run in the terminal, live or finished", "slipstream.cli.watch:watch"),
        Verb("view", "show runs in a browser: curves, replays, federations", "slipstream.cli.view:view"),
        Verb(
            "scenarios", "list, describe, make, check, draw and import scenarios", "slipstream.cli.scenarios:scenarios"
        ),
        Verb("log", "write the metrics of a run for TensorBoard or W&B", "slipstream.cli.log:log"),
    ),
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


def dispatch(prog: str, about: str, groups: Mapping[str, Sequence[Verb]], words: Sequence[str], end: str = "") -> int:
    """Run the verb that the first word names; without one, or for --help, list them."""
    verbs = {verb.name: verb for group in groups.values() for verb in group}
    if not words or words[0] in ("-h", "--help"):
        width = max(map(len, verbs)) + 2
        print(f"{about}\n\nusage: {prog} VERB …{' [--debug]' if prog == 'slipstream' else ''}\n")
        for group, members in groups.items():
            lines = [f"  {verb.name:<{width}}{verb.text}" for verb in members]
            print("\n".join([f"{group}:", *lines, ""]))
        print(f"{prog} VERB --help tells more{end}")
        return 0
    if words[0] not in verbs:
        hint = suggest(words[0], verbs)
        raise ScenarioError(f"there is no verb '{words[0]}'{hint} ({prog} --help lists them)")
    return verbs[words[0]](words[1:])


def _groups() -> dict[str, tuple[Verb, ...]]:
    """Our verbs, and those of worlds; ours come first where two have the same name."""
    own = {verb.name for group in GROUPS.values() for verb in group}
    return {
        **GROUPS,
        "worlds": tuple(verb for world in worlds().values() for verb in world.verbs if verb.name not in own),
    }


def _run(words: list[str]) -> int:
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if words[:1] == ["--version"]:
        print(f"slipstream {__version__}")
        return 0
    try:
        about, end = "slipstream trains agents that share a world.", "; start with: slipstream train head_on"
        return dispatch("slipstream", about, _groups(), words, end)
    except SlipstreamError as error:
        if debug:
            raise
        return _refuse(str(error))
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        return 0
    except OSError as error:  # a path that cannot be read or written
        if debug:
            raise
        return _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _refuse(sentence: str) -> int:
    print(f"slipstream: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
