"""Every way to meet with every privacy, secure sum, learner and way with moments: rounds close, or it is refused.

Here every learner meets in every way once, with one of the ways with moments in turn; the study has all of them.
"""

import pytest
from federation_meetings import (
    ALGOS,
    OWN,
    ROUNDS,
    all_cells,
    as_table,
    extra_cells,
    extra_table,
    learned,
    meet,
    refusal,
    rule_cells,
    rule_table,
)
from learning import scenario_of

WAYS = [("files", False), ("files", True), ("tcp", False), ("ring", False), ("gossip", False)]  # transport, secure
KNOWN = {  # what works whatever the learner, as (transport, secure): privacy: strategies
    way: {"none": ["local", "reset"] if way[1] else ["local", "average", "reset"], "client": ["local", "reset"]}
    for way in WAYS
}


def test_the_schema_refuses_what_could_not_work_and_nothing_else():
    scenario = scenario_of("probe_bandit")
    accepted = [cell for cell in all_cells(["ppo"]) if not refusal(cell, scenario)]
    expected = [
        (*way, privacy, strategy)
        for way, by_privacy in KNOWN.items()
        for privacy, strategies in by_privacy.items()
        for strategy in strategies
    ]
    found = [(cell["transport"], cell["secure"], cell["privacy"], cell["strategy"]) for cell in accepted]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("algo", ALGOS)
def test_every_learner_closes_rounds_in_every_way_to_meet(algo):
    clients, turn = learned(algo), list(ALGOS).index(algo)
    done = []
    for index, ((transport, secure), by_privacy) in enumerate(KNOWN.items()):
        for privacy, strategies in by_privacy.items():
            strategy = strategies[(turn + index) % len(strategies)]
            cell = {"algo": algo, "transport": transport, "privacy": privacy, "secure": secure, "strategy": strategy}
            done.append({**cell, **meet(cell, clients)})
    assert [one for one in done if one.get("rounds") != ROUNDS or not one["agree"]] == []
    # What is said to be spent is what was sent: one update a round, and nothing without privacy.
    assert [one for one in done if one["counted"] != (ROUNDS if one["privacy"] == "client" else 0)] == []
    assert as_table(done).count(f"{ROUNDS} closed") == len(done) == 10


@pytest.mark.parametrize("transport", ["files", "tcp"])
@pytest.mark.parametrize("privacy", ["none", "client"])
def test_a_rule_of_ones_own_closes_rounds_where_updates_are_seen(transport, privacy):
    clients = learned("td3")
    cell = {"transport": transport, "privacy": privacy, "secure": False, "strategy": "reset"}
    for server in ("none", "fedyogi"):
        found = meet({**cell, "aggregator": OWN, "server": server}, clients)
        assert (found["rounds"], found["agree"]) == (ROUNDS, True)


def test_rules_and_server_steps_are_accepted_where_updates_are_seen_and_refused_elsewhere():
    scenario, done = scenario_of("probe_bandit"), []
    for cell in rule_cells(["ppo"]):
        why = refusal(cell, scenario)
        sees = cell["transport"] in ("files", "tcp") and not cell["secure"]
        sums = cell["aggregator"] in ("mean", "weighted_mean") if cell["secure"] else cell["aggregator"] == "mean"
        can_sum = sums and cell["server"] == "none" and (cell["transport"] == "files" or not cell["secure"])
        assert (not why) == (sees or can_sum), (cell, why)
        done.append({**cell, "refused": why} if why else {**cell, "rounds": ROUNDS})
    assert "your own | 2 closed | 2 closed | 2 closed | 2 closed" in rule_table(done)


@pytest.mark.parametrize("algo", ["impala", "sac"])
def test_other_ways_to_learn_together_close_rounds_or_are_refused(algo):
    """Of the ways to meet that take them; the study has all."""
    clients = learned(algo)
    cells = [cell for cell in extra_cells([algo]) if cell["transport"] in ("tcp", "gossip") and not cell["secure"]]
    done = [{**cell, **meet(cell, clients)} for cell in cells]
    assert [one for one in done if "refused" not in one and one["rounds"] != ROUNDS] == []
    told = {one["extra"] for one in done if "refused" not in one}
    assert told == {one["extra"] for one in done} - {"dp_sgd"}  # which is for DQN
    assert extra_table(done).count("\n| ") == 4
