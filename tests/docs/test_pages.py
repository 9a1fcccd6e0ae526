"""The pages name what exists, all of it, and nothing of one machine."""

from __future__ import annotations

import ast
import re

import pytest
from doc_blocks import PAGES, ROOT
from fields_page import PAGE, render

from slipstream.cli.main import GROUPS
from slipstream.config.packaged import list_scenarios

ALL = "\n".join(page.read_text() for page in PAGES)

# `core/rng.hpp`, `docs/x.md`: a path from the root of the project, in code quotes, or the target of a link.
_QUOTED = re.compile(
    r"`((?:core|slipstream|tests|bench|studies|docs)/[\w./-]*|[A-Z][\w-]*\.md|Makefile|pyproject\.toml)`"
)
_LINKED = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")


# The changelog tells of files that have moved since.
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_file_a_page_names_exists(page):
    text = page.read_text()
    quoted = [name for name in _QUOTED.findall(text) if not (ROOT / name).exists()]
    linked = [name for name in _LINKED.findall(text) if not (page.parent / name).exists()]
    assert not quoted + linked


def test_every_verb_of_the_command_is_in_the_pages():
    verbs = [verb.name for group in GROUPS.values() for verb in group]
    assert not [verb for verb in verbs if f"slipstream {verb}" not in ALL]


def event_kinds() -> set[str]:
    """What events.jsonl may hold: the first word that is given to `event`, `announce` or the `_tell` of a helper."""
    calls = (
        node
        for path in (ROOT / "slipstream").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
    )
    given = [call.args[0] for call in calls if call.func.attr in ("event", "announce", "_tell")]
    words = [str(first.value) for first in given if isinstance(first, ast.Constant)]
    return {word for word in words if word.isidentifier()}


def test_every_event_of_a_run_is_in_the_page_of_metrics():
    page = (ROOT / "docs" / "metrics.md").read_text().partition("## events.jsonl")[2]
    assert {"checkpoint", "crashed", "round", "worker_restarted"} <= event_kinds()
    assert not [kind for kind in event_kinds() if f"| `{kind}`" not in page and f", `{kind}` |" not in page]


def test_every_packaged_scenario_is_listed():
    assert not [info.name for info in list_scenarios() if f"`{info.name}`" not in PAGE.read_text()]


def test_the_generated_tables_are_up_to_date():
    text = PAGE.read_text()
    assert text == render(text), "run .venv/bin/python tests/docs/fields_page.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_no_paths_or_hosts_of_one_machine(page):
    text = page.read_text()
    found = re.findall(r"(?<![\w.~])/(?:home|work|root|Users|mnt|tmp|opt)/\S*", text)
    hosts = re.findall(r"index-url|extra-index|pypi\.\S+|\S*artifactory\S*|localhost:\d+|\d+\.\d+\.\d+\.\d+:\d+", text)
    assert not found + hosts
