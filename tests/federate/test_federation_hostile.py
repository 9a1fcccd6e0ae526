"""What a hostile client can send or name: no byte outside the root, nothing executed, and a reason for each refusal."""

import hashlib
import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rounds_harness import faults as f
from rounds_harness import quick_folder

from slipstream.errors import CheckpointError, FederationError
from slipstream.federate import folder
from slipstream.federate.coordinator import Coordinator
from slipstream.federate.coordinator_client import CoordinatorTransport
from slipstream.federate.files import Files
from slipstream.federate.rounds import never
from slipstream.federate.update import ClientUpdate, parse_update, update_chunks
from slipstream.runtime.address import listen

CORES = ["..", ".", "../x", "../../x", "/etc/x", "x/../../y", "..\\x", "C:\\x", "x\x00y", "x\ny", "~/x", "$HOME", "a b"]
CORES += [
    "%2e%2e%2fx",
    "%252e%252e%252fx",
    "..%c0%afx",
    "\u2024\u2024/x",
    "．．／x",
    "\uff0e\uff0e",
    "a" * 65,
    "a" * 300,
]
CORES += ["", " ", ".hidden", ".tmp-x", "-rf *", "a;b", "a|b", "`id`", "$(id)", "x'y", 'x"y', "é", "\u202ex", "\ud800"]


def traversals() -> list[str]:
    """200 ids that are none."""
    ids = list(CORES)
    for depth in range(1, 12):
        for separator in ("/", "\\", "//", "/./", "%2f"):
            ids += [separator.join([".."] * depth + ["x"]), "ok" + separator + separator.join([".."] * depth + ["x"])]
    ids += ["/" + "../" * depth + "tmp/x" for depth in range(1, 40)]
    ids += [f"client_{index}/../../../x" for index in range(20)]
    return list(dict.fromkeys(ids))


def everything(folder: Path) -> dict[str, str]:
    """All that is in a folder, without what is behind links."""
    found = {}
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(base, name)
            is_file = path.is_file() and not path.is_symlink()
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest() if is_file else "folder"
    return found


def outside(tmp_path: Path) -> dict[str, str]:
    root = str(tmp_path / "deep" / "root")
    return {path: seen for path, seen in everything(tmp_path).items() if not path.startswith(root)}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "canary").write_text("sings")
    root = tmp_path / "deep" / "root"
    root.mkdir(parents=True)
    return root


def test_two_hundred_ids_that_lead_elsewhere_write_no_byte_outside_the_root(tmp_path, root):
    ids = traversals()
    assert len(ids) >= 200
    made = f.federation(root)
    before, inside = outside(tmp_path), everything(root)
    transport = Files(made)
    for bad in ids:
        with pytest.raises(FederationError, match="name of a federation"):
            folder.federation_folder(root, bad)
        with pytest.raises(FederationError, match="client id"):
            transport.exchange(ClientUpdate(bad, 1, "", "n", {"w": np.zeros(1)}), patient=never)
        with pytest.raises(FederationError, match="update id"):
            transport.exchange(replace(f.update_of("a", 1), update_id=bad), patient=never)
        with pytest.raises(FederationError, match="client id"):
            transport.leave(bad)
    assert outside(tmp_path) == before
    assert {path for path in everything(root) if path not in inside} <= {str(made.folder / "round_00001")}


def test_ids_that_lead_elsewhere_are_refused_by_a_coordinator_too(tmp_path, root):
    made = f.federation(root)
    server, address = listen(f.Address(None, "127.0.0.1", 0), "t")
    coordinator = Coordinator(server, made, "t")
    thread = threading.Thread(target=coordinator.run)
    thread.start()
    before = outside(tmp_path)
    try:
        for bad in [bad for bad in traversals()[::8] if "\ud800" not in bad]:
            with pytest.raises(FederationError, match="client id"):
                CoordinatorTransport(address, bad, "t", made.limits).catch_up("")
    finally:
        coordinator.stopping = True
        thread.join()
    assert outside(tmp_path) == before


LINKS = ["round_00001", "round_00001/client_x.safetensors", "round_00001/.tmp-a-a-1", "round_00001/opened.json"]
LINKS += ["round_00001/closing.json", "round_00001/closed.json", "round_00001/aggregate.safetensors", "rounds.jsonl"]
LINKS += ["round_00001/.tmp-aggregate.safetensors", "round_00001/.tmp-closed.json", "round_00001/refused.jsonl", "lock"]


@pytest.mark.parametrize("place", LINKS)
def test_a_link_in_the_folder_leads_nobody_out_of_it(tmp_path, root, place):
    made = f.federation(root)
    target = tmp_path / "target"
    if place == "round_00001":
        target.mkdir()
    else:
        target.write_bytes(b"".join(update_chunks(f.update_of("x", 1))))
    link = made.folder / place
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    before = outside(tmp_path)
    said = ""
    try:
        for client in "ab":
            f.file_now(made, f.update_of(client, 1))
        record = f.close_now(made)
    except (FederationError, OSError) as error:
        said, record = str(error), None
    assert place in said or Path(place).name in said or not said  # refused by name, if at all
    if record is not None:
        assert [seat.client for seat in record.participants] == ["a", "b"]
        assert record.refused == ({"malformed": 1} if place.endswith("client_x.safetensors") else {})
    assert outside(tmp_path) == before


def test_a_run_folder_that_was_replaced_by_a_link_is_written_to_no_more(tmp_path, root):
    made = f.federation(root)
    made.folder.rename(tmp_path / "target")
    made.folder.symlink_to(tmp_path / "target")
    before = outside(tmp_path)
    outcome = Files(made).exchange(f.update_of("a", 1))
    assert outcome.state == "undecided"
    target = tmp_path / "target"
    assert f"{made.folder}: " in outcome.reason
    assert f"{target}," in outcome.reason
    for use in (Files(made).leave, lambda client: f.close_now(made)):
        with pytest.raises(FederationError, match=re.escape(f"{target},")):
            use("a")
    assert outside(tmp_path) == before


# --- updates ---


class Evil:
    def __reduce__(self):
        return (os.system, ("touch executed",))


def test_a_cut_update_is_refused_by_its_name_without_advice_about_checkpoints():
    sound = b"".join(update_chunks(ClientUpdate("a", 1, "", "n", {"w": np.ones(8)})))
    with pytest.raises(FederationError) as refused:
        parse_update("a.update", sound[:-8], 1 << 20)
    assert "a.update" in str(refused.value)
    assert "checkpoint" not in str(refused.value)
    assert isinstance(refused.value.__cause__, CheckpointError)
    assert refused.value.__cause__.advice  # which the reader of a checkpoint is given


def header(entries: dict, metadata: dict | None = None) -> bytes:
    text = json.dumps({**({"__metadata__": metadata} if metadata else {}), **entries}).encode()
    return struct.pack("<Q", len(text)) + text


def hostile() -> dict[str, bytes]:
    """Files by name."""
    update = f.update_of("liar", 1)
    whole = b"".join(bytes(chunk) for chunk in update_chunks(update))
    meta = {"slipstream_update": '{"version":1,"client":"liar","round":1,"base":"","nonce":"n","weight":1,"facts":{}}'}
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", b"\0" * (16 << 20))
    npz = io.BytesIO()
    np.savez(npz, w=np.array([Evil()], dtype=object))
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    arrays = update.arrays
    cases = {
        "pickle": pickle.dumps(Evil()),
        "pickle in metadata": header({"w": entry}, {"slipstream_update": pickle.dumps(Evil(), 0).decode()}) + bytes(4),
        "zip bomb": bomb.getvalue(),
        "npz of objects": npz.getvalue(),
        "empty": b"",
        "header of 2^63": struct.pack("<Q", 1 << 63) + b"{}",
        "overflowing shape": header({"w": {**entry, "shape": [1 << 62, 4]}}, meta) + bytes(4),
        "shape of 10 TB": header({"w": {**entry, "shape": [10**13 // 4], "data_offsets": [0, 10**13]}}, meta)
        + bytes(4),
        "negative shape": header({"w": {**entry, "shape": [-1]}}, meta) + bytes(4),
        "overlap": header({"v": entry, "w": entry}, meta) + bytes(4),
        "100,000 entries": header(
            {str(i): {**entry, "data_offsets": [4 * i, 4 * i + 4]} for i in range(100_000)}, meta
        ),
        "deep json": struct.pack("<Q", 1 << 20) + b"[" * (1 << 20),
        "metadata of lists": header({"w": entry}, {"slipstream_update": ["x"]}) + bytes(4),
        "no text": header({"w": entry}, {"slipstream_update": "\ud800"}) + bytes(4),
        "name that is no text": header({"\ud800": entry}, meta) + bytes(4),
        "no metadata": header({"w": entry}) + bytes(4),
        "truncated": whole[:-1],
        "longer": whole + b"x",
        "objects": header({"w": {**entry, "dtype": "O"}}, meta) + bytes(4),
        "weight of 1e999": whole.replace(b'\\"weight\\":1.0', b'\\"weight\\":1e999').replace(b" " * 2, b"", 1),
    }
    nan = replace(update, arrays={**arrays, "net.weight": np.full((16, 8), np.nan, np.float32)})
    wide = replace(update, arrays={**arrays, "net.weight": arrays["net.weight"].astype(np.float64)})
    flat = replace(update, arrays={**arrays, "net.weight": arrays["net.weight"].ravel()})
    more = replace(update, arrays={**arrays, "server.steps": np.array(1)})
    odd = {"NaN": nan, "other type": wide, "other shape": flat, "more arrays": more}
    odd |= {"negative weight": replace(update, weight=-1.0), "id": replace(update, client="../../x")}
    odd |= {"facts": replace(update, facts={str(index): 1.0 for index in range(1000)})}
    odd |= {"huge": replace(update, arrays={**arrays, "net.weight": np.full((16, 8), 1e30, np.float32)})}
    return cases | {name: b"".join(bytes(chunk) for chunk in update_chunks(one)) for name, one in odd.items()}


CLOSER = """
import json, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import federation_faults as f
from slipstream.federate import folder

root = Path(sys.argv[1])
files = {path.name: path for path in (root / "hostile").iterdir()}
seen, armed = [], False
QUIET = {"object.__getattr__", "os.listdir", "os.scandir", "fcntl.flock", "os.mkdir", "os.rename", "os.remove",
         "os.truncate", "sys._getframe", "tempfile.mkdtemp"}

def watch(event, args):
    if not armed or event in QUIET:
        return
    ours = (str(root), "/proc/sys/kernel/random")
    if event == "open" and (isinstance(args[0], int) or str(args[0]).startswith(ours)):
        return
    seen.append(f"{event} {args!r:.80}")

sys.addaudithook(watch)

def one(name, data):
    made = f.federation(root / "rounds" / name.replace(" ", "_").replace(",", "_"))
    for client in "abc":
        f.file_now(made, f.update_of(client, 1))
    (folder.round_folder(made, 1) / "client_liar.safetensors").write_bytes(data)
    return f.close_now(made)

one("warm up", b"")  # what Python itself imports on first use is out of the way
one("warm up 2", files["NaN"].read_bytes())
for name, path in sorted(files.items()):
    data = path.read_bytes()
    seen.clear()
    before, armed = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, True
    record = one(name, data)
    armed = False
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    refusals = [[refusal.client, refusal.kind, refusal.reason] for refusal in record.refusals]
    print(json.dumps([name, record.aggregate, refusals, grown, list(seen)]), flush=True)
"""


@pytest.fixture
def quick_path():
    with quick_folder() as folder:
        yield folder


def test_malicious_updates_run_nothing_take_no_memory_and_are_refused_with_a_reason(quick_path):
    cases = hostile()
    (quick_path / "hostile").mkdir()
    (quick_path / "rounds").mkdir()
    for name, data in cases.items():
        (quick_path / "hostile" / name).write_bytes(data)
    studies = Path(__file__).parents[2] / "studies"
    done = subprocess.run(
        [sys.executable, "-c", CLOSER, str(quick_path), str(studies)],
        capture_output=True,
        text=True,
        cwd=quick_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert {name for name, *_ in results} == set(cases)
    for name, aggregate, refusals, grown, seen in results:
        assert aggregate == f.expected(1, "abc"), name
        assert [client for client, _, _ in refusals] == ["liar"], name
        assert len(refusals[0][2]) > 10, name
        assert grown < 80, name
        assert seen == [], name
    kinds = {name: refusals[0][1] for name, _, refusals, _, _ in results}
    meant = {
        "NaN": "not_finite",
        "other type": "layout",
        "other shape": "layout",
        "more arrays": "layout",
        "name that is no text": "layout",
        "huge": "norm",
    }
    assert kinds == {name: meant.get(name, "malformed") for name in cases}
    assert not (quick_path / "executed").exists()


def test_pickles_of_this_test_would_run_if_they_were_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Evil()))
    assert (tmp_path / "executed").exists()
