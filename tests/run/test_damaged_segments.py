"""A checkpoint whose replay is damaged is passed over for the one before it."""

import pytest

from slipstream.config.load import load
from slipstream.data import checkpoint
from slipstream.errors import CheckpointError
from slipstream.replay.segments import check_segments
from slipstream.run.session import resume, train

SMALL = {
    "algo": "dqn",
    "algo.hidden": [8],
    "algo.learning_starts": 16,
    "algo.batch_size": 8,
    "collect.num_worlds": 4,
    "collect.rollout_length": 4,
    "timesteps": 128,
    "checkpoint.checkpoint_every": 32,
    "evaluate.evaluation_interval": None,
    "device": "cpu",
    "learner_threads": 1,
}


@pytest.mark.parametrize("harm", ["flip", "remove"])
def test_the_checkpoint_before_a_damaged_segment_is_used(harm, tmp_path):
    result = train(load("probe_bandit", SMALL), out=tmp_path / "run", models=tmp_path / "models")
    newest = sorted((result.run / "replay" / "main").iterdir(), key=lambda path: int(path.name.split("_")[0]))[-1]
    if harm == "remove":
        newest.unlink()
    else:
        data = bytearray(newest.read_bytes())
        data[len(data) // 2] ^= 1
        newest.write_bytes(data)
    again = resume(result.run, timesteps=160, models=tmp_path / "models")
    assert again.counters.steps == 160
    assert list(result.run.glob("checkpoints/damaged_checkpoint_128*"))
    check_segments(result.run / "replay", checkpoint.load(again.checkpoint).meta)


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"segments": {"../x": [{"name": "0_1.safetensors", "bytes": 1, "sha256": ""}]}}, "'../x'"),
        ({"segments": {"main": [{"name": "../0_1.safetensors", "bytes": 1, "sha256": ""}]}}, "'../0_1.safetensors'"),
        ({"segments": {"main": [{"name": "0_1.safetensors"}]}}, "`bytes`"),
        ({"segments": {"main": [{"name": "0_1.safetensors", "bytes": 1, "sha256": ""}]}}, "main/0_1.safetensors: "),
    ],
)
def test_a_list_of_segments_that_makes_no_sense_is_refused(meta, words, tmp_path):
    with pytest.raises(CheckpointError, match=words):
        check_segments(tmp_path, meta)
