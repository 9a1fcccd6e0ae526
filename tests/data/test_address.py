"""Where services listen: only their owner reaches a socket file, and nothing else of the process changes."""

import os
import stat
import threading

from slipstream.data.address import listen, parse_address


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
