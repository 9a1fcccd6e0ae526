"""Tables fit their terminal: no cell is broken, no number cut, titles are lines of their own."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from slipstream.cli.tables import counted, interval, matrix, plain, show
from slipstream.scale.results import TrialRow
from slipstream.stats.intervals import Interval

TITLE = "head_on: 100 episodes, mean [95 % interval]"
POLICIES = ["learned", "noop", "mvp", "direct"]
FIGURES = ["return", "clean", "conflicts", "min separation nm", "extra distance nm", "reached fraction"]
VALUES = [[Interval(-66.1 + i + k, -69.57, 117.25) for k in range(6)] for i in range(4)]
CELLS = [[interval(value) for value in row] for row in VALUES]


def shown(forms, width):
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False, markup=False)
    show(TITLE, forms, console)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 160, 200])
def test_no_cell_of_a_judgement_breaks_on_any_width(width):
    lines = shown(matrix("policy", POLICIES, FIGURES, CELLS, ("mean", "95 % interval")), width)
    assert lines[0] == TITLE
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for row in CELLS:
        for estimate, within in row:
            assert re.search(rf"(?<![\d.]){re.escape(estimate)} +(│ +)?{re.escape(within)}", text)
    assert "…" not in text


def test_a_wide_table_has_a_row_for_each_policy_and_a_narrow_one_for_each_figure_of_it():
    forms = matrix("policy", POLICIES, FIGURES, CELLS, ("mean", "95 % interval"))
    wide, narrow = shown(forms, 200), shown(forms, 80)
    assert sum("learned" in line for line in wide) == 1
    assert sum("learned" in line for line in narrow) == len(FIGURES)
    beginnings = [line for line in narrow if "learned" in line]
    assert all(name in line for name, line in zip(FIGURES, beginnings, strict=True))


def test_a_long_title_breaks_at_the_terminals_width_and_not_at_the_tables():
    assert shown([plain(["a"], [["1"]])], 80)[0] == TITLE


def test_words_may_wrap_where_they_come_last():
    rows = [["head_on", "123,456,789", "the budget of 400,000 steps is spent and that is a long reason to end"]]
    lines = shown([plain(["scenario", "steps", "stopped because"], rows, text=1)], 60)
    assert max(map(len, lines)) <= 60
    assert any("123,456,789" in line for line in lines)


def test_one_thing_is_not_several():
    assert [counted(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]


def test_a_sweeps_table_cuts_neither_names_nor_values(tmp_path):
    from slipstream.cli.sweep import _table

    names = ["algo.learning_rate", "algo.clip_coef", "algo.hidden", "collect.rollout_length"]
    values = {names[0]: 0.0018734587345, names[1]: 0.21, names[2]: [64, 64], names[3]: 256}
    row = TrialRow(0, values, "finished", 4_000_000, 3, Interval(24.43, 21.42, 27.45), "")
    sweep = SimpleNamespace(name="sw", parameters=dict.fromkeys(names), metric=SimpleNamespace(name="eval/return_mean"))
    for width in (80, 120, 200):
        out = io.StringIO()
        Console(file=out, width=width, color_system=None).print(_table(SimpleNamespace(sweep=sweep), [row], width))
        text = out.getvalue()
        assert max(map(len, text.splitlines())) <= width
        for word in ("learning_rate", "0.001873", "clip_coef", "0.21", "[64,64]", "4,000,000", "24.43 [21.42, 27.45]"):
            assert word in text, (width, text)
        assert "…" not in text
