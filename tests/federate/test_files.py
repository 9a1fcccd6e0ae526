"""Clients that meet in a folder: they wait, close, come back late or twice, and never fall out of step."""

import fcntl
import os
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
from rounds_harness import faults as f
from rounds_harness import quick_folder, with_c_excluded

from slipstream.data.arrays_file import content_hash
from slipstream.errors import FederationError
from slipstream.federate import folder, rounds
from slipstream.federate.files import Files
from slipstream.federate.rounds import never
from slipstream.federate.update import ClientUpdate


@pytest.fixture
def root():
    with quick_folder() as folder:
        yield folder


def lonely(made, update):
    """One client alone until the deadline."""
    told = []
    thread = f.start(lambda: told.append(Files(made).exchange(update)))
    f.wait_for(lambda: update.client in folder.not_waited_for(made, update.round))
    f.expire(made, update.round)
    thread.join()
    return told[0]


def without_c(made):
    """A first round of a and b, after which c has nothing."""
    Files(made).leave("c")
    return together(made, 1, "", "ab")["a"].model.base


def together(made, number, base, clients="abc"):
    """All of these in one round, at once."""
    return f.all_exchange(lambda client: Files(made).exchange(f.update_of(client, number, base)), clients)


def test_clients_that_meet_go_on_from_the_same_arrays_round_after_round(root):
    made = f.federation(root)
    base = ""
    for number in (1, 2, 3):
        outcomes = together(made, number, base)
        assert {(one.state, one.took_part, one.round) for one in outcomes.values()} == {("closed", True, number)}
        base = outcomes["a"].model.base
        assert base == f.expected(number, "abc")
        assert {content_hash(one.model.arrays) for one in outcomes.values()} == {base}
        assert {one.model.round for one in outcomes.values()} == {number + 1}
        assert outcomes["a"].record == folder.read_record(made, number)


def test_the_aggregate_is_the_exact_mean_in_float64(root):
    made = f.federation(root)
    got = together(made, 1, "")["b"].model.arrays["net.weight"]
    rows = [f.update_of(client, 1).arrays["net.weight"].astype(np.float64) for client in "abc"]
    np.testing.assert_array_equal(got, ((rows[0] + rows[1] + rows[2]) / 3).astype(np.float32))


def test_a_round_without_a_quorum_fails_and_the_next_one_is_for_all_again(root):
    """The old protocol left federation for good after one timeout, or stayed at its round for ever."""
    made = f.federation(root)
    base = together(made, 1, "")["a"].model.base
    alone = lonely(made, f.update_of("a", 2, base))
    assert (alone.state, alone.took_part, alone.round) == ("failed", False, 2)
    assert (alone.model.round, alone.model.base, alone.model.arrays) == (3, base, None)
    # b and c still aim at round 2, which is over; they meet a in round 3 and nothing was lost.
    outcomes = f.all_exchange(
        lambda client: Files(made).exchange(f.update_of(client, 3 if client == "a" else 2, base)), "abc"
    )
    assert {(one.state, one.took_part, one.round) for one in outcomes.values()} == {("closed", True, 3)}


def test_a_client_that_comes_after_the_round_is_told_so_and_gets_the_aggregate(root):
    made = f.federation(root)
    base = without_c(made)
    late = Files(made).exchange(f.update_of("c", 1))
    assert (late.state, late.took_part) == ("refused", False)
    assert " 1 round" in late.reason
    assert content_hash(late.model.arrays) == late.model.base == base
    assert Files(made).exchange(f.update_of("c", 2, base), patient=never) is None
    assert together(made, 2, base)["c"].took_part


def test_a_client_that_missed_a_round_takes_part_in_the_next_where_stale_updates_are_taken(root):
    made = f.federation(root, staleness_weight=0.25)
    base = without_c(made)
    late = f.update_of("c", 1)
    assert Files(made).exchange(late, patient=never) is None
    outcomes = together(made, 2, base, "ab") | {"c": Files(made).exchange(late)}
    assert {one.took_part for one in outcomes.values()} == {True}
    assert [seat.scale for seat in outcomes["a"].record.participants] == [1.0, 1.0, 0.25]


def test_the_others_do_not_wait_for_an_excluded_client_whose_update_is_refused_when_it_comes(root):
    made = f.federation(root, timeout_s=20.0)
    outcomes = with_c_excluded(Files(made).exchange)
    assert outcomes["c"].state == "refused"
    assert "NaN" in outcomes["c"].reason
    assert outcomes["a"].model.base == f.expected(3, "ab")
    assert outcomes["a"].record.duration_s < made.limits.timeout_s / 2
    assert [entry.client for entry in outcomes["a"].record.excluded] == ["c"]


def test_an_update_for_a_round_to_come_is_refused_and_makes_no_folder(root):
    made = f.federation(root)
    outcome = Files(made).exchange(f.update_of("a", 9))
    assert outcome.state == "refused"
    assert "round 9" in outcome.reason
    assert not (made.folder / "round_00009").exists()


def test_two_processes_with_one_id_count_once_and_the_second_is_told(root):
    made = f.federation(root)
    first = f.update_of("a", 1)
    second = replace(f.update_of("z", 1), client="a")
    assert f.file_now(made, first) is None
    outcomes = {}
    threads = [
        f.start(lambda who=who, update=update: outcomes.update({who: Files(made).exchange(update)}))
        for who, update in (("a", first), ("a2", second))
    ]
    f.wait_for((folder.round_folder(made, 1) / folder.REFUSED).exists)
    Files(made).leave("c")
    outcomes["b"] = Files(made).exchange(f.update_of("b", 1))
    for thread in threads:
        thread.join()
    assert outcomes["a"].took_part
    assert not outcomes["a2"].took_part
    assert "round 1" in outcomes["a2"].reason
    assert outcomes["a2"].model.base == f.expected(1, "ab")  # it goes on with the others all the same
    assert outcomes["b"].record.refused == {"duplicate": 1}


def test_who_does_not_wait_comes_back_with_the_same_update_and_hears_the_rest(root):
    made = f.federation(root)
    assert Files(made).exchange(f.update_of("a", 1), patient=never) is None
    assert Files(made).exchange(f.update_of("a", 1), patient=never) is None
    assert Files(made).exchange(f.update_of("b", 1), patient=never) is None
    last = Files(made).exchange(f.update_of("c", 1), patient=never)
    assert last.took_part  # it was the last one: the round is over
    back = Files(made).exchange(f.update_of("a", 1))
    assert (back.state, back.round, back.took_part) == ("closed", 1, True)
    assert content_hash(back.model.arrays) == f.expected(1, "abc")
    assert back.record.refused == {}


def test_a_round_that_was_left_alone_is_closed_by_the_next_to_come(root):
    made = f.federation(root)
    assert Files(made).exchange(f.update_of("a", 1), patient=never) is None
    f.expire(made, 1)
    Files(made).leave("a")
    outcomes = together(made, 1, "", "bc")
    assert folder.read_record(made, 1).state == "failed"
    assert {(one.state, one.round) for one in outcomes.values()} == {("closed", 2)}


def test_a_client_that_leaves_lets_the_others_end_the_round_they_wait_in(root):
    made = f.federation(root)
    threading.Timer(0.1, lambda: Files(made).leave("c")).start()
    assert {one.state for one in together(made, 1, "", "ab").values()} == {"closed"}


def test_a_closer_that_is_stopped_with_the_lock_does_not_hold_the_others_for_ever(root):
    made = f.federation(root, timeout_s=0.05, closing_s=0.05)
    fd = os.open(made.folder / folder.LOCK, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    outcome = Files(made).exchange(f.update_of("a", 1))
    assert (outcome.state, outcome.model.round, outcome.model.arrays) == ("undecided", 1, None)
    os.close(fd)
    # It is back: everybody meets in the same round.
    patient = replace(made, limits=rounds.RoundLimits(clients=3, quorum=2))
    assert {(one.state, one.round) for one in together(patient, 1, "").values()} == {("closed", 1)}


def test_who_waits_for_a_stopped_closer_goes_on_alone_when_the_time_for_closing_is_over(root):
    made = f.federation(root, closing_s=0.05)
    told = []
    thread = f.start(lambda: told.append(Files(made).exchange(f.update_of("a", 1))))
    f.wait_for(lambda: "a" in folder.not_waited_for(made, 1))
    fd = os.open(made.folder / folder.LOCK, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        f.expire(made, 1)
        f.wait_for(lambda: bool(told))
    finally:
        os.close(fd)
        thread.join()
    assert (told[0].state, told[0].model) == ("undecided", rounds.Model(1, "", None))


def test_those_who_wait_finish_what_another_decided_before_their_own_deadline(root):
    """Closers on other machines have other clocks."""
    made = f.federation(root)
    told = []
    threads = [f.start(lambda c=c: told.append(Files(made).exchange(f.update_of(c, 1)))) for c in "ab"]
    f.wait_for(lambda: folder.not_waited_for(made, 1) == {"a", "b"})
    with pytest.raises(f.Stopped):
        f.close_now(replace(made, aggregate=f.stop))
    f.wait_for(lambda: len(told) == 2)
    assert {one.state for one in told} == {"closed"}
    for thread in threads:
        thread.join()


def test_a_full_disk_costs_a_round_and_not_the_run(root, monkeypatch):
    made = f.federation(root)

    def full(*_args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        outcome = Files(made).exchange(f.update_of("a", 1))
    assert outcome.state == "undecided"
    assert os.strerror(28) in outcome.reason
    assert without_c(made) == f.expected(1, "ab")


def test_a_client_that_joins_later_catches_up(root):
    made = f.federation(root)
    assert Files(made).catch_up("") == rounds.Model(1, "", None)
    base = without_c(made)
    newest = Files(made).catch_up("")
    assert (newest.round, newest.base, content_hash(newest.arrays)) == (2, base, base)
    assert Files(made).catch_up(base).arrays is None


def test_a_damaged_aggregate_is_named_and_never_loaded(root):
    made = f.federation(root)
    without_c(made)
    path = folder.round_folder(made, 1) / folder.AGGREGATE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(FederationError, match=re.escape(f"{path}: the checksum")):
        Files(made).catch_up("")


def test_a_junk_file_neither_counts_nor_keeps_the_round_from_ending(root):
    made = f.federation(root)
    f.file_now(made, f.update_of("a", 1))
    folder.client_file(made, 1, "junk").write_bytes(b"\x80\x04pickle")
    (folder.round_folder(made, 1) / "client_..%2f.safetensors").write_bytes(b"")
    outcome = lonely(made, f.update_of("b", 1))
    assert outcome.record.refused == {"malformed": 2}
    assert outcome.record.aggregate == f.expected(1, "ab")


def test_a_file_whose_name_is_no_text_is_refused_and_the_record_can_be_read(root):
    made = f.federation(root)
    f.file_now(made, f.update_of("a", 1))
    with open(os.fsencode(folder.round_folder(made, 1)) + b"/client_\xff.safetensors", "wb"):
        pass
    assert lonely(made, f.update_of("b", 1)).state == "closed"
    assert folder.read_record(made, 1).refused == {"malformed": 1}


def test_a_damaged_folder_costs_rounds_and_not_the_run(root):
    made = f.federation(root)
    base = without_c(made)
    (folder.round_folder(made, 1) / folder.CLOSED).write_bytes(b"{")
    outcome = Files(made).exchange(f.update_of("a", 2, base))
    assert (outcome.state, outcome.model) == ("undecided", rounds.Model(2, base, None))
    assert f"{folder.round_folder(made, 1) / folder.CLOSED}: " in outcome.reason


def test_ids_that_are_no_ids_are_refused_before_any_file(root):
    made = f.federation(root)
    before = sorted(root.rglob("*"))
    with pytest.raises(FederationError, match="client id"):
        Files(made).exchange(ClientUpdate("../x", 1, "", "n", {}))
    with pytest.raises(FederationError, match="update id"):
        Files(made).exchange(replace(f.update_of("a", 1), update_id="../x"))
    assert [path for path in sorted(root.rglob("*")) if path.is_file()] == [p for p in before if p.is_file()]
