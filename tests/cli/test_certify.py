"""slipstream certify: what holds is shown, what does not is not, and every attempt is counted."""

import json

import pytest
from learning import TINY

from slipstream.cli.main import main
from slipstream.config.load import load
from slipstream.run.certify import FIRST_CERTIFIED, LEDGER, ROOM, read_ledger
from slipstream.run.session import train
from slipstream.stats.sequential import least_trials, spent


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of games that are nearly always cut off after twelve pills, and hardly ever won before."""
    folder = tmp_path_factory.mktemp("certified")
    world = {"world.phases": [{"name": "easy", "viruses": 1}], "world.max_pills": 12}
    scenario = load("drmario_level_0", {**TINY, "timesteps": 32, "collect.rollout_length": 8, **world})
    return train(scenario, out=folder / "run", models=folder / "models").run


def test_a_bar_that_is_met_is_certified_and_the_attempt_is_written_down(run, capsys):
    assert main(["certify", str(run), "--metric", "timeout", "--at-least", "0.5", "--alpha", "0.2"]) == 0
    said = capsys.readouterr().out
    assert "certified: timeout at a rate above 0.5" in said
    assert "attempt 1 on this run, which spent 0.1 of alpha 0.2" in said
    (attempt,) = read_ledger(run)
    assert (attempt.verdict, attempt.spends) == ("pass", spent(0.2, 1))
    assert attempt.trials >= least_trials(0.5, 0.1)
    assert 0.5 < attempt.successes / attempt.trials <= 1


def test_a_bar_that_is_not_met_is_not_and_the_next_attempt_may_spend_less(run, capsys):
    before = len(read_ledger(run))
    words = ["certify", str(run), "--metric", "success", "--at-least", "0.9"]
    assert main(words) == 1
    assert "was not shown" in capsys.readouterr().out
    assert main(words) == 1
    first, second = read_ledger(run)[before:]
    assert (first.verdict, second.verdict) == ("fail", "fail")
    assert second.spends < first.spends
    assert first.trials < 1000, "what is hopeless is given up early"


def test_attempts_never_share_an_episode():
    assert FIRST_CERTIFIED > 2**31
    assert FIRST_CERTIFIED + 1000 * ROOM < 2**32


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--metric", "success", "--at-least", "0.9", "--max-episodes", "10"], ": 10 trials "),
        (["--metric", "score", "--at-least", "0.9"], "--metric score: "),
        (["--metric", "sucess", "--at-least", "0.9"], "'success'"),
        (["--metric", "success", "--at-least", "1.5"], "--at-least 1.5 "),
    ],
)
def test_questions_that_cannot_be_answered_are_refused_and_cost_nothing(run, words, fact, capsys):
    before = read_ledger(run)
    assert main(["certify", str(run), *words]) == 2
    assert fact in capsys.readouterr().err
    assert read_ledger(run) == before


def test_a_damaged_ledger_is_no_reason_to_begin_again(run, tmp_path, capsys):
    ledger = run / LEDGER
    whole = ledger.read_bytes()
    try:
        ledger.write_bytes(whole + b"{\n")
        assert main(["certify", str(run), "--at-least", "0.5"]) == 2
        assert f"{ledger}, line " in capsys.readouterr().err
    finally:
        ledger.write_bytes(whole)
    assert main(["certify", str(tmp_path / "nothing"), "--at-least", "0.5"]) == 2
    assert f"{tmp_path / 'nothing'}: " in capsys.readouterr().err
    assert all(json.loads(line)["attempt"] >= 1 for line in whole.splitlines())
