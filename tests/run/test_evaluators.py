"""Evaluations that others play: the numbers of one's own, also where some of them are lost."""

from pathlib import Path

import pytest
from learning import TINY, digest, scenario_of

from slipstream.cli.main import main
from slipstream.collect.episodes import play
from slipstream.collect.memory import shares
from slipstream.collect.slab import under
from slipstream.data import checkpoint
from slipstream.run.backends import LOCAL, Backends
from slipstream.run.evaluation import EpisodeRange
from slipstream.run.loop import train
from slipstream.run.metrics import metrics_hash
from slipstream.run.setup import make_cast, make_evaluation_worlds

EVALUATED = {**TINY, "evaluate.evaluation_interval": 2, "evaluate.evaluation_duration": 5}


class Others:
    """Three who each play a part with policies of their own; those in `lost` give no answer."""

    def __init__(self, scenario, lost=()) -> None:
        self.scenario, self.lost, self.asked, self.closed = scenario, lost, [], False
        self.cast = make_cast(scenario, make_evaluation_worlds(scenario, 1).spec)

    def play(self, weights, whole):
        self.asked.append(whole)
        for name, learner in self.cast.learners.items():
            learner.load_state_dict(under(weights, f"learner.{name}."), strict=False, include_optim=False)
        for name, selves in self.cast.past.items():
            selves.act_as(under(weights, f"past.{name}."))
        found = []
        for i, share in enumerate(shares(whole.episodes, 3)):
            record = max(0, min(len(share), whole.record - share.start))
            part = EpisodeRange(whole.first + share.start, len(share), record, whole.phase)
            worlds = make_evaluation_worlds(self.scenario, len(share))
            worlds.phases = [part.phase] * worlds.num_worlds
            seed = self.scenario.evaluate.seed
            done = play(worlds, self.cast.teams, part.episodes, seed, part.first, part.record)
            found.append((part, None if i in self.lost else done))
            worlds.close()
        return found

    def close(self) -> None:
        self.closed = True


def trained(scenario, folder: Path, place: Backends = LOCAL) -> tuple[str, str]:
    run = train(scenario, out=folder, models=folder.parent / "models", place=place).run
    saved = checkpoint.load_latest(run / "checkpoints").checkpoint
    return digest(saved.arrays), metrics_hash(run / "metrics.jsonl")


@pytest.mark.parametrize("lost", [(), (1,), (0, 1, 2)])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("head_on", {}),
        ("head_on", {"algo.ema_decay": 0.9}),
        ("drmario_past_selves", {"collect.num_worlds": 4, "collect.rollout_length": 8, "timesteps": 160,
                                 "algo.minibatch_size": 16, "world.max_pills": 4}),
    ],
    ids=["ppo", "averaged", "past_selves"],
)  # fmt: skip
def test_a_run_whose_evaluations_others_play_has_the_numbers_of_one_that_plays_them(name, changes, lost, tmp_path):
    scenario = scenario_of(name, {**EVALUATED, **changes})
    made: list[Others] = []
    tell_all = []

    def make(given, tell):
        made.append(Others(given, lost))
        tell_all.append(tell)
        return made[0]

    assert trained(scenario, tmp_path / "others", Backends(make_judges=make)) == trained(scenario, tmp_path / "own")
    (others,) = made
    assert len(others.asked) >= 2
    assert len({part.first for part in others.asked}) == len(others.asked)
    assert others.closed


@pytest.mark.parametrize(
    ("words", "why"),
    [(["--ray.evaluators", "2"], "is of no use without --on ray"), (["--ray.evaluators", "-1"], "is 0 or more")],
)
def test_evaluators_that_cannot_be_are_refused(words, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "head_on", *words]) == 2
    assert why in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
