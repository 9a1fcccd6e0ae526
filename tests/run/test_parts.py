"""The parts of a run: their order, which is a list, and that a run has and loads only those it asks for."""

import json

import pytest
from learning import TINY, python, scenario_of

from slipstream.algos.registry import ALGORITHMS
from slipstream.run.loop import TrainingLoop
from slipstream.run.parts import ORDER, Part, listed_class
from slipstream.run.parts.stopping import Stopping
from slipstream.run.session import train

NAMES = [listed.name for listed in ORDER]


# Each pair with what would go wrong the other way round.
AFTER_AN_UPDATE = [
    ("SelfPlay", "Publish"),  # workers would play against the opponents of the update before
    ("RoundCounter", "BestCheckpoint"),  # a run resumed from the best checkpoint would count its episodes again
    ("Publish", "Evaluation"),  # nobody would collect beside the evaluation
    ("Evaluation", "Curriculum"),  # a phase would be judged by the evaluation before
    ("Evaluation", "Stopping"),  # rules would see an evaluation one update late
    ("Curriculum", "Stopping"),  # wall time would leave out certificates
    ("Stopping", "Report"),  # the row would show the streak of before
    ("Report", "BestCheckpoint"),  # a resumed run would miss the row of its checkpoint's step
    ("Report", "Exchange"),  # which saves, too
    ("BestCheckpoint", "Exchange"),  # it would hold weights that were never evaluated
    ("Publish", "Exchange"),  # agents would act with weights that are about to be replaced
]

# Parts are closed in the reverse of their order.
AT_THE_END = [
    ("Exporters", "SessionRecord"),  # an exporter would never see that the run is finished
    ("SessionRecord", "ModelExport"),  # the run would be finished before its model is there
    ("ModelExport", "Evaluation"),  # the model's page would lack the last evaluation
    ("Evaluation", "Exchange"),  # others would wait for the last evaluation of a run that has left
    ("RoundCounter", "Exchange"),  # the connection by which it leaves would be closed
]


@pytest.mark.parametrize(("early", "late"), [*AFTER_AN_UPDATE, *AT_THE_END])
def test_the_order_keeps(early, late):
    assert NAMES.index(early) < NAMES.index(late)


def test_every_listed_part_is_one_and_is_listed_once():
    kinds = [listed_class(listed) for listed in ORDER]
    assert all(issubclass(kind, Part) and kind is not Part for kind in kinds)
    assert len(set(kinds)) == len(ORDER)


def test_the_loop_begins_and_updates_parts_in_order_and_closes_them_in_reverse(tmp_path, monkeypatch):
    called = []

    def spied(name, method):
        real = getattr(Part, method)

        def spy(self, *args):
            called.append((method, name))
            return real(self, *args)

        return spy

    class First(Part):
        begin, after_update, close = (spied("first", m) for m in ("begin", "after_update", "close"))

    class Second(Part):
        begin, after_update, close = (spied("second", m) for m in ("begin", "after_update", "close"))

    def few(run):
        run.parts += [First(run), Second(run), Stopping(run)]

    monkeypatch.setattr("slipstream.run.session.make_parts", few)
    scenario = scenario_of("probe_constant", {**TINY, "timesteps": 32})
    result = train(scenario, out=tmp_path / "run", models=tmp_path / "models")
    assert result.counters.updates == 1
    each = [(method, name) for method in ("begin", "after_update") for name in ("first", "second")]
    assert called == [*each, ("close", "second"), ("close", "first")]


def test_a_part_that_cannot_be_closed_keeps_no_other_open_and_is_not_hidden(tmp_path, monkeypatch):
    closed = []

    class Sound(Part):
        def close(self):
            closed.append(self.run.stop.kind.value)

    class Broken(Part):
        def close(self):
            raise OSError("no such device")

    monkeypatch.setattr(
        "slipstream.run.session.make_parts", lambda run: run.parts.extend([Sound(run), Broken(run), Stopping(run)])
    )
    with pytest.raises(OSError, match="no such device"):
        train(scenario_of("probe_constant", {**TINY, "timesteps": 32}), out=tmp_path / "run")
    assert closed == ["budget"]


def test_a_run_has_only_the_parts_it_asks_for(tmp_path, monkeypatch):
    made = []
    real = TrainingLoop.begin
    monkeypatch.setattr(TrainingLoop, "begin", lambda loop: (made.append(loop.run.parts), real(loop))[1])
    changes = {**TINY, "timesteps": 32, "evaluate.evaluation_interval": None, "log.diagnostics": False}
    train(scenario_of("probe_constant", changes), out=tmp_path / "run", models=tmp_path / "models")
    names = [type(part).__name__ for part in made[0]]
    assert names == ["SessionRecord", "StillRising", "ModelExport", "GivingUp", "Publish", "Stopping", "Report"]


LOADED = """
import json, sys
from slipstream.cli.main import main
assert main(sys.argv[1:]) == 0
print(json.dumps(sorted(name for name in sys.modules if name.split(".")[0] == "slipstream")))
"""
MOST_MODULES = 104  # of the package; there were 102 when this was written
RARE = ["federate", "scale", "sweeps", "view", "debug", "judging", "stats", "replay", "data.dataset_file"]
RARE += [f"worlds.airspace.{name}" for name in ("drawing", "page", "terminal", "shifts", "flights", "scenario_json")]
RARE += [f"worlds.{name}.{part}" for name in ("racing", "drmario", "probe", "foreign") for part in ("build", "config")]
RARE += [f"algos.{kind}" for kind in ALGORITHMS if kind != "ppo"]
RARE += [f"nets.{name}" for name in ("attention", "cell", "conv", "entities", "module", "recurrent")]
RARE += ["algos.sequences", "algos.losses", "algos.offpolicy", "data.transitions", "draw"]
RARE += [f"run.{name}" for name in ("callbacks", "init_from", "run_data", "trainer")]
RARE += [f"run.{name}" for name in ("federated", "processes", "certify", "replay_input")]
RARE += [f"run.parts.{name}" for name in ("curriculum", "exporters", "federation", "self_play", "episode_files")]
RARE += [f"cli.{name}" for name in ("debug", "watch", "judge", "sweep")]


def test_a_plain_run_loads_no_rare_feature(tmp_path):
    words = ["train", "head_on", "--timesteps", "256", "--ui", "none", "--evaluate.evaluation-interval", "None"]
    words += ["--stop.zero-conflict-streak", "None", "--collect.num-worlds", "4", "--collect.rollout-length", "16"]
    done = python("-c", LOADED, *words, "--algo.minibatch-size", "64", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    names = [name.removeprefix("slipstream.") for name in loaded]
    assert [name for name in names for rare in RARE if name == rare or name.startswith(f"{rare}.")] == []
    assert len(names) <= MOST_MODULES
