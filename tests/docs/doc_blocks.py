"""Fenced blocks of the Markdown pages, in order, with the note that says why one is not run."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])

# A fence, its language and its lines; before it possibly <!-- not run: reason -->.
_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+?) -->\n+)?^(?P<indent> *)```(?P<kind>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.M | re.S,
)


class Block(NamedTuple):
    """One fenced block."""

    kind: str
    text: str
    line: int
    reason: str | None  # why it is not run; None: it is


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("kind")) + 1
        yield Block(match["kind"], textwrap.dedent(match["text"]), line, match["reason"])


def commands(text: str) -> list[str]:
    """The lines of a shell block: comments dropped, lines that end in a backslash joined."""
    joined = text.replace("\\\n", " ")
    lines = (re.sub(r"\s+#.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def exchanges(text: str) -> Iterator[tuple[str, list[str]]]:
    """A console block as (command, lines it answers): '$ ' begins a command."""
    command, answer = "", []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, answer
            command, answer = line[2:], []
        elif line.strip():
            answer.append(line.strip())
    if command:
        yield command, answer
