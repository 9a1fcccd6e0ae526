"""slipstream arena: a verdict, a table and a file; mistakes in one sentence."""

import json

import pytest

from slipstream.cli.main import main

PLACE = ["--scenario", "drmario_versus"]


def test_two_play_until_it_is_settled_and_the_same_command_gives_the_same_file(tmp_path, capsys):
    files = [tmp_path / "one.json", tmp_path / "again.json"]
    for file in files:
        assert main(["arena", "script:random", "script:fastest", *PLACE, "--seed", "3", "--json", str(file)]) == 0
    said = capsys.readouterr().out
    assert files[0].read_bytes() == files[1].read_bytes()
    told = json.loads(files[0].read_text())
    assert (told["format"], told["version"]) == ("slipstream.arena", 1)
    assert (told["scenario"], told["seed"], told["contenders"]) == (
        "drmario_versus",
        3,
        ["script:random", "script:fastest"],
    )
    assert told["stronger"] == "first"
    assert sum(told["score"].values()) == told["games"] == 2 * sum(told["pairs"])
    assert told["elo"]["low"] > 0
    assert told["test"] == {"elo0": 0.0, "elo1": 50.0, "alpha": 0.05, "beta": 0.05}
    assert f"settled after {told['games']} games: script:random is stronger" in said
    assert f"{told['score']['wins']} won, {told['score']['draws']} drawn, {told['score']['losses']} lost" in said


def test_two_that_are_not_told_apart_are_said_to_be_so(tmp_path, capsys):
    same = ["arena", "script:fastest", "script:fastest", *PLACE]
    assert main([*same, "--elo1", "100"]) == 0
    assert "neither is stronger by 100 Elo points" in capsys.readouterr().out
    file = tmp_path / "open.json"
    assert main([*same, "--max-games", "4", "--alpha", "0.2", "--json", str(file)]) == 0
    assert "not settled in 4 games; --max-games gives it more" in capsys.readouterr().out
    assert json.loads(file.read_text())["stronger"] == "open"
    assert main(["arena", "script:greedy", "script:fastest", *PLACE, "--max-games", "4", "--json", str(file)]) == 0
    elo = json.loads(file.read_text())["elo"]
    assert (elo["estimate"], elo["high"]) == (None, None), "JSON has no infinity"
    assert "+∞ [" in capsys.readouterr().out


def test_three_are_ranked(tmp_path, capsys):
    file = tmp_path / "league.json"
    words = ["script:fastest", "script:greedy", "script:random"]
    assert main(["arena", *words, *PLACE, "--max-games", "8", "--json", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    ranked = [line for line in lines if line.startswith("│")]
    assert [line.split()[2] for line in ranked] == ["script:greedy", "script:random", "script:fastest"]
    told = json.loads(file.read_text())
    strengths = [rating["estimate"] for rating in told["elo"]]
    assert strengths[1] > strengths[2] > strengths[0]
    assert told["scores"][1][0] == {"wins": 8, "draws": 0, "losses": 0}
    assert told["scores"][0][1] == {"wins": 0, "draws": 0, "losses": 8}


TWO = ["script:greedy", "script:random", *PLACE]


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["script:greedy"], "script:greedy: "),
        (["script:a", "script:b"], "--scenario"),
        (["runs/none", "script:b"], "runs/none: "),
        ([*TWO[:2], "--scenario", "time_trial_oval"], "(car)"),
        ([*TWO[:2], "--scenario", "head_on"], "'greedy'"),
        ([*TWO[:2], "--scenario", "drmario_verse"], "'drmario_versus'"),
        ([*TWO, "--max-games", "7"], "--max-games 7: "),
        ([*TWO, "--max-games", "0"], "--max-games 0: "),
        ([*TWO, "--max-games", str(2**40)], f"--max-games {2**40}: "),
        ([*TWO, "--elo0", "50"], "--elo0 50 --elo1 50: "),
        ([*TWO, "--alpha", "1"], "--alpha 1 "),
        ([*TWO, "--margin", "-1"], "--margin -1: "),
        ([*TWO, "--seed", "-1"], "--seed -1"),
        ([*TWO, "--json", "nowhere/file.json"], "--json nowhere/file.json: "),
        ([*TWO, "--json", "."], "--json .: "),
        (["script:fastest", *TWO, "--elo1", "20"], "--elo1: "),
    ],
)
def test_mistakes_are_one_sentence(words, fact, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["arena", *words]) == 2
    said = capsys.readouterr()
    assert fact in said.err
    assert said.err.count("\n") == 1
    assert not said.out
    assert not list(tmp_path.iterdir())
