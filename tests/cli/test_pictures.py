"""`slipstream eval --gif` and `--png`: what they write, and what they refuse before anything is played."""

from pathlib import Path

import pytest
from PIL import Image

from slipstream.cli.main import main
from slipstream.judging import judge
from slipstream.worlds import film

SHORT = """
world: {kind: racing, track: {kind: circuit}, cars: [{id: car}], max_episode_steps: 12}
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.yaml").write_text(SHORT)


@pytest.fixture
def nothing_played(monkeypatch) -> None:
    monkeypatch.setattr(judge, "judge", lambda *_: pytest.fail("an episode was played"))


def test_eval_writes_the_first_episode_as_a_gif_and_as_a_picture(monkeypatch):
    monkeypatch.setattr(film, "MOST_PICTURES", 7)
    assert main(["eval", "short.yaml", "--episodes", "1", "--gif", "race.gif", "--png", "race.png"]) == 0
    with Image.open("race.gif") as moving:
        assert moving.n_frames == 7  # of 13 frames every other, from the start to the last step
        assert moving.size == (640, 480)
    with Image.open("race.png") as still:
        assert still.format == "PNG"
    assert sorted(path.name for path in Path().iterdir()) == ["race.gif", "race.png", "short.yaml"]  # nothing temporary


def test_a_gif_takes_the_place_of_the_one_before():
    Path("race.gif").write_text("an old one")
    assert main(["eval", "short.yaml", "--episodes", "1", "--gif", "race.gif"]) == 0
    assert Path("race.gif").read_bytes().startswith(b"GIF89a")


@pytest.mark.parametrize(
    ("scenario", "flag", "fact"),
    [
        ("probe_bandit", "--gif", "probe_bandit (probe) "),
        ("probe_bandit", "--png", "probe_bandit (probe) "),
        ("horizontal_cr", "--png", "; --gif "),
        ("short.yaml", "--html", "; --gif "),
        ("probe_bandit", "--analysis", "--analysis: probe "),
    ],
)
def test_what_a_world_does_not_have_is_named_and_the_table_is_printed_all_the_same(scenario, flag, fact, capsys):
    value = [] if flag == "--analysis" else [f"a.{flag[2:]}"]
    assert main(["eval", scenario, "--episodes", "1", flag, *value]) == 2
    said = capsys.readouterr()
    assert f"{flag}: " in said.err
    assert fact in said.err
    assert "return" in said.out
    assert not Path(f"a.{flag[2:]}").exists()


def test_pictures_that_can_be_drawn_are_drawn_beside_one_that_cannot(capsys):
    assert main(["eval", "short.yaml", "--episodes", "1", "--html", "a.html", "--png", "a.png"]) == 2
    assert "--html" in capsys.readouterr().err
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")


def test_training_a_race_leaves_its_tracks(capsys, monkeypatch):
    judged = judge.judge
    monkeypatch.setattr(judge, "judge", lambda scenario, saved, episodes: judged(scenario, saved, 2))
    words = ["train", "short.yaml", "--timesteps", "64", "--collect.num-worlds", "4", "--collect.rollout-length", "8"]
    words += ["--algo.minibatch-size", "8", "--algo.epochs", "1", "--learner-threads", "1", "--out", "run"]
    assert main(words) == 0
    assert "tracks: run/tracks.png" in capsys.readouterr().out
    assert Path("run/tracks.png").read_bytes().startswith(b"\x89PNG")
