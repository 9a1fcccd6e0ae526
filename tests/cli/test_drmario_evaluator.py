"""slipstream drmario evaluator: games are played and learned from, and what was learned is shown and used."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from slipstream.cli.main import main
from slipstream.run.time_to_success import load_times
from slipstream.worlds.drmario.cli import evaluator as drmario_evaluator

# One virus, thirty pills: half of the games are cleared, in a second.
EASY = """
includes: [presets/ppo_drmario.yaml]
world: {kind: drmario, max_pills: 30, phases: [{name: one virus, viruses: 1}]}
"""
QUICK = ["--games", "40", "--horizon", "3000", "--epochs", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A scenario, and a model of its games."""
    folder = tmp_path_factory.mktemp("evaluator")
    (folder / "easy.yaml").write_text(EASY)
    words = ["drmario", "evaluator", "train", str(folder / "easy.yaml"), "--policy", "greedy", *QUICK]
    assert main([*words, "-o", str(folder / "times")]) == 0
    return folder


def test_what_was_learned_is_shown_with_how_well_it_held(folder, capsys, tmp_path):
    picture = tmp_path / "held.png"
    assert main(["drmario", "evaluator", "show", str(folder / "times"), "--seed", "7", "--png", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "learned from 40 games of greedy" in said
    assert "later decision of 16 games: off by at most" in said
    assert re.search(r"│ +7 │ +\d\.\d{3} │", said)
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_the_report_is_there_for_programs(folder, capsys):
    assert main(["drmario", "evaluator", "show", str(folder / "times"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["fitted"], report["calibrated"], report["policy"], report["horizon"]) == (40, 16, "greedy", 3000)
    assert [held["episodes"] for held in report["held"]] == [16, 16]
    assert all(len(held["calibrated"]) == len(report["levels"]) == 19 for held in report["held"])


def test_the_same_words_give_the_same_model(folder, tmp_path):
    words = ["drmario", "evaluator", "train", str(folder / "easy.yaml"), "--policy", "greedy", *QUICK]
    assert main([*words, "-o", str(tmp_path / "again")]) == 0
    assert load_times(tmp_path / "again").digest == load_times(folder / "times").digest


def test_no_game_is_fitted_to_and_judged_on():
    ranges = [set(range(first, last + 1)) for first, last in drmario_evaluator.PARTS.values()]
    assert sum(map(len, ranges)) == len(set.union(*ranges)) == drmario_evaluator.SEEDS


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["train", "drmario_level_0", "-o", "m"], "drmario_level_0: "),
        (["train", "drmario_level_0", "-o", "m", "--policy", "learned"], "--policy learned: "),
        (["train", "drmario_level_0", "-o", "m", "--policy", "greedi"], "'greedy'"),
        (["train", "drmario_level_0", "-o", "m", "--policy", "greedy", "--games", "3"], "--games 3 "),
        (["train", "cartpole", "-o", "m", "--policy", "greedy"], "cartpole: plays gymnasium"),
        (["train", "drmario_level_0", "-o", ".", "--policy", "greedy"], "model '' "),
        (["show", "nothing"], "nothing: "),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_played(words, fact, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["drmario", "evaluator", *words]) == 2
    assert fact in capsys.readouterr().err


def test_a_model_is_never_written_over(folder, capsys):
    words = ["drmario", "evaluator", "train", "drmario_level_0", "--policy", "greedy", "-o", str(folder / "times")]
    assert main(words) == 2
    assert f"{folder / 'times'}: " in capsys.readouterr().err


def test_a_model_of_other_observations_is_refused_by_a_run(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "probe_constant", "--shaping.evaluator", str(folder / "times")]) == 2
    said = capsys.readouterr().err
    assert all(fact in said for fact in ("shaping.evaluator: ", "drmario (2092 inputs)", "probe/constant (1)"))
    assert not Path("runs").exists()


def test_a_model_answers_for_rows_of_the_worlds_blocks(folder):
    times = load_times(folder / "times")
    blocks = {block.name: np.zeros((2, *block.shape), block.dtype) for block in times.record.world.obs}
    quantiles = times.quantiles(blocks)
    assert (quantiles.shape, quantiles.dtype, times.record.horizon) == ((2, 101), np.float32, 3000)
    assert (np.diff(quantiles, axis=1) >= 0).all()
    assert (times.cvar(blocks, 0.25) >= times.mean(blocks)).all()
