"""Calls that not every POSIX system has, each with a way that works everywhere. No other module makes such a call.

The better way is taken where the system offers it. ``SLIPSTREAM_PORTABLE=1`` takes the portable way everywhere, which
is how the portable ways are tested on Linux. Nothing here is looked up when the module is imported.

| function | Linux | elsewhere |
|---|---|---|
| `memory_file` | memfd, its size sealed | a temporary file without a name |
| `peer_user` | SO_PEERCRED | unknown: only its owner can open the socket's file |
| `boot_id` | the kernel's | the minute in which the system's clock began |
| `is_locked` | /proc/locks | the process named in the lock file is alive |
| `usage` | /proc/self | psutil, where it is installed |
| `cpu_name`, `cores` | /proc/cpuinfo, the affinity | what Python says |
| `free_unused_memory` | malloc_trim | nothing |
| `available_memory` | /proc/meminfo and the control group | psutil, where it is installed; else half of all memory |
| `socket_path_bytes` | 107 | 103, as on macOS and the BSDs |
| `lock`, `unlock` | flock | flock, which every POSIX system has |
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


def is_portable() -> bool:
    """Whether the portable ways are forced."""
    return os.environ.get("SLIPSTREAM_PORTABLE", "") not in ("", "0")


# --- memory ---


def memory_file(name: str, size: int) -> int:
    """The descriptor of new memory, full of zeros, that other processes can map; it ends with its last user."""
    if is_portable() or not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile(prefix=name) as file:
            os.ftruncate(file.fileno(), size)
            return os.dup(file.fileno())
    import fcntl

    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        # Nobody can make it smaller: reading what is no longer there would kill the reader.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def free_unused_memory() -> None:
    """Give memory that was freed back to the system, so that what is taken next shows."""
    import ctypes

    trim = None if is_portable() else getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can be taken without swapping, within the limit of the control group where there is one."""
    found = None if is_portable() else _available_by_kernel(root / "proc/meminfo")
    if found is None:
        return _available_elsewhere()
    limits = [found]
    for folder, limit, usage in (
        ("sys/fs/cgroup", "memory.max", "memory.current"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        allowed, used = _number(root / folder / limit), _number(root / folder / usage)
        if allowed is not None and used is not None:
            limits.append(allowed - used + _cached(root / folder / "memory.stat"))
    return max(0, min(limits))


def _available_by_kernel(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    except (OSError, ValueError):
        return None


def _available_elsewhere() -> int:
    """What psutil says; without it half of all memory, since what others have taken is not known."""
    try:
        import psutil
    except ImportError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return int(psutil.virtual_memory().available)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def _cached(path: Path) -> int:
    """File pages a control group would give back; they count as used there."""
    try:
        words = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
        return int(words.get("inactive_file", 0))
    except (OSError, ValueError):
        return 0


# --- processes ---


def peer_user(link: socket.socket) -> int | None:
    """The user at the other end of a Unix socket; None where the system does not tell."""
    if is_portable() or not hasattr(socket, "SO_PEERCRED"):
        return None
    import struct

    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)


class Usage(NamedTuple):
    """What this process holds."""

    files: int
    threads: int
    processes: int  # that it started and has not waited for
    memory_kb: int


def usage() -> Usage | None:
    """What this process holds now; None where the system does not tell."""
    own = PROC / "self"
    if is_portable() or not (own / "statm").exists():
        return _usage_by_psutil()
    pages = int((own / "statm").read_text().split()[1])
    return Usage(
        files=len(os.listdir(own / "fd")),
        threads=len(os.listdir(own / "task")),
        processes=sum(_parent(entry) == os.getpid() for entry in PROC.iterdir() if entry.name.isdigit()),
        memory_kb=pages * os.sysconf("SC_PAGE_SIZE") // 1024,
    )


def _parent(process: Path) -> int:
    try:
        stat = (process / "stat").read_text()
    except OSError:  # it has ended meanwhile
        return -1
    return int(stat.rsplit(")", 1)[1].split()[1])


def _usage_by_psutil() -> Usage | None:
    try:
        import psutil
    except ImportError:
        return None
    here = psutil.Process()
    return Usage(here.num_fds(), here.num_threads(), len(here.children()), here.memory_info().rss // 1024)


# --- the machine ---


def boot_id() -> str:
    """Another one after every start of this machine; where the clock is set, perhaps another one too."""
    path = PROC / "sys/kernel/random/boot_id"
    if is_portable() or not path.exists():
        return f"{os.uname().nodename}-{round((time.time() - time.monotonic()) / 60)}"
    return path.read_text().strip()


def cpu_name() -> str:
    """What the processor is called."""
    try:
        lines = [] if is_portable() else (PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def cores() -> int:
    """Processor cores that this process may use."""
    if is_portable() or not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return len(os.sched_getaffinity(0))


def socket_path_bytes() -> int:
    """Bytes that the path of a Unix socket may have."""
    return 103 if is_portable() or sys.platform != "linux" else 107


# --- locks ---


def lock(fd: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Whether an open file is locked for us now; the lock ends with `unlock`, the descriptor or the process."""
    import fcntl

    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def lock_by(fd: int, until: float) -> bool:
    """The same, tried until a time of the monotonic clock."""
    pause = 0.002
    while not lock(fd):
        left = until - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(2 * pause, 0.05)
    return True


def unlock(fd: int) -> None:
    """Give a lock up."""
    import fcntl

    fcntl.flock(fd, fcntl.LOCK_UN)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file that names its holder.

    The lock is not taken for it, not even for a moment: that could turn away a process which wants it just then.
    """
    try:
        stat, holder = path.stat(), path.read_text().strip()
        if not is_portable():
            where = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
            locks = [line.split() for line in (PROC / "locks").read_text().splitlines()]
            # Some file systems (btrfs) have another device there than in stat: then the inode and the holder decide.
            return any(where in lock or (holder in lock and lock[-3].endswith(f":{stat.st_ino}")) for lock in locks)
    except OSError:
        pass
    try:
        os.kill(int(path.read_text()), 0)
    except (OSError, ValueError):
        return False
    return True
