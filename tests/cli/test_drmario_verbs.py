"""slipstream drmario: games are played, recorded, and played again to the last cell."""

import json

import pytest

from slipstream.cli.main import main


@pytest.mark.parametrize("player", ["greedy", "random", "fastest"])
def test_a_recorded_game_is_played_again_to_the_last_cell(player, tmp_path, capsys):
    file = tmp_path / "game.json"
    words = ["drmario", "play", "--player", player, "--fast", "--level", "3", "--seed", "77", "--pills", "30"]
    assert main([*words, "--record", str(file)]) == 0
    said = capsys.readouterr().out
    assert f"slipstream drmario replay {file} plays it again" in said
    assert main(["drmario", "replay", str(file), "--fast"]) == 0
    again = capsys.readouterr().out
    assert "the same game to the last cell" in again
    assert said.splitlines()[:17] == again.splitlines()[:17], "the same last picture"


def test_a_game_that_ends_differently_is_noticed(tmp_path, capsys):
    file = tmp_path / "game.json"
    main(["drmario", "play", "--player", "greedy", "--fast", "--pills", "10", "--record", str(file)])
    game = json.loads(file.read_text())
    file.write_text(json.dumps(game | {"score": 5}))
    assert main(["drmario", "replay", str(file), "--fast"]) == 1
    assert "instead of 5" in capsys.readouterr().out
    file.write_text(json.dumps(game | {"buttons": game["buttons"][:400]}))
    assert main(["drmario", "replay", str(file), "--fast"]) == 1


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("{", "transcript"),
        ('{"level": 0}', "`speed`"),
        ('{"level": 0, "speed": "low", "seed": 1, "frame_counter": 1, "buttons": "xy", "viruses": 0, "score": 0, '
         '"terminal": "none", "board_sha256": ""}', "position 0"),
        ('{"version": 9, "level": 0, "speed": "low", "seed": 1, "frame_counter": 1, "buttons": "", "viruses": 0, '
         '"score": 0, "terminal": "none", "board_sha256": ""}', "version 9"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_game_is_refused(text, fact, tmp_path, capsys):
    file = tmp_path / "game.json"
    file.write_text(text)
    assert main(["drmario", "replay", str(file), "--fast"]) == 2
    said = capsys.readouterr().err
    assert f"{file}: " in said
    assert fact in said


def test_words_that_mean_nothing_are_refused(capsys):
    assert main(["drmario", "pla"]) == 2
    assert "'play'" in capsys.readouterr().err
    assert main(["drmario", "play"]) == 2
    assert "--player greedy" in capsys.readouterr().err
    assert main(["drmario", "play", "--player", "greedy", "--fast", "--level", "30"]) == 2
    assert "level 30: " in capsys.readouterr().err
    assert main(["drmario", "--help"]) == 0
    assert "replay" in capsys.readouterr().out


def test_a_game_is_drawn_in_time(capsys):
    assert main(["drmario", "play", "--player", "fastest", "--level", "20", "--speed", "high", "--pills", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("level 20") > 10
    assert "84 viruses" in shown


def test_the_last_picture_of_a_game_that_was_watched_is_drawn_over_the_one_before(capsys):
    words = ["drmario", "play", "--player", "fastest", "--speed", "high", "--pills", "1"]
    assert main(words) == 0
    watched = capsys.readouterr().out
    home, below = "\x1b[H", "\x1b[J"
    last = watched[watched.rindex(home) :]
    assert last.count("└") == 1
    assert "viruses left" in last
    assert last.rstrip().endswith(below)
    assert main([*words, "--fast"]) == 0
    assert home not in capsys.readouterr().out
