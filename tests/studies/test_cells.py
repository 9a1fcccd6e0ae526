"""A study is resumable: what is done stays done, what failed is told, nothing of the file is lost."""

import json
from functools import partial

import pytest
from cells import read_cells, run_cells, save_cells


def square(cell):
    if cell["x"] < 0:
        raise ValueError("no roots today")
    return {"square": cell["x"] ** 2, "curve": [[0, 1.5], [1, 2.5]]}


def test_cells_are_computed_once_and_those_not_asked_for_stay(tmp_path, capsys):
    path = tmp_path / "toy.json"
    assert [c["square"] for c in run_cells("toy", [{"x": 2, "seed": 1}], square, path=path)] == [4]
    known = read_cells(path)
    known[0]["square"] = -1  # computed again, it would be 4
    path.write_text(json.dumps({"cells": known}))
    asked = [{"x": 3, "seed": 1}]
    assert [c["square"] for c in run_cells("toy", asked, square, path=path)] == [9]
    assert [c["square"] for c in read_cells(path)] == [-1, 9]
    assert "0 of 1 cells are done" in capsys.readouterr().out
    run_cells("toy", asked, square, path=path)
    assert "1 of 1 cells are done" in capsys.readouterr().out


def square_while_another_adds(path, cell):
    save_cells(path, "toy", [*read_cells(path), {"x": 100 + cell["x"]}])
    return square(cell)


def test_two_studies_can_add_to_one_file_at_the_same_time(tmp_path):
    path = tmp_path / "toy.json"
    run_cells("toy", [{"x": 2}], partial(square_while_another_adds, path), path=path)
    assert [c["x"] for c in read_cells(path)] == [102, 2]


def test_a_cell_that_fails_is_told_and_the_others_are_kept(tmp_path, capsys):
    path = tmp_path / "toy.json"
    with pytest.raises(SystemExit, match="1 cells failed"):
        run_cells("toy", [{"x": -1}, {"x": 5}], square, path=path)
    assert [c["x"] for c in read_cells(path)] == [5]
    assert "no roots today" in capsys.readouterr().out


def test_a_cell_is_one_line_of_the_file(tmp_path):
    path = tmp_path / "toy.json"
    run_cells("toy", [{"x": 2}], square, path=path)
    record = json.loads(path.read_text())
    assert record["study"] == "toy"
    assert record["commit"]
    assert [json.loads(line.rstrip(",")) for line in path.read_text().splitlines() if '"curve"' in line] == record[
        "cells"
    ]
