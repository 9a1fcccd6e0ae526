"""The signals study in miniature: the page from made-up cells, and who counts as left behind."""

import os
import subprocess
import sys
import uuid

import pytest
from signals import COMMANDS, EARLY, PACKAGE, SEEDS, SIGNALS, TARGETS, _wait_for_the_rest, is_early, write_page


def cell(verb="train", how="code 143", faults=(), **others):
    own = {"verb": verb, "signal": "TERM", "to": "group", "seed": 1, "moment_s": 0.5, "how": how, "begun": True}
    return {**own, "outlived_s": 0.25, "faults": list(faults), **others}


def test_there_are_sixty_signals():
    assert len(COMMANDS) * len(SIGNALS) * len(TARGETS) * len(SEEDS) == 60


def test_a_row_of_the_page_counts_signals_by_how_they_ended():
    page = write_page([cell(), cell(how="code 0", begun=False), cell(how=EARLY, outlived_s=0.0)])
    assert f"| {COMMANDS['train'].what} | 3 | 0: 1, 143: 1, {EARLY}: 1 | 0.25 s | 2 | 0 |" in page
    assert "Faults that were found" not in page
    page = write_page([cell(faults=["it left a socket"])])
    assert "- train, TERM to the group after 0.5 s: it left a socket" in page


@pytest.mark.parametrize(
    ("code", "number", "text", "begun", "early"),
    [
        (-15, 15, "", False, True),
        (1, 2, "Traceback\n  File runpy\nKeyboardInterrupt\n", False, True),
        (-2, 2, "Traceback\n  File typing.py\nKeyboardInterrupt\n", False, True),
        (-2, 2, f"Traceback\n  File {PACKAGE}/cli/main.py\nKeyboardInterrupt\n", False, False),
        (1, 15, "Traceback\n  File runpy\nKeyboardInterrupt\n", False, False),
        (1, 2, "RuntimeError: no\n", False, False),
        (-15, 15, "", True, False),
    ],
)
def test_only_an_end_without_a_line_of_ours_is_pythons_own(code, number, text, begun, early):
    assert is_early(code, number, text, begun) == early


def test_a_process_that_outlives_its_command_is_found_by_its_environment_and_ended():
    token = uuid.uuid4().hex
    with subprocess.Popen([sys.executable, "-c", "input()"], env=os.environ | {"WORD": token}, stdin=-1) as process:
        took, (left,) = _wait_for_the_rest(token)
        assert "input()" in left
        assert process.wait() < 0
    assert took > 0
    assert _wait_for_the_rest(token)[1] == []
