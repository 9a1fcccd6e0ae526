"""Records that several threads want at once, each kind for the first time."""

import subprocess
import sys

import msgspec
import pytest

from slipstream.config.records import from_json, from_msgpack, from_value

# In a process of its own: where it goes wrong, the process is gone.
RACE = """
import sys, threading, msgspec
from slipstream.config.records import from_json, from_msgpack, from_value
sys.setswitchinterval(1e-6)
for _ in range(300):
    inner = msgspec.defstruct("Inner", [("x", int), ("y", dict[str, list[float]])])
    outer = msgspec.defstruct("Outer", [("a", inner), ("b", tuple[inner, ...]), ("c", dict[str, inner])])
    value = {"a": {"x": 1, "y": {}}, "b": [], "c": {}}
    text, packed, start = msgspec.json.encode(value), msgspec.msgpack.encode(value), threading.Barrier(6)
    calls = [(from_value, value), (from_json, text), (from_msgpack, packed)] * 2
    wrong = []

    def read(call, given):
        start.wait()
        if call(given, outer).a.x != 1:
            wrong.append(call)

    threads = [threading.Thread(target=read, args=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
"""


def test_threads_that_read_a_kind_for_the_first_time_do_not_crash_the_process():
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    x: int


def test_all_ways_give_the_record_and_refuse_what_is_none():
    assert from_json(b'{"x": 1}', Point) == from_msgpack(b"\x81\xa1x\x01", Point) == from_value({"x": 1}, Point)
    assert from_json("[1, null]", list[int | None]) == [1, None]
    for read, given in ((from_json, b'{"y": 1}'), (from_msgpack, b"\x81\xa1y\x01"), (from_value, {"y": 1})):
        with pytest.raises(msgspec.ValidationError):
            read(given, Point)
