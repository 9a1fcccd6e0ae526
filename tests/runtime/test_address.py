"""Where services listen: only their owner reaches a socket file, and nothing else of the process changes."""

import os
import socket
import stat
import sys
import threading
from threading import Barrier, Thread

import pytest

from slipstream.errors import ScenarioError
from slipstream.runtime.address import listen, parse_address
from slipstream.runtime.platform import socket_path_bytes


def test_a_socket_file_is_its_owners_alone_and_the_umask_stays_everybodys(tmp_path):
    before = os.umask(0o022)
    try:
        barrier, servers = threading.Barrier(8), []

        def open_one(number):
            barrier.wait()
            servers.append(listen(parse_address(f"ipc://{tmp_path}/{number}.sock"), "")[0])

        threads = [threading.Thread(target=open_one, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        modes = {stat.S_IMODE(os.stat(tmp_path / f"{number}.sock").st_mode) for number in range(8)}
        for server in servers:
            server.close()
        assert modes == {0o600}
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_of_many_who_find_a_dead_services_socket_one_listens_and_the_others_are_told(tmp_path):
    address = parse_address(f"ipc://{tmp_path / 'replay.sock'}")
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(address.path)
        start = Barrier(8)
        heard: list[socket.socket] = []
        refused: list[str] = []

        def begin(start=start, heard=heard, refused=refused) -> None:
            start.wait(timeout=30)
            try:
                heard.append(listen(address, "")[0])
            except ScenarioError as error:
                refused.append(str(error))

        threads = [Thread(target=begin) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert len(heard) == 1
        assert len(refused) == 7
        assert all(f"{address}: " in text for text in refused)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(address.path)
            assert heard[0].accept()
        heard[0].close()
        os.unlink(address.path)


@pytest.mark.parametrize("portable", ["0", "1"])
def test_the_longest_path_can_be_listened_on_and_a_longer_one_is_refused(portable, tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_PORTABLE", portable)
    most = socket_path_bytes()
    assert most == (107 if portable == "0" and sys.platform == "linux" else 103)
    folder = f"{tmp_path}/"
    assert len(folder) < most
    path = folder + "s" * (most - len(folder))
    server, _ = listen(parse_address(f"ipc://{path}"), "")
    server.close()
    with pytest.raises(ScenarioError, match=f"at most {most} bytes"):
        parse_address(f"ipc://{path}x")
