"""The history of benchmarks: entries are kept, ratios are right, and a slower machine is not called a regression."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import history
from cells import RESULTS


def entry(value, gemm=100.0, bench="train", cpu="2 x A", **more):
    figures = {"rate": value}
    yard = {"one_core": [gemm, gemm], "all_cores": [2 * gemm, 2 * gemm]}
    about = {"commit": "abc", "date": "2026-11-16", "cpu": cpu, "words": [], "load_average": 0.0}
    return {"bench": bench, **about, "gemm_gflops": yard, "figures": figures, **more}


def test_entries_are_added_and_read_back_in_order(tmp_path):
    path = tmp_path / "h.json"
    assert history.read(path) == []
    for value in (1.0, 2.0, 3.0):
        history.append(path, entry(value))
    assert [one["figures"]["rate"] for one in history.read(path)] == [1.0, 2.0, 3.0]
    assert len(path.read_text().splitlines()) == 5  # an entry a line: small differences in commits
    path.write_text(path.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(SystemExit, match="version 9"):
        history.read(path)


def test_ratios_are_to_the_entry_before_and_to_the_median_of_the_last_five():
    values = [1000.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    (ratio,) = history.ratios([entry(value) for value in values])
    assert ratio.value == 6.0
    assert ratio.before == pytest.approx(6 / 5)
    assert ratio.median == pytest.approx(6 / 3)  # of 1 to 5: the 1000 is too long ago
    assert ratio.by_yardstick == pytest.approx(6 / 3)


def test_a_machine_half_as_fast_is_no_regression_but_a_loss_on_the_same_machine_is(capsys):
    busy = [entry(100.0, gemm=100.0), entry(50.0, gemm=50.0)]
    (ratio,) = history.ratios(busy)
    assert ratio.median == pytest.approx(0.5)
    assert ratio.by_yardstick == pytest.approx(1.0)
    history.show(busy)
    assert "slower" not in capsys.readouterr().out
    history.show([entry(100.0), entry(50.0)])
    assert "slower" in capsys.readouterr().out


def test_a_ratio_to_a_peer_is_not_divided_by_the_yardstick():
    both = [entry(1.0, gemm=gemm, figures={"times SB3": value}) for gemm, value in ((100.0, 2.0), (50.0, 1.0))]
    (ratio,) = history.ratios(both)
    assert ratio.by_yardstick == pytest.approx(0.5)


def test_only_what_is_alike_is_compared():
    others = [entry(1.0, cpu="4 x B"), entry(2.0, bench="worlds"), entry(3.0, words=["--updates", "2"])]
    by_bench = {ratio.bench: ratio for ratio in history.ratios([*others, entry(4.0)])}
    assert by_bench["train"][3:] == (None, None, None)
    assert set(by_bench) == {"train", "worlds"}


@pytest.mark.parametrize("name", history.BENCHES)
def test_every_benchmark_that_can_be_run_has_headline_figures_in_its_file(name):
    figures = history.figures_in(name, RESULTS / f"{name}.json")
    assert len(figures) >= 2
    assert all(value > 0 for value in figures.values())


def test_what_was_kept_can_be_shown(capsys):
    entries = history.read(history.HISTORY)
    assert entries
    history.show(entries)
    assert "GFLOP/s" in capsys.readouterr().out
    assert all(set(one) >= {"bench", "commit", "date", "cpu", "gemm_gflops", "figures"} for one in entries)
    json.dumps(entries, allow_nan=False)


def test_two_products_of_matrices_are_measured():
    assert history.gemm(1, seconds=0.01) > 0
