"""Secure sums through a folder: what comes out, what nobody can read in it, and who may die or come late."""

import re
import threading
import time

import msgspec
import numpy as np
import pytest
from rounds_harness import quick_folder

from slipstream.config.load import load
from slipstream.data.disk import replace_file
from slipstream.errors import FederationError, ScenarioError
from slipstream.federate import folder, secure_files
from slipstream.federate.files import Files
from slipstream.federate.rounds import Federation, RoundLimits
from slipstream.federate.secure import Masked, SecureClient, decode, encode, pack
from slipstream.federate.secure_files import STEPS, SecureFiles, advance, current_step, make_terms, senders
from slipstream.federate.secure_keys import from_fixed
from slipstream.federate.update import ClientUpdate
from slipstream.runtime.frames import HEAD

NAMES = ("a", "b", "c", "d", "e")


def no_aggregate(updates, base):
    raise AssertionError("nobody can aggregate what nobody sees")


@pytest.fixture
def made():
    with quick_folder() as root:
        rules = RoundLimits(5, 3, timeout_s=20.0, closing_s=10.0)
        federation = Federation(folder.federation_folder(root, "run"), rules, no_aggregate, "secure mean")
        folder.join(federation)
        yield federation


def update_of(client, number=1, base="", weight=1.0):
    rng = np.random.Generator(np.random.Philox(key=[ord(client), number]))
    arrays = {"net.weight": rng.normal(size=(16, 8)).astype(np.float32), "net.bias": rng.normal(size=3)}
    return ClientUpdate(client, number, base, f"{client}-{number}", arrays, weight, {})


def meet(federation, updates, transport=None):
    """Outcomes of clients that take part at the same time, by name."""
    told = {}
    way = transport or SecureFiles(federation, lambda update: update.weight)

    def take_part(update):
        told[update.client] = way.exchange(update)

    threads = [threading.Thread(target=take_part, args=(update,)) for update in updates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return told


def mean_of(updates):
    total = sum(update.weight for update in updates)
    return {
        name: sum(update.weight * update.arrays[name].astype(np.float64) for update in updates) / total
        for name in updates[0].arrays
    }


def assert_close(arrays, expected):
    assert arrays.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(arrays[name], value, atol=1e-6)


def test_all_hold_the_weighted_mean_and_the_history_names_them(made):
    updates = [
        update_of(client, weight=weight) for client, weight in zip(NAMES, (1.0, 2.0, 3.0, 4.0, 90.0), strict=True)
    ]
    told = meet(made, updates)
    assert {(outcome.state, outcome.took_part) for outcome in told.values()} == {("closed", True)}
    for outcome in told.values():
        assert_close(outcome.model.arrays, mean_of(updates))
        assert outcome.model.arrays["net.weight"].dtype == np.float32
    assert len({outcome.model.base for outcome in told.values()}) == 1
    (record,) = [msgspec.json.decode(line) for line in (made.folder / folder.HISTORY).read_bytes().splitlines()]
    assert [seat["client"] for seat in record["seats"]] == list(NAMES)
    assert record["participation"] == 1.0


def test_rounds_follow_each_other_from_the_sum_of_the_one_before(made):
    base = next(iter(meet(made, [update_of(client) for client in NAMES]).values())).model.base
    second = [update_of(client, 2, base) for client in NAMES]
    told = meet(made, second)
    assert {outcome.round for outcome in told.values()} == {2}
    assert_close(told["a"].model.arrays, mean_of(second))


def test_nobody_can_read_an_update_in_the_folder(made):
    updates = {client: update_of(client) for client in NAMES}
    meet(made, list(updates.values()))
    here = folder.round_folder(made, 1)
    for client, update in updates.items():
        plain = pack(update.arrays)
        masked = decode((here / f"masked_{client}.msg").read_bytes())
        assert isinstance(masked, Masked)
        shown = from_fixed(np.frombuffer(masked.vector, "<u8").copy())
        assert abs(np.corrcoef(plain, shown)[0, 1]) < 0.4  # 132 numbers: chance gives 0.09, the update itself 1
        for path in here.iterdir():
            data = path.read_bytes()
            assert update.arrays["net.bias"].tobytes() not in data
            assert update.arrays["net.weight"].tobytes() not in data


def write_until(federation, update, last):
    """A client that goes through the steps up to `last`, ends those it can, and is then killed."""
    where = folder.standing(federation)
    with folder.locked(federation, time.monotonic() + 5):
        folder.open_round(federation, where.round, update.client)
    terms = make_terms(federation, where, update.arrays)
    client = SecureClient(terms, update.client)
    way = SecureFiles(federation, lambda update: update.weight)
    here = folder.round_folder(federation, where.round)
    for step, _ in STEPS:
        while current_step(here) != step:
            with folder.locked(federation, time.monotonic()) as is_mine:
                if is_mine:
                    advance(federation, where.round, terms, update.arrays, time.monotonic())
            time.sleep(0.01)
        message = way._own_message(client, update, here, step)
        replace_file(here / f"{step}_{update.client}.msg", encode(message))
        if step == last:
            return


def test_who_does_not_wait_any_longer_is_back_at_once(made):
    asked = iter([True, True, False])
    assert SecureFiles(made, lambda update: update.weight).exchange(update_of("a"), lambda: next(asked)) is None


def test_a_round_that_was_opened_before_a_restart_is_due_at_its_deadline(made, monkeypatch):
    """Nobody knows how long ago that was: it counts from when this client first saw it, and not from every look."""
    with folder.locked(made, time.monotonic() + 5):
        folder.open_round(made, 1, "a")
    monkeypatch.setattr(folder, "boot_id", lambda: "another boot")
    here, seen = folder.round_folder(made, 1), time.monotonic() - 1000.0
    assert secure_files._due(made, 1, here, "keys", seen) == pytest.approx(seen + made.limits.timeout_s)


@pytest.mark.parametrize("last", ["keys", "boxes", "masked"])
def test_one_of_five_who_dies_in_any_step_is_done_without(last):
    with quick_folder() as root:
        rules = RoundLimits(5, 3, timeout_s=20.0, closing_s=0.8)  # how long the others wait for the one who is dead
        made = Federation(folder.federation_folder(root, "run"), rules, no_aggregate, "secure mean")
        folder.join(made)
        dying = threading.Thread(target=write_until, args=(made, update_of("e"), last))
        dying.start()
        told = meet(made, [update_of(client) for client in "abcd"])
        dying.join()
        there = NAMES if last == "masked" else NAMES[:4]  # a vector that has come counts, whoever sent it
        assert {outcome.state for outcome in told.values()} == {"closed"}
        assert_close(told["a"].model.arrays, mean_of([update_of(client) for client in there]))
        assert [seat.client for seat in told["a"].record.participants] == list(there)


def test_one_who_comes_back_into_the_round_it_was_killed_in_has_dropped_out_of_it():
    with quick_folder() as root:
        made = Federation(
            folder.federation_folder(root, "run"), RoundLimits(5, 3, timeout_s=20.0, closing_s=0.8), no_aggregate, "s"
        )
        folder.join(made)
        write_until(made, update_of("e"), "keys")
        told = meet(made, [update_of(client) for client in NAMES])
        assert not told["e"].took_part
        assert_close(told["e"].model.arrays, mean_of([update_of(client) for client in "abcd"]))
        base = told["a"].model.base
        again = meet(made, [update_of(client, 2, base) for client in NAMES])
        assert all(outcome.took_part for outcome in again.values())


def test_one_who_comes_late_is_not_in_the_sum_and_writes_nothing_that_could_be_opened():
    with quick_folder() as root:
        made = Federation(
            folder.federation_folder(root, "run"), RoundLimits(5, 3, timeout_s=0.5, closing_s=5.0), no_aggregate, "s"
        )
        folder.join(made)
        told = meet(made, [update_of(client) for client in "abcd"])
        assert_close(told["a"].model.arrays, mean_of([update_of(client) for client in "abcd"]))
        late = SecureFiles(made, lambda update: update.weight).exchange(update_of("e"))
        assert (late.state, late.took_part) == ("refused", False)
        assert_close(late.model.arrays, mean_of([update_of(client) for client in "abcd"]))
        assert not list(made.folder.glob("round_*/*_e.msg"))


def test_below_the_threshold_nothing_is_opened_and_the_model_stays():
    with quick_folder() as root:
        made = Federation(
            folder.federation_folder(root, "run"), RoundLimits(5, 3, timeout_s=0.5, closing_s=5.0), no_aggregate, "s"
        )
        folder.join(made)
        told = meet(made, [update_of(client) for client in "ab"])
        for outcome in told.values():
            assert (outcome.state, outcome.model.arrays) == ("failed", None)
            assert re.search("2 clients .* 3;", outcome.reason)
        assert senders(folder.round_folder(made, 1), "masked") == []
        assert folder.standing(made).round == 2


def test_nonsense_in_the_folder_counts_for_nobody(made):
    with folder.locked(made, time.monotonic() + 5):
        folder.open_round(made, 1, "e")
    here = folder.round_folder(made, 1)
    (here / "keys_e.msg").write_bytes(b"\xc1 not a message")
    (here / "boxes_zz.msg").write_bytes(b"x" * 1000)
    told = meet(made, [update_of(client) for client in "abcd"])
    assert [seat.client for seat in told["a"].record.participants] == list("abcd")


@pytest.mark.parametrize("last", ["keys", "boxes"])
def test_a_round_that_an_older_version_left_unfinished_fails_and_the_next_is_held(last):
    """Its files have no heads. Whose they are has lost its secrets with its process, so nothing can come of them."""
    with quick_folder() as root:
        rules = RoundLimits(5, 3, timeout_s=20.0, closing_s=0.5)
        made = Federation(folder.federation_folder(root, "run"), rules, no_aggregate, "secure mean")
        folder.join(made)
        threads = [threading.Thread(target=write_until, args=(made, update_of(client), last)) for client in NAMES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for path in folder.round_folder(made, 1).glob("*.msg"):
            path.write_bytes(path.read_bytes()[HEAD.size :])
        told = meet(made, [update_of(client) for client in NAMES])
        assert {outcome.state for outcome in told.values()} == {"failed"}
        again = meet(made, [update_of(client, 2) for client in NAMES])
        assert all(outcome.took_part for outcome in again.values())


def test_those_who_have_left_are_not_waited_for(made):
    SecureFiles(made, lambda update: update.weight).leave("e")
    told = meet(made, [update_of(client) for client in "abcd"])
    assert {outcome.took_part for outcome in told.values()} == {True}


def test_a_secure_round_after_the_others_have_finished_was_not_held(made):
    transport = SecureFiles(made, lambda update: update.weight)
    for client in "bcde":
        transport.leave(client)
    outcome = transport.exchange(update_of("a"))
    assert outcome.state == "not_held"
    assert not outcome.sent
    record = msgspec.json.decode((made.folder / folder.HISTORY).read_bytes())
    assert (record["finished"], record["dropouts"]) == (["b", "c", "d", "e"], [])
    assert record["reason"]


def test_plain_and_secure_clients_do_not_meet(made):
    other = Federation(made.folder, made.limits, no_aggregate, "mean")
    with pytest.raises(FederationError, match=r"federation\.json: .* secure mean .* mean;"):
        folder.join(other)
    assert Files(made).catch_up("").round == 1


# --- what may be asked for ---


def asked(**more):
    settings = {"secure": True, "enabled": True, "clients": 3, **more}
    return load("probe_bandit", {f"federated.{key}": value for key, value in settings.items()}).federated


def test_the_usual_checks_are_off_where_nobody_could_make_them():
    assert asked().defence.max_norm is None
    assert load("probe_bandit").federated.defence.max_norm is not None


@pytest.mark.parametrize(
    ("wrong", "keys"),
    [
        ({"aggregator": "krum"}, ["aggregator"]),
        ({"aggregator": "median"}, ["aggregator"]),
        ({"defence": {"max_norm": 4.0}}, ["defence.clip_norm", "defence.max_norm", "defence.min_cosine"]),
        ({"transport": "tcp", "address": "tcp://127.0.0.1:7777"}, ["transport"]),
        ({"optimizer_strategy": "average"}, ["optimizer_strategy"]),
        ({"aggregator": "weighted_mean", "weights": "reward_delta"}, ["weights"]),
        ({"staleness": 0.5}, ["staleness"]),
        ({"clients": 2}, ["clients"]),
    ],
)
def test_what_must_see_single_updates_is_refused_by_its_key(wrong, keys):
    with pytest.raises(ScenarioError) as told:
        asked(**wrong)
    assert told.value.keys == tuple(f"federated.{key}" for key in keys)
