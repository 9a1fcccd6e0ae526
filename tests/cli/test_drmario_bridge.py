"""slipstream drmario bridge: a trained run plays over a loopback and over a serial line."""

import json
import os
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from learning import TINY, scenario_of
from PIL import Image

from slipstream.cli.main import main
from slipstream.errors import ScenarioError
from slipstream.run.session import train
from slipstream.worlds import drmario
from slipstream.worlds.drmario import Engine, pixel_net
from slipstream.worlds.drmario.bridge import Bridge, Loopback, Sight, play, virtual_time
from slipstream.worlds.drmario.build import build
from slipstream.worlds.drmario.cli import bridge as drmario_wire
from slipstream.worlds.drmario.config import DrMarioConfig
from slipstream.worlds.drmario.pixels import Positions, rasterise, seen_in
from slipstream.worlds.drmario.position import player
from slipstream.worlds.vec_env import EnvOptions

# --- the verb ---


def test_the_demonstration_places_pills_and_says_what_went_over_the_wire(tmp_path, capsys):
    report = tmp_path / "bridge.json"
    words = ["drmario", "bridge", "--loopback", "--pills", "7", "--seed", "40", "41", "--fast", "--report", str(report)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.count("lies there") == 14
    assert "0 late; 0 sent again, 0 bytes of noise" in said
    told = json.loads(report.read_text())["games"]
    assert [(game["seed"], game["pills"], game["as_planned"]) for game in told] == [(40, 7, 7), (41, 7, 7)]
    assert all(game["frames"] > 200 for game in told)


def test_a_port_that_is_none_is_one_sentence(tmp_path, capsys):
    (tmp_path / "file").write_bytes(b"")
    assert main(["drmario", "bridge", "--port", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bridged")
    small = {**TINY, "evaluate.evaluation_interval": None, "timesteps": 32, "world.max_pills": 9}
    return train(scenario_of("drmario_level_0", small), out=folder / "run", models=folder / "models").run


@contextmanager
def device_with(engine, after=lambda engine: None):
    """The name of a serial line at whose other end a device plays this game; `after` is called with every answer."""
    ours, theirs = os.openpty()
    device, over = Loopback(engine), threading.Event()

    def answer():
        while not over.is_set():
            try:
                device.write(os.read(ours, 64))
            except OSError:  # the line was closed
                return
            after(device.engine)
            os.write(ours, device.read(64))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield os.ttyname(theirs), device
    over.set()
    os.close(theirs)
    thread.join(5)
    os.close(ours)


def lines(said):
    return [line for line in said.splitlines() if line.startswith("pill ")]


def test_a_trained_run_plays_over_a_port_as_it_does_over_a_loopback(run, tmp_path, capsys):
    assert main(["drmario", "bridge", str(run), "--loopback", "--fast", "--pills", "3", "--seed", "40"]) == 0
    wanted = lines(capsys.readouterr().out)
    report = tmp_path / "port.json"
    engine = Engine(level=0, speed="high", seed=drmario.seed_at(40))
    with device_with(engine) as (port, device):
        words = ["drmario", "bridge", str(run), "--port", port, "--pills", "3", "--seed", "40", "--answer-ms", "5000"]
        assert main([*words, "--report", str(report)]) == 0
    said = capsys.readouterr().out
    assert len(wanted) == len(device.locked) == 3
    assert lines(said) == wanted
    assert all("lies there" in line for line in wanted)
    (game,) = json.loads(report.read_text())["games"]
    assert (game["seed"], game["pills"], game["as_planned"], game["cleared"]) == (40, 3, 3, False)
    assert game["viruses_left"] == engine.viruses


def test_a_run_plays_over_a_port_by_the_pictures_that_a_program_writes(run, tmp_path, capsys, monkeypatch):
    """The model is one that never errs: what is seen is what the picture was drawn from."""
    shot, shown, engine = tmp_path / "latest.png", [], Engine(level=0, speed="high", seed=drmario.seed_at(40))
    main(["drmario", "bridge", str(run), "--loopback", "--fast", "--pills", "2", "--seed", "40"])
    wanted = lines(capsys.readouterr().out)

    def film(engine):
        positions = Positions(seen_in(engine)[None], np.array([engine.preview], np.uint8))
        shown.append(positions)
        Image.fromarray(rasterise(positions)[0]).save(tmp_path / "next.png")
        os.replace(tmp_path / "next.png", shot)

    def read(net, pictures):
        assert pictures.shape == (1, 144, 112, 3)
        np.testing.assert_array_equal(pictures, rasterise(shown[-1]))
        return shown[-1]

    monkeypatch.setattr(pixel_net, "load_model", lambda folder: (None, None))
    monkeypatch.setattr(pixel_net, "read", read)
    film(engine)
    with device_with(engine, film) as (port, device):
        words = ["drmario", "bridge", str(run), "--port", port, "--pills", "2", "--picture", str(shot), "--model", "m"]
        assert main([*words, "--answer-ms", "5000"]) == 0
    assert lines(capsys.readouterr().out) == wanted
    assert len(device.locked) == 2


def test_a_picture_that_is_half_written_leaves_the_last_one_standing(tmp_path, monkeypatch):
    shot = tmp_path / "latest.png"
    Image.new("RGB", (112, 144)).save(shot)
    seen = Positions(np.full((1, 16, 8), 0xFF, np.uint8), np.array([[1, 2]], np.uint8))
    monkeypatch.setattr(pixel_net, "load_model", lambda folder: (None, None))
    monkeypatch.setattr(pixel_net, "read", lambda net, pictures: seen)
    look = drmario_wire._eyes_on(shot, tmp_path)
    assert look().preview == (1, 2)
    shot.write_bytes(shot.read_bytes()[:60])
    assert look().preview == (1, 2)
    shot.unlink()
    with pytest.raises(ScenarioError, match=f"{shot}: "):
        drmario_wire._eyes_on(shot, tmp_path)


def test_a_game_is_won_when_viruses_were_seen_and_are_gone():
    over = drmario_wire._cleared()
    empty = Sight(np.full((16, 8), 0xFF, np.uint8), (0, 0))
    sick = empty._replace(board=np.full((16, 8), 0xD1, np.uint8))
    assert [over(sight) for sight in (empty, sick, empty)] == [False, False, True]


@pytest.mark.parametrize(("level", "speed"), [(0, "high"), (7, "low")])
def test_what_a_policy_is_shown_over_a_wire_is_the_native_worlds_observation(level, speed):
    config = DrMarioConfig(levels=(level,), speed=speed, seeds=(77,), max_pills=20)
    env = build(config, 1, EnvOptions(seed=4, autoreset=False))
    env.reset()
    values = dict(zip(env.spec.frame_fields, env.frame(0)[0].astype(int).tolist(), strict=True))
    board, reserve = drmario.generate(level, drmario.seed_at(77))
    counter = values["counter"]
    engine = Engine.from_state(board=board, reserve=reserve, level=level, speed=speed, frame_counter=counter)
    seen = 0

    def act(shown, mask):
        nonlocal seen
        for name, block in shown.items():
            np.testing.assert_allclose(block, env.obs[name][0, 0], rtol=1e-6, err_msg=name)
        np.testing.assert_array_equal(mask, env.action_mask[0, 0])
        env.act_scripted("greedy", [0])
        choice = int(env.actions[0, 0])
        env.step()
        seen += 1
        return choice

    device = Loopback(engine)
    number = ("low", "medium", "high").index(speed)
    policy = player(act, config, env.spec, level=level, speed=number)
    look = drmario_wire._eyes(engine)
    play(Bridge(device, virtual_time()), look, policy, pills=15, speed=number, frame_counter=counter)
    assert seen == 15
    env.close()


def test_runs_that_cannot_be_played_over_a_wire_are_refused(tmp_path, run, capsys):
    other = train(scenario_of("probe_bandit", TINY), out=tmp_path / "other", models=tmp_path / "models").run
    assert main(["drmario", "bridge", str(other), "--loopback"]) == 2
    assert f"{other}: was trained on probe" in capsys.readouterr().err
    two = DrMarioConfig(players=2)
    with pytest.raises(ScenarioError, match="players is 2"):
        player(None, two, None, level=0, speed=2)
    with device_with(Engine()) as (port, _):
        assert main(["drmario", "bridge", str(run), "--port", port, "--picture", "x.png"]) == 2
    assert "--model" in capsys.readouterr().err
