"""compare and report as they are typed, on runs that were trained."""

import json

import pytest
from learning import TINY

from slipstream.cli.main import main
from slipstream.config.load import load
from slipstream.run.session import train


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of a small run, in a folder of runs."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        train(load("probe_target", TINY | {"seed": seed}), out=root / f"seed_{seed}", models=root / "models")
    return root


def test_compare_prints_tables_and_warnings_and_writes_files(runs, tmp_path, capsys):
    words = ["compare", str(runs), "--png", str(tmp_path / "c.png"), "--json", str(tmp_path / "c.json")]
    assert main([*words, "--marl-eval", str(tmp_path / "m.json")]) == 0
    said = capsys.readouterr().out
    for text in (
        "probe_target: eval/return_mean",
        "IQM",
        "warning: ",
        f"picture: {tmp_path / 'c.png'}",
        f"marl-eval: {tmp_path / 'm.json'}",
    ):
        assert text in said
    record = json.loads((tmp_path / "c.json").read_text())
    (group,) = record["tasks"]["probe_target"]["groups"]
    ends = [
        [json.loads(line) for line in (runs / f"seed_{seed}" / "events.jsonl").read_text().splitlines()][-1]
        for seed in (0, 1)
    ]
    assert group["scores"] == [end["eval/return_mean"] for end in ends]
    assert group["mean"]["estimate"] == pytest.approx(sum(group["scores"]) / 2)
    exported = json.loads((tmp_path / "m.json").read_text())["probe"]["probe_target"]["ppo"]
    assert sorted(exported) == ["seed_0", "seed_1"]
    assert exported["seed_0"]["absolute_metrics"]["return"] == [group["scores"][0]]
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_compare_by_a_setting_says_who_is_better(runs, capsys):
    assert main(["compare", str(runs), "--by", "seed", "--at", "128"]) == 0
    said = capsys.readouterr().out
    assert "seed=0" in said
    assert "chance that a run of the row" in said
    assert "at 128 steps" in said


def test_compare_says_which_is_better_only_where_that_is_known(runs, capsys):
    def said(*words):
        assert main(["compare", str(runs), "--by", "seed", *words]) == 0
        return capsys.readouterr().out

    entropy = said("--metric", "train/entropy")
    assert "chance that a run of the row" not in entropy
    assert "worst" not in entropy
    told = said("--metric", "train/entropy", "--lower-is-better")
    assert "chance that a run of the row" in told
    assert "lower is better" in told
    assert "lower is better" not in said()


def test_report_plays_episodes_and_names_problems(runs, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["report", str(runs / "seed_0"), "--out", str(out), "--episodes", "3", "--png"]) == 0
    said = capsys.readouterr().out
    assert "finished, 256 steps; problems: none" in said
    page = out.read_text()
    assert "3 episodes each" in page
    assert ">learned</th>" in page
    assert (tmp_path / "page" / "seed_0.png").is_file()


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["compare", "none"], "none: "),
        (["compare", "RUN", "--metric", "eval/retrun_mean"], "'eval/return_mean'"),
        (["compare", "RUN", "--by", "algo.gama"], "'algo.gamma'"),
        (["compare", "RUN", "--at", "1"], "--at 1 "),
        (["compare", "RUN", "--json", "no/where.json"], "--json no/where.json: "),
        (["report", "none"], "none: "),
        (["report", "RUN", "--out", "page.txt"], "--out page.txt: "),
        (["report", "RUN", "--out", "no/page.html"], "--out no/page.html: "),
        (["report", "RUN", "--episodes", "0"], "--episodes 0: "),
    ],
)
def test_mistakes_are_one_sentence(runs, words, fact, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([str(runs / "seed_0") if word == "RUN" else word for word in words]) == 2
    said = capsys.readouterr().err
    assert fact in said
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())
