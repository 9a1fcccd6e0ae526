"""`slipstream eval --gif` and `--png`: what they write, and what they refuse before anything is played."""

from pathlib import Path

import pytest
from PIL import Image

from slipstream.cli.main import main
from slipstream.evaluate import judge
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


@pytest.mark.usefixtures("nothing_played")
@pytest.mark.parametrize("flag", ["--gif", "--png"])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing/a.{}", "the folder missing does not exist"),
        ("a.mp4", "the name must end in .{}"),
        ("folder.{}", "is a folder"),
        ("short.yaml/a.{}", "the folder short.yaml does not exist"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_before_anything_is_played(flag, path, words, capsys):
    for suffix in ("gif", "png"):
        Path(f"folder.{suffix}").mkdir()
    kind = flag.removeprefix("--")
    assert main(["eval", "short.yaml", flag, path.format(kind)]) == 2
    assert words.format(kind) in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_played")
@pytest.mark.parametrize("flag", ["--gif", "--png"])
def test_a_world_without_a_picture_is_refused_before_anything_is_played(flag, capsys):
    assert main(["eval", "probe_bandit", flag, f"a.{flag[2:]}"]) == 2
    assert f"{flag}: probe_bandit (probe) has no picture" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_played")
def test_a_world_that_is_only_drawn_moving_says_so(capsys):
    assert main(["eval", "horizontal_cr", "--png", "a.png"]) == 2
    assert "has no picture; --gif draws it" in capsys.readouterr().err


def test_training_a_race_leaves_its_tracks(capsys, monkeypatch):
    judged = judge.judge
    monkeypatch.setattr(judge, "judge", lambda scenario, saved, episodes: judged(scenario, saved, 2))
    words = ["train", "short.yaml", "--timesteps", "64", "--collect.num-worlds", "4", "--collect.rollout-length", "8"]
    words += ["--algo.minibatch-size", "8", "--algo.epochs", "1", "--learner-threads", "1", "--out", "run"]
    assert main(words) == 0
    assert "tracks: run/tracks.png" in capsys.readouterr().out
    assert Path("run/tracks.png").read_bytes().startswith(b"\x89PNG")
