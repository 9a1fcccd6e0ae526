"""The wire: packets are found in any noise, frames go out on time, and pills lie where they were sent."""

import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.errors import ScenarioError
from slipstream.worlds import drmario
from slipstream.worlds.drmario import Engine, bridge
from slipstream.worlds.drmario.bridge import (
    TO_DEVICE,
    TO_HOST,
    Bridge,
    BridgeError,
    BridgeTimeoutError,
    Loopback,
    Packet,
    PacketDecoder,
    Sight,
    crc8,
    encode,
    open_serial,
    play,
    virtual_time,
)
from slipstream.worlds.drmario.pixels import seen_in
from slipstream.worlds.drmario.position import plan_engine, pose_of, position_of

PERIOD_S = 1.0 / 60.0988
packets = st.builds(Packet, st.integers(0, 255), st.integers(0, 255))


# --- packets ---


def test_the_check_is_the_crc_8_that_everybody_has():
    """CRC-8/SMBUS: its check value in the public catalogues is 0xF4."""
    assert crc8(b"123456789") == 0xF4


def found_plainly(mark, data):
    """The obvious way: look at every byte in turn."""
    found, at = [], 0
    while at + 4 <= len(data):
        if data[at] == mark and crc8(data[at : at + 3]) == data[at + 3]:
            found.append(Packet(data[at + 1], data[at + 2]))
            at += 4
        else:
            at += 1
    return found


noise = st.binary(max_size=12) | st.lists(st.sampled_from([TO_DEVICE, TO_HOST, 0, 7]), max_size=9).map(bytes)


@given(st.lists(packets | noise, max_size=12), st.lists(st.integers(1, 9), max_size=20))
@settings(max_examples=150, deadline=None)
def test_packets_are_found_in_any_noise_and_in_any_pieces(parts, cuts):
    data = b"".join(encode(TO_DEVICE, part) if isinstance(part, Packet) else part for part in parts)
    decoder, found, at = PacketDecoder(TO_DEVICE), [], 0
    for cut in [*cuts, len(data)]:
        found += decoder.feed(data[at : at + cut])
        at += cut
    assert found == found_plainly(TO_DEVICE, data)
    assert decoder.passed_over + 4 * len(found) <= len(data) < decoder.passed_over + 4 * len(found) + 4


@given(st.lists(st.tuples(st.binary(max_size=9).map(lambda noise: noise.replace(b"\xa5", b"")), packets), max_size=9))
@settings(deadline=None)
def test_noise_without_a_mark_costs_no_packet(parts):
    data = b"".join(before + encode(TO_DEVICE, packet) for before, packet in parts)
    assert PacketDecoder(TO_DEVICE).feed(data) == [packet for _, packet in parts]


@given(packets, st.integers(0, 31))
def test_a_packet_with_one_bit_wrong_is_none(packet, bit):
    wrong = bytearray(encode(TO_DEVICE, packet))
    wrong[bit // 8] ^= 1 << bit % 8
    assert PacketDecoder(TO_DEVICE).feed(bytes(wrong)) == []


# --- the sender ---


class Hostile:
    """A wire that loses, garbles, repeats and adds bytes as a generator says, in front of a device."""

    def __init__(self, device, rng, rate):
        self._device, self._rng, self._rate = device, rng, rate

    def _spoil(self, data):
        spoilt = b""
        for byte in data:
            what = self._rng.random()
            if what < self._rate:  # lost
                continue
            spoilt += bytes((byte ^ (1 << int(self._rng.integers(8))),)) if what < 2 * self._rate else bytes((byte,))
            if what > 1 - self._rate:
                spoilt += self._rng.integers(0, 256, int(self._rng.integers(1, 6)), np.uint8).tobytes()
        return spoilt

    def write(self, data):
        self._device.write(self._spoil(data))
        return len(data)

    def read(self, size):
        return self._spoil(self._device.read(size))


@pytest.mark.parametrize("seed", range(4))
def test_every_frame_is_played_once_over_a_bad_wire(seed):
    """The game over the wire is the game without one, byte by byte."""
    rng = np.random.default_rng(seed)
    buttons = rng.choice(np.array([0, 1, 2, 4, 64, 128], np.uint8), 600)
    device, alone = Loopback(Engine(level=5)), Engine(level=5)
    sender = Bridge(Hostile(device, rng, 0.02), virtual_time(), attempts=40)
    for byte in buttons.tolist():
        sender.press(byte)
        alone.step(byte)
        assert (device.engine.pill, device.engine.frame_counter) == (alone.pill, alone.frame_counter)
    np.testing.assert_array_equal(device.engine.board, alone.board)
    assert sender.traffic.frames == 600
    assert sender.traffic.resent > 20
    assert sender.traffic.passed_over > 0


def test_an_answer_that_comes_late_is_not_taken_for_the_next():
    """Answers are held back until something else is sent, and every fifth packet is lost."""

    class Tardy(Loopback):
        sent, held_back = 0, b""

        def write(self, data):
            self.sent += 1
            self.held_back += super().read(64)
            return len(data) if self.sent % 5 == 0 else super().write(data)

        def read(self, size):
            answers, self.held_back = self.held_back, b""
            return answers

    device, alone = Tardy(Engine(level=5)), Engine(level=5)
    sender = Bridge(device, virtual_time(), attempts=9)
    for byte in np.random.default_rng(1).choice([0, 1, 2, 4, 64, 128], 300).tolist():
        sender.press(byte)
        alone.step(byte)
        assert device.engine.frame_counter == alone.frame_counter
    np.testing.assert_array_equal(device.engine.board, alone.board)


@given(st.binary(max_size=64))
@settings(max_examples=100, deadline=None)
def test_no_bytes_from_a_device_are_taken_for_an_answer_or_break_the_sender(data):
    class Babbling:
        def __init__(self):
            self.left = data

        def write(self, sent):
            return len(sent)

        def read(self, size):
            taken, self.left = self.left[:size], self.left[size:]
            return taken

    sender = Bridge(Babbling(), virtual_time())
    if Packet(0, 0) in [packet._replace(value=0) for packet in found_plainly(TO_HOST, data)]:
        sender.press(0)
    else:
        with pytest.raises(BridgeTimeoutError, match="packet 0"):
            sender.press(0)


def test_a_device_that_is_silent_or_full_is_named_in_an_error():
    class Dead:
        def __init__(self, takes):
            self.takes, self.sent = takes, 0

        def write(self, data):
            self.sent += bool(self.takes)
            return len(data) if self.takes else None

        def read(self, size):
            return None

    silent = Dead(takes=True)
    with pytest.raises(BridgeTimeoutError, match=r"frame 0: .*packet 0 .*8 ms, 3 "):
        Bridge(silent, virtual_time(), attempts=3).press(128)
    assert silent.sent == 3
    with pytest.raises(BridgeTimeoutError, match=r"frame 0: .*\b0 of \d+ bytes .*8 ms"):
        Bridge(Dead(takes=False), virtual_time()).press(128)


def test_deadlines_do_not_drift():
    """20,000 frames, each taking a different part of its period: the last goes out on time to a microsecond."""
    clock, rng = virtual_time(), np.random.default_rng(0)
    sent_at = []

    class Slow(Loopback):
        def write(self, data):
            sent_at.append(clock.now())
            clock.sleep(float(rng.uniform(0.0, 0.9 * PERIOD_S)))
            return super().write(data)

    sender = Bridge(Slow(Engine(level=20)), clock)
    for _ in range(20_000):
        sender.press(0)
    np.testing.assert_allclose(sent_at, np.arange(20_000) * PERIOD_S, atol=1e-6)
    assert sender.traffic.missed == 0


def test_a_frame_that_is_late_is_counted_and_those_after_it_catch_up():
    clock, sent_at = virtual_time(), []

    class Stalls(Loopback):
        def write(self, data):
            sent_at.append(clock.now())
            clock.sleep(3.5 * PERIOD_S if len(sent_at) == 10 else 0.0)
            return super().write(data)

    sender = Bridge(Stalls(Engine()), clock)
    for _ in range(30):
        sender.press(0)
    assert sender.traffic.missed == 3
    assert sender.traffic.latest_s == pytest.approx(2.5 * PERIOD_S)
    np.testing.assert_allclose(sent_at[14:], np.arange(14, 30) * PERIOD_S, atol=1e-9)


def test_a_serial_line_is_a_wire():
    """A pseudo terminal has the line's manners: raw bytes both ways, none of them eaten or changed."""
    ours, theirs = os.openpty()
    device, over = Loopback(Engine()), threading.Event()

    def answer():
        while not over.is_set():
            device.write(os.read(ours, 64))
            os.write(ours, device.read(64))

    thread = threading.Thread(target=answer, daemon=True)
    alone = Engine()
    with open_serial(os.ttyname(theirs)) as wire:
        thread.start()
        sender = Bridge(wire, answer_within_s=5.0, attempts=1)
        for byte in (0, 2, 0, 13, 10, 3, 17, 19, 128, 0x1A):  # among them what a cooked terminal would change
            sender.press(byte)
            alone.step(byte)
        over.set()
        wire.write(encode(TO_DEVICE, Packet(200, 0)))
        thread.join(5)
    assert device.engine.pill == alone.pill
    os.close(ours), os.close(theirs)


def test_what_is_no_serial_line_is_refused(tmp_path):
    file = tmp_path / "no_tty"
    file.write_bytes(b"")
    with pytest.raises(BridgeError, match=str(file)), open_serial(file):
        pass
    with pytest.raises(ScenarioError, match=r"12345 baud .*115200"), open_serial(file, baud=12345):
        pass


# --- the loop ---


class Filmed(Loopback):
    """A loopback in front of a camera that shows every frame, so many frames late."""

    def __init__(self, engine, latency=0):
        super().__init__(engine)
        nothing = Sight(np.full((16, 8), 0xFF, np.uint8), (0, 0))
        self.latency, self.film = latency, [nothing] * latency
        self.locked_after = []  # frames
        self._take()

    def _take(self):
        self.film.append(Sight(seen_in(self.engine), self.engine.preview))

    def write(self, data):
        before = len(self.locked)
        taken = super().write(data)
        self._take()
        if len(self.locked) > before:
            self.locked_after.append(len(self.film) - 1 - self.latency)
        return taken

    def look(self):
        return self.film[-1 - self.latency]


@pytest.mark.parametrize(("speed", "latency", "frame_counter"), [(2, 0, 1), (2, 3, 0), (1, 1, 1), (1, 3, 0), (0, 2, 1)])
def test_pills_lie_where_the_policy_sent_them(speed, latency, frame_counter):
    """Seen late, at every speed, from either parity: the engine says where pills locked."""
    rng, chosen, due = np.random.default_rng(speed), [], []
    board, reserve = drmario.generate(3, drmario.seed_at(50 + latency))
    engine = Engine.from_state(board=board, reserve=reserve, level=3, speed=speed, frame_counter=frame_counter)
    device = Filmed(engine, latency)

    def policy(position, frames):
        truth = position_of(device.engine)._replace(hor_velocity=0)
        assert position[1:] == truth[1:], "what cannot be seen was worked out"
        np.testing.assert_array_equal(position.board, truth.board)
        low = np.flatnonzero((frames != 0xFFFF) & (np.arange(512) % 128 >= 24))
        chosen.append(int(rng.choice(low)))
        due.append(len(device.film) - 1 - latency + int(frames[chosen[-1]]))
        return chosen[-1]

    placed = play(
        Bridge(device, virtual_time()), device.look, policy, pills=14, speed=speed, latency=latency,
        frame_counter=frame_counter,
    )  # fmt: skip
    assert [pill.placement for pill in placed] == chosen
    assert device.locked == [pose_of(placement) for placement in chosen]
    assert device.locked_after == due, "to the frame: gravity was foreseen from what cannot be seen"
    assert len(chosen) == 14, "so that one speed-up is among them"
    assert all(pill.as_planned for pill in placed)


def test_the_parity_of_the_frame_counter_is_found_out():
    """It cannot be seen; two pills in a row that land elsewhere tell."""
    board, reserve = drmario.generate(0, drmario.seed_at(8))
    engine = Engine.from_state(board=board, reserve=reserve, speed="low", frame_counter=1)
    device = Filmed(engine)

    def deep_left(position, frames):
        reachable = np.flatnonzero(frames != 0xFFFF)
        return int(reachable[np.lexsort((-(reachable % 128 // 8), reachable % 8))[0]])

    placed = play(Bridge(device, virtual_time()), device.look, deep_left, pills=6, speed=0, frame_counter=0)
    assert [pill.as_planned for pill in placed] == [False, False, True, True, True, True]


def test_the_loop_ends_when_the_game_does():
    """Cleared: no pill comes any more. Full: the last one stays at the top."""
    board = np.full((16, 8), 0xFF, np.uint8)
    board[15, 0:3] = 0xD0
    engine = Engine.from_state(board=board, reserve=np.zeros(128, np.uint8))
    device = Filmed(engine)

    def beside(position, frames):
        return 3 * 128 + 15 * 8 + 3

    assert len(play(Bridge(device, virtual_time()), device.look, beside, pills=9, speed=2)) == 1
    assert engine.terminal == drmario.Terminal.CLEAR
    full = Filmed(Engine(level=0))

    def stack(position, frames):
        return int(np.flatnonzero(frames != 0xFFFF)[0])

    placed = play(Bridge(full, virtual_time()), full.look, stack, pills=60, speed=2)
    assert full.engine.terminal == drmario.Terminal.TOP_OUT
    assert len(placed) < 60


def test_what_cannot_be_seen_in_time_is_refused():
    with pytest.raises(ScenarioError, match="latency of 4"):
        play(Bridge(Loopback(Engine()), virtual_time()), None, None, pills=1, speed=2, latency=4)


def test_the_engine_behind_a_loopback_gets_the_planners_buttons_unchanged():
    engine, alone = Engine(level=1), Engine(level=1)
    script = plan_engine(engine).script(int(np.flatnonzero(plan_engine(engine).cost_to_lock != 0xFFFF)[-1]))
    device = Loopback(engine)
    sender = Bridge(device, virtual_time())
    for byte in script:
        sender.press(byte)
    alone.run(script)
    np.testing.assert_array_equal(engine.board, alone.board)
    assert bridge.RATE_HZ == 60.0988
