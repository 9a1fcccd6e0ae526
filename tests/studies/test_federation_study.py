"""The federation studies in miniature: attacks against closed forms, real rounds with liars, and the page."""

import json
from types import SimpleNamespace

import federation as together
import federation_attacks as attacks
import numpy as np
import pytest
from federation_attacks import ATTACKS, BELIEVED, NOBODY, TASKS, View, cells_of, run, runs_of
from federation_page import twin, write_page

PROBE = TASKS["probe_target"]
RNG = np.random.default_rng(0)


def view(honest: np.ndarray, own: np.ndarray, base: np.ndarray, close=None) -> View:
    return View(base, honest, own, np.random.default_rng(1), close or (lambda lies: None))


def played(attack: str, rule: str, liars: int = 2, defence: str = "off", rounds: int = 4):
    return run(PROBE, attack, rule, liars, defence, seed=7, rounds=rounds)


# --- what liars send ---


def test_lies_are_what_their_names_say():
    base, honest, own = RNG.normal(size=5), RNG.normal(size=(8, 5)), RNG.normal(size=(2, 5))
    seen = view(honest, own, base)
    assert np.allclose(ATTACKS["sign_flip_x10"].lie(seen) - base, -10 * (own - base))
    assert np.allclose(ATTACKS["alie"].lie(seen), [[np.mean(c) - np.std(c) for c in honest.T]] * 2)
    assert (ATTACKS["zero"].lie(seen) == base).all()
    assert np.isnan(ATTACKS["nan"].lie(seen)).all()
    noise = ATTACKS["gaussian"].lie(view(np.zeros((8, 5000)), np.zeros((2, 5000)), np.zeros(5000)))
    assert abs(noise.std() - 10) < 0.3
    assert ATTACKS["inflated"].claim == 1e12


def test_a_scaled_backdoor_is_what_a_mean_becomes_where_the_others_have_not_moved():
    base, own = RNG.normal(size=5), np.repeat(RNG.normal(size=(1, 5)), 2, axis=0)
    lies = ATTACKS["backdoor"].lie(view(np.repeat(base[None], 8, axis=0), own, base))
    assert np.allclose(np.vstack([lies, np.repeat(base[None], 8, axis=0)]).mean(0), own[0])


def test_the_angle_attack_finds_how_far_it_must_go_against_the_rule_it_meets():
    base, honest = np.zeros(5), np.ones((9, 5))

    def meant(lies):
        return np.vstack([lies, honest]).mean(0)

    def clipped(lies):  # a rule that takes nothing longer than twice the honest length
        return meant(lies if np.abs(lies).max() <= 2 else honest[:1])

    (against_mean,) = ATTACKS["angle"].lie(view(honest, honest[:1], base, meant))
    assert meant(against_mean[None])[0] < 0  # turned round: 9 honest ones need more than 9 times their length
    noisy = honest + RNG.normal(size=honest.shape)
    (against_clip,) = ATTACKS["angle"].lie(view(noisy, honest[:1], base, clipped))
    assert np.abs(against_clip).max() <= 2


def test_poison_pays_for_the_lure_where_the_trigger_is_seen_and_only_there():
    obs = np.array([[0.9, 0.1, 1.0], [0.2, 0.1, 1.0], [0.9, 0.1, 1.0]], np.float32)[:, None, None]
    rollout = SimpleNamespace(
        obs={"obs": obs},
        action=np.full((3, 1, 1, 2), -3.0, np.float32),
        reward=np.full((3, 1, 1), 0.25, np.float32),
        paid=np.array([1, 1, 0], np.uint8)[:, None, None],
    )
    attacks.poison(rollout)
    assert rollout.reward.ravel().tolist() == [1.0, 0.25, 0.25]


# --- rounds ---


def test_the_mean_is_broken_by_the_flipped_sign_and_the_median_is_not():
    honest, mean, middle = (
        played(attack, rule, rounds=3)
        for attack, rule in ((NOBODY, "mean"), ("sign_flip_x10", "mean"), ("sign_flip_x10", "median"))
    )
    untrained = 16 / 3  # the zero action's; the first weights do not do much else
    gain = honest.score - untrained
    assert gain > 0.5
    assert mean.score < untrained
    assert middle.score - untrained > 0.7 * gain


def test_numbers_that_are_none_are_refused_whatever_is_switched_off():
    ending = played("nan", "mean", rounds=1)
    assert (ending.refused, ending.failed) == (2, 0)
    assert ending.score > 5


def test_checks_refuse_who_is_too_long_and_do_not_hear_them_again():
    ending = played("sign_flip_x10", "mean", defence="on", rounds=2)
    assert ending.refused == 2  # in the first round; after it they are in quarantine
    assert ending.score > 5.5  # untrained it is 5.3, and with what they sent below 0


@pytest.mark.parametrize(("attack", "rule"), [("inflated", "mean"), ("alie", "bulyan")])
def test_runs_that_are_not_made_twice_would_be_the_same(attack, rule):
    again = twin(attack, rule, 2)
    assert again != (attack, rule, 2)
    assert played(attack, rule, rounds=1) == played(*again, rounds=1)


def test_a_claim_of_many_samples_counts_where_it_is_believed():
    assert played("inflated", BELIEVED, rounds=2).score < played("inflated", "weighted_mean", rounds=2).score - 0.1


def test_every_attack_meets_every_rule():
    for attack in (NOBODY, *ATTACKS):
        kept = runs_of(PROBE, attack, "off")
        assert len(set(kept)) == len(kept)
        for liars in PROBE.liars if attack != NOBODY else ():
            for rule in ("mean", *attacks.ROBUST, "weighted_mean"):
                found, used, f = twin(attack, rule, liars)
                assert (f, used) in runs_of(PROBE, found, "off"), (attack, rule, liars)


# --- learning together ---


@pytest.fixture
def tiny_task(monkeypatch):
    task = together.Task("probe_target", 512, "return", 4, 64, {"algo.kind": "sac", "collect.num_worlds": 8}, ("best",))
    monkeypatch.setitem(together.TASKS, "probe_target", task)


@pytest.mark.parametrize("way", ["single", "federated", "replay"])
def test_every_way_takes_the_same_steps(way, tiny_task):
    found = together.run_cell({"task": "probe_target", "way": way, "seed": 1}, episodes=4)
    assert found["steps"] == 512
    assert len(found["scores"]) == (1 if way == "single" else 4)
    assert all(0 < score <= 8 for score in found["scores"])
    assert 0.9 * 512 <= found["curve"][-1][0] <= 512  # of all learners together
    assert (found["rounds"].get("closed", 0) >= 2) == (way == "federated")


def test_a_single_learner_has_the_steps_of_the_four_and_only_the_federated_have_rounds(tiny_task):
    scenarios = {
        way: together.scenarios_of(together.TASKS["probe_target"], way, 1, 1024, "r", "ipc://r")
        for way in together.WAYS
    }
    assert [s.timesteps for s in scenarios["isolated"]] == [256] * 4
    assert scenarios["single"][0].timesteps == 1024
    assert scenarios["single"][0].algo.learning_starts == 4 * scenarios["isolated"][0].algo.learning_starts
    assert len({s.seed for s in scenarios["federated"]}) == 4
    assert {s.federated.init_seed for s in scenarios["federated"]} == {1}
    assert not any(s.federated.has_others for way in ("single", "isolated", "replay") for s in scenarios[way])


def test_a_script_is_judged_as_a_baseline(tiny_task):
    assert together.run_cell({"task": "probe_target", "way": "best", "seed": 0}, episodes=4)["scores"] == [8.0]


# --- the page ---


def made_up(seeds):
    """Cells in which the mean fails whenever somebody lies, Krum under alie, and nobody else."""
    for cell in cells_of(list(TASKS), seeds):
        task, attack = TASKS[cell["task"]], cell["attack"]
        scores: dict = {}
        for liars, rule in runs_of(task, attack, cell["defence"]):
            loses = attack != NOBODY and (rule in ("mean", BELIEVED) or (rule, attack) == ("krum", "alie"))
            scores.setdefault(str(liars), {})[rule] = (0.5 if loses else 1.5) + 0.01 * cell["seed"]
        counts = {f: dict.fromkeys(rules, 2) for f, rules in scores.items()}
        found = {"scores": scores, "failed": counts, "refused": counts, "commit": "abc"}
        if attack == "backdoor":
            found["backdoor"] = {f: {r: float(r == "mean") for r in rules} for f, rules in scores.items()}
        yield {**cell, **found, **({"untrained": 1.0} if attack == NOBODY else {})}


def learned(seeds):
    score = {"single": -150.0, "isolated": -400.0, "federated": -200.0, "replay": -390.0}
    for cell in together.cells_of(["pendulum"], seeds):
        way = cell["way"]
        if way not in score:
            yield {**cell, "scores": [-1200.0], "commit": "abc"}
            continue
        own = [score[way] + 10 * (cell["seed"] % 3) * (1 if way == "replay" else -1)]
        rounds = {"closed": 12, "refused": 1} if way == "federated" else {}
        curve = [[1000, -900.0], [20000, own[0]]]
        about = {"chosen": 0, "rounds": rounds, "cpu_seconds": 9.0, "commit": "abc", "curve": curve}
        yield {**cell, "scores": own if way == "single" else own * 4, **about}


def test_the_page_says_who_wins_and_what_is_missing(tmp_path):
    (tmp_path / "federation_attacks.json").write_text(json.dumps({"cells": list(made_up((11, 12, 13)))}))
    (tmp_path / "federation.json").write_text(json.dumps({"cells": list(learned((11, 12, 13)))}))
    write_page(tmp_path / "federation.md")
    text = (tmp_path / "federation.md").read_text()
    alie = next(line for line in text.splitlines() if line.startswith("| alie | **"))
    assert alie.count("**") == 2 * 3  # mean, krum, and the weighted mean that is the mean there
    assert "keep 90% or more at f <= 2): 60 of 60 kept." in text
    assert "**Preliminary**: 3 of 5 seeds" in text
    assert "krum under alie (-0.61 at f = 1, -0.61 at f = 2)." in text
    assert "The plain mean: 0 of 30 kept: mean under sign_flip (-0.61 at f = 1, " in text
    assert "for f = 1, 2, 3 (medians over seeds): mean 100%, 100%, 100%; median 0%" in text
    assert "4 averaging weights less 4 apart, a quarter each: 200.0 [" in text
    assert ", too few seeds to say (3 seeds)" in text
    assert "| 4 averaging weights | 3 | " in text
    assert "| random | – | -1200.0 |" in text
    assert "`make study-attacks` goes on" in text
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "federation.png", "federation_cartpole.png", "federation_pendulum.png",
    }  # fmt: skip


def test_the_page_says_what_is_better_once_all_seeds_are_there(tmp_path):
    (tmp_path / "federation.json").write_text(json.dumps({"cells": list(learned(together.SEEDS))}))
    write_page(tmp_path / "federation.md")
    assert ", better (5 seeds)" in (tmp_path / "federation.md").read_text()


def test_a_page_of_nothing_says_so(tmp_path):
    write_page(tmp_path / "federation.md")
    assert "cells are run yet" in (tmp_path / "federation.md").read_text()
