"""Processes of a federation are killed at any of their file operations: rounds end, and no bit differs.

The functions are those of studies/federation_faults.py, which runs them a hundred times each.
"""

import pytest
from rounds_harness import faults as f
from rounds_harness import quick_folder

from slipstream.federate import folder


def run(kind: str, k: int):
    with quick_folder() as root:
        return f.FAULTS[kind](root, k)


def test_a_closer_that_dies_at_any_call_is_replaced_and_the_bits_are_the_same():
    for k in range(1, 200):
        trial = run("closer killed in a write", k)
        assert trial.faults == [], k
        if trial.ended:
            break
    assert trial.ended
    assert k > 30  # so many calls were met on the way


@pytest.mark.parametrize("k", [1, 4, 8, 12, 16, 19, 22, 26, 32, 38])
def test_a_client_that_dies_at_any_call_costs_the_others_nothing_but_its_own_update(k):
    assert run("client killed", k).faults == []


@pytest.mark.parametrize("k", range(5))
def test_updates_that_are_sent_again_count_once(k):
    assert run("sent again", k).faults == []


@pytest.mark.parametrize("k", range(3))
def test_files_of_other_rounds_and_other_clients_never_count(k):
    assert run("strange files", k).faults == []


@pytest.mark.parametrize("k", [2, 9, 15, 23, 30, 38, 45, 53, 60, 70])
def test_a_coordinator_that_dies_at_any_call_goes_on_with_the_round(k):
    assert run("coordinator killed", k).faults == []


def test_all_but_one_may_be_gone_and_the_model_stays_what_it_was():
    with quick_folder() as root:
        made = f.federation(root)
        for client in "abc":
            f.file_now(made, f.update_of(client, 1))
        base = f.close_now(made).aggregate
        told = []
        thread = f.start(lambda: told.append(f.Files(made).exchange(f.update_of("a", 2, base))))
        f.wait_for(lambda: folder.not_waited_for(made, 2) == {"a"})
        f.expire(made, 2)
        thread.join()
        (outcome,) = told
        assert (outcome.state, outcome.model.base, outcome.model.arrays) == ("failed", base, None)
        assert folder.standing(made).round == 3


def test_the_checks_of_these_tests_see_a_wrong_aggregate():
    with quick_folder() as root:
        made = f.federation(root)
        for client in "abc":
            f.file_now(made, f.update_of(client, 1))
        wrong = f.Federation(made.folder, made.limits, lambda updates, base: f.mean(updates[:2], base), "mean")
        f.close_now(wrong)
        assert f.broken(made, 1) == ["the aggregate of ['a', 'b', 'c'] has other bits"]
