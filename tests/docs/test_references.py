"""Pages, code and comments refer only to what a reader has: no internal papers, no files that are not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_blocks import ROOT

FOLDERS = ("slipstream", "core", "tests", "docs", "bench", "studies")
ENDINGS = {".py", ".pyi", ".md", ".hpp", ".cpp", ".yaml", ".js", ".json", ".toml", ".txt"}
# Papers of those who planned the project.
_INTERNAL = re.compile(
    r"\b(?:TRUST|DESIGN|STYLE)(?:\.md\b| (?:section )?\d| has\b| says\b| asks\b)"
    r"|\b[Ii]ssues? #?\d|\.\./shared\b|\bshared/(?:seeds|reviews|worlds)\b|\b(?:seeds|eyes|house)\.md\b"
)
_SOURCE = re.compile(r"(?<![\w./<])((?:\w+/)*\w+\.(?:hpp|cpp))\b")
_NAMED_IN = re.compile(r"`(\w+)` \((?:in )?`(slipstream/[\w/]+\.py)`")  # `Place` (`slipstream/runtime/place.py`)


def files() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.suffix in ENDINGS or path.name == "Makefile")
    for folder in FOLDERS:
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in ENDINGS)


def internal(text: str) -> list[str]:
    return [found[0] for found in _INTERNAL.finditer(text)]


def test_nothing_refers_to_papers_that_a_reader_does_not_have():
    own = Path(__file__).resolve()
    found = {path: names for path in files() if path != own and (names := internal(path.read_text()))}
    assert not {str(path.relative_to(ROOT)): names for path, names in found.items()}


@pytest.mark.parametrize(
    "text", ["495 (TRUST 6 L1)", "DESIGN section 3", "475 (issue 3)", "see ../shared/seeds", "TRUST 2.3 has the limits"]
)
def test_such_a_reference_is_found(text):
    assert internal(text)


@pytest.mark.parametrize("text", ["quarantine.trust()", "a design of 3 parts", "GitHub issues", "/shared/fed"])
def test_plain_words_are_no_references(text):
    assert not internal(text)


def test_source_files_that_the_core_names_in_comments_exist():
    sources = list((ROOT / "core").rglob("*.[ch]pp"))
    known = {path.name for path in sources}
    comments = ((path, line) for path in sources for line in path.read_text().splitlines() if "//" in line)
    named = {
        (path.name, name)
        for path, line in comments
        for name in _SOURCE.findall(line.split("//", 1)[1])
        if name.rsplit("/", 1)[-1] not in known
    }
    assert not named


@pytest.mark.parametrize("page", ["architecture.md", "extending.md", "adding-a-world.md", "adding-an-algorithm.md"])
def test_a_name_that_a_page_places_in_a_module_is_defined_there(page):
    named = _NAMED_IN.findall((ROOT / "docs" / page).read_text())
    absent = [(name, path) for name, path in named if not re.search(_defines(name), (ROOT / path).read_text(), re.M)]
    assert not absent
    assert named or page != "architecture.md"


def _defines(name: str) -> str:
    return rf"^\s*(?:class|def) {name}\b|^{name}\b"
