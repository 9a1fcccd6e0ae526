"""Memory that processes share: made without a name and passed on as a descriptor, so nothing can be left behind."""

from __future__ import annotations

import mmap
import os

from slipstream.runtime.platform import memory_file


def make_memory(name: str, size: int) -> tuple[int, mmap.mmap]:
    """New memory full of zeros, and its descriptor; it ends with the last process that has either."""
    descriptor = memory_file(name, size)
    try:
        return descriptor, mmap.mmap(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise


def open_memory(descriptor: int, size: int = 0, *, writable: bool = True) -> mmap.mmap:
    """Memory that another process made; a size of 0 means all of it."""
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    return mmap.mmap(descriptor, size, access=access)
