"""The faults study in miniature: one cell that is quick, and the page from made-up cells."""

import pytest
from faults import FAULTS, LEARNING, NAMES, run_cell
from faults_page import NOTES, write_page

WHAT = {kind: fault.what for kind, fault in FAULTS.items()}
FIGURES = {
    "checkpoint_kill": {"mid_write": 3, "newer": 1},
    "worker_kill": {"back_s": [0.5, 1.0], "phases": {"acting": 2}, "slabs": 30},
    "worker_stop": {"waited_s": [3.1]},
    "service_kill": {"back_s": [0.1], "lost": 5, "sent": 100, "widest_gap": 2e-16},
    "hostile": {"dropped": 7, "grown": 10**6, "draw_median_s": 1e-3, "draw_worst_s": 0.1},
}


def cells_of(kind: str, faults: list[str]) -> list[dict]:
    return [{"fault": kind, "seed": seed, "count": 10, "faults": faults, **FIGURES.get(kind, {})} for seed in (0, 1)]


def test_a_cell_says_how_often_what_was_broken_and_what_went_wrong():
    assert run_cell({"fault": "limiter", "seed": 1}, None) == {
        "count": 100_000,
        "samples_per_insert": 1.0,
        "faults": [],
    }


@pytest.mark.parametrize("kind", FAULTS)
def test_a_row_of_the_page_counts_trials_and_names_what_went_wrong(kind):
    page = write_page(cells_of(kind, []), WHAT, NAMES)
    assert f"| {WHAT[kind]} | 20 | 0 | 15 % |" in page
    assert "Faults that were found" not in page
    page = write_page(cells_of(kind, ["a row is there twice"]), WHAT, NAMES)
    assert f"| {WHAT[kind]} | 20 | 2 | - |" in page
    assert f"- {kind} 1: a row is there twice" in page


def test_every_kind_has_its_note_and_every_score_its_interval():
    assert NOTES.keys() == FAULTS.keys()
    assert NAMES.keys() == LEARNING.keys()
    scores = [{"fault": "sac_service", "seed": seed, "return": -150.0 - seed} for seed in range(5)]
    assert "| the same with a replay service | 5 | -152.0 [" in write_page(scores, WHAT, NAMES)
