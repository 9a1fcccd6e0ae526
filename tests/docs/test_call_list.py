"""The list of what one update calls (docs/architecture.md), compared with what a run calls."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from doc_blocks import ROOT

from slipstream.cli.main import main

PAGE = ROOT / "docs" / "architecture.md"
RUN = (
    "train head_on --timesteps 256 --out run --models models --ui none --collect.num-worlds 4 --collect.rollout-length "
    "32 --evaluate.evaluation-interval 1 --evaluate.evaluation-duration 1 --checkpoint.checkpoint-every 1 "
    "--stop.zero-conflict-streak None --algo.minibatch-size 128"
)
_LINE = re.compile(r"(?P<indent> *)(?P<name>[\w.]+)(?: +(?P<file>\S+(?:\.py|/)))?(?:  +.*)?")


class Line(NamedTuple):
    """A function of the list."""

    depth: int
    name: str
    file: str  # "": it is not said again


class Call(NamedTuple):
    """A call of the run."""

    name: str  # with its class
    owner: str  # class of the object
    file: str
    caller: int  # number of the call that made it; -1: none of ours


def listed() -> list[Line]:
    block = PAGE.read_text().split("## One update, call by call")[1].split("```text\n")[1].split("```")[0]
    found = [_LINE.fullmatch(line) for line in block.splitlines()]
    assert all(found)
    return [Line(len(one["indent"]) // 2, one["name"], one["file"] or "") for one in found if one is not None]


def calls(words: list[str]) -> list[Call]:
    found: list[Call] = []
    open_calls: list[int] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        _, ours, file = code.co_filename.rpartition("/slipstream/")
        if not ours or code.co_name == "<module>":
            return
        if event == "call":
            owner = type(frame.f_locals.get("self")).__name__
            found.append(Call(code.co_qualname, owner, f"slipstream/{file}", open_calls[-1] if open_calls else -1))
            open_calls.append(len(found) - 1)
        elif event == "return" and open_calls:
            open_calls.pop()

    sys.setprofile(note)
    try:
        assert main(words) == 0
    finally:
        sys.setprofile(None)
    return found


def is_named(call: Call, line: Line) -> bool:
    owner, _, method = line.name.rpartition(".")
    if not call.file.endswith(line.file.rstrip("/")) and not (line.file.endswith("/") and line.file in call.file):
        return False
    last = call.name.rpartition(".")[2]
    if owner:
        return call.name == line.name or (last == method and owner in (call.owner, "Part"))
    return call.name == line.name or (last == "after_update" and call.owner == line.name)  # a part, by its class


def wrong_lines(page: list[Line], run: list[Call]) -> list[str]:
    """Lines that no call belongs to: made within the call of the line above, after that of the line before."""
    wrong, above, before = [], dict[int, int](), dict[int, int]()
    for line in page:
        depth = line.depth - (line.name[0].isupper() and "." not in line.name)  # parts are called by the loop too
        parent = next((above[d] for d in range(depth - 1, -1, -1) if d in above), -1)
        found = (i for i, call in enumerate(run) if i > before.get(parent, -1) and is_named(call, line))
        place = next((i for i in found if is_within(run, i, parent)), None)
        if place is None:
            wrong.append(line.name)
            continue
        before[parent] = place
        above = {d: number for d, number in above.items() if d < line.depth} | {line.depth: place}
    return wrong


def is_within(run: list[Call], number: int, parent: int) -> bool:
    while number >= 0 and number != parent:
        number = run[number].caller
    return number == parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("calls"))
        return calls(RUN.split())


def test_a_run_calls_what_the_page_lists_in_that_order(run):
    page = listed()
    assert len(page) > 40
    assert wrong_lines(page, run) == []


@pytest.mark.parametrize("changed", ["gone", "later", "elsewhere"])
def test_a_line_that_is_not_true_is_found(run, changed):
    page = listed()
    names = [line.name for line in page]
    at = names.index("gae")
    if changed == "gone":
        page[at] = page[at]._replace(name="gae_of_old")
    elif changed == "later":
        page[at], page[at + 2] = page[at + 2], page[at]
    else:
        page[at] = page[at]._replace(file="slipstream/nets/networks.py")
    assert wrong_lines(page, run)


def test_every_file_of_the_list_is_there():
    files = {line.file for line in listed() if line.file.startswith("slipstream/")}
    assert not [file for file in files if not Path(ROOT / file).exists()]
