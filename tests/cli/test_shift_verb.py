"""The verb shift, and what eval writes beside its table."""

import csv
import json
import re
from pathlib import Path

import pytest

from slipstream.cli.judge import evaluate
from slipstream.cli.main import GROUPS
from slipstream.cli.shift import shift
from slipstream.config.packaged import find_packaged
from slipstream.errors import SlipstreamError

SMALL = ["--collect.num-worlds", "4", "--collect.rollout-length", "8", "--algo.minibatch-size", "8"]
SMALL += ["--algo.epochs", "1", "--learner-threads", "1", "--evaluate.evaluation-duration", "1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    from slipstream.cli.run import train

    folder = tmp_path_factory.mktemp("kept")
    words = ["head_on", "--timesteps", "32", "--out", str(folder / "run"), "--models", str(folder / "models")]
    assert train([*words, *SMALL]) == 0
    return folder / "run"


def alone(page: str) -> None:
    """A page that loads nothing: pictures are inside, and no address is."""
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert not re.search(r"https?:", page.replace("http://www.w3.org/2000/svg", ""))


def test_shift_is_a_verb_that_judges():
    verb = next(verb for verb in GROUPS["judge"] if verb.name == "shift")
    assert verb.run == f"{shift.__module__}:{shift.__name__}"


def test_shift_tables_pictures_and_a_page(trained, tmp_path, capsys):
    out = tmp_path / "out"
    words = [str(trained), "--episodes", "3", "--seeds", "4,5", "--kinds", "speed,heading", "--who", "A1"]
    assert shift([*words, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"head_on: 6 episodes .* 6 of them .*; 16 shifts", said)
    for word in ("unshifted", "speed micro", "speed macro", "heading micro", "heading macro", "learned", "mvp", "noop"):
        assert word in said
    record = json.loads((out / "shift.json").read_text())
    assert record["format"] == "slipstream.shift"
    assert record["version"] == 1
    assert record["distinct_episodes"] == 6
    assert record["policies"] == ["learned", "mvp", "noop"]
    assert len(record["shifts"]) == 16 * 3
    assert record["commit"]
    with (out / "episodes.csv").open() as file:
        episodes = list(csv.DictReader(file))
    assert len(episodes) == (1 + 16) * 3 * 6
    with (out / "groups.csv").open() as file:
        groups = list(csv.DictReader(file))
    assert [row["shift"] for row in groups[::3]] == [
        "unshifted", "speed micro", "speed macro", "heading micro", "heading macro",
    ]  # fmt: skip
    own = [row for row in episodes if row["policy"] == "noop" and row["kind"] == "heading" and row["reach"] == "macro"]
    mean = sum(float(row["min_separation_nm"]) for row in own) / len(own)
    assert float(groups[-1]["min_separation_nm"]) == pytest.approx(mean)
    page = (out / "shift.html").read_text()
    alone(page)
    assert page.count("<svg") == 4  # survival of three policies, and changes
    for name in ("survival.png", "changes.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")


def test_the_matrix_plays_every_policy_on_every_scenario(trained, tmp_path, capsys):
    words = [str(trained), "--matrix", "head_on", "t_formation", "--episodes", "2", "--scripts", "direct"]
    assert shift([*words, "--out", str(tmp_path / "out")]) == 0
    assert "t_formation" in capsys.readouterr().out
    places = json.loads((tmp_path / "out" / "matrix.json").read_text())["places"]
    assert [(p["policy"], p["scenario"], p["home"]) for p in places] == [
        ("run", "head_on", True),
        ("direct", "head_on", False),
        ("run", "t_formation", False),
        ("direct", "t_formation", False),
    ]
    alone((tmp_path / "out" / "matrix.html").read_text())
    assert (tmp_path / "out" / "matrix.png").read_bytes().startswith(b"\x89PNG")


def test_scripts_alone_can_be_shifted_and_copies_are_called_so(tmp_path, capsys):
    still = tmp_path / "still.yaml"
    packaged = find_packaged("head_on").read_text()
    still.write_text(packaged + "  position_jitter_nm: 0\n  heading_jitter_deg: 0\n  speed_jitter_kt: 0\n")
    assert shift([str(still), "--episodes", "2", "--kinds", "heading", "--who", "A2"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"still: 2 episodes .* 1 of them ", said)
    assert "world.position_jitter_nm" in said


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["head_on", "--kinds", "sped"], "--kinds sped: .*'speed'"),
        (["head_on", "--who", "A3"], "--who A3: .*A1, A2, all"),
        (["head_on", "--scripts", "mpv"], "--scripts mpv: airspace.*'mvp'"),
        (["head_on", "--kinds", "wind", "--who", "A1"], "--kinds wind --who A1"),
        (["head_on", "parallel"], "--matrix"),
        (["probe_bandit"], "probe_bandit: .*--matrix"),
        (["nowhere/run"], "nowhere/run: "),
        (["head_on", "--episodes", "0"], "--episodes 0: "),
        (["head_on", "--seeds", "4,four"], "--seeds 4,four: "),
        (["head_on", "--seeds", "4,4"], "--seeds 4,4: "),
        (["head_on", "--seed", "1", "--seeds", "4,5"], "--seeds 4,5: .*--seed "),
        (["run", "--matrix", "head_on", "--full"], "--full: .*--matrix"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(words, answer):
    with pytest.raises(SlipstreamError, match=answer):
        shift(words)


# --- eval ---


def test_eval_counts_outcomes_reads_alerts_and_writes_logs_and_a_page(tmp_path, capsys):
    words = ["head_on", "--episodes", "2", "--seeds", "42,123", "--analysis", "--json"]
    files = ["--trajectories", str(tmp_path / "logs"), "--html", str(tmp_path / "episode.html")]
    assert evaluate([*words, *files]) == 0
    said = capsys.readouterr()
    assert f"noop, first episode: {tmp_path / 'episode.html'}" in said.err
    rows = {row["policy"]: row for row in json.loads(said.out)["rows"]}
    assert rows["noop"]["episodes"] == 4
    assert rows["noop"]["outcomes"]["lost separation"]["episodes"] == 4
    assert rows["noop"]["analysis"]["alert_fn"] == 4.0
    assert rows["noop"]["analysis"]["alert_precision"] is None
    assert rows["mvp"]["analysis"]["alert_f1"] is None  # no conflict, no alert
    assert rows["mvp"]["analysis"]["noop_prevented_share"] == 1.0
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert names == [*(f"traj_ep_{k:04d}.csv" for k in range(4)), "trajectories.parquet"]
    alone((tmp_path / "episode.html").read_text())


def test_eval_shows_how_episodes_ended(capsys):
    assert evaluate(["drmario_level_0", "--episodes", "2"]) == 0
    said = capsys.readouterr().out
    for word in ("cleared", "topped out", "timed out"):
        assert word in said
    assert evaluate(["head_on", "--episodes", "2", "--analysis"]) == 0
    assert "alert precision" in capsys.readouterr().out


def test_eval_refuses_a_page_of_another_name(tmp_path):
    with pytest.raises(SlipstreamError, match=r"--html .*page\.txt: .*\.html"):
        evaluate(["head_on", "--episodes", "1", "--html", str(tmp_path / "page.txt")])
