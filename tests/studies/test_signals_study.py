"""The signals study in miniature: the page from made-up cells, and who counts as left behind."""

import os
import subprocess
import sys
import uuid

from signals import COMMANDS, EARLY, SEEDS, SIGNALS, TARGETS, _wait_for_the_rest, write_page


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


def test_a_process_that_outlives_its_command_is_found_by_its_environment_and_ended():
    token = uuid.uuid4().hex
    with subprocess.Popen([sys.executable, "-c", "input()"], env=os.environ | {"WORD": token}, stdin=-1) as process:
        took, (left,) = _wait_for_the_rest(token)
        assert "input()" in left
        assert process.wait() < 0
    assert took > 0
    assert _wait_for_the_rest(token)[1] == []
