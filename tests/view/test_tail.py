"""Files that grow are read line by line, whole lines only, and anew when they were cut back."""

import os

from hypothesis import given
from hypothesis import strategies as st

from slipstream.view import tail as module
from slipstream.view.tail import Tail, last_lines


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


def drain(tail):
    found = []
    while lines := tail.read():
        found += lines
    return found


def test_a_line_is_told_once_and_only_when_it_is_whole(tmp_path):
    path = tmp_path / "lines"
    tail = Tail(path)
    assert tail.read() == []  # not there yet
    append(path, b"one\ntw")
    assert tail.read() == [b"one"]
    assert tail.read() == []
    append(path, b"o\nthree\n")
    assert tail.read() == [b"two", b"three"]
    assert not tail.restarted


@given(st.lists(st.binary(min_size=1, max_size=40).filter(lambda line: b"\n" not in line), max_size=30), st.data())
def test_however_the_bytes_arrive_the_lines_are_those_of_the_file(tmp_path_factory, lines, data):
    path = tmp_path_factory.mktemp("tail") / "lines"
    content = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    tail, found = Tail(path), []
    for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        append(path, content[begin:end])
        found += drain(tail)
    assert found == lines


def test_a_file_that_was_cut_back_is_read_anew(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"1\n2\n3\n4\n")
    tail = Tail(path)
    assert len(drain(tail)) == 4
    os.truncate(path, 4)
    assert tail.read() == [b"1", b"2"]
    assert tail.restarted
    assert tail.read() == []
    assert not tail.restarted


def test_a_cut_is_seen_even_where_the_file_has_grown_past_the_old_place(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"1\n2\n3\n4\n")
    tail = Tail(path)
    drain(tail)
    os.truncate(path, 4)
    append(path, b"5\n6\n7\n8\n")  # longer than before, and other lines at the end of what was read
    assert tail.read() == [b"1", b"2", b"5", b"6", b"7", b"8"]
    assert tail.restarted


def test_one_call_reads_a_bounded_number_of_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ_BYTES", 10)
    path = tmp_path / "lines"
    path.write_bytes(b"1234\n" * 7)
    tail = Tail(path)
    assert [len(tail.read()) for _ in range(5)] == [2, 2, 2, 1, 0]


def test_a_line_without_end_is_passed_over_and_takes_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ_BYTES", 100)
    monkeypatch.setattr(module, "LINE_BYTES", 50)
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 1000 + b"\nafter\n")
    tail = Tail(path)
    for _ in range(11):
        found = tail.read()
    assert found[-1] == b"after"


def test_the_last_lines_are_whole_ones(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"first\nsecond\nthird\n")
    assert drain(last_lines(path, 10)) == [b"third"]
    assert drain(last_lines(path, 1000)) == [b"first", b"second", b"third"]
    assert drain(last_lines(tmp_path / "none", 10)) == []
