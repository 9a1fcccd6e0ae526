"""Calls that not every system has: one module makes them, and each has a portable way that does the same."""

from __future__ import annotations

import ast
import mmap
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.runtime import platform
from slipstream.runtime.memory import make_memory, open_memory

PACKAGE = Path(platform.__file__).parents[1]

# Names of modules, functions and constants that some POSIX systems lack, and of files that only Linux has.
ONLY_IN_PLATFORM = {
    "fcntl", "ctypes", "memfd_create", "pidfd_open", "pidfd_send_signal", "SOCK_SEQPACKET", "SO_PEERCRED", "POLLRDHUP",
    "epoll", "eventfd", "signalfd", "prctl", "flock", "sched_getaffinity", "sched_setaffinity", "msvcrt",
    "SC_AVPHYS_PAGES",
}  # fmt: skip
ONLY_ON_LINUX = re.compile(r"/?(proc|sys/fs/cgroup)(/|$)")  # files


def words(path: Path) -> set[str]:
    """Modules imported, names and attributes used, and texts."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {name.name for name in names}
            case ast.Attribute(attr=name) | ast.Name(id=name):
                found.add(name)
            case ast.Constant(value=str(text)):
                found.add(text)
    # An array's own attribute of that name is no call of the system.
    return found - {"ctypes"} if "import ctypes" not in path.read_text() else found


def test_no_other_module_makes_a_call_that_some_systems_lack():
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path == Path(platform.__file__):
            continue
        bad = {word for word in words(path) if word in ONLY_IN_PLATFORM or ONLY_ON_LINUX.match(word)}
        wrong += [f"{path.relative_to(PACKAGE)} names {word}" for word in sorted(bad)]
    assert wrong == []


@pytest.fixture(params=["offered", "portable"])
def way(request, monkeypatch) -> str:
    """Each way in turn."""
    monkeypatch.setenv("SLIPSTREAM_PORTABLE", "1" if request.param == "portable" else "0")
    return str(request.param)


def test_the_portable_ways_can_be_forced(monkeypatch):
    monkeypatch.delenv("SLIPSTREAM_PORTABLE", raising=False)
    assert not platform.is_portable()
    monkeypatch.setenv("SLIPSTREAM_PORTABLE", "1")
    assert platform.is_portable()


def test_memory_is_shared_by_its_descriptor_and_leaves_no_file(way, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    descriptor, mine = make_memory("test", 3 * mmap.PAGESIZE)
    theirs = open_memory(descriptor)
    part = open_memory(descriptor, mmap.PAGESIZE, writable=False)
    assert len(theirs) == 3 * mmap.PAGESIZE
    assert len(part) == mmap.PAGESIZE
    assert mine[:3] == b"\0\0\0"
    theirs[:3] = b"abc"
    assert mine[:3] == part[:3] == b"abc"
    with pytest.raises(TypeError):
        part[:1] = b"x"
    assert list(tmp_path.iterdir()) == []
    os.close(descriptor)


def test_a_child_maps_memory_that_it_was_given(way):
    descriptor, mine = make_memory("test", 100)
    code = "import sys; from slipstream.runtime.memory import open_memory; open_memory(int(sys.argv[1]))[:2] = b'hi'"
    subprocess.run([sys.executable, "-c", code, str(descriptor)], pass_fds=[descriptor], check=True)
    assert mine[:3] == b"hi\0"
    os.close(descriptor)


def test_shared_memory_cannot_be_made_smaller_where_the_system_can_see_to_it(monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_PORTABLE", "0")
    if not hasattr(os, "memfd_create"):
        pytest.skip("this system has no memfd")
    descriptor = platform.memory_file("test", 4096)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def test_available_memory_respects_the_control_group(tmp_path, monkeypatch):
    def put(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    monkeypatch.setenv("SLIPSTREAM_PORTABLE", "0")
    put("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert platform.available_memory(tmp_path) == 5000 * 1024
    put("sys/fs/cgroup/memory.max", "max\n")
    put("sys/fs/cgroup/memory.current", "1000\n")
    assert platform.available_memory(tmp_path) == 5000 * 1024
    put("sys/fs/cgroup/memory.max", "100000\n")
    put("sys/fs/cgroup/memory.stat", "anon 600\ninactive_file 400\n")
    assert platform.available_memory(tmp_path) == 100_000 - 1000 + 400
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000")
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "4000")
    assert platform.available_memory(tmp_path) == 0


@pytest.mark.parametrize("has_psutil", [True, False])
def test_available_memory_is_more_than_nothing_and_less_than_the_machine_has(way, has_psutil, monkeypatch):
    if not has_psutil:
        monkeypatch.setitem(sys.modules, "psutil", None)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < platform.available_memory() < machine
    if way == "portable" and not has_psutil:
        assert platform.available_memory() == machine // 2


def test_a_system_without_the_kernels_figures_has_available_memory_too(tmp_path, monkeypatch):
    asked = os.sysconf

    def as_on_macos(name: str) -> int:
        if name == "SC_AVPHYS_PAGES":
            raise ValueError("unrecognized configuration name")
        return asked(name)

    monkeypatch.setenv("SLIPSTREAM_PORTABLE", "0")
    monkeypatch.setattr(os, "sysconf", as_on_macos)
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert platform.available_memory(tmp_path) == asked("SC_PHYS_PAGES") * asked("SC_PAGE_SIZE") // 2


def test_a_lock_is_held_by_one_until_it_is_given_up_or_its_file_is_closed(way, tmp_path):
    path = tmp_path / "lock"
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert platform.lock(first)
    assert not platform.lock(second)
    assert not platform.lock(second, shared=True)
    assert not platform.lock_by(second, until=0.0)
    platform.unlock(first)
    assert platform.lock(first, shared=True)
    assert platform.lock(second, shared=True)
    os.close(first)
    assert platform.lock(second)
    os.close(second)


def test_whether_a_file_is_locked_is_seen_without_taking_its_lock(way, tmp_path):
    path = tmp_path / "lock"
    path.write_text(f"{os.getpid()}\n")
    fd = os.open(path, os.O_RDWR)
    platform.lock(fd)
    assert platform.is_locked(path)
    os.close(fd)
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    path.write_bytes(gone.stdout)
    assert not platform.is_locked(path)
    assert not platform.is_locked(tmp_path / "none")


def test_the_user_at_the_other_end_is_this_one_or_unknown(way):
    mine, theirs = socket.socketpair()
    with mine, theirs:
        assert platform.peer_user(mine) == (None if way == "portable" or sys.platform != "linux" else os.getuid())


def test_the_boot_has_one_name_for_all_processes(way):
    code = "from slipstream.runtime.platform import boot_id; print(boot_id())"
    names = {subprocess.check_output([sys.executable, "-c", code], text=True).strip() for _ in range(2)}
    assert names == {platform.boot_id()}


def test_what_a_process_holds_is_counted(way):
    before = platform.usage()
    files = [open(os.devnull) for _ in range(5)]  # noqa: SIM115
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    during = platform.usage()
    child.communicate(b"\n")
    for file in files:
        file.close()
    assert before is not None
    assert during is not None
    assert during.files - before.files >= 5
    assert during.processes - before.processes == 1
    assert during.threads >= 1
    assert during.memory_kb > 1000


def test_the_machine_has_a_processor(way):
    assert platform.cores() >= 1
    assert platform.cpu_name()
