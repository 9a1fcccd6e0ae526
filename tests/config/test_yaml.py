"""YAML 1.2 rules, lines, and limits that no bomb passes."""

import itertools
import math
import os
import tracemalloc
from pathlib import Path

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from slipstream.config.yaml import MAX_BYTES, MAX_NODES, dump_yaml, load_yaml, parse_yaml
from slipstream.errors import ScenarioError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3e-4", 3e-4),
        ("1e6", 1e6),
        ("1E+2", 100.0),
        ("-.5", -0.5),
        ("1.", 1.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("12", 12),
        ("-7", -7),
        ("+3", 3),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("off", "off"),
        ("y", "y"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("0b101", "0b101"),
        ("1e", "1e"),
        ("e5", "e5"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("<<", "<<"),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text, expected):
    value = parse_yaml(f"key: {text}\n", "f.yaml").value["key"]
    assert value == expected
    assert type(value) is type(expected)


def test_nan_is_a_number():
    assert math.isnan(parse_yaml("key: .nan", "f.yaml").value["key"])


def test_every_key_and_item_has_its_line():
    text = "a: 1\nb:\n  c: 2\n\n  d:\n    - 3\n    - {e: 4}\n"
    lines = parse_yaml(text, "f.yaml").lines
    assert lines[("a",)] == 1
    assert lines[("b",)] == 2
    assert lines[("b", "c")] == 3
    assert lines[("b", "d")] == 5
    assert lines[("b", "d", 0)] == 6
    assert lines[("b", "d", 1, "e")] == 7


def test_aliases_repeat_a_value():
    assert parse_yaml("a: &x {b: 1}\nc: *x\n", "f.yaml").value == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize(
    ("text", "line", "facts"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, ["'a'", "line 1"]),
        ("a:\n  b: 1\n  b: 1\n", 3, ["'b'", "line 2"]),
        ("a: !!python/object/apply:os.system [ls]\n", 1, ["tag:yaml.org,2002:python/object/apply:os.system"]),
        ("a: !!str 5\n", 1, ["tag:yaml.org,2002:str"]),
        ("a: !local 5\n", 1, ["!local"]),
        ("a: 1\n---\nb: 2\n", 2, ["'---'"]),
        ("a: &x [*x]\n", 1, ["'*x'", "'&x'"]),
        ("a: *nowhere\n", 1, ["'*nowhere'", "'&nowhere'"]),
        ("a: [1, 2\n", None, ["YAML"]),
        ("1: a\n", 1, ["key 1,"]),
        ("[a]: b\n", 1, ["mapping", "key"]),
        ("a: 1\nb: " + "9" * 5000, 2, ["5000 digits"]),
        ("a: \x07\n", None, ["YAML"]),
    ],
)
def test_bad_files_are_refused_with_their_line(text, line, facts):
    with pytest.raises(ScenarioError) as caught:
        parse_yaml(text, "f.yaml")
    assert not [fact for fact in facts if fact not in str(caught.value)]
    assert str(caught.value).startswith(f"f.yaml:{line}: " if line else "f.yaml:")


def _laughs() -> str:
    names = "abcdefghi"
    lines = ["a: &a [lol,lol,lol,lol,lol,lol,lol,lol,lol]"]
    lines += [f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]" for old, new in itertools.pairwise(names)]
    return "\n".join(lines)


BOMBS = {
    "billion laughs": _laughs(),
    "nested lists": "[" * 10_000,
    "nested mappings": "{a: " * 10_000,
    "nested block lists": "- " * 10_000,
    "many values": "[" + "0," * 490_000 + "]",
    "many aliases": "a: &a 1\nb: [" + "*a," * 200 + "]",
    "python object": "a: !!python/object/new:os.system [echo]",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_more_is_read_than_a_scenario_may_hold_and_small(name, monkeypatch):
    read = 0
    parse = pyyaml.parse

    def counted(*args, **named):
        nonlocal read
        for event in parse(*args, **named):
            read += 1
            yield event

    monkeypatch.setattr(pyyaml, "parse", counted)
    with pytest.raises(ScenarioError):
        parse_yaml(BOMBS[name], "bomb.yaml")
    assert read <= MAX_NODES + 10  # of 490,000; the stream and the document have a beginning each
    monkeypatch.undo()
    tracemalloc.start()
    try:
        with pytest.raises(ScenarioError):
            parse_yaml(BOMBS[name], "bomb.yaml")
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_files_over_the_size_limit_are_refused(tmp_path):
    path = tmp_path / "big.yaml"
    path.write_bytes(b"a: 1 #" + b"x" * MAX_BYTES)
    with pytest.raises(ScenarioError, match=f"{path}: .*{MAX_BYTES:,} bytes"):
        load_yaml(path)


def test_missing_unreadable_and_odd_files_are_scenario_errors(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    (tmp_path / "utf16.yaml").write_text("a: 1", encoding="utf-16")
    os.mkfifo(tmp_path / "pipe.yaml")
    os.symlink(tmp_path / "loop.yaml", tmp_path / "loop.yaml")
    for name, facts in {
        "none.yaml": r"none\.yaml: .*No such file",
        ".": f"{tmp_path}: .*regular",
        "latin.yaml": r"latin\.yaml:2: .*UTF-8",
        "utf16.yaml": r"utf16\.yaml:1: .*UTF-8",
        "pipe.yaml": r"pipe\.yaml: .*regular",
        "loop.yaml": r"loop\.yaml: .*symbolic links",
        "nul\0.yaml": r"nul\\x00\.yaml",
        "x" * 300: "x{300}: ",
    }.items():
        with pytest.raises(ScenarioError, match=facts):
            load_yaml(tmp_path / name)


def test_an_endless_device_is_not_read():
    with pytest.raises(ScenarioError, match="/dev/zero: "):
        load_yaml(Path("/dev/zero"))


_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_plain)
def test_what_is_dumped_reads_back_equal(value):
    text = dump_yaml(value)
    again = parse_yaml(text, "dump").value
    assert again == value
    assert repr(again) == repr(value)  # 1 is not 1.0, and 0.0 is not -0.0


@given(st.text())
def test_dumped_text_stays_text_for_yaml_1_1_readers_too(text):
    assert pyyaml.safe_load(dump_yaml({"key": text})) == {"key": text}


@given(st.text(alphabet="0123456789eExob._+-:~nulINFat ", max_size=8))
def test_text_that_looks_like_a_number_is_quoted(text):
    assert parse_yaml(dump_yaml([text]), "dump").value == [text]
