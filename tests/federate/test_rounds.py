"""Rounds as a state machine on the disk: who takes part, what is refused and why, and what the history says."""

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from rounds_harness import MEMORY, poisoned, quick_folder
from rounds_harness import faults as f

from slipstream.data.arrays_file import content_hash
from slipstream.errors import FederationError
from slipstream.federate import closing, folder, rounds
from slipstream.federate.defence import Defence
from slipstream.federate.rounds import Federation, RoundLimits
from slipstream.federate.update import ClientUpdate, read_update, update_chunks


@pytest.fixture
def root():
    with quick_folder() as folder:
        yield folder


def closed_round(made: Federation, clients="abc"):
    """One more round in which these took part."""
    where = folder.standing(made)
    for client in clients:
        assert f.file_now(made, f.update_of(client, where.round, where.base)) is None
    return f.close_now(made)


def test_an_update_is_a_safetensors_file_that_the_library_reads(root):
    update = f.update_of("a", 3, "0" * 64)
    path = root / "update.safetensors"
    path.write_bytes(b"".join(update_chunks(update)))
    theirs = safetensors.numpy.load_file(path)
    assert {name: array.tolist() for name, array in theirs.items()} == {
        name: array.tolist() for name, array in update.arrays.items()
    }
    ours = read_update(path, 1 << 20).update
    assert content_hash(ours.arrays) == content_hash(update.arrays)
    assert replace(ours, arrays={}) == replace(update, arrays={})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"client": "../x"}, "client"),
        ({"update_id": "../x"}, "update id"),
        ({"base": "x" * 64}, "base"),
        ({"round": 0}, "round 0"),
        ({"weight": -1.0}, "weight"),
        ({"facts": {str(index): 1.0 for index in range(65)}}, "facts"),
    ],
)
def test_claims_that_no_client_makes_are_refused_by_name(root, changes, said):
    path = root / "update.safetensors"
    path.write_bytes(b"".join(update_chunks(replace(f.update_of("a", 1), **changes))))
    with pytest.raises(FederationError, match=said):
        read_update(path, 1 << 20)


def test_a_file_larger_than_any_update_can_be_is_refused_before_it_is_read(root):
    made = f.federation(root)
    closed_round(made)
    path = folder.round_folder(made, 2) / "client_a.safetensors"
    for client in "bc":
        f.file_now(made, f.update_of(client, 2, folder.standing(made).base))
    with path.open("wb") as file:
        file.truncate(1 << 40)  # of nothing: it takes no room on the disk
    (refusal,) = f.close_now(made).refusals
    assert refusal.kind == "malformed"
    assert f"{1 << 40:,} bytes" in refusal.reason


def test_a_round_closes_when_all_were_heard_and_its_record_is_the_history(root):
    made = f.federation(root)
    for client in "ab":
        f.file_now(made, f.update_of(client, 1))
        with folder.locked(made, 0.0):
            assert closing.advance(made, folder.standing(made).round, overdue=False) is None
    f.file_now(made, f.update_of("c", 1))
    with folder.locked(made, 0.0):
        record = closing.advance(made, folder.standing(made).round, overdue=False)
    assert (record.round, record.state, record.participation) == (1, "closed", 1.0)
    assert record.aggregate == f.expected(1, "abc")
    line = (made.folder / "rounds.jsonl").read_text()
    assert msgspec.json.decode(line, type=rounds.RoundRecord) == record
    assert [seat.facts for seat in record.participants] == [{"samples": 10.0}] * 3
    assert record.duration_s is not None
    assert record.report.shares == dict.fromkeys("abc", 1 / 3)


def test_the_order_of_arrival_changes_no_bit(root):
    hashes = set()
    for order in ("abc", "cab", "bca"):
        made = f.federation(root / order)
        hashes.add(closed_round(made, order).aggregate)
    assert hashes == {f.expected(1, "abc")}


def test_at_the_deadline_a_quorum_is_enough_and_who_is_missing_is_named_as_a_dropout(root):
    made = f.federation(root)
    closed_round(made)
    record = closed_round(made, "ac")
    assert (record.state, record.participation, record.dropouts) == ("closed", 2 / 3, ("b",))
    assert record.aggregate == f.expected(2, "ac")


def test_below_the_quorum_the_round_fails_and_the_model_is_unchanged(root):
    made = f.federation(root)
    before = closed_round(made).aggregate
    record = closed_round(made, "a")
    assert (record.state, record.aggregate) == ("failed", "")
    assert re.search("1 updates .* 2 ", record.reason)
    where = folder.standing(made)
    assert (where.round, where.base) == (3, before)
    assert closed_round(made).state == "closed"
    states = [json.loads(line)["state"] for line in (made.folder / "rounds.jsonl").read_text().splitlines()]
    assert states == ["closed", "failed", "closed"]


def test_a_client_whose_round_failed_is_not_stale_in_the_next(root):
    made = f.federation(root)
    base = closed_round(made).aggregate
    closed_round(made, "a")
    assert f.file_now(made, f.update_of("b", 3, base)) is None


def test_updates_for_other_rounds_and_from_old_or_unknown_aggregates_are_refused_and_counted(root):
    made = f.federation(root)
    base = closed_round(made).aggregate
    kinds = [
        f.file_now(made, f.update_of("a", 1)).kind,
        f.file_now(made, f.update_of("a", 7, base)).kind,
        f.file_now(made, f.update_of("a", 2, "f" * 64)).kind,
        f.file_now(made, f.update_of("a", 2)).kind,
    ]
    assert kinds == [rounds.PAST_ROUND, rounds.FUTURE_ROUND, rounds.STALE, rounds.STALE]
    record = closed_round(made, "bc")
    assert record.refused == {"future": 1, "late": 2, "stale": 1}  # as files call them
    assert not (made.folder / "round_00007").exists()


def test_a_stale_update_counts_by_its_weight_for_every_round_it_missed(root):
    made = f.federation(root, staleness_weight=0.5, max_staleness=2)
    bases = ["", *(closed_round(made).aggregate for _ in range(3))]
    assert f.file_now(made, f.update_of("a", 4, bases[2])) is None
    assert f.file_now(made, f.update_of("b", 4, bases[3])) is None
    assert f.file_now(made, f.update_of("c", 4, bases[0])).kind == rounds.STALE
    newest = folder.read_base(made, folder.standing(made)).arrays["net.weight"].astype(np.float64)
    record = f.close_now(made)
    assert [(seat.client, seat.staleness, seat.scale) for seat in record.participants] == [("a", 1, 0.5), ("b", 0, 1.0)]
    a, b = (f.update_of(client, 4).arrays["net.weight"] for client in "ab")
    shortened = (newest + 0.5 * (a - newest)).astype(np.float32)
    wanted = np.mean([shortened.astype(np.float64), b.astype(np.float64)], axis=0).astype(np.float32)
    np.testing.assert_array_equal(folder.read_base(made, folder.standing(made)).arrays["net.weight"], wanted)


def test_an_update_that_took_part_is_refused_as_a_replay_where_stale_ones_are_taken(root):
    made = f.federation(root, staleness_weight=0.9)
    closed_round(made)
    again = replace(f.update_of("a", 1), round=2)
    refusal = f.file_now(made, again)
    assert refusal.kind == "replayed"
    assert "round 1" in refusal.reason


def test_a_second_update_of_a_client_is_refused_and_the_same_one_again_is_not(root):
    made = f.federation(root)
    update = f.update_of("a", 1)
    assert f.file_now(made, update) is None
    assert f.file_now(made, update) is None
    assert f.file_now(made, replace(update, update_id="other")).kind == "duplicate"
    record = closed_round(made, "bc")
    assert record.refused == {"duplicate": 1}
    assert record.aggregate == f.expected(1, "abc")


def test_a_refused_sender_is_excluded_for_some_rounds_and_nobody_waits_for_it(root):
    made = f.federation(root)
    made = replace(made, folder=folder.federation_folder(root, "other"), defence=Defence(quarantine_rounds=2))
    folder.join(made)
    base = closed_round(made).aggregate
    f.file_now(made, poisoned("c", 2, base))
    record = closed_round(made, "ab")
    assert (record.refused, [seat.client for seat in record.participants]) == ({"not_finite": 1}, ["a", "b"])
    assert [(entry.client, entry.since, entry.until) for entry in record.excluded] == [("c", 2, 5)]
    assert b'"quarantine":[{"client":"c"' in (made.folder / folder.HISTORY).read_bytes()  # as it is called in files
    for number in (3, 4):
        base = folder.standing(made).base
        refusal = f.file_now(made, f.update_of("c", number, base))
        assert refusal.kind == rounds.EXCLUDED
        assert "NaN" in refusal.reason
        assert folder.not_waited_for(made, number) == {"c"}
        for client in "ab":
            f.file_now(made, f.update_of(client, number, base))
        assert folder.not_waited_for(made, number) == {"a", "b", "c"}
        assert not folder.is_waiting(made.folder, "a", 3)
        with folder.locked(made, 0.0):
            record = closing.advance(made, folder.standing(made).round, overdue=False)
        assert record.refused == {"quarantined": 1}
        assert record.aggregate == f.expected(number, "ab")
    assert folder.not_waited_for(made, 5) == frozenset()
    assert closed_round(made, "abc").participation == 1.0


def test_a_file_that_an_excluded_client_puts_into_the_folder_is_refused_too(root):
    made = f.federation(root)
    base = closed_round(made).aggregate
    f.file_now(made, poisoned("c", 2, base))
    base = closed_round(made, "ab").aggregate
    for client in "ab":
        f.file_now(made, f.update_of(client, 3, base))
    folder.client_file(made, 3, "c").write_bytes(b"".join(update_chunks(f.update_of("c", 3, base))))
    with folder.locked(made, 0.0):
        record = closing.advance(made, 3, overdue=False)
    assert (record.refused, record.aggregate) == ({"quarantined": 1}, f.expected(3, "ab"))


def test_an_excluded_client_that_has_left_counts_once_and_is_named_as_one_that_left(root):
    made = f.federation(root)
    base = closed_round(made).aggregate
    f.file_now(made, poisoned("c", 2, base))
    base = closed_round(made, "ab").aggregate
    folder.mark_left(made, "c")
    f.file_now(made, f.update_of("a", 3, base))
    assert folder.is_waiting(made.folder, "a", 3)
    with folder.locked(made, 0.0):
        assert closing.advance(made, 3, overdue=False) is None
    f.file_now(made, f.update_of("b", 3, base))
    with folder.locked(made, 0.0):
        record = closing.advance(made, 3, overdue=False)
    assert (record.aggregate, record.left, record.dropouts) == (f.expected(3, "ab"), ("c",), ())


def test_a_client_that_has_left_is_not_waited_for_until_it_sends_again(root):
    made = f.federation(root)
    folder.mark_left(made, "c")
    for client in "ab":
        f.file_now(made, f.update_of(client, 1))
    with folder.locked(made, 0.0):
        assert closing.advance(made, folder.standing(made).round, overdue=False).participation == 2 / 3
    base = folder.standing(made).base
    assert folder.not_waited_for(made, 2) == {"c"}
    f.file_now(made, f.update_of("c", 2, base))
    f.file_now(made, f.update_of("a", 2, base))
    with folder.locked(made, 0.0):
        assert closing.advance(made, 2, overdue=False) is None
    f.close_now(made)
    assert folder.not_waited_for(made, 3) == frozenset()


def test_a_round_after_the_others_have_finished_was_not_held_and_is_no_failure(root):
    made = f.federation(root)
    closed_round(made)
    for client in "bc":
        folder.mark_left(made, client)
    where = folder.standing(made)
    f.file_now(made, f.update_of("a", where.round, where.base))
    with folder.locked(made, 0.0):
        record = closing.advance(made, where.round, overdue=False)
    assert record.state == "not_held"
    assert "b, c " in record.reason
    assert (record.left, record.dropouts) == (("b", "c"), ())  # they said so, so they are not missed
    assert folder.standing(made).base == where.base
    history = [json.loads(line)["state"] for line in (made.folder / folder.HISTORY).read_text().splitlines()]
    assert history == ["closed", "not_held"]


def test_a_round_that_some_were_too_late_for_has_failed(root):
    made = f.federation(root)
    folder.mark_left(made, "c")
    f.file_now(made, f.update_of("a", 1))
    assert f.close_now(made).state == "failed"


def test_an_update_that_is_changed_after_the_decision_fails_the_round_and_names_the_client(root):
    made = f.federation(root)
    for client in "abc":
        f.file_now(made, f.update_of(client, 1))

    with pytest.raises(f.Stopped):
        f.close_now(replace(made, aggregate=f.stop))
    folder.client_file(made, 1, "b").write_bytes(b"".join(update_chunks(replace(f.update_of("z", 1), client="b"))))
    record = f.close_now(made)
    assert record.state == "failed"
    assert "client b" in record.reason


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"net.weight": np.full((16, 8), np.inf, np.float32), "net.steps": np.array([1])}, "'net.weight'"),
        ({"net.weight": np.zeros((16, 8), np.float32)}, "'net.steps'"),
    ],
)
def test_an_aggregate_that_nobody_could_go_on_from_fails_the_round(root, result, said):
    made = f.federation(root)
    base = closed_round(made).aggregate
    made = replace(made, aggregate=lambda updates, _: (result, f.mean(updates, None)[1]))
    record = closed_round(made)
    assert record.state == "failed"
    assert said in record.reason
    assert folder.standing(made).base == base


def test_a_report_that_json_cannot_hold_fails_the_round_and_leaves_a_readable_record(root):
    made = f.federation(root)

    def infinite(updates, base):
        arrays, report = f.mean(updates, base)
        return arrays, msgspec.structs.replace(report, variance=float("inf"))

    record = closed_round(replace(made, aggregate=infinite))
    assert record.state == "failed"
    assert folder.standing(made).round == 2


def test_an_aggregator_that_refuses_fails_the_round_with_its_words(root):
    made = f.federation(root)

    def refuse(updates, base):
        raise FederationError("too few for krum")

    assert closed_round(replace(made, aggregate=refuse)).reason == "too few for krum"


def test_who_is_late_to_close_a_round_does_not_close_the_next(root):
    made = f.federation(root)
    base = closed_round(made).aggregate
    f.file_now(made, f.update_of("a", 2, base))
    with folder.locked(made, 0.0):
        assert closing.advance(made, 1, overdue=True) is None
    assert folder.standing(made).round == 2


def test_old_arrays_are_deleted_and_records_and_the_last_aggregate_stay(root):
    made = f.federation(root, keep=1)
    for _ in range(4):
        closed_round(made)
    for _ in range(3):
        closed_round(made, "a")
    left = {path.relative_to(made.folder).parts[0] for path in made.folder.rglob("*.safetensors")}
    assert left == {"round_00003", "round_00004", "round_00005", "round_00006", "round_00007"}
    assert len(list(made.folder.rglob("closed.json"))) == 7
    assert folder.read_base(made, folder.standing(made)).hash == f.expected(4, "abc")


def test_files_keep_their_words_whatever_the_code_calls_them(root):
    made = f.federation(root)
    closed_round(made)
    record = json.loads((folder.round_folder(made, 1) / folder.CLOSED).read_bytes())
    assert {"seats", "quarantine", "finished"} <= record.keys()
    assert record["seats"][0]["nonce"] == "a-1"
    assert b'\\"nonce\\":\\"a-1\\"' in folder.client_file(made, 1, "a").read_bytes()
    agreement = json.loads((made.folder / folder.AGREEMENT).read_bytes())
    assert (agreement["rules"]["quorum"], agreement["rules"]["discount"]) == (2, 0.0)
    folder.mark_left(made, "c")
    assert (made.folder / "gone_c").exists()


def test_clients_that_disagree_about_the_rules_do_not_meet(root):
    f.federation(root, quorum=2)
    with pytest.raises(FederationError, match=r"federation\.json.*quorum=2.*quorum=3"):
        f.federation(root, quorum=3)


@pytest.mark.parametrize("wrong", [{"quorum": 0}, {"quorum": 4}, {"timeout_s": 0.0}, {"staleness_weight": 1.5}])
def test_rules_that_make_no_sense_are_refused(wrong):
    with pytest.raises(FederationError):
        RoundLimits(**{"clients": 3, "quorum": 2, **wrong})


def test_a_deadline_holds_for_all_processes_of_a_machine_and_begins_anew_after_it_was_started_again(root):
    made = f.federation(root, timeout_s=50.0)
    assert folder.deadline(made, 1, 0.0) is None
    f.file_now(made, f.update_of("a", 1))
    path = folder.round_folder(made, 1) / folder.OPENED
    opened = msgspec.json.decode(path.read_bytes(), type=folder.RoundOpened)
    assert folder.deadline(made, 1, opened.monotonic + 20) == opened.monotonic + 50
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(opened, boot="another")))
    assert folder.deadline(made, 1, opened.monotonic + 20) == opened.monotonic + 70
    # Whoever writes a time to come does not make the others wait for it.
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(opened, monotonic=1e12)))
    assert folder.deadline(made, 1, opened.monotonic + 20) == opened.monotonic + 70


def test_a_flood_of_refusals_does_not_fill_the_disk(root):
    made = f.federation(root)
    where = folder.standing(made)
    refusal = rounds.Refusal("x", "malformed", "z" * 300)
    for _ in range(2000):
        folder.note_refusal(made, where, refusal)
    size = (folder.round_folder(made, 1) / folder.REFUSED).stat().st_size
    assert size < folder.MAX_REFUSED_BYTES + 400
    record = closed_round(made)
    assert record.refused["malformed"] > closing.MAX_TOLD == len(record.refusals)


class Machine(RuleBasedStateMachine):
    """Anything is sent in any order; a model in memory says what must become of it."""

    sent = Bundle("sent")

    def __init__(self):
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY)
        root = Path(self._folder.name)
        self.made = f.federation(root, staleness_weight=0.5, max_staleness=1, keep=1)
        self.number, self.aggregates, self.records = 1, [""], []
        self.seated: dict[str, ClientUpdate] = {}
        self.used: list[set[str]] = []  # ids of updates by closed round
        self.refused = 0
        self.count = 0

    def teardown(self):
        self._folder.cleanup()

    def send(self, update: ClientUpdate) -> None:
        behind = self.aggregates[::-1].index(update.base) if update.base in self.aggregates else 99
        replayed = (
            any(update.update_id in used for used in self.used[len(self.used) - behind :]) if behind < 99 else False
        )
        known = self.seated.get(update.client)
        is_second = known is not None and known.update_id != update.update_id
        wanted = update.round == self.number and behind <= 1 and not replayed and not is_second
        refusal = f.file_now(self.made, update)
        assert (refusal is None) == wanted, refusal
        if wanted:
            self.seated[update.client] = update
        else:
            self.refused += 1

    @rule(target=sent, client=st.sampled_from("abcd"), ahead=st.integers(-1, 1), behind=st.integers(0, 3))
    def fresh(self, client, ahead, behind):
        base = self.aggregates[max(0, len(self.aggregates) - 1 - behind)]
        self.count += 1
        update = f.update_of(client, max(1, self.number + ahead), base, update_id=f"n{self.count}")
        self.send(update)
        return update

    @rule(update=sent)
    def again(self, update):
        self.send(update)

    @rule(update=sent)
    def for_the_current_round(self, update):
        self.send(replace(update, round=self.number))

    @rule()
    def look(self):
        with folder.locked(self.made, 0.0):
            record = closing.advance(self.made, self.number, overdue=False)
        assert (record is not None) == (len(self.seated) >= 3)
        self.settle(record)

    @rule()
    def deadline(self):
        record = f.close_now(self.made)
        opened = (folder.round_folder(self.made, self.number) / folder.OPENED).exists()
        assert (record is not None) == opened
        self.settle(record)

    def settle(self, record):
        if record is None:
            return
        assert [seat.client for seat in record.participants] == sorted(self.seated)
        assert sum(record.refused.values()) == self.refused
        assert record.round == self.number
        assert record.state == ("closed" if len(self.seated) >= 2 else "failed")
        if record.state == "closed":
            fresh = all(update.base == self.aggregates[-1] for update in self.seated.values())
            if fresh and all(seat.scale == 1.0 for seat in record.participants):
                ordered = [self.seated[client] for client in sorted(self.seated)]
                assert record.aggregate == content_hash(f.mean(ordered, None)[0])
            self.aggregates.append(record.aggregate)
            self.used.append({update.update_id for update in self.seated.values()})
        self.records.append(record)
        self.number += 1
        self.seated, self.refused = {}, 0

    @invariant()
    def the_folder_says_the_same(self):
        where = folder.standing(self.made)
        assert (where.round, where.base) == (self.number, self.aggregates[-1])
        path = self.made.folder / "rounds.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        assert [msgspec.json.decode(line, type=rounds.RoundRecord) for line in lines] == self.records


TestAnyOrder = Machine.TestCase
TestAnyOrder.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
