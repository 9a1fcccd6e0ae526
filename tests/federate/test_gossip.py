"""Gossip: peers come to agree as fast as the mixing matrix says, and nobody's garbage counts."""

import os
import re
import threading
import time

import numpy as np
import psutil
import pytest
from peer_group import TOKEN, at_once, floats, free_addresses, some_arrays
from test_peers import mixing_matrix

from slipstream.errors import FederationError
from slipstream.federate import gossip as gossip_module
from slipstream.federate import peer_links, peers
from slipstream.federate.aggregate import mean
from slipstream.federate.gossip import Gossip
from slipstream.federate.peer_links import (
    MAX_DATA,
    MESSAGES,
    Exchanged,
    Hello,
    PeerLink,
    PeerRefusal,
    Take,
    connect_peer,
    receive_data,
)
from slipstream.federate.peers import Schedule
from slipstream.federate.transports import GossipTransport
from slipstream.federate.update import ClientUpdate
from slipstream.runtime.address import listen, parse_address
from slipstream.runtime.frames import HEAD, MAGIC, VERSION, MessageProtocol
from slipstream.runtime.server import SocketServer


def open_peers(addresses, schedule, **options):
    return {name: Gossip(name, addresses, TOKEN, schedule, **{"timeout_s": 20.0, **options}) for name in addresses}


def close(group):
    for peer in group.values():
        peer.close()


def one_round(group, arrays, number):
    """All exchange at once; returns what they hold, and their reports."""
    results = at_once({name: lambda n=name: group[n].exchange(arrays[n], number) for name in group})
    return {name: results[name][0] for name in group}, {name: results[name][1] for name in group}


def spread(arrays):
    """Root mean square distance from the mean, over peers."""
    rows = np.stack([np.concatenate([a.ravel() for a in floats(arrays[n]).values()]) for n in sorted(arrays)])
    return float(np.sqrt(((rows - rows.mean(0)) ** 2).sum() / len(rows)))


def test_peers_listen_on_loopback_alone():
    group = open_peers(free_addresses(3), Schedule("all", seed=5))
    arrays = {name: {"w": np.ones(4)} for name in group}
    one_round(group, arrays, 1)
    found = [c.laddr.ip for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
    close(group)
    assert len(found) >= 3
    assert set(found) == {"127.0.0.1"}


@pytest.mark.parametrize("kind", ["ring", "matching"])
def test_consensus_comes_as_fast_as_the_mixing_matrix_says(kind):
    """The second largest singular value bounds every round; the product of the matrices is what happens exactly."""
    addresses = free_addresses(6)
    schedule = Schedule(kind, seed=5)
    group = open_peers(addresses, schedule)
    arrays = {name: {"w": np.random.default_rng(i).normal(size=50)} for i, name in enumerate(addresses)}
    start = np.stack([arrays[name]["w"] for name in sorted(arrays)])
    expected, curve = start, [spread(arrays)]
    for number in range(1, 9):
        matrix = mixing_matrix(peers.partners(schedule, list(addresses), number))
        bound = np.linalg.norm(matrix - 1 / len(matrix), 2)
        arrays, reports = one_round(group, arrays, number)
        expected = matrix @ expected
        curve.append(spread(arrays))
        assert curve[-1] <= bound * curve[-2] * (1 + 1e-12)
        np.testing.assert_allclose([arrays[n]["w"] for n in sorted(arrays)], expected, rtol=1e-12, atol=1e-14)
        assert all(report.met == report.partners for report in reports.values())
    close(group)
    np.testing.assert_allclose(np.mean([a["w"] for a in arrays.values()], axis=0), start.mean(0), atol=1e-12)
    if kind == "ring":  # the same matrix every time: the bound of eight rounds is its power
        assert curve[-1] <= ((1 + 2 * np.cos(2 * np.pi / 6)) / 3) ** 8 * curve[0]
    else:  # what is expected of a random matching: the square falls by (n - 2) / (2 (n - 1)) a round
        assert curve[-1] ** 2 < 4 * (4 / 10) ** 8 * curve[0] ** 2


def test_all_pairs_hold_the_mean_after_one_round_with_the_same_bits():
    addresses = free_addresses(4)
    group = open_peers(addresses, Schedule("all"))
    arrays = {name: some_arrays(index) for index, name in enumerate(addresses)}
    mixed, reports = one_round(group, arrays, 1)
    close(group)
    expected = mean({name: floats(arrays[name]) for name in arrays})
    for name in addresses:
        for key in expected:
            np.testing.assert_allclose(mixed[name][key], expected[key], rtol=1e-6)
            assert mixed[name][key].tobytes() == mixed["c0"][key].tobytes()
            assert mixed[name][key].dtype == arrays[name][key].dtype
        assert mixed[name]["steps"].tolist() == [30, 5]
    # With everybody met the estimate is exact on average over peers.
    estimate = np.sqrt(np.mean([report.consensus**2 for report in reports.values()]))
    np.testing.assert_allclose(estimate, spread(arrays), rtol=1e-6)


def test_a_pair_holds_the_same_bits_whoever_called():
    addresses = free_addresses(2)
    group = open_peers(addresses, Schedule("matching"))
    arrays = {name: some_arrays(index) for index, name in enumerate(addresses)}
    mixed, reports = one_round(group, arrays, 1)
    close(group)
    for key in mixed["c0"]:
        assert mixed["c0"][key].tobytes() == mixed["c1"][key].tobytes()
    moved = np.sqrt(sum(np.sum((floats(mixed["c0"])[k] - arrays["c0"][k]) ** 2) for k in floats(mixed["c0"])))
    np.testing.assert_allclose(reports["c0"].moved, moved, rtol=1e-6)


def die_calling(addresses, phase):
    """c0 as its partner c1 sees it: a caller whose kernel closes its sockets in some phase."""
    arrays = some_arrays(0)
    deadline = time.monotonic() + 20
    with connect_peer(parse_address(addresses["c1"]), 2.0) as link:
        if phase == "connected":
            return
        link.send(Hello(TOKEN, "c0", 1, peers.describe(arrays)), deadline)
        if phase == "named":
            return
        _, size = link.receive(deadline, MAX_DATA)
        data = receive_data(link, size, size, deadline)
        if phase == "sending":
            link._socket.sendall(HEAD.pack(MAGIC, VERSION, MessageProtocol.PEERS, 16, data.nbytes) + b"1234")


@pytest.mark.parametrize("phase", ["connected", "named", "received", "sending"])
def test_a_caller_that_dies_takes_nothing_along(phase):
    addresses = free_addresses(3)
    group = open_peers(addresses, Schedule("all"), timeout_s=0.6)
    group.pop("c0").close()
    arrays = {name: some_arrays(index + 1) for index, name in enumerate(group)}
    victim = threading.Thread(target=die_calling, args=(addresses, phase))
    victim.start()
    mixed, reports = one_round(group, arrays, 1)
    victim.join()
    close(group)
    assert all(list(report.missed) == ["c0"] for report in reports.values())
    for key in ("weight", "bias"):  # two thirds and one third each: the sum of the living is what it was
        total = [sum(held[name][key].astype(float) for name in group) for held in (arrays, mixed)]
        np.testing.assert_allclose(total[0], total[1], atol=1e-6)
        np.testing.assert_allclose(mixed["c1"][key], (2 * arrays["c1"][key] + arrays["c2"][key]) / 3, rtol=1e-4)


def test_one_who_is_called_and_dies_while_it_answers_takes_nothing_along():
    addresses = free_addresses(2)
    arrays = some_arrays(0)

    def die_answering():
        server, _ = listen(parse_address(addresses["c1"]), TOKEN)
        server.settimeout(20)
        with server, PeerLink(server.accept()[0], MESSAGES) as link:
            link.receive(time.monotonic() + 20, MAX_DATA)
            link.send(Take(), time.monotonic() + 20, peers.pack(some_arrays(1))[:-9].data)

    victim = threading.Thread(target=die_answering)
    victim.start()
    with Gossip("c0", addresses, TOKEN, Schedule("all"), timeout_s=0.6) as peer:
        held, report = peer.exchange(arrays, 1)
    victim.join()
    assert held is arrays
    assert list(report.missed) + list(report.refused) == ["c1"]


def test_who_is_absent_is_waited_for_less_each_time(monkeypatch):
    addresses = free_addresses(3)
    asked = []

    def patience(timeout_s, misses):
        asked.append(misses)
        return 0.1

    monkeypatch.setattr(gossip_module, "patience_s", patience)
    arrays = some_arrays(1)
    with Gossip("c1", addresses, TOKEN, Schedule("all")) as peer:
        held, report = peer.exchange(arrays, 1)
        peer.exchange(arrays, 2)
    assert held is arrays
    assert asked == [0, 0, 1, 1]
    assert report.missed == {"c0": "it did not call in time", "c2": "Connection refused"}
    assert (report.met, report.consensus, report.moved) == ((), 0.0, 0.0)


def test_one_who_is_not_waited_for_does_not_keep_the_others():
    """c0 was absent often and is dead, c1 is always there: c2 waits for neither any longer than it must."""
    addresses = free_addresses(3)
    group = open_peers(addresses, Schedule("all"), timeout_s=1000.0)
    group.pop("c0").close()
    for peer in group.values():
        peer._misses = {"c0": 99}
    _, reports = one_round(group, {name: some_arrays(0) for name in group}, 1)
    close(group)
    assert reports["c2"].met == ("c1",)


def test_a_peer_that_comes_late_is_waited_for():
    addresses = free_addresses(2)
    arrays = {name: some_arrays(index) for index, name in enumerate(addresses)}

    def late():
        time.sleep(0.3)  # it does not even listen before
        with Gossip("c1", addresses, TOKEN, Schedule("all")) as peer:
            return peer.exchange(arrays["c1"], 1)[1]

    with Gossip("c0", addresses, TOKEN, Schedule("all")) as first:
        reports = at_once({"c0": lambda: first.exchange(arrays["c0"], 1)[1], "c1": late})
    assert reports["c0"].met == ("c1",)
    assert reports["c1"].met == ("c0",)


def test_peers_in_different_rounds_do_not_mix_and_the_late_one_learns_it():
    addresses = free_addresses(2)
    group = open_peers(addresses, Schedule("all"), timeout_s=0.6)
    arrays = {name: some_arrays(index) for index, name in enumerate(addresses)}
    numbers = {"c0": 3, "c1": 8}
    results = at_once({name: lambda n=name: group[n].exchange(arrays[n], numbers[n])[1] for name in group})
    assert (results["c0"].met, results["c1"].met) == ((), ())
    assert results["c0"].ahead == 8
    assert re.search("c1 .* 8", results["c0"].missed["c1"])
    close(group)


def test_a_peer_that_is_early_calls_until_the_other_gets_there():
    addresses = free_addresses(2)
    arrays = {name: some_arrays(index) for index, name in enumerate(addresses)}
    early = Gossip("c0", addresses, TOKEN, Schedule("all"))
    slow = Gossip("c1", addresses, TOKEN, Schedule("all"), timeout_s=0.3)
    with early, slow:
        calls = {
            "c0": lambda: early.exchange(arrays["c0"], 9)[1],
            "c1": lambda: [slow.exchange(arrays["c1"], number)[1].met for number in (7, 8, 9, 9, 9, 9)],
        }
        results = at_once(calls)
    assert results["c0"].met == ("c1",)
    assert results["c1"][:2] == [(), ()]
    assert results["c1"][2:].count(("c0",)) == 1


def test_who_waits_to_be_told_that_it_was_met_is_told_before_the_round_ends(monkeypatch):
    """The one who was called has everything it needs before the caller knows: it must not hang up then."""
    flush, exchanged = SocketServer.flush, MESSAGES.frame(Exchanged())
    began = []

    def slow_to_tell(server, call):
        if exchanged in call.outbox:
            began.append(time.monotonic())
            if time.monotonic() < began[0] + 5 * peer_links.TICK_S:
                return  # as if the socket took no more
        flush(server, call)

    monkeypatch.setattr(SocketServer, "flush", slow_to_tell)
    addresses = free_addresses(2)
    group = open_peers(addresses, Schedule("all"))
    _, reports = one_round(group, {name: some_arrays(0) for name in group}, 1)
    close(group)
    assert {name: report.met for name, report in reports.items()} == {"c0": ("c1",), "c1": ("c0",)}
    assert len(began) > 1


@pytest.mark.parametrize("ahead", ["c0", "c1"])
def test_whoever_is_behind_joins_the_round_that_the_other_waits_in(ahead, tmp_path):
    addresses = {f"c{i}": f"ipc://{tmp_path}/{i}.sock" for i in range(2)}
    group = open_peers(addresses, Schedule("all"), timeout_s=1000.0)  # nobody can afford to wait for the wrong one

    def meet(name):
        way = GossipTransport(group[name])
        number = 9 if name == ahead else 3
        while True:
            outcome = way.exchange(ClientUpdate(name, number, "", "a nonce", some_arrays(0)))
            if outcome.took_part:
                return outcome.round
            number = outcome.model.round

    results = at_once({name: lambda n=name: meet(n) for name in group})
    close(group)
    assert results == {"c0": 9, "c1": 9}


@pytest.mark.parametrize("leaver", ["c0", "c1"])
@pytest.mark.parametrize(("scheme", "after_s"), [("ipc", 0.5), ("tcp", 0.5), ("tcp", 0.0)])
def test_a_peer_that_was_met_and_has_gone_is_not_waited_for(leaver, scheme, after_s, tmp_path):
    addresses = free_addresses(2) if scheme == "tcp" else {f"c{i}": f"ipc://{tmp_path}/{i}.sock" for i in range(2)}
    group = open_peers(addresses, Schedule("all"), timeout_s=1000.0)
    one_round(group, {name: some_arrays(0) for name in group}, 1)
    stays = group.pop("c1" if leaver == "c0" else "c0")
    (gone,) = group.values()
    timer = threading.Timer(after_s, gone.close)  # while it is waited for, or before
    timer.start()
    if not after_s:
        timer.join()
    results = at_once({"it": lambda: stays.exchange(some_arrays(0), 2)[1]})
    timer.join()
    stays.close()
    assert list(results["it"].missed) == [leaver]


def test_peers_of_whom_one_was_restarted_meet_again_without_waiting_for_each_other():
    """Four peers in pairs; one begins at round 1 again, and nobody can afford to wait for the wrong partner."""
    addresses = free_addresses(4)
    schedule = Schedule("matching", seed=5)
    group = open_peers(addresses, schedule, timeout_s=1000.0)
    for number in range(1, 5):
        one_round(group, {name: some_arrays(0) for name in group}, number)
    group["c1"].close()
    group["c1"] = Gossip("c1", addresses, TOKEN, schedule, timeout_s=1000.0)

    def go_on(name):
        number, met = 1 if name == "c1" else 5, 0
        while number <= 14:
            report = group[name].exchange(some_arrays(0), number)[1]
            met += len(report.met)
            number = max(number + 1, report.ahead)
        group[name].close()
        return met

    results = at_once({name: lambda n=name: go_on(n) for name in group})
    assert min(results.values()) >= 3


@pytest.mark.parametrize("me", ["c0", "c1"])
def test_who_does_not_wait_any_longer_is_back_soon(me):
    addresses = free_addresses(2)
    group = open_peers(addresses, Schedule("all"), timeout_s=1000.0)
    until = time.monotonic() + 0.5
    results = at_once({me: lambda: group[me].exchange(some_arrays(0), 1, lambda: time.monotonic() < until)[1]})
    close(group)
    assert results[me].met == ()


def bad(what):
    arrays = some_arrays(0)
    if what == "nan":
        arrays["weight"][3, 3] = np.nan
    elif what == "shape":
        arrays["weight"] = np.zeros((31, 8), np.float32)
    elif what == "names":
        arrays["more"] = np.zeros(2)
    return arrays


@pytest.mark.parametrize(
    ("what", "reason"),
    [("nan", "weight["), ("shape", "float32[31, 8]"), ("names", "'more'")],
)
@pytest.mark.parametrize("liar", ["c0", "c1"])
def test_what_does_not_count_is_refused_with_a_reason_by_both_sides(what, reason, liar, monkeypatch):
    addresses = free_addresses(2)
    honest = "c1" if liar == "c0" else "c0"
    arrays = {liar: bad(what), honest: some_arrays(1)}
    judge = gossip_module.why_not_finite
    monkeypatch.setattr(gossip_module, "why_not_finite", lambda a: None if a is arrays[liar] else judge(a))
    group = open_peers(addresses, Schedule("all"), timeout_s=5.0)
    mixed, reports = one_round(group, arrays, 1)
    close(group)
    assert mixed[honest] is arrays[honest]
    assert mixed[liar] is arrays[liar]
    if what == "nan":  # where layouts differ, the one who is called finds out, and cannot say who is right
        assert reason in reports[honest].refused[liar]
        assert reason in reports[liar].missed[honest]
    else:
        text = str(reports[honest]) + str(reports[liar])
        assert reason in text
    assert all(report.met == () for report in reports.values())


def test_a_check_of_ones_own_may_refuse_too():
    addresses = free_addresses(2)
    group = open_peers(addresses, Schedule("all"), check=lambda own, theirs: "too far away")
    arrays = {name: some_arrays(index) for index, name in enumerate(addresses)}
    mixed, reports = one_round(group, arrays, 1)
    close(group)
    assert mixed == arrays
    assert reports["c0"].refused == {"c1": "too far away"}


def test_own_arrays_that_are_not_finite_are_not_sent():
    addresses = free_addresses(2)
    expected = pytest.raises(FederationError, match=r"c0 .*: weight\[.*\] is nan")
    with Gossip("c0", addresses, TOKEN, Schedule("all")) as peer, expected:
        peer.exchange(bad("nan"), 1)


def guests(addresses):
    """Connections to c1 that are none of its business: they are refused, or say nothing."""
    place = parse_address(addresses["c1"])
    records = peers.describe(some_arrays(0))
    deadline = time.monotonic() + 10
    links = [connect_peer(place, 2.0) for _ in range(5)]
    links[0]._socket.sendall(os.urandom(1000))
    links[1].send(Hello("no token", "c0", 1, records), deadline)
    links[2].send(Hello(TOKEN, "c9", 1, records), deadline)
    links[3].send(Hello(TOKEN, "c2", 1, records), deadline)  # a peer that is called, and does not call
    return links


def test_strangers_are_counted_and_cost_nothing(monkeypatch):
    monkeypatch.setattr(peer_links, "ENTER_S", 1000.0)
    addresses = free_addresses(3)
    group = open_peers(addresses, Schedule("all"), timeout_s=1000.0)  # nobody can afford to wait for the silent one
    links = guests(addresses)
    arrays = {name: some_arrays(index) for index, name in enumerate(addresses)}
    _, reports = one_round(group, arrays, 1)
    close(group)
    assert reports["c1"].met == ("c0", "c2")
    assert reports["c1"].strangers == 4
    said = links[1].receive(time.monotonic() + 5)[0]
    assert said == PeerRefusal("the token is not this run's")
    for link in links:
        link.close()


def call(me, addresses, arrays):
    """Call c2 as a peer does; returns its last word."""
    deadline = time.monotonic() + 20
    with connect_peer(parse_address(addresses["c2"]), 2.0) as link:
        link.send(Hello(TOKEN, me, 1, peers.describe(arrays)), deadline)
        said, size = link.receive(deadline, MAX_DATA)
        if isinstance(said, Take):
            receive_data(link, size, size, deadline)
            link.send(Take(), deadline, peers.pack(arrays).data)
            said, _ = link.receive(deadline, MAX_DATA)
        return said


def test_a_call_that_is_repeated_counts_once():
    addresses = free_addresses(3)
    arrays = {name: some_arrays(index) for index, name in enumerate(addresses)}
    other = some_arrays(77)
    with Gossip("c2", addresses, TOKEN, Schedule("all")) as peer:
        work = {
            "c2": lambda: peer.exchange(arrays["c2"], 1),
            "calls": lambda: [
                call(me, addresses, sent)
                for me, sent in (("c0", arrays["c0"]), ("c0", arrays["c0"]), ("c0", other), ("c1", arrays["c1"]))
            ],
        }
        results = at_once(work)
    twice = PeerRefusal("c0 was met in round 1 already")
    assert results["calls"] == [Exchanged(), twice, twice, Exchanged()]
    held, report = results["c2"]
    assert (report.met, report.strangers) == (("c0", "c1"), 2)
    np.testing.assert_allclose(held["bias"], np.mean([a["bias"] for a in arrays.values()], axis=0), rtol=1e-12)
