"""Rules of one's own by module:function, and federation in a loop of one's own."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from slipstream.config.load import load
from slipstream.data.merge_rules import Rule
from slipstream.errors import FederationError, ScenarioError
from slipstream.federate.aggregate import Base, MergeSettings, aggregate
from slipstream.federate.loop import Shared
from slipstream.federate.rules import own as own_rule
from slipstream.federate.server_optim import ServerStep
from slipstream.federate.update import ClientUpdate

NAME = "tests_own_rules:"
CODE = """\
import numpy as np
seen = []

def furthest(clients, known):
    seen.append((list(clients), {c: known.facts[c] for c in clients}, known.last))
    return dict(clients[max(clients, key=lambda c: known.facts[c].get("mean_return", 0.0))])

def nothing(clients, known): return None
def empty(clients, known): return {}
def more(clients, known): return {**clients["a"], "odd": np.zeros(1)}
def flat(clients, known): return {name: array.ravel() for name, array in clients["a"].items()}
def whole(clients, known): return {name: array.astype(int) for name, array in clients["a"].items()}
def broken(clients, known): return {name: array * np.nan for name, array in clients["a"].items()}
def huge(clients, known): return {name: np.full(array.shape, 1e300) for name, array in clients["a"].items()}
def raises(clients, known): return 1 / 0
def writes(clients, known):
    clients["a"]["w"] += 1
    return clients["a"]
"""
RULES = {"w": Rule("merge"), "n": Rule("count")}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file in the current folder, which is not on the path of a command."""
    (tmp_path / "tests_own_rules.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "tests_own_rules", raising=False)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    own_rule.find.cache_clear()
    yield
    own_rule.find.cache_clear()


def updates(**facts):
    arrays = {one: {"w": np.full((2, 2), value, np.float32), "n": np.array(int(value))} for one, value in
              {"b": 4.0, "a": 2.0}.items()}  # fmt: skip
    return [
        ClientUpdate(one, 1, "", f"n{one}", arrays[one], facts={"mean_return": facts.get(one, 0.0)}) for one in arrays
    ]


def test_a_rule_gets_weights_facts_and_the_last_aggregate_and_its_result_is_the_aggregate(mine):
    last = {"w": np.ones((2, 2), np.float32), "n": np.array(1)}
    found, report = aggregate(MergeSettings(rule=NAME + "furthest"), RULES, updates(b=1.0), Base("h", last))
    assert (found["w"] == 4.0).all()
    assert found["w"].dtype == np.float32
    assert found["n"] == 4  # what is no weight is not the rule's
    assert (report.asked, report.used, report.chosen, report.shares) == (NAME + "furthest",) * 2 + (("a", "b"), {})
    ((order, facts, base),) = own_rule.find(NAME + "furthest").__globals__["seen"]
    assert order == ["a", "b"]  # whoever came first
    assert facts["b"] == {"mean_return": 1.0}
    assert (base["w"] == 1.0).all()
    stepped, _ = aggregate(
        MergeSettings(rule=NAME + "furthest", server=ServerStep("reptile", 0.5)), RULES, updates(b=1.0), Base("h", last)
    )
    assert (stepped["w"] == 2.5).all()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nothing", "NoneType"), ("empty", " w$"), ("more", " odd$"),
        ("flat", r"w is float32\[4\].*\[2, 2\]"), ("whole", r"w is int64.* float32"), ("broken", r"w\[.*\] is nan"),
        ("huge", r"w\[.*\] is inf"), ("raises", "ZeroDivisionError"), ("writes", "ValueError"),
    ],
)  # fmt: skip
def test_a_result_that_clients_could_not_go_on_from_is_refused_by_name(function, said, mine):
    with pytest.raises(FederationError, match=f"aggregator {NAME}{function}: .*{said}"):
        aggregate(MergeSettings(rule=NAME + function), RULES, updates())


def test_a_rule_that_is_not_there_is_answered_with_what_is(mine):
    with pytest.raises(FederationError, match=r"^federated\.aggregator: .*'tests_no_rules'"):
        own_rule.find("tests_no_rules:mine")
    with pytest.raises(FederationError, match=r"^federated\.aggregator: .*'furthst'.*'furthest'"):
        own_rule.find(NAME + "furthst")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"aggregator": "meen"}, "aggregator"),
        ({"aggregator": "a b:c"}, "aggregator"),
        ({"liars": 1}, "liars"),
        ({"optimizer_strategy": "average"}, "optimizer_strategy"),
        ({"transport": "gossip", "peers": {"0": "ipc://0", "1": "ipc://1", "2": "ipc://2"}}, "aggregator"),
        ({"secure": True}, "aggregator"),
    ],
)
def test_what_a_rule_of_ones_own_cannot_do_is_refused_at_the_start(changes, key):
    federated = {"enabled": True, "clients": 3, "aggregator": "my.rules:mine"}
    assert load("probe_target", {"federated": federated}).federated.aggregator == "my.rules:mine"
    with pytest.raises(ScenarioError) as refused:
        load("probe_target", {"federated": {**federated, **changes}})
    assert refused.value.keys == (f"federated.{key}",)


@pytest.mark.parametrize("rule", ["mean", NAME + "furthest"])
def test_clients_of_another_loop_hold_the_same_arrays_after_every_round(rule, mine, tmp_path):
    def client(name):
        shared = Shared(tmp_path / "rounds", name, 2, MergeSettings(rule=rule), timeout_s=20.0)
        own = {"w": np.zeros(3, np.float32), "steps": np.array(0)}
        for number in (1, 2):
            own = {
                "w": own["w"] + (1 if name == "a" else 3),
                "steps": own["steps"] + number * (2 if name == "a" else 1),
            }
            own, outcome = shared.sync(own, mean_return=float(name == "b"))
            assert (outcome.state, outcome.round, outcome.took_part) == ("closed", number, True)
        shared.leave()
        return own

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(client, ["a", "b"])
    for own in (one, other):
        assert own["w"].tolist() == [4.0 if rule == "mean" else 6.0] * 3
        assert own["steps"] == 6  # the largest


def test_a_client_of_another_loop_that_is_left_alone_keeps_its_own_and_is_told_why(tmp_path):
    shared = Shared(tmp_path, "a", 2, timeout_s=0.05)
    found, outcome = shared.sync({"w": np.ones(2)})
    assert found["w"].tolist() == [1.0, 1.0]
    assert outcome.state == "failed"
    assert "quorum" in outcome.reason
