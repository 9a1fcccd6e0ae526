"""The web viewer answers about runs, this machine only, and nobody can make it read or hold what it should not."""

import gzip
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("starlette", reason="the web viewer needs the extra web: pip install 'slipstream[web]'")
pytest.importorskip("uvicorn", reason="the web viewer needs the extra web: pip install 'slipstream[web]'")

from shown_runs import append, make_run, record, report, serving

from slipstream.draw import page
from slipstream.stats.intervals import iqm_interval, wilson
from slipstream.view import server
from slipstream.view.catalogue import READERS, Catalogue


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Two seeds of one algorithm, one run of another, a federation, and a viewer over them: port and folder."""
    root = tmp_path_factory.mktemp("shown")
    for name, algo, seed, last in (("a", "ppo", 1, 3.0), ("b", "ppo", 2, 5.0), ("c", "sac", 1, 4.0)):
        make_run(root / "runs", name, algo=algo, seed=seed, values=(1.0, 2.0, last))
    record(root / "runs" / "a", "head_on", index=7)
    record(root / "runs" / "a", "head_on", index=8)
    rounds = root / "federations" / "pair" / "rounds" / "main"
    rounds.mkdir(parents=True)
    told = {"round": 1, "state": "closed", "participation": 1.0, "seats": [{"client": "x", "weight": 2.0}]}
    told |= {"report": {"used": "mean", "shares": {"x": 1.0}, "variance": 0.5, "drift": None}, "refused": {"late": 1}}
    (rounds / "rounds.jsonl").write_text(json.dumps(told) + "\n" + "half a li")
    with serving(root / "runs", root / "federations") as port:
        yield port, root


def get(port, path, method="GET", headers=None, body=None):
    """Status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def ask(port, path):
    status, _, body = get(port, path)
    assert status == 200, body
    return json.loads(body)


def id_of(port, name):
    return next(run["id"] for run in ask(port, "/api/runs")["runs"] if run["name"] == name)


# --- what it tells ---


def test_the_page_and_its_scripts_are_there_and_name_nothing_elsewhere(shown):
    port, _ = shown
    status, headers, page = get(port, "/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    for path in (b"/static/app.js", b"/static/chart.js", b"/static/player.js", b"/static/app.css"):
        assert path in page
        text = get(port, path.decode())[2]
        assert text
        assert b"https://" not in text
        assert b"http://" not in text.replace(b"http://www.w3.org/2000/svg", b"")
    for kind in ("airspace", "horizontal_cr", "racing", "drmario"):
        assert f"S.scenes.{kind}".encode() in get(port, f"/scenes/{kind}.js")[2]
    assert get(port, "/scenes/probe.js")[2] == b""  # the stand-in shows it
    assert get(port, "/scenes/unknown.js")[2] == b""


def test_the_list_says_what_each_run_is_and_how_it_stands(shown):
    port, root = shown
    listed = ask(port, "/api/runs")
    runs = {run["name"]: run for run in listed["runs"]}
    assert set(runs) == {"a", "b", "c"}
    one = runs["b"]
    assert (one["scenario"], one["kind"], one["algo"], one["seed"]) == ("head_on", "airspace", "ppo", 2)
    assert (one["state"], one["steps"], one["return_mean"]) == ("finished", 3000, 5.0)
    assert one["evaluation"]["eval/return_mean"] == 5.0
    assert one["replays"] == 0
    assert listed["federations"][0]["name"] == "pair, main"
    assert listed["roots"] == [str(root / "runs"), str(root / "federations")]


def test_curves_come_whole_and_a_second_look_costs_nothing_when_nothing_is_new(shown):
    port, _ = shown
    run = id_of(port, "a")
    told = ask(port, f"/api/runs/{run}/curves?key=env/return_mean&key=unknown")
    assert told["curves"] == {"env/return_mean": {"steps": [1000, 2000, 3000], "values": [1.0, 2.0, 3.0]}}
    assert told["metrics"] == ["env/return_mean", "eval/return_mean", "train/entropy"]
    assert get(port, f"/api/runs/{run}/curves?key=env/return_mean&seen={told['version']}")[0] == 204


def test_zooming_gives_the_steps_asked_for(shown):
    port, _ = shown
    told = ask(port, f"/api/runs/{id_of(port, 'a')}/window?low=1500&high=3000&key=env/return_mean")
    assert told["curves"]["env/return_mean"] == {"steps": [2000, 3000], "values": [2.0, 3.0]}


def test_a_growing_run_is_followed(tmp_path):
    run = make_run(tmp_path, "live", outcome=None)
    with serving(tmp_path) as port:
        name = id_of(port, "live")
        before = ask(port, f"/api/runs/{name}/curves?key=env/return_mean")
        assert before["state"] == "running"
        append(run.path, [report(4, 9.0)])
        after = ask(port, f"/api/runs/{name}/curves?key=env/return_mean&seen={before['version']}")
        assert after["curves"]["env/return_mean"]["values"] == [1.0, 2.0, 3.0, 9.0]
        make_run(tmp_path, "younger")
        assert {r["name"] for r in ask(port, "/api/runs")["runs"]} == {"live", "younger"}
    run.close()


def test_episodes_are_listed_newest_first_and_come_as_they_were_written(shown):
    port, root = shown
    run = id_of(port, "a")
    assert [head["index"] for head in ask(port, f"/api/runs/{run}/episodes")["episodes"]] == [8, 7]
    written = json.loads((root / "runs" / "a" / "frames" / "episode_007.json").read_bytes())
    assert ask(port, f"/api/runs/{run}/episodes/7") == written
    assert get(port, f"/api/runs/{run}/episodes/6")[0] == 400


def test_comparison_and_leaderboard_have_the_intervals_of_stats(shown):
    port, _ = shown
    ids = "&".join(f"run={id_of(port, name)}" for name in "abc")
    told = ask(port, f"/api/compare?metric=eval/return_mean&{ids}")
    assert get(port, f"/api/compare?metric=eval/return_mean&{ids}&seen={told['mark']}")[0] == 204
    groups = {group["group"]: group for group in told["tasks"]["head_on"]["groups"]}
    assert groups["ppo"]["iqm"]["estimate"] == pytest.approx(4.0)
    assert groups["sac"]["iqm"]["low"] is None  # one seed has no interval
    assert [run["values"][-1] for run in told["curves"][0]["runs"]] == [3.0, 5.0, 4.0]
    board = ask(port, "/api/leaderboard")["scenarios"][0]
    assert [entry["name"] for entry in board["entries"]] == ["b", "c", "a"]
    assert board["entries"][0]["share"] == pytest.approx(wilson(15, 20)._asdict())
    best = next(group for group in board["groups"] if group["algo"] == "ppo")
    assert best["iqm"] == pytest.approx(iqm_interval([[3.0], [5.0]])._asdict())


def test_rounds_of_a_federation_are_told_and_half_a_line_is_passed_over(shown):
    port, _ = shown
    name = ask(port, "/api/runs")["federations"][0]["id"]
    (told,) = ask(port, f"/api/federations/{name}")["rounds"]
    assert (told["round"], told["state"], told["variance"], told["refused"]) == (1, "closed", 0.5, {"late": 1})
    assert told["clients"] == [{"client": "x", "weight": 2.0}]


def test_what_is_large_is_sent_small_to_who_can_read_it(shown):
    port, _ = shown
    _, headers, body = get(port, "/static/app.js", headers={"Accept-Encoding": "gzip"})
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(body) == get(port, "/static/app.js")[2]


def test_a_damaged_run_hides_no_other(tmp_path):
    make_run(tmp_path, "whole")
    for name, broken in (("cut", b'{"world": {"ki'), ("list", b"[]"), ("deep", b"[" * 100_000)):
        run = make_run(tmp_path, name)
        (run.path / "config.json").write_bytes(broken)
    bad = make_run(tmp_path, "frames")
    (bad.path / "frames" / "episode_001.json").write_bytes(b'{"index": 1, "states": ')
    (bad.path / "frames" / "episode_002.json").symlink_to("/etc/passwd")
    with serving(tmp_path) as port:
        assert {run["name"] for run in ask(port, "/api/runs")["runs"]} == {"whole", "frames"}
        assert ask(port, f"/api/runs/{id_of(port, 'frames')}/episodes") == {"episodes": []}


def test_only_so_many_runs_are_in_memory(tmp_path):
    for k in range(READERS + 3):
        make_run(tmp_path, f"run{k}")
    catalogue = Catalogue([tmp_path])
    for run in catalogue.summaries():
        with catalogue.reading(run.id) as watched:
            assert watched.reader.steps == 3000
    assert len(catalogue._readers) == READERS


# --- what it refuses ---


def test_every_answer_forbids_scripts_from_elsewhere_and_being_read_from_elsewhere(shown):
    port, _ = shown
    for path in ("/", "/static/app.js", "/api/runs", "/nothing", "/api/runs/x"):
        _, headers, _ = get(port, path)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2f..%2fserver.py",
        "/static/%2e%2e/%2e%2e/cli/main.py",
        "/static//etc/passwd",
        "/scenes/../../config.js",
        "/scenes/..%2f..%2fsetup.js",
        "/api/runs/..%2f..%2fetc",
        "/api/runs/%2fetc%2fpasswd",
        "/api/runs/a",
        "/api/runs/\\..\\a",
        "/api/runs/a%00/curves",
        "/api/federations/../runs",
        "/api/runs/zzz/episodes/..%2f1",
        "/.git/config",
        "//127.0.0.1/api/runs",
    ],
)
def test_paths_lead_nowhere_but_to_the_table(shown, path):
    port, _ = shown
    status, _, body = get(port, path)
    assert status in (400, 404)
    assert len(body) < 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_only_reading_is_answered(shown, method):
    port, _ = shown
    status, headers, _ = get(port, "/api/runs", method, body=None)
    assert status == 405
    assert headers["allow"] == "GET, HEAD"
    assert get(port, "/api/runs", "HEAD")[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "0.0.0.0", "[::1]"])
def test_another_name_for_this_machine_is_refused(shown, host):
    """DNS rebinding: a page of evil.example that resolves to 127.0.0.1."""
    port, _ = shown
    assert get(port, "/api/runs", headers={"Host": host})[0] == 421
    assert get(port, "/api/runs", headers={"Host": f"localhost:{port}"})[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_of_other_sites_pages_are_refused(shown, site):
    port, _ = shown
    assert get(port, "/api/runs", headers={"Sec-Fetch-Site": site})[0] == 403
    assert get(port, "/api/runs", headers={"Sec-Fetch-Site": "same-origin"})[0] == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"A: b\r\n" * 100_000 + b"\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nzz\r\n",
    ],
)
def test_huge_and_broken_requests_are_refused_and_the_next_one_is_answered(shown, request_bytes):
    port, _ = shown
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        try:
            client.sendall(request_bytes)
            client.shutdown(socket.SHUT_WR)
            answer = client.recv(65536)
        except OSError:  # cut off while we were still sending
            answer = b""
    assert answer == b"" or answer.split()[1] == b"400"
    assert get(port, "/api/runs")[0] == 200


def test_a_long_address_is_refused(shown):
    port, _ = shown
    assert get(port, "/api/runs?" + "a" * (server.ADDRESS_BYTES - 10))[0] == 200
    assert get(port, "/api/runs?" + "a" * server.ADDRESS_BYTES)[0] == 414


@pytest.mark.parametrize(
    "query",
    ["window?low=x&high=2", "window", "window?low=1e9&high=2", "curves?" + "key=a&" * 1000, "episodes/99999999999"],
)
def test_queries_that_mean_nothing_do_no_harm(shown, query):
    port, _ = shown
    assert get(port, f"/api/runs/{id_of(port, 'a')}/{query}")[0] in (200, 400)
    assert get(port, "/api/compare?metric=unknown&run=" + id_of(port, "a"))[0] == 400
    assert get(port, "/api/compare")[0] == 400


def test_slow_clients_are_cut_off_and_only_so_many_are_let_in(shown, monkeypatch):
    port, _ = shown
    monkeypatch.setattr(server, "REQUEST_S", 0.5)
    slow = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(server.CONNECTIONS + 10)]
    try:
        for client in slow:
            client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        ends = [is_closed(client) for client in slow]
    finally:
        for client in slow:
            client.close()
    assert all(ends)
    assert get(port, "/api/runs")[0] == 200


def is_closed(client):
    """Drip bytes until the other side has had enough; a client that is never cut off runs into its own timeout."""
    until = time.monotonic() + 60
    client.settimeout(0.2)
    while time.monotonic() < until:
        try:
            client.sendall(b"a")
            if client.recv(100) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


# --- the command ---


def test_the_command_listens_on_loopback_only_takes_the_next_port_and_ends_by_ctrl_c(tmp_path):
    make_run(tmp_path / "runs", "one")
    taken = server.listen(18900)
    port = taken.getsockname()[1]
    command = [sys.executable, "-m", "slipstream.cli.main", "view", "runs", "--port", str(port), "--no-open"]
    child = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = child.stdout.readline() + child.stdout.readline()
        assert f"port {port} " in said
        assert "1 runs" in said
        got = int(said.split("http://127.0.0.1:")[1].split("/")[0])
        assert got > port
        wait_for(got)
        assert [run["name"] for run in ask(got, "/api/runs")["runs"]] == ["one"]
        sockets = psutil.Process(child.pid).net_connections("inet")
        assert {s.laddr.ip for s in sockets} == {"127.0.0.1"}
        assert [s.laddr.port for s in sockets if s.status == psutil.CONN_LISTEN] == [got]
        before = sorted(path for path in (tmp_path / "runs").rglob("*"))
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(20) == 0
        assert sorted(path for path in (tmp_path / "runs").rglob("*")) == before
    finally:
        child.kill()
        child.communicate()
        taken.close()


def wait_for(port):
    for _ in range(200):
        try:
            return get(port, "/")
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the viewer does not answer")


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path, monkeypatch, capsys):
    from slipstream.cli.main import main

    monkeypatch.chdir(tmp_path)
    assert main(["view"]) == 2
    assert "runs/: " in capsys.readouterr().err
    assert main(["view", "nowhere", "--no-open"]) == 2
    assert "nowhere: " in capsys.readouterr().err


def test_without_the_extra_the_command_says_what_to_install(tmp_path, monkeypatch, capsys):
    from slipstream.cli import view
    from slipstream.cli.main import main

    monkeypatch.setattr(view.importlib.util, "find_spec", lambda name: None)
    assert main(["view", str(tmp_path)]) == 2
    assert "pip install 'slipstream[web]'" in capsys.readouterr().err


def test_scripts_of_scenes_and_player_are_packaged():
    static = Path(server.__file__).with_name("static")
    assert {path.name for path in static.iterdir()} >= {"index.html", "app.js", "chart.js", "app.css"}
    assert {path.name for path in page.STATIC.iterdir()} >= {"page.css", "player.css", "player.js", "replay.js"}
