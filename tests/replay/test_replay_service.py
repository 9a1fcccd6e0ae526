"""The replay service as clients see it: consistent draws, exact accounting, back-pressure, kills, hostile bytes."""

import multiprocessing
import os
import re
import struct
import threading
import time

import msgspec
import numpy as np
import psutil
import pytest
from replay_faults import Process, besiege, client, cycle_service, is_whole, kill_service, made_by, service, until

from slipstream.data.transitions import to_fields
from slipstream.errors import ReplayRefusedError, ReplayTimeoutError, ScenarioError
from slipstream.replay.buffer import Prioritised, Replay, lay_out
from slipstream.replay.link import ask
from slipstream.replay.messages import (
    ANSWERS,
    MAX_REQUEST,
    REQUESTS,
    SLOTS,
    AskStatistics,
    Draw,
    Enqueue,
    EnterReplay,
    Join,
    LaneSpec,
    ReplayRefusal,
    Snapshot,
    TableSpec,
    Weigh,
    describe,
)
from slipstream.replay.sharing import Limit
from slipstream.replay.snapshot import Snapshots
from slipstream.replay.table import Table
from slipstream.runtime.address import connect, listen, parse_address
from slipstream.runtime.frames import HEAD, MAGIC, VERSION, MessageProtocol, WireError


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("prioritised", [None, Prioritised()])
def test_one_client_gets_the_same_bits_as_from_a_replay_in_memory(tcp, prioritised, tmp_path):
    with service(tmp_path, tcp=tcp) as process:
        served = client(process, capacity=500, seed=7, prioritised=prioritised)
        own = Replay(made_by(0, 0, 0), 500, 7, prioritised)
        rng = np.random.default_rng(0)
        at = 0
        for draw in range(30):
            rows = made_by(1, at, int(rng.integers(1, 200)))  # larger than a chunk of 64 at times
            at += len(rows)
            own.add(rows)
            served.add(rows)
            assert (len(served), served.total_added) == (len(own), own.total_added)
            expected, drawn = own.sample(64, draw, 0.4), served.sample(64, draw, 0.4)
            for name, array in to_fields(drawn.rows).items():
                np.testing.assert_array_equal(array, to_fields(expected.rows)[name])
            np.testing.assert_array_equal(drawn.index, expected.index)
            np.testing.assert_array_equal(drawn.weight, expected.weight)
            error = rng.normal(size=64).astype(np.float32)
            own.update_priorities(expected.index, error)
            served.update_priorities(drawn.index.copy(), error)
        for name, array in own.state_arrays().items():
            np.testing.assert_array_equal(served.state_arrays()[name], array)
        for name, array in own.read(at - 400, at).items():
            np.testing.assert_array_equal(served.read(at - 400, at)[name], array)
        served.close()


def test_what_a_checkpoint_read_can_be_put_back_into_another_lane(tmp_path):
    with service(tmp_path) as process:
        old = client(process, "old", capacity=300, prioritised=Prioritised())
        old.add(made_by(1, 0, 450))
        drawn = old.sample(64, 0)
        old.update_priorities(drawn.index.copy(), np.arange(64.0))
        state, rows = old.state_arrays(), old.read(150, 450)
        new = client(process, "new", capacity=300, prioritised=Prioritised(), mixing="local")
        new.load_state(state)
        new.write(150, rows)
        for name, array in state.items():
            np.testing.assert_array_equal(new.state_arrays()[name], array)
        for name, array in rows.items():
            np.testing.assert_array_equal(new.read(150, 450)[name], array)
        new.add(made_by(1, 450, 10))
        assert new.total_added == 460
        new.settle()
        assert new.lost == 0


def test_several_producers_and_a_learner_see_whole_rows_and_every_row_is_counted(tmp_path):
    """Fake clients with known data: what was sent is what is there, and draws are never torn."""
    with service(tmp_path) as process:
        makers = [client(process, f"p{who}", capacity=5000) for who in range(3)]
        learner = client(process, "learner", capacity=64, mixing="uniform")
        sent = [0, 0, 0]

        def produce(who: int) -> None:
            rng = np.random.default_rng(who)
            for _ in range(60):
                count = int(rng.integers(1, 150))
                makers[who].add(made_by(who, sent[who], count))
                sent[who] += count
            makers[who].settle()

        threads = [threading.Thread(target=produce, args=(who,)) for who in range(3)]
        for thread in threads:
            thread.start()
        drawn = 0
        while drawn < 200 or any(thread.is_alive() for thread in threads):
            assert is_whole(learner.sample(64, drawn).rows)
            drawn += 1
        for thread in threads:
            thread.join()
        table = process.stats(check=True).tables["t"]
        lanes = {lane.client: lane for lane in table.lanes}
        assert [lanes[f"p{who}"].added for who in range(3)] == sent
        assert (table.added, table.drawn, table.rows) == (sum(sent), 64 * drawn, sum(min(n, 5000) for n in sent))
        assert sum(lane.drawn for lane in table.lanes) == table.drawn
        assert table.sample_insert_ratio == pytest.approx(64 * drawn / sum(sent))
        for who in range(3):
            held = np.arange(max(0, sent[who] - 5000), sent[who])
            found = makers[who].read(int(held[0]), sent[who])
            np.testing.assert_array_equal(found["reward"], held)
            assert (found["action"] == who).all()


def test_a_producer_waits_for_the_learner_and_goes_on_when_it_draws(tmp_path):
    limit = Limit(min_size=64, samples_per_insert=1.0, tolerance=64.0)
    with service(tmp_path) as process:
        maker = client(process, "maker", limit=limit)
        learner = client(process, "learner", limit=limit, mixing="uniform", capacity=64)
        done = threading.Event()

        def produce() -> None:
            for chunk in range(6):
                maker.add(made_by(0, 64 * chunk, 64))
            maker.settle()
            done.set()

        thread = threading.Thread(target=produce)
        thread.start()
        until(lambda: process.stats().tables["t"].waits)
        (wait,) = process.stats().tables["t"].waits
        assert re.search("maker: 64 .*; 128 .* 0 ", wait)
        assert not done.is_set()
        for draw in range(4):
            learner.sample(64, draw)
        thread.join(10)
        assert done.is_set()
        table = process.stats().tables["t"]
        assert (table.added, table.drawn) == (384, 256)


def test_a_run_that_is_resumed_puts_its_rows_back_and_nobody_waits_for_that(tmp_path):
    """They were added once: if they counted again, every producer would wait for draws that nobody can make."""
    limit = Limit(min_size=64, samples_per_insert=1.0, tolerance=256.0)
    with service(tmp_path) as process:
        one, other = (
            client(process, name, limit=limit, timeout_s=20.0, capacity=1000, mixing="uniform") for name in "ab"
        )
        rows = 0
        for number in range(20):
            if number == 10:
                state, held = one.state_arrays(), one.read(0, rows)
                one.load_state(state)
                one.write(0, held)
            for who in (one, other):
                who.add(made_by(0, rows, 64))
                who.sample(64, number)
            rows += 64
        one.close()
        other.close()


def test_a_wait_ends_by_its_deadline_with_who_waited_for_what(tmp_path):
    limit = Limit(min_size=100)
    with service(tmp_path) as process:
        learner = client(process, "learner", limit=limit, timeout_s=0.3)
        learner.add(made_by(0, 0, 10))
        expected = r"learner/all .* 0\.3 s .* 64 rows .* t: .* 100 .* 10 "
        with pytest.raises(ReplayTimeoutError, match=expected):
            learner.sample(64, 0)
        limited = Limit(min_size=1, samples_per_insert=1.0, tolerance=64)
        maker = client(process, "maker", limit=limited, table="other", timeout_s=0.3)
        with pytest.raises(ReplayTimeoutError, match=r"maker/all.*0\.3 s"):
            maker.add(made_by(0, 0, 40 * 64))


def test_who_does_not_agree_about_a_table_is_refused(tmp_path):
    with service(tmp_path) as process:
        first = client(process, "a", meaning="gamma 0.99")
        with pytest.raises(ReplayRefusedError, match=r"'gamma 0\.99'.*'gamma 0\.9'"):
            client(process, "b", meaning="gamma 0.9")
        with pytest.raises(ReplayRefusedError, match="prioritised"):
            client(process, "b", meaning="gamma 0.99", prioritised=Prioritised())
        with pytest.raises(ReplayTimeoutError, match="a/all"):
            client(process, "a", meaning="gamma 0.99", timeout_s=0.3)
        with pytest.raises(ReplayRefusedError, match="252"):
            client(process, "c", table="u", limit=Limit(1, 4.0, 1.0))
        first.close()
        until(lambda: process.stats().clients == 1)
        client(process, "a", meaning="gamma 0.99").close()


def test_weights_and_performance_move_draws(tmp_path):
    with service(tmp_path) as process:
        a, b = client(process, "a", mixing="uniform"), client(process, "b", mixing="uniform", strength=20.0)
        for who, each in enumerate((a, b)):
            each.add(made_by(who, 0, 50))
            each.settle()
        assert ask(process.address, "", Weigh("t", "b", "", 0.0)) is not None
        assert (a.sample(64, 0).rows.action == 0).all()
        ask(process.address, "", Weigh("t", "b", "", 1.0))
        a.report(5.0)
        a.settle()
        b.report(1.0)
        assert (b.sample(64, 0).rows.action == 0).mean() > 0.9
        shares = b.lane_shares()
        assert set(shares) == {"a/all", "b/all"}
        assert sum(shares.values()) == pytest.approx(1.0)


# --- kills ---


def test_ten_kills_lose_at_most_an_interval_and_duplicate_nothing(tmp_path):
    kills = kill_service(tmp_path, 10, np.random.default_rng(0))
    assert kills.faults == []
    assert len(kills.back_s) == 10


def test_a_connection_that_breaks_loses_and_repeats_nothing(tmp_path):
    """No kill: only the line goes, again and again, in the middle of whatever is under way."""
    with service(tmp_path) as process:
        served = client(process, capacity=100_000)
        rng, sent = np.random.default_rng(3), 0
        for step in range(60):
            count = int(rng.integers(1, 200))
            served.add(made_by(1, sent, count))
            sent += count
            if step % 3 == 0:
                served._link._connection.framed.cut()
        served.settle()
        assert (served.total_added, served.lost) == (sent, 0)
        np.testing.assert_array_equal(served.read(0, sent)["reward"], np.arange(sent))


def test_a_connection_that_breaks_after_the_service_took_all_rows_and_before_it_said_so_is_made_again(tmp_path):
    """Nothing is left to be sent again, so no answer will come either."""
    with service(tmp_path) as process:
        served = client(process, capacity=10_000)
        for chunk in range(SLOTS):  # after these a client waits before it adds more
            served.add(made_by(1, 64 * chunk, 64))
        until(lambda: process.stats().tables["t"].added == 64 * SLOTS)
        served._link._connection.close()  # with the answers
        served.add(made_by(1, 64 * SLOTS, 64))
        until(lambda: process.stats().tables["t"].added == 64 * (SLOTS + 1))
        served._link._connection.close()
        served.settle()
        sent = 64 * (SLOTS + 1)
        assert (served.total_added, served.lost) == (sent, 0)
        np.testing.assert_array_equal(served.read(0, sent)["reward"], np.arange(sent))


def test_a_connection_that_breaks_while_only_priorities_are_on_their_way_lets_them_go(tmp_path):
    with service(tmp_path) as process:
        served = client(process, prioritised=Prioritised())
        served.add(made_by(1, 0, 100))
        drawn = served.sample(64, 0)
        served.update_priorities(drawn.index.copy(), np.full(64, 7.0))
        served._link._connection.framed.cut()
        served.settle()
        assert served.state_arrays()["priority"].tolist() == [1.0] * 100
        assert [event["what"] for event in served.take_events()] == ["reconnected"]


def test_a_service_that_stays_away_is_an_error_that_says_so(tmp_path):
    with service(tmp_path) as process:
        served = client(process, timeout_s=0.5)
        served.add(made_by(0, 0, 5))
        process.kill()
        with pytest.raises(ReplayTimeoutError, match=r"a/all.*0\.5 s.*64 rows"):
            served.sample(64, 0)


def test_starting_and_killing_leaves_nothing_behind(tmp_path):
    assert cycle_service(tmp_path, 20) == []
    assert not multiprocessing.active_children()


def test_the_service_ends_when_its_parent_does(tmp_path):
    process = Process(tmp_path)
    process.line.close()
    process.child.join(5)
    assert process.child.exitcode == 0
    assert not (tmp_path / "r.sock").exists()


def test_rows_that_were_put_back_are_saved_though_their_numbers_were_saved_before(tmp_path):
    with service(tmp_path, keep=True, every_s=1e9) as process:
        served = client(process, capacity=200)
        served.add(made_by(1, 0, 150))
        served.settle()
        ask(process.address, "", Snapshot())
        state, rows = served.state_arrays(), served.read(0, 150)
        served.load_state(state)
        ask(process.address, "", Snapshot())  # between the two
        served.write(0, {**rows, "action": rows["action"] + 6})
        ask(process.address, "", Snapshot())
        process.kill()
        process.start()
        served.settle()
        assert (served.read(0, 150)["action"] == 7).all()


def test_rows_that_come_while_a_snapshot_is_written_are_in_it_or_in_the_next(tmp_path):
    """Between any two writes rows are added and old ones overwritten; what is read back is one moment's, exactly."""
    made = Table(TableSpec(describe(lay_out(to_fields(made_by(0, 0, 0)))), "", (0.6, 1e-6), Limit()))
    lane = made.join(LaneSpec("a", "all", 200_000, 1), 64, 64, 1 << 30)
    lane.replay.add(made_by(1, 0, 190_000))
    snapshots = Snapshots(tmp_path / "s")
    for _ in range(3):
        writes = 0
        for write in snapshots.save({"t": made}):
            seen, state = lane.replay.total_added, lane.replay.state_arrays()
            lane.replay.add(made_by(1, lane.replay.total_added, 150_000))
            lane.replay.update_priorities(np.arange(100), np.full(100, 3.0 + seen))
            write()
            writes += 1
        assert writes == 2, "most rows go before the last write"
        snapshots.close()
        snapshots = Snapshots(tmp_path / "s")
        (found,) = snapshots.load()["t"].lanes
        assert found.replay.total_added == seen
        for name, array in found.replay.state_arrays().items():
            np.testing.assert_array_equal(array, state[name])
        held = found.replay.read(seen - len(found.replay), seen)
        np.testing.assert_array_equal(held["reward"], np.arange(seen - len(found.replay), seen))
    snapshots.close()


# --- who may talk to it ---


def test_nothing_listens_beyond_this_machine_and_tcp_needs_the_token(tmp_path):
    with service(tmp_path, tcp=True) as process:
        listeners = [c for c in psutil.Process(process.child.pid).net_connections() if c.status == "LISTEN"]
        assert {c.laddr.ip for c in listeners} == {"127.0.0.1"}
        with pytest.raises(ReplayRefusedError, match="token"):
            ask(process.address, "a token that somebody guessed", AskStatistics())
        assert process.stats().clients == 1
    with service(tmp_path) as process:
        assert not [c for c in psutil.Process(process.child.pid).net_connections() if c.status == "LISTEN"]
        assert os.stat(tmp_path / "r.sock").st_mode & 0o077 == 0
        with pytest.raises(ScenarioError, match=re.escape(f"{process.address}: ")):
            listen(parse_address(process.address), "")
        assert process.stats().clients == 1  # the one that listens there is still there
    with pytest.raises(ScenarioError, match="--token-file"):
        listen(parse_address("tcp://127.0.0.1:0"), "")
    with pytest.raises(ScenarioError, match=r"localhost: .*ipc://PATH .*tcp://HOST:PORT"):
        parse_address("localhost")


# --- hostile bytes ---


HERE = (MAGIC, VERSION, MessageProtocol.REPLAY)


@pytest.mark.parametrize(
    ("head", "complaint"),
    [
        ((*HERE, MAX_REQUEST + 1, 0), r"16,385 \+ 0 .* 16,384 \+ 8 "),
        ((*HERE, 1, 8 + 1), r" 1 \+ 9 .* 16,384 \+ 8 "),
        ((MAGIC, VERSION, MessageProtocol.PEERS, 1, 0), "protocol peers; .*replay"),
        ((MAGIC, VERSION, 99, 1, 0), "protocol 99; .*replay"),
        ((b"SR", 1, 0, 1, 0), "b'SR'"),  # as the replay service was called in version 1
        ((b"GE", VERSION, 1, 1, 0), "b'GE'"),
        ((MAGIC, VERSION + 1, MessageProtocol.REPLAY, 1, 0), f"version {VERSION + 1}; .* version {VERSION}"),
    ],
)
def test_a_head_is_judged_before_anything_follows_it(head, complaint):
    with pytest.raises(WireError, match=complaint):
        REQUESTS.parse_head(HEAD.pack(*head), 8)
    assert REQUESTS.parse_head(HEAD.pack(*HERE, MAX_REQUEST, 8), 8) == (MAX_REQUEST, 8)


def test_messages_keep_their_words_whatever_the_code_calls_them():
    spec, lane = TableSpec((), "", None, Limit()), LaneSpec("a", "all", 100, 1)
    assert msgspec.to_builtins(Join("t", spec, lane, 64, 32))["block"] == 64
    drawn = msgspec.to_builtins(Draw(32, 5, 1.0, 8, "local"))
    asked = {"ask": "sample", "batch": 32, "draw": 5, "beta": 1.0, "at": 8, "mixing": "local", "strength": 0.0}
    assert drawn == asked | {"evenly": False}


def test_a_client_of_another_protocol_is_told_so(tmp_path):
    with service(tmp_path) as process, connect(parse_address(process.address), 5.0) as link:
        link.sendall(HEAD.pack(MAGIC, VERSION, MessageProtocol.COORDINATOR, 1, 0) + b"x")
        link.settimeout(5.0)
        said = b"".join(iter(lambda: link.recv(1 << 16), b""))
    assert "coordinator" in ANSWERS.parse_whole(said).reason


@pytest.mark.parametrize("tcp", [False, True])
def test_hostile_bytes_neither_stop_nor_bloat_the_service_and_honest_clients_are_served(tcp, tmp_path):
    siege = besiege(tmp_path, 1000, np.random.default_rng(int(tcp)), tcp=tcp)
    assert siege.faults == []
    assert siege.dropped > 300
    assert len(siege.draws_s) == 20


def test_who_is_slow_or_silent_is_hung_up_on(tmp_path):
    with service(tmp_path) as process:  # which gives a second
        address = parse_address(process.address)
        silent, slow, half = connect(address, 5.0), connect(address, 5.0), connect(address, 5.0)
        half.sendall(REQUESTS.frame(EnterReplay("half")) + REQUESTS.frame(AskStatistics())[:-1])
        message, ended = REQUESTS.frame(EnterReplay("slow" * 20)), None
        began = time.monotonic()
        for byte in message:
            try:
                slow.sendall(struct.pack("B", byte))
            except OSError:
                ended = time.monotonic() - began
                break
            time.sleep(0.05)
        assert ended is not None, "it took every byte"
        until(lambda: process.stats().clients == 1)
        for link in (silent, slow, half):
            link.close()


def test_a_client_cannot_use_what_is_not_its_own(tmp_path):
    """Requests that are well formed and wrong end the connection or are refused; the lane stays as it was."""
    with service(tmp_path, memory=1 << 22) as process:
        served = client(process)
        served.add(made_by(1, 0, 10))
        served.settle()
        with pytest.raises(ReplayRefusedError, match=r"greedy/all .*: 1,000,000 rows .*--memory"):
            client(process, "greedy", capacity=10**6)
        with pytest.raises(ReplayRefusedError, match=r"greedy/all .*: .*window of [\d,]+ bytes .* the [\d,]+ "):
            client(process, "greedy", capacity=10**5, batch=10**6)
        for bad in (Enqueue(0, 65, 0), Enqueue(0, 1, 1 << 40), Enqueue(-1, 1, 0), Enqueue(10, 1, 3)):
            served._link._connection.send(bad, time.monotonic() + 5)
            assert isinstance(served._link._connection.receive(time.monotonic() + 5), ReplayRefusal)
            served._link._again(OSError("broken on purpose"), "go on")
        served.settle()
        assert served.total_added == 10
        assert len(process.stats().tables["t"].lanes) == 1
