"""Whole messages between two processes of one machine: a stream socket with lengths, and descriptors beside them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

LENGTH = struct.Struct("<I")


def make_pair(buffer_bytes: int | None = None) -> tuple[socket.socket, socket.socket]:
    """Both ends; `buffer_bytes`: how much may be sent before the other side reads."""
    ends = socket.socketpair()
    if buffer_bytes is not None:
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    return ends


def send(end: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a message, which is not empty, with copies of these descriptors; OSError where nobody is there."""
    packet = LENGTH.pack(len(data)) + data
    sent = socket.send_fds(end, [packet], list(descriptors)) if descriptors else 0
    end.sendall(packet[sent:])


def receive(end: socket.socket, limit: int, max_descriptors: int = 0) -> tuple[bytes, list[int]]:
    """The next message and its descriptors; empty where the other side is gone, or has sent more than the limit."""
    descriptors: list[int] = []
    if max_descriptors:
        head, descriptors, _, _ = socket.recv_fds(end, LENGTH.size, max_descriptors)
    else:
        head = end.recv(LENGTH.size)
    head += _read(end, LENGTH.size - len(head)) if head else b""
    if len(head) < LENGTH.size:
        return b"", descriptors
    (size,) = LENGTH.unpack(head)
    data = _read(end, size) if size <= limit else b""
    return (data if len(data) == size else b""), descriptors


def _read(end: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer where the other side is gone."""
    data = bytearray()
    while len(data) < size and (part := end.recv(size - len(data))):
        data += part
    return bytes(data)
