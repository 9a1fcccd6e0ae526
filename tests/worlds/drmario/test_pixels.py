"""Pictures of bottles: drawn as they are, worn but not changed, and read by a net that has learned to."""

import itertools
import json
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from slipstream.cli.main import main
from slipstream.errors import CheckpointError, ScenarioError
from slipstream.worlds.drmario import pixel_net
from slipstream.worlds.drmario.drawing import COLOURS, GLASS
from slipstream.worlds.drmario.pixels import (
    CELL_OF,
    CLASSES,
    KINDS,
    Lesson,
    Positions,
    board_from_text,
    board_to_text,
    labels_of,
    positions_of,
    rasterise,
    read_captures,
    read_picture,
    sample_positions,
    wear,
)

PAINT = [tuple(int(text[i : i + 2], 16) for i in (1, 3, 5)) for text in COLOURS]
SMALL = (24, 32, 32, 32)
DARK = tuple(int(GLASS[i : i + 2], 16) for i in (1, 3, 5))


@pytest.fixture(scope="module")
def positions():
    return sample_positions(96, 3)


# --- what is drawn ---


def test_positions_are_moments_of_games(positions):
    """Every kind is met, falling pills among them, and halves have their other halves."""
    many = sample_positions(1500, 1).boards
    assert {0x40, 0x50, 0x60, 0x70, 0x80, 0xB0, 0xD0, 0xF0} <= set(np.unique(many & 0xF0).tolist())
    assert ((many[:, 0, 3] & 0xF0 == 0x60) & (many[:, 1:4, 3:5] >= 0xF0).all((1, 2))).any(), "one that just came in"
    boards = positions.boards
    assert len(np.unique(boards.reshape(96, -1), axis=0)) == 96
    kinds = boards & 0xF0
    assert np.isin(kinds[:, :, 1:][kinds[:, :, :-1] == 0x60], [0x70, 0xB0]).all()
    assert np.isin(kinds[:, :, :-1][kinds[:, :, 1:] == 0x70], [0x60, 0xB0]).all()


def test_games_that_are_judged_on_are_not_trained_on_and_come_again_with_their_seed():
    first, again, other = (sample_positions(64, 5, held_out=held) for held in (True, True, False))
    np.testing.assert_array_equal(first.boards, again.boards)
    assert not {board.tobytes() for board in first.boards} & {board.tobytes() for board in other.boards}


def test_every_cell_is_painted_in_its_colour_where_it_is(positions):
    """Read back with the drawing's own paints: 12,288 cells."""
    pictures = rasterise(positions)
    assert pictures.shape == (96, 144, 112, 3)
    grounds = np.array([DARK, *PAINT], float)
    for k, board in enumerate(positions.boards):
        for y, x in itertools.product(range(16), range(8)):
            tile = pictures[k, 8 + 8 * y : 16 + 8 * y, 8 + 8 * x : 16 + 8 * x].reshape(64, 3).astype(float)
            cell = int(board[y, x])
            if cell >= 0xF0:
                assert (tile == DARK).all()
                continue
            near = np.linalg.norm(tile[:, None] - grounds, axis=2).argmin(1)
            counts = np.bincount(near, minlength=4)[1:]
            assert counts.argmax() == cell & 3
            assert counts.sum() < (64 if cell & 0xF0 != 0xB0 else 40)
    colours = [pictures[:, 19:21, 83 + 8 * half : 85 + 8 * half].reshape(96, -1, 3).mean(1) for half in range(2)]
    for half in range(2):
        near = np.linalg.norm(colours[half][:, None] - np.array(PAINT, float), axis=2).argmin(1)
        np.testing.assert_array_equal(near, positions.previews[:, half])


def test_a_batch_is_drawn_like_one_after_the_other(positions):
    one_by_one = [rasterise(Positions(positions.boards[k : k + 1], positions.previews[k : k + 1])) for k in range(8)]
    np.testing.assert_array_equal(rasterise(positions)[:8], np.concatenate(one_by_one))


def test_all_classes_look_different():
    boards = np.full((CLASSES, 16, 8), 0xFF, np.uint8)
    boards[:, 7, 3] = CELL_OF
    tiles = rasterise(Positions(boards, np.zeros((CLASSES, 2), np.uint8)))[:, 64:72, 32:40].astype(int)
    apart = np.abs(tiles[:, None] - tiles).sum((2, 3, 4))
    assert (apart + 10_000 * np.eye(CLASSES) > 200).all()
    for kind, side in {0x40: np.s_[7], 0x50: np.s_[0], 0x60: np.s_[:, 7], 0x70: np.s_[:, 0]}.items():
        for colour in range(3):
            edge = tiles[CELL_OF.tolist().index(kind | colour)][side]
            assert (np.abs(edge[2:6] - PAINT[colour]) < 8).all(), "a half is open where the other one is"


def test_wear_moves_by_less_than_half_a_cell_and_keeps_what_is_there():
    """A single bright virus: where it went, and that every picture is worn in its own way."""
    board = np.full((1, 16, 8), 0xFF, np.uint8)
    board[0, 8, 4] = 0xD0
    clean = np.repeat(rasterise(Positions(board, np.zeros((1, 2), np.uint8))), 64, 0)
    worn = wear(clean, np.random.default_rng(0))
    assert worn.shape == clean.shape
    assert worn.dtype == np.uint8
    assert len({picture.tobytes() for picture in worn}) == 64
    np.testing.assert_array_equal(worn, wear(clean, np.random.default_rng(0)))
    inside = worn[:, 56:96, 24:64].astype(float).sum(3)
    inside = np.where(inside > np.median(inside, (1, 2), keepdims=True) + 120, inside, 0.0)
    centre = [(inside * axis).sum((1, 2)) / inside.sum((1, 2)) for axis in np.mgrid[56:96, 24:64]]
    for found, drawn in zip(centre, (8 + 8 * 8 + 3.5, 8 + 8 * 4 + 3.5), strict=True):
        assert np.abs(found - drawn).max() < 4.0
        assert np.ptp(found) > 3.0


# --- characters ---


@given(st.lists(st.sampled_from(CELL_OF.tolist()), min_size=128, max_size=128))
@settings(max_examples=50, deadline=None)
def test_a_board_in_characters_is_the_board(cells):
    board = np.array(cells, np.uint8).reshape(16, 8)
    rows = board_to_text(board)
    assert all(len(row) == 16 for row in rows)
    np.testing.assert_array_equal(board_from_text(rows), board)


def test_labels_and_positions_are_each_others_reverse(positions):
    again = positions_of(labels_of(positions))
    np.testing.assert_array_equal(again.previews, positions.previews)
    np.testing.assert_array_equal(np.where(positions.boards >= 0xF0, 0xFF, positions.boards), again.boards)


# --- what is learned ---


@pytest.fixture(scope="module")
def taught():
    """Seconds of learning, and the figures of the net, of a net without it, and of the plain rule."""
    held_out = pixel_net.held_out_lesson(64)
    seen = pixel_net.lesson_from(sample_positions(128, 0), np.random.default_rng(0))
    plain = pixel_net.judge(pixel_net.read_by_colour(pixel_net.fit_baseline(seen), held_out.pictures), held_out.labels)
    net = pixel_net.new_net(1, SMALL)
    blank = pixel_net.judge_net(net, held_out)
    assert pixel_net.teach(net, pixel_net.lessons(1), steps=100) == 100
    return net, pixel_net.judge_net(net, held_out), blank, plain


def test_a_hundred_batches_read_far_better_than_the_plain_rule(taught):
    """2,000 batches are in docs/results/pixels.json; here it is enough that learning works."""
    _, figures, blank, plain = taught
    assert figures.cells > max(plain.cells, blank.cells) + 0.08
    assert figures.filled_cells > max(plain.filled_cells, blank.filled_cells) + 0.25


def test_learning_is_the_same_for_the_same_seed():
    nets = [pixel_net.new_net(2, SMALL) for _ in range(2)]
    for net in nets:
        pixel_net.teach(net, pixel_net.lessons(2), steps=2)
    first, second = (net.state_dict() for net in nets)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_figures_count_what_they_say():
    labels = np.zeros((2, 130), np.int64)
    labels[:, :4], labels[:, 128:] = 19, [7, 10]
    seen = labels.copy()
    seen[1, 0], seen[1, 5] = 20, 1
    figures = pixel_net.judge(positions_of(seen), labels)
    assert figures == (254 / 256, 7 / 8, 0.5, 1.0)
    unknown = labels.copy()
    unknown[:, 128:] = -1
    assert np.isnan(pixel_net.judge(positions_of(seen), unknown).previews)


def test_the_plain_rule_reads_clean_colours():
    """Where pictures are clean, colour is enough for colours: a wrong cell has the right one, or is a ring."""
    drawn = sample_positions(64, 9)
    lesson = Lesson(rasterise(drawn), labels_of(drawn))
    found = pixel_net.read_by_colour(pixel_net.fit_baseline(lesson), lesson.pictures)
    plain = (drawn.boards & 0xF0 != 0xB0) & (drawn.boards < 0xF0)
    np.testing.assert_array_equal((found.boards & 3)[plain], (drawn.boards & 3)[plain])


# --- files ---


def written(tmp_path, net, **changes):
    files = pixel_net.pack(net, steps=60, figures=pixel_net.Figures(0.9, 0.8, 0.1, 0.7), made_with="a test")
    for name, content in (files | changes).items():
        (tmp_path / name).write_bytes(content)
    return files


def test_a_saved_model_reads_as_it_did(taught, tmp_path, positions):
    net, *_ = taught
    written(tmp_path, net)
    again, meta = pixel_net.load_model(tmp_path)
    assert (meta.steps, meta.figures["cells"]) == (60, 0.9)
    pictures = wear(rasterise(positions), np.random.default_rng(4))[:16]
    np.testing.assert_array_equal(pixel_net.read(again, pictures).boards, pixel_net.read(net, pictures).boards)


def test_a_damaged_or_foreign_model_is_refused(tmp_path):
    net = pixel_net.BottleNet((4, 4, 4, 4))
    with pytest.raises(CheckpointError, match=r"model\.json"):
        pixel_net.load_model(tmp_path)
    files = written(tmp_path, net)
    pixel_net.load_model(tmp_path)
    weights, meta = files["weights.safetensors"], json.loads(files["model.json"])
    (tmp_path / "weights.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"weights\.safetensors: SHA-256 .*model\.json"):
        pixel_net.load_model(tmp_path)
    for change, facts in [
        ({"version": 2}, "version 2;.* version 1"),
        ({"widths": [8, 4, 4, 4]}, r"weights\.safetensors: .*BottleNet"),
        ({"widths": [4, 4, 4, 10**9]}, r"model\.json: .*4, 1000000000"),
        ({"surprise": 1}, r"model\.json: .*`surprise`"),
    ]:
        written(tmp_path, net, **{"model.json": msgspec.json.encode(meta | change)})
        with pytest.raises(CheckpointError, match=facts):
            pixel_net.load_model(tmp_path)


# --- captures, and the verbs ---


def test_captures_are_read_as_they_were_written_in_any_size(tmp_path, capsys):
    folder = tmp_path / "captures"
    assert main(["drmario", "pixels", "draw", "--out", str(folder), "--count", "6", "--clean", "--seed", "4"]) == 0
    drawn = sample_positions(6, 4)
    lesson = read_captures(folder)
    np.testing.assert_array_equal(lesson.labels, labels_of(drawn))
    np.testing.assert_array_equal(lesson.pictures, rasterise(drawn))
    large = Image.open(folder / "0002.png").resize((448, 576), Image.Resampling.NEAREST)
    large.save(folder / "0002.png")
    np.testing.assert_array_equal(read_captures(folder).pictures, lesson.pictures)
    lines = (folder / "labels.jsonl").read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"preview": None})
    (folder / "labels.jsonl").write_text("\n".join(lines))
    assert read_captures(folder).labels[0, 128:].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("line", "change", "facts"),
    [
        (0, {"version": 7}, r"labels\.jsonl: .*version 7;.* version 1"),
        (1, {"file": "../outside.png"}, r"labels\.jsonl: '\.\./outside\.png'"),
        (1, {"file": "none.png"}, r"none\.png: "),
        (1, {"file": "labels.jsonl"}, r"labels\.jsonl: .*PNG"),
        (1, {"board": ["?" * 16] * 16}, r"labels\.jsonl:2: 0000\.png: row 1, column 1: '\?\?'"),
        (1, {"board": [".."]}, r"labels\.jsonl:2: 0000\.png: .*16 rows .*found 1 "),
        (1, {"preview": "yx"}, r"labels\.jsonl:2: 0000\.png: .*preview .*'yx'"),
        (1, {"extra": 1}, r"labels\.jsonl: .*`extra`"),
    ],
)
def test_captures_that_cannot_be_learned_from_are_refused_by_line(line, change, facts, tmp_path):
    main(["drmario", "pixels", "draw", "--out", str(tmp_path), "--count", "1"])
    lines = (tmp_path / "labels.jsonl").read_text().splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | change)
    (tmp_path / "labels.jsonl").write_text("\n".join(lines))
    with pytest.raises(ScenarioError, match=facts):
        read_captures(tmp_path)


def test_a_picture_too_large_or_broken_is_refused(tmp_path):
    Image.new("RGB", (5000, 8)).save(tmp_path / "wide.png")
    with pytest.raises(ScenarioError, match="5000 x 8"):
        read_picture(tmp_path / "wide.png")
    Image.new("RGB", (64, 64), "red").save(tmp_path / "half.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "half.png").read_bytes()[:60])
    with pytest.raises(ScenarioError, match=r"half\.png"):
        read_picture(tmp_path / "half.png")


def test_a_model_learns_captures_that_look_different(taught, tmp_path, capsys):
    """Colours turned round: unreadable at first, and read after a few batches from the folder."""
    net, *_ = taught
    written(tmp_path, net)
    folder = tmp_path / "captures"
    main(["drmario", "pixels", "draw", "--out", str(folder), "--count", "60", "--clean"])
    for path in folder.glob("*.png"):
        Image.fromarray(np.asarray(Image.open(path))[:, :, ::-1]).save(path)
    words = ["--from", str(tmp_path), "--captures", str(folder), "--out", str(tmp_path / "tuned")]
    words += ["--steps", "40", "--judged", "16", "--report", str(tmp_path / "report.json")]
    assert main(["drmario", "pixels", "train", *words]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    before, after = (report["figures"][f"captures, {when}"]["filled_cells"] for when in ("before", "after"))
    assert after > before + 0.2
    assert report["batches"] == 40
    assert "--captures" in report["command"]
    tuned, meta = pixel_net.load_model(tmp_path / "tuned")
    assert meta.steps == 100
    capsys.readouterr()
    assert main(["drmario", "pixels", "read", str(tmp_path / "tuned"), str(folder / "0000.png")]) == 0
    said = capsys.readouterr().out.splitlines()
    found = pixel_net.read(tuned, read_picture(folder / "0000.png")[None])
    assert said[:16] == board_to_text(found.boards[0])


def test_the_package_loads_no_torch():
    code = (
        "import sys, slipstream.worlds.drmario, slipstream.worlds.drmario.cli.main; "
        "print([name for name in ('torch', 'gymnasium') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert len(KINDS) * 3 + 1 == CLASSES
