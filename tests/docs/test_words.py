"""One spelling in prose, one meaning a word, and no word that was given up."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_blocks import PAGES, ROOT

# Prose is British. Keys and names follow the libraries they stand beside (optimizer, normalize, color), in code quotes.
AMERICAN = re.compile(
    r"\b(?:(?!(?:re|over|under)?siz|priz|seiz|sanitizers?\b)[a-z]{3,}iz(?:e[ds]?|ing|ers?|ations?)|analyz(?:e[ds]?|ing)"
    r"|(?:col|behavi|neighb|fav|hon|lab|flav|harb)or(?:s|ed|ing|hood|able|ite)?|(?:cent|met|kilomet|lit|fib)er(?:s|ed)?"
    r"|gray(?:s|scale)?|defenses?|judgments?|catalogs?|maneuvers?|fulfills?|(?:model|label|travel|cancel)(?:ed|ing)"
    r"|artifacts?)\b",
    re.I,
)

# Words of old for which the field has a usual one. A word is listed once it is gone; its row says what is said instead.
NOT_IN_NAMES = {
    "led": "replicated",
    "hands": "handles",
    "shelf": "buffers",
    "heed": "on_tick",
    "hear": "receive",
    "nest": "launcher",
    "nursery": "fork_server",
    "bury": "reap",
    "born": "started",
    "judges": "evaluators",
    "workplace": "backend",
    "slopes": "output gradients",
    "step_down": "gradient step",
    "by_graph": "autograd",
    "follower": "exporter, or target network",
    "by_workers": "worker",
    "no_worlds": "offline",
    "past_selves": "opponents",
    "times_file": "time_to_success",
    "overseer": "debugger",
    "stories": "reports",
    "sign_kinds": "problems",
    "doubts": "caveats",
}
# Learners and networks speak of forward and backward passes, output gradients, terms and queries.
NOT_IN_LEARNERS = ("hear", "heard", "seen", "told", "said", "asked", "slope", "everybody", "eats")
NOT_IN_PAGES = {
    "crew": "workers",
    "heed": "obey",
    "hear": "forward pass, or receive",
    "nest": "launcher",
    "shelves": "buffers",
    "overseer": "debugger",
}

# What is no prose: code, in blocks or quotes, addresses, tags.
_QUOTED = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|https?://\S+|<[^>\n]*>", re.S)


def sources() -> list[Path]:
    return sorted((ROOT / "slipstream").rglob("*.py"))


def scripts() -> list[Path]:
    """Sources outside the package. This file has words of every kind."""
    found = (path for folder in ("tests", "bench", "studies", "tools") for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if path != Path(__file__).resolve())


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings, comments and sentences (strings of four words and more) of a source file, by line."""
    text = path.read_text()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        said = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        is_style_or_script = "{" in said and ";" in said
        if len(said.split()) > 3 and not is_style_or_script:
            yield node.lineno, said


def american(text: str) -> list[str]:
    return [found[0] for found in AMERICAN.finditer(_QUOTED.sub(" ", text))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_spelled_in_the_british_way(page):
    assert not american(page.read_text())


@pytest.mark.parametrize("files", [sources, scripts], ids=lambda files: files.__name__)
def test_docstrings_comments_and_messages_are_spelled_in_the_british_way(files):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in files()
        for line, text in prose_of(path)
        for word in american(text)
    ]
    assert not found


def test_comments_of_the_core_are_spelled_in_the_british_way():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word}"
        for path in sorted((ROOT / "core").rglob("*.[ch]pp"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for word in american(line.partition("//")[2].partition("NOLINT")[0])
    ]
    assert not found


@pytest.mark.parametrize(
    "text", ["the optimizer's state", "Behavior cloning", "in gray", "normalized inputs", "centered"]
)
def test_an_american_spelling_is_found(text):
    assert american(text)


@pytest.mark.parametrize("text", ["a batch of this size", "resized", "`normalize_advantages`", "parameters", "a prize"])
def test_names_in_code_quotes_and_words_that_have_no_other_spelling_may_stand(text):
    assert not american(text)


def names_of(path: Path) -> set[str]:
    """Every identifier of a source file, and its own name, as _words_in_snake_case_."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    names = {token.string for token in tokens if token.type == tokenize.NAME} | {path.stem}
    return {snake(name) for name in names}


def snake(name: str) -> str:
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return f"_{parts.lower().strip('_')}_"


def test_words_that_were_given_up_are_in_no_name_of_the_package():
    found = {
        (str(path.relative_to(ROOT)), word)
        for path in sources()
        for name in names_of(path)
        for word in NOT_IN_NAMES
        if f"_{word}_" in name
    }
    assert not found


def test_learners_and_networks_are_named_in_the_fields_words():
    rooms = [ROOT / "slipstream" / name for name in ("algos", "nets")]
    files = [path for path in sources() if path.parent in rooms]
    names = {
        (path.name, word)
        for path in files
        for name in names_of(path)
        for word in NOT_IN_LEARNERS
        if f"_{word}_" in name
    }
    assert len(files) > 20
    assert not names


def test_a_word_is_found_in_names_of_every_style():
    assert [snake(name) for name in ("InTurn", "in_turn", "_IN_TURN", "HTTPNest")] == ["_in_turn_"] * 3 + [
        "_http_nest_"
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_words_that_were_given_up_are_in_no_page(page):
    said = set(re.findall(r"[a-z]+", page.read_text().lower()))
    assert not said & set(NOT_IN_PAGES)


def test_the_glossary_gives_every_word_one_meaning():
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs" / "glossary.md").read_text(), re.M)
    assert len(words) > 60
    assert len(words) == len(set(words))


def test_a_class_name_stands_for_one_class():
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "slipstream").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
