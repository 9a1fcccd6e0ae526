"""A checkpoint from a stranger runs no code, reads nothing elsewhere, and is refused in a sentence."""

import hashlib
import io
import json
import os
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from slipstream.data import checkpoint as ck
from slipstream.errors import CheckpointError

LOADER = """
import json, resource, sys, time
from pathlib import Path
from slipstream.errors import CheckpointError
from slipstream.data.checkpoint import load

root = Path(sys.argv[1])
load(root / "good")  # so that what Python itself imports on first use is out of the way
seen = []
armed = False
QUIET = {"object.__getattr__", "os.listdir", "os.scandir"}

def watch(event, args):
    if not armed or event in QUIET:
        return
    if event == "open" and str(args[0]).startswith(str(root)):
        return
    if event == "open" and isinstance(args[0], int):
        return  # os.fdopen of a descriptor opened above
    seen.append(f"{event} {args!r:.80}")

began = time.process_time()
json.loads(json.dumps(list(range(10**6))))
print(time.process_time() - began)
sys.addaudithook(watch)
for path in sorted(root.iterdir()):
    if path.name in ("good", "canary"):
        continue
    seen.clear()
    started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    armed = True
    try:
        load(path)
        said = "LOADED"
    except CheckpointError as error:
        said = str(error)
    finally:
        armed = False
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    result = [path.name, said, time.process_time() - started, grown / 1024, list(seen)]
    print(json.dumps(result), flush=True)
"""


class Payload:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch {self.canary}",)


def forge(folder: Path, arrays: bytes | None = None, *, size: int | None = None, **record: object) -> Path:
    """A folder whose checksums are all right: a stranger can compute those too."""
    arrays = safetensors.numpy.save({"policy.w": np.zeros(3, np.float32)}) if arrays is None else arrays
    folder.mkdir()
    (folder / "arrays.safetensors").write_bytes(arrays)
    digest = hashlib.sha256(arrays).hexdigest()
    content = {
        "format": "slipstream.checkpoint",
        "version": 1,
        "arrays": {"bytes": len(arrays) if size is None else size, "sha256": digest},
        "meta": {},
    }
    (folder / "meta.json").write_bytes(ck._seal(content | record))
    return folder


def header(entries: object, data: bytes = b"") -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: object = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def zip_bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("arrays.npy", bytes(2**26))
        archive.writestr("../../escaped", b"x")
    return out.getvalue()


def sealed(text: bytes) -> bytes:
    """Any bytes after the seal, with the right checksum."""
    start = b'{\n  "sha256": "'
    digest = hashlib.sha256(start + b"0" * 64 + text).hexdigest().encode()
    return start + digest + text


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    ck.save(root / "good", ck.Checkpoint({"policy.w": np.zeros(3, np.float32)}, {}))
    _add_foreign(root, pickle.dumps(Payload(root / "canary")))
    _add_bad_arrays(root)
    _add_bad_meta(root)
    _add_special_files(root)
    return root


def _add_foreign(root: Path, pickled: bytes) -> None:
    (root / "file.pkl").write_bytes(pickled)
    (root / "file.zip").write_bytes(zip_bomb())
    for name in ("data.pkl", "meta.json", "arrays.safetensors"):
        folder = root / f"folder with pickle as {name}"
        folder.mkdir()
        (folder / name).write_bytes(pickled)
    forge(root / "pickled arrays", pickled)
    forge(root / "zipped arrays", zip_bomb())
    (root / "empty").mkdir()


def _add_bad_arrays(root: Path) -> None:
    nan = safetensors.numpy.save({"policy.w": np.array([1.0, np.nan])})
    cases = {
        "shape overflows to 0": header({"w": entry(shape=[2**62, 4], offsets=[0, 0])}),
        "shape overflows to 4": header({"w": entry(shape=[2**62, 4, 1], offsets=[0, 4])}, bytes(4)),
        "shape of nothing by 2**63": header({"w": entry(shape=[0, 2**63], offsets=[0, 0])}),
        "shape of nothing by 2**40 twice": header({"w": entry(shape=[0, 2**40, 2**40], offsets=[0, 0])}),
        "shape with 10**5 dimensions": header({"w": entry(shape=[1] * 10**5)}, bytes(4)),
        "shape negative": header({"w": entry(shape=[-1, -1])}, bytes(4)),
        "shape of floats": header({"w": entry(shape=[1.0])}, bytes(4)),
        "shape of booleans": header({"w": entry(shape=[True])}, bytes(4)),
        "shape is text": header({"w": entry(shape="1")}, bytes(4)),
        "offsets huge": header({"w": entry(shape=[2**40], offsets=[0, 2**42])}, bytes(4)),
        "offsets negative": header({"w": entry(offsets=[-4, 0])}, bytes(4)),
        "offsets overlap": header({"a": entry(), "b": entry()}, bytes(4)),
        "offsets leave a gap": header({"a": entry(offsets=[4, 8])}, bytes(8)),
        "data left over": header({"a": entry()}, bytes(5)),
        "header of 2**63 bytes": (2**63).to_bytes(8, "little") + b"{}",
        "header of 8 MB": header(b"{}" + b" " * 2**23),
        "header is a list": header([]),
        "header nested": header(b"[" * 10**5),
        "header with 10**5 arrays": header({str(i): entry(shape=[0], offsets=[0, 0]) for i in range(10**5)}),
        "header with 2*10**4 arrays": header({str(i): entry(shape=[0], offsets=[0, 0]) for i in range(20_000)}),
        "entry is a number": header({"w": 3}),
        "huge integer": header(b'{"w": ' + b"9" * 10**5 + b"}"),
        "no bytes": b"",
        "7 bytes": bytes(7),
        "not utf-8": header(b"\xff\xfe{}"),
        "dtype bfloat16": header({"w": entry("BF16", [2])}, bytes(4)),
        "dtype float8": header({"w": entry("F8_E4M3", [4])}, bytes(4)),
        "dtype object": header({"w": entry("O")}, bytes(4)),
        "dtype a list": header({"w": entry(["F32"])}, bytes(4)),
        "weights not finite": nan,
    }
    for name, content in cases.items():
        forge(root / name, content)


def _add_bad_meta(root: Path) -> None:
    forge(root / "newer version", version=2)
    forge(root / "much newer version", version=10**4000)
    (root / "odd names").mkdir()
    for name in ("a\nb\x1b[31m", "c" * 250):
        (root / "odd names" / name).touch()
    for version in (0, -1, True, "1", None, 1.0, [1]):
        forge(root / f"version {version!r}", version=version)
    forge(root / "other format", format="somebody.else")
    forge(root / "wrong size", size=7)
    forge(root / "negative size", size=-1)
    forge(root / "no arrays field", arrays=b"", **{"meta": []})
    texts = {
        "meta nested": b'", "format": ' + b"[" * 10**5,
        "meta of 8 MB": b'", "format": "' + b"x" * 2**23 + b'"}',
        "meta of many lists": b'", "format": [' + b"[]," * 3 * 10**5 + b"[]]}",
        "meta of a huge integer": b'", "version": ' + b"9" * 10**5 + b"}",
        "meta cut short": b'",',
    }
    for name, text in texts.items():
        (forge(root / name) / "meta.json").write_bytes(sealed(text))


def _add_special_files(root: Path) -> None:
    for name in ("meta.json", "arrays.safetensors"):
        for kind, make in {
            "link": lambda path: path.symlink_to("/etc/passwd"),
            "pipe": os.mkfifo,
            "folder": Path.mkdir,
            "missing": lambda path: None,
        }.items():
            path = forge(root / f"{name} {kind}") / name
            path.unlink()
            make(path)
    text = json.dumps({"w": entry("U8", [2**42], [0, 2**42])}).encode()
    size = 8 + len(text) + 2**42
    path = forge(root / "sparse file of 4 TB", header(text), size=size) / "arrays.safetensors"
    os.truncate(path, size)


def test_nothing_runs_nothing_is_read_elsewhere_and_each_is_refused_at_once(corpus):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", LOADER, str(corpus)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    yardstick_s, *results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(list(corpus.iterdir())) - 1
    for name, said, seconds, grown_mb, seen in results:
        assert said != "LOADED", name
        assert said.startswith(str(corpus)), f"{name}: {said}"
        assert "\n" not in said
        assert len(said) < 600, name
        assert seconds < 10 * yardstick_s, name  # the slowest takes about one
        assert grown_mb < 200.0, name
        assert seen == [], name
    assert not (corpus / "canary").exists()
    assert not (corpus.parent / "escaped").exists()


def test_the_canary_would_have_sung(corpus):
    """The corpus has teeth: what loads a pickle does run its code."""
    pickle.loads((corpus / "file.pkl").read_bytes())
    assert (corpus / "canary").exists()
    (corpus / "canary").unlink()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("file.pkl", "(pickle, .pt and .zip files"),
        ("folder with pickle as data.pkl", "['data.pkl']"),
        ("newer version", "version 2,"),
        ("other format", "'somebody.else'"),
        ("weights not finite", "'policy.w'"),
        ("dtype bfloat16", "'BF16'"),
        ("header with 2*10**4 arrays", "20000 arrays "),
        ("not there", "checkpoints/"),
    ],
)
def test_a_refusal_names_what_was_found_and_where(corpus, name, says):
    with pytest.raises(CheckpointError, match=f"{re.escape(name)}(/.*)?: .*{re.escape(says)}"):
        ck.load(corpus / name)
