"""The ring: same bits as the mean, on every peer, whoever dies and whenever."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import torch.distributed
from peer_group import TOKEN, at_once, floats, free_addresses, in_processes, some_arrays

from slipstream.errors import FederationError
from slipstream.federate import peer_links, ring_group
from slipstream.federate import ring as ring_module
from slipstream.federate.peer_links import Hello, connect_peer
from slipstream.federate.peers import describe
from slipstream.federate.ring import Ring, _result_to_keep
from slipstream.federate.rules import Known, merge_by
from slipstream.federate.rules.mean import mean
from slipstream.federate.rules.weighted_mean import weighted_mean
from slipstream.runtime.address import connect, parse_address
from slipstream.runtime.frames import HEAD, MAGIC, VERSION, MessageProtocol

PATIENT = {"deadline_s": 60.0, "meet_s": 20.0, "step_s": 10.0}
SHORT = {"deadline_s": 60.0, "meet_s": 2.0, "step_s": 1.0}  # where somebody will not come, and is waited for


def open_rings(addresses, **options):
    return {name: Ring(name, addresses, TOKEN, **{**PATIENT, **options}) for name in addresses}


def close(rings):
    for ring in rings.values():
        ring.close()


def same_bits(one, other):
    return all(one[name].tobytes() == other[name].tobytes() for name in one) and one.keys() == other.keys()


def take_part(pipe, me, addresses, victim, phase):
    """One peer of a ring, which dies in a phase if it is the victim, and says what it holds if it is not."""
    ring = Ring(me, addresses, TOKEN, **(SHORT if victim else PATIENT))
    pipe.send("ready")
    pipe.recv()
    if me == victim:
        arrange_death(phase)
    arrays, report = ring.reduce(some_arrays(int(me[1:])), 1)
    ring.close()
    pipe.send((arrays, report))


def arrange_death(phase):
    group = ring_group.MeetingGroup

    def die(*_):
        os.kill(os.getpid(), signal.SIGSTOP if phase == "hang" else signal.SIGKILL)

    if phase in ("scatter", "gather", "agree"):
        setattr(group, "agree" if phase == "agree" else f"_{phase}", die)
    elif phase == "group":
        group.__init__ = die
    elif phase == "hang":
        group._gather = die
    elif phase == "handing":  # the last parts are on their way around: one of the others will hold all, two will not
        finish, calls = group._finish, []

        def finish_and_die(self, *args):
            finish(self, *args)
            calls.append(args)
            if len(calls) == 10:  # three types of arrays, each with one exchange and three steps around the ring
                die()

        group._finish = finish_and_die
    elif phase == "half":  # it tells one of the others that it has the result, and dies before it tells the rest

        def agree(self):
            vote = np.zeros(self._size, np.uint8)
            to = (self._rank + 1) % self._size
            self._group.send([ring_group._bytes(vote)], to, 0).wait()
            back = np.zeros(self._size, np.uint8)
            self._group.recv([ring_group._bytes(back)], to, 0).wait()  # it has arrived
            die()

        group.agree = agree


def test_four_processes_hold_the_same_bits_as_the_mean():
    names = list(addresses := free_addresses(4))
    results = in_processes(take_part, dict.fromkeys(names, (addresses, "", "")))
    assert sorted(results) == names
    arrays = {name: some_arrays(index) for index, name in enumerate(names)}
    expected = mean({name: floats(arrays[name]) for name in names})
    for result, report in results.values():
        assert same_bits(floats(result), expected)
        np.testing.assert_allclose(
            result["weight"], np.mean([arrays[name]["weight"].astype(float) for name in names], axis=0), atol=1e-6
        )
        assert result["steps"].tolist() == [30, 5]
        assert report.members == tuple(names)
        assert (report.attempts, report.reason, report.failures) == (1, "", ())


@pytest.mark.parametrize(
    ("victim", "phase"),
    [
        ("c3", "group"),
        ("c0", "group"),
        ("c1", "scatter"),
        ("c0", "gather"),
        ("c1", "handing"),
        ("c2", "hang"),
    ],
)
def test_the_ring_forms_again_among_the_living(victim, phase):
    names = list(addresses := free_addresses(4))
    results = in_processes(take_part, dict.fromkeys(names, (addresses, victim, phase)), victim)
    living = [name for name in names if name != victim]
    assert sorted(results) == living
    expected = mean({name: floats(some_arrays(int(name[1:]))) for name in living})
    for result, report in results.values():
        assert same_bits(floats(result), expected)
        assert report.members == tuple(living)
        assert report.attempts >= 2
        assert victim in report.absent


@pytest.mark.parametrize(("victim", "phase"), [("c3", "agree"), ("c1", "half")])
def test_who_dies_while_telling_that_it_has_the_result_does_not_divide_the_others(victim, phase):
    """Half told, one of them has taken the result of all four; the others find out that they may take it too."""
    names = list(addresses := free_addresses(4))
    results = in_processes(take_part, dict.fromkeys(names, (addresses, victim, phase)), victim)
    living = [name for name in names if name != victim]
    assert sorted(results) == living
    expected = mean({name: floats(some_arrays(int(name[1:]))) for name in names})
    for result, report in results.values():
        assert same_bits(floats(result), expected)
        assert report.members == tuple(names)


def hello(generation="", have=""):
    return Hello("", "c0", 1, (), generation=generation, have=have)


def test_a_result_is_kept_only_where_all_of_its_ring_hold_it():
    assert _result_to_keep([hello("g", "x"), hello("g", "x")]) == "x"
    assert _result_to_keep([hello("g", "x"), hello("g", "")]) == ""
    assert _result_to_keep([hello("g", "x"), hello("", "")]) == "x"  # one that came later was not in that ring
    assert _result_to_keep([hello("g", "x"), hello("h", "y")]) == ""
    assert _result_to_keep([hello(), hello()]) == ""


def test_below_the_quorum_nothing_changes_and_the_round_ends():
    addresses = free_addresses(3)
    with Ring("c1", addresses, TOKEN, deadline_s=0.8, meet_s=0.4) as ring:
        arrays = some_arrays(1)
        result, report = ring.reduce(arrays, 4)
    assert result is arrays
    assert report.members == ()
    assert re.search("1 of 3 .* 2", report.reason)
    assert report.absent["c0"] == "Connection refused"


def test_two_of_four_are_no_ring_since_the_other_two_could_be_one_too():
    addresses = free_addresses(4)
    rings = open_rings(addresses, deadline_s=0.8, meet_s=0.4)
    work = {name: lambda n=name: rings[n].reduce(some_arrays(1), 1) for name in ("c0", "c2")}
    results = at_once(work)
    close(rings)
    assert all(report.members == () for _, report in results.values())


def test_a_late_peer_joins_the_round_that_the_others_are_in():
    addresses = free_addresses(3)
    rings = open_rings(addresses)
    numbers = {"c0": 7, "c1": 7, "c2": 3}
    results = at_once({name: lambda n=name: rings[n].reduce(some_arrays(0), numbers[n]) for name in rings})
    close(rings)
    assert [report.round for _, report in results.values()] == [7, 7, 7]


def test_claimed_weights_count_up_to_twice_their_median():
    addresses = free_addresses(3)
    rings = open_rings(addresses)
    claims = {"c0": 1.0, "c1": 1.5, "c2": 1e9}
    arrays = {name: some_arrays(index) for index, name in enumerate(addresses)}
    results = at_once({name: lambda n=name: rings[n].reduce(arrays[n], 1, claims[n]) for name in rings})
    close(rings)
    expected = weighted_mean({n: floats(a) for n, a in arrays.items()}, {"c0": 1.0, "c1": 1.5, "c2": 3.0})
    assert all(same_bits(floats(result), expected) for result, _ in results.values())


def test_a_rule_that_works_number_by_number_is_a_ring_too():
    addresses = free_addresses(5)
    rings = open_rings(addresses, merge=lambda clients, weights: merge_by("trimmed_mean", clients, Known(liars=1)))
    arrays = {name: some_arrays(index) for index, name in enumerate(addresses)}
    arrays["c4"]["weight"] = np.full((31, 7), 1e30, np.float32)
    results = at_once({name: lambda n=name: rings[n].reduce(arrays[n], 1) for name in rings})
    close(rings)
    expected = merge_by("trimmed_mean", {n: floats(a) for n, a in arrays.items()}, Known(liars=1))
    assert all(same_bits(floats(result), expected) for result, _ in results.values())
    assert np.abs(results["c4"][0]["weight"]).max() < 10


def test_numbers_that_are_not_finite_put_their_sender_outside(monkeypatch):
    addresses = free_addresses(4)
    rings = open_rings(addresses)
    arrays = {name: some_arrays(index) for index, name in enumerate(addresses)}
    arrays["c2"]["weight"][17, 3] = np.nan
    with pytest.raises(FederationError, match=r"c2 .*: weight\[17, 3\] is nan"):
        rings["c2"].reduce(arrays["c2"], 1)
    honest = ring_module.why_not_finite
    monkeypatch.setattr(ring_module, "why_not_finite", lambda a: None if a is arrays["c2"] else honest(a))
    results = at_once({name: lambda n=name: rings[n].reduce(arrays[n], 1) for name in rings})
    close(rings)
    living = ["c0", "c1", "c3"]
    expected = mean({name: floats(arrays[name]) for name in living})
    for name in living:
        result, report = results[name]
        assert same_bits(floats(result), expected)
        assert report.members == tuple(living)
        assert list(report.refused) == ["c2"]
    assert results["c2"][0] is arrays["c2"]
    assert "c2" in results["c2"][1].reason


def test_other_arrays_and_other_tokens_stay_outside():
    addresses = free_addresses(4)
    rings = open_rings(addresses, quorum=2, meet_s=1.0)
    rings["c2"].close()
    rings["c3"].close()
    rings["c2"] = Ring("c2", addresses, "another token", deadline_s=1.5)
    rings["c3"] = Ring("c3", addresses, TOKEN, deadline_s=1.5)
    arrays = {name: some_arrays(1) for name in rings}
    arrays["c3"]["weight"] = np.zeros((31, 8), np.float32)
    results = at_once({name: lambda n=name: rings[n].reduce(arrays[n], 1) for name in rings})
    close(rings)
    assert results["c0"][1].members == results["c1"][1].members == ("c0", "c1")
    assert any(re.search(r"float32\[31, 7\] .*float32\[31, 8\]", why) for why in results["c3"][1].failures)
    assert "float32[31, 7]" in results["c0"][1].absent["c3"]
    assert any("token" in why for why in results["c2"][1].failures)


def test_calls_that_were_given_up_do_not_put_down_the_one_that_counts():
    """They stand in the queue of a leader that comes late, and its threads read them in any order."""
    addresses = free_addresses(2)
    arrays = some_arrays(1)
    with Ring("c0", addresses, TOKEN, **PATIENT) as leader, Ring("c1", addresses, TOKEN, **PATIENT) as late:
        for _ in range(20):
            with connect_peer(parse_address(addresses["c0"]), 2.0) as link:
                link.send(Hello(TOKEN, "c1", 1, describe(arrays)), time.monotonic() + 5)
        results = at_once({"c0": lambda: leader.reduce(arrays, 1)[1], "c1": lambda: late.reduce(arrays, 1)[1]})
    assert [report.members for report in results.values()] == [("c0", "c1")] * 2
    assert [report.attempts for report in results.values()] == [1, 1]


def test_where_all_others_have_gone_nobody_waits_for_the_deadline():
    addresses = free_addresses(3)
    rings = open_rings(addresses, deadline_s=1000.0, meet_s=500.0)
    at_once({name: lambda n=name: rings[n].reduce(some_arrays(0), 1) for name in rings})
    last = rings.pop("c2")
    close(rings)
    results = at_once({"c2": lambda: last.reduce(some_arrays(0), 2)})
    last.close()
    assert results["c2"][1].members == ()
    assert re.search("1 of 3 .* 2", results["c2"][1].reason)


@pytest.mark.parametrize("me", ["c0", "c1"])
def test_who_does_not_wait_any_longer_is_back_soon(me):
    """Whether it leads, or waits for one that leads and is busy."""
    addresses = free_addresses(2)
    rings = open_rings(addresses, deadline_s=1000.0, meet_s=1000.0)
    until = time.monotonic() + 0.5
    results = at_once({me: lambda: rings[me].reduce(some_arrays(0), 1, patient=lambda: time.monotonic() < until)})
    close(rings)
    assert results[me][1].members == ()


def test_the_queue_of_a_peer_that_never_leads_does_not_fill_up():
    """Every meeting looks whether it lives, by one and the same link."""
    addresses = free_addresses(2)
    with Ring("c0", addresses, TOKEN, **PATIENT) as leader, Ring("c1", addresses, TOKEN, **PATIENT):
        watch = leader._watches["c1"]
        for _ in range(200):
            watch.begin(met=True)
            watch._looked = 0.0
            assert not watch.has_gone()
        connect(parse_address(addresses["c1"]), 1.0).close()


def test_rounds_leave_nothing_behind_and_listen_on_loopback_alone():
    addresses = free_addresses(3)
    rings = open_rings(addresses)
    me = psutil.Process()
    listening: list[str] = []
    scatter = ring_group.MeetingGroup._scatter

    def look(self, *args):
        listening.extend(c.laddr.ip for c in me.net_connections() if c.status == psutil.CONN_LISTEN)
        return scatter(self, *args)

    counts = []
    for number in range(4):
        at_once({name: lambda n=name, k=number: rings[n].reduce(some_arrays(0), k) for name in rings})
        counts.append((me.num_fds(), threading.active_count()))
    assert counts[0] == counts[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring_group.MeetingGroup, "_scatter", look)
        at_once({name: lambda n=name: rings[n].reduce(some_arrays(0), 9) for name in rings})
    close(rings)
    assert set(listening) == {"127.0.0.1"}
    assert not torch.distributed.is_initialized()


def test_garbage_at_the_door_costs_the_meeting_nothing(monkeypatch):
    monkeypatch.setattr(peer_links, "ENTER_S", 1000.0)
    addresses = free_addresses(2)
    rings = open_rings(addresses, meet_s=1000.0, deadline_s=1000.0)  # nobody can afford to wait for the silent one
    port = int(addresses["c0"].rpartition(":")[2])
    links = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    links[0].sendall(os.urandom(4096))
    links[1].sendall(HEAD.pack(MAGIC, VERSION, MessageProtocol.PEERS, 2**32 - 1, 2**64 - 1))  # four gigabytes to come
    results = at_once({name: lambda n=name: rings[n].reduce(some_arrays(0), 1) for name in rings})
    close(rings)
    assert all(report.members == ("c0", "c1") and report.attempts == 1 for _, report in results.values())
    for link in links:
        link.close()


def test_the_ring_is_imported_without_torch():
    code = "import slipstream.federate.ring, slipstream.federate.gossip, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_quorum_of_one_goes_on_alone():
    addresses = free_addresses(2)
    arrays = some_arrays(3)
    with Ring("c1", addresses, TOKEN, quorum=1) as ring:
        result, report = ring.reduce(arrays, 1)
    assert same_bits(result, arrays)
    assert (report.members, report.attempts) == (("c1",), 1)
    with pytest.raises(FederationError, match="quorum: 3 of 2 peers"):
        Ring("c1", addresses, TOKEN, quorum=3)
