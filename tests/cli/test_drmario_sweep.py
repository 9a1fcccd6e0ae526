"""slipstream drmario sweep and best-times: exactly the registry's games, figures in every form, times that hold."""

import csv
import sys

import numpy as np
import pytest
import torch
from learning import TINY
from PIL import Image

from slipstream.cli.main import main
from slipstream.config.load import load
from slipstream.run.policy_file import from_checkpoint
from slipstream.run.saved_cast import load_cast
from slipstream.run.session import train
from slipstream.run.time_to_success import Times, TimesNet, TimesRecord, save_times, times_spec
from slipstream.stats.intervals import wilson
from slipstream.worlds.drmario import best_times
from slipstream.worlds.drmario.registry import registry_seeds


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned nothing, on a curriculum: its phases are not the sweep's."""
    folder = tmp_path_factory.mktemp("swept")
    world = {"world.phases": [{"name": "easy", "viruses": 1}, {"name": "all"}], "world.max_pills": 12}
    scenario = load("drmario_level_0", {**TINY, "timesteps": 32, "collect.rollout_length": 8, **world})
    return train(scenario, out=folder / "run", models=folder / "models").run


@pytest.fixture(scope="module")
def swept(run, tmp_path_factory):
    """What a sweep of that run and of a script wrote."""
    out = tmp_path_factory.mktemp("out")
    words = ["--player", "greedy", "--levels", "0,2", "--seeds", "10", "--max-pills", "150"]
    assert main(["drmario", "sweep", str(run), *words, "--out", str(out), "--db", str(out / "times.sqlite3")]) == 0
    return out


def rows_of(path):
    return list(csv.DictReader(path.open()))


def test_every_player_plays_exactly_the_registrys_games_each_once(swept):
    games = rows_of(swept / "games.csv")
    for player in ("learned", "greedy"):
        own = [(int(row["level"]), int(row["seed"])) for row in games if row["player"] == player]
        assert own == [(level, seed) for level in (0, 2) for seed in registry_seeds()[:10]]
    assert {row["player"] for row in games} == {"learned", "greedy"}
    assert max(int(row["pills"]) for row in games) == 150


def test_the_table_of_levels_follows_from_the_games(swept):
    games, table = rows_of(swept / "games.csv"), rows_of(swept / "sweep.csv")
    assert [(row["player"], row["level"]) for row in table] == [
        (player, level) for player in ("learned", "greedy") for level in ("0", "2")
    ]
    cleared = 0
    for row in table:
        own = [g for g in games if (g["player"], g["level"]) == (row["player"], row["level"])]
        frames = np.array([float(g["clear_frames"]) for g in own if g["success"] == "1"])
        cleared += len(frames)
        assert (int(row["episodes"]), int(row["reached"])) == (10, len(frames))
        assert float(row["success_high"]) == pytest.approx(wilson(len(frames), 10).high)
        assert float(row["record_frames"]) == best_times.human_record_frames(int(row["level"]))
        if len(frames):
            assert float(row["mean_frames"]) == pytest.approx(frames.mean())
            assert float(row["cvar_0.75_frames"]) >= float(row["cvar_0.25_frames"]) >= float(row["mean_frames"])
    assert cleared >= 4, "otherwise this says little"


def test_the_same_sweep_gives_the_same_games_whatever_else_is_played(run, swept, tmp_path):
    words = ["--player", "greedy", "--levels", "2", "--seeds", "4", "--max-pills", "150", "--out", str(tmp_path)]
    assert main(["drmario", "sweep", *words]) == 0
    alone = rows_of(tmp_path / "games.csv")
    beside = [g for g in rows_of(swept / "games.csv") if (g["player"], g["level"]) == ("greedy", "2")]
    assert alone == beside[:4]


def test_several_games_of_a_seed_are_several_rows(tmp_path):
    words = ["--player", "random", "--levels", "0", "--seeds", "3", "--games", "2", "--max-pills", "9"]
    assert main(["drmario", "sweep", *words, "--out", str(tmp_path)]) == 0
    games = rows_of(tmp_path / "games.csv")
    assert [int(game["seed"]) for game in games] == [seed for seed in registry_seeds()[:3] for _ in range(2)]
    pairs = list(zip(games[::2], games[1::2], strict=True))
    assert any(one != other for one, other in pairs), "the script's dice are other ones"


def test_clears_go_into_the_database_and_hold_when_played_again(swept, tmp_path, capsys):
    path = swept / "times.sqlite3"
    games = [g for g in rows_of(swept / "games.csv") if g["success"] == "1"]
    told = {(int(g["level"]), int(g["seed"]), int(float(g["clear_frames"]))) for g in games}
    assert {(c.level, c.seed, c.frames) for c in best_times.clears(path)} == told
    assert {c.run for c in best_times.clears(path)} <= {"run", "greedy"}
    assert main(["drmario", "best-times", "--db", str(path), "--verify"]) == 0
    said = capsys.readouterr().out
    assert f"{len(games)} of {len(games)} clears hold when played again" in said
    assert "445 (7.4 s)" in said, "the human record of level 0"


def test_a_time_that_does_not_hold_is_found_out(tmp_path, capsys):
    game = best_times.pack(1, [0, 1, 2])
    lie = best_times.Clear(level=0, seed=1, speed="high", signature="s", frames=5, pills=3, run="liar", game=game)
    best_times.record(tmp_path / best_times.FILE, [lie])
    assert main(["drmario", "best-times", "--db", str(tmp_path), "--level", "0", "--verify"]) == 1
    said = capsys.readouterr().out
    assert "liar: 5 frames are claimed, the game does not clear it" in said
    assert "0 of 1 clears hold" in said


def test_best_times_are_exported_as_rows(swept, tmp_path, capsys):
    path, file = swept / "times.sqlite3", tmp_path / "times.csv"
    assert main(["drmario", "best-times", "--db", str(path), "--speed", "high", "--csv", str(file)]) == 0
    rows = rows_of(file)
    clears = best_times.clears(path)
    assert [(row["level"], row["frames"], row["game"]) for row in rows] == [
        (str(c.level), str(c.frames), c.game.hex()) for c in clears
    ]
    assert main(["drmario", "best-times", "--db", str(path), "--speed", "low"]) == 2
    assert f"{path}: " in capsys.readouterr().err
    assert main(["drmario", "best-times", "--db", str(tmp_path)]) == 2
    assert f"{tmp_path / best_times.FILE}: " in capsys.readouterr().err


def test_without_pyarrow_everything_else_is_written_and_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    words = [
        "--player",
        "fastest",
        "--levels",
        "0-1",
        "--seeds",
        "2",
        "--max-pills",
        "5",
        "--out",
        str(tmp_path / "new"),
    ]
    assert main(["drmario", "sweep", *words]) == 0
    assert "pip install 'slipstream[data]'" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"sweep.csv", "games.csv", "sweep.png"}
    with Image.open(tmp_path / "new" / "sweep.png") as picture:
        assert picture.format == "PNG"


def test_a_run_looks_ahead_at_every_level_of_risk_that_is_asked_for(run, swept, tmp_path):
    spec = from_checkpoint(load_cast(run)[1], run).record.world
    net = times_spec(spec, 5, (8,))
    times = Times(
        TimesRecord(net, spec, 5000), TimesNet(net, torch.Generator().manual_seed(1)), np.linspace(0.1, 0.9, 5)
    )
    save_times(tmp_path / "times", times)
    words = ["--levels", "0", "--seeds", "4", "--max-pills", "8", "--risk", "0.25,0.75"]
    evaluator = ["--evaluator", str(tmp_path / "times")]
    assert main(["drmario", "sweep", str(run), *words, *evaluator, "--out", str(tmp_path / "out")]) == 0
    games = rows_of(tmp_path / "out" / "games.csv")
    players = ["learned", "τ = 0.25", "τ = 0.75"]
    assert [(game["player"], int(game["seed"])) for game in games] == [
        (player, seed) for player in players for seed in registry_seeds()[:4]
    ]
    assert [g["frames"] for g in games[:4]] != [g["frames"] for g in games[4:8]], "they play in different ways"


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        ([], "--player greedy"),
        (["--player", "greedy", "--risk", "0.5", "--evaluator", "x"], "--risk "),
        (["--player", "greedy", "--risk", "0.5"], "--evaluator MODEL"),
        (["--player", "greedy", "--risk", "0.5,1"], "--risk 0.5,1: "),
        (["--player", "greedy", "--risk", "half"], "--risk half: "),
        (["--player", "gredy"], "--player gredy: "),
        (["--player", "greedy", "--levels", "0-21"], "--levels 0-21: "),
        (["--player", "greedy", "--levels", "5-2"], "--levels 5-2: "),
        (["--player", "greedy", "--levels", "0-"], "--levels 0-: '0-'"),
        (["--player", "greedy", "--levels", "x"], "--levels x: 'x'"),
        (["--player", "greedy", "--seeds", "121"], "--seeds 121 "),
        (["--player", "greedy", "--max-pills", "0"], "world.max_pills: "),
        (["nowhere"], "nowhere: "),
    ],
)
def test_sweeps_that_make_no_sense_are_refused(words, fact, capsys):
    assert main(["drmario", "sweep", *words]) == 2
    assert fact in capsys.readouterr().err


def test_a_run_of_another_world_or_of_two_players_is_refused(tmp_path, capsys):
    for name, changes, fact in [
        ("probe_bandit", {}, "probe;"),
        ("drmario_versus", {"world.max_pills": 5, "collect.rollout_length": 8}, "players is 2;"),
    ]:
        scenario = load(name, {**TINY, "timesteps": 32, "evaluate.evaluation_interval": None, **changes})
        other = train(scenario, out=tmp_path / name, models=tmp_path / "models").run
        assert main(["drmario", "sweep", str(other)]) == 2
        said = capsys.readouterr().err
        assert f"{other}: " in said
        assert fact in said
