"""The package as numbers: how large it is, and how much of it a run loads (`make house`).

    python tools/house.py                  this checkout
    python tools/house.py --beside PATH    and another checkout of it, with its own environment in PATH/.venv

Sizes come from reading slipstream/**/*.py. What a run loads and what an update executes come from running one.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parents[1]
LONG_FUNCTION, LONG_FILE = 60, 400
RUN = (
    "train head_on --timesteps 12288 --out r --models m --collect.num-worlds 32 --evaluate.evaluation-interval 2 "
    "--evaluate.evaluation-duration 4 --stop.zero-conflict-streak None"
)

# Runs in the other checkout's environment, so it uses nothing of this one.
PROBE = """
import json, os, sys, threading
own = lambda code: code.co_filename if "/slipstream/" in code.co_filename and code.co_name != "<module>" else None
run_files, update_files, in_update = set(), set(), [0]
def note(frame, event, argument):
    name = own(frame.f_code)
    if name is None:
        return
    is_update = frame.f_code.co_qualname == "Ppo.update"
    if event == "call":
        in_update[0] += is_update
        run_files.add(name)
        if in_update[0]:
            update_files.add(name)
    elif event == "return":
        in_update[0] -= is_update
from slipstream.cli.main import main
sys.setprofile(note)
code = main(sys.argv[1:])
sys.setprofile(None)
loaded = [name for name in sys.modules if name.split(".")[0] == "slipstream"]
print("PROBE" + json.dumps([code, len(loaded), len(run_files), len(update_files)]))
"""

# How messages between processes are written: a pattern for each way there is or was. One hit is one format.
FORMATS = {
    "msgpack frames, by magic": r'(?:Frames\(|(?m:^)MAGIC = )b"(\w+)"',
    "datagrams with descriptors": r"(SOCK_SEQPACKET)",
    "lengths before messages": r"(?m)^LENGTH = struct\.(Struct)",
    # ZeroMQ, a process group and a file carry bytes: a module that puts frames into them has no format of its own.
    "ZeroMQ": r"(?ms)\A(?!.*MessageSet\().*?^import (zmq)",
    "broadcasts of a process group": r"(?ms)\A(?!.*MessageSet\().*?def (_broadcast)\(",
    "files of messages": r"(?ms)\A(?!.*MessageSet\().*?msgpack\.Decoder\((Message)\)",
    "packets of a console": r"class (?:Packet)?(Decoder):",
}


def counts(root: Path) -> dict[str, int]:
    """What reading tells."""
    texts = {path: path.read_text() for path in sorted((root / "slipstream").rglob("*.py"))}
    nodes = [(path, node) for path, text in texts.items() for node in ast.walk(ast.parse(text))]
    classes = Counter(node.name for _, node in nodes if isinstance(node, ast.ClassDef))
    lengths = [
        (node.end_lineno or 0) - node.lineno + 1
        for _, node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    formats = set()
    for path, text in texts.items():
        for kind, pattern in FORMATS.items():
            found = re.findall(pattern, text)
            formats |= {(kind, name if kind.startswith("msgpack") else str(path)) for name in found}
    starts = r"\bPopen\(|\bos\.fork\(|\bposix_spawn\(|\.Process\(\s*target"
    return {
        "lines of Python": sum(text.count("\n") for text in texts.values()),
        "modules": len(texts),
        "classes": sum(classes.values()),
        "class names with two meanings": sum(many > 1 for many in classes.values()),
        "functions over 60 lines": sum(length > LONG_FUNCTION for length in lengths),
        "files over 400 lines": sum(text.count("\n") > LONG_FILE for text in texts.values()),
        "message formats": len(formats),
        "modules with a socket server loop": sum("DefaultSelector(" in t or ".accept()" in t for t in texts.values()),
        "modules that start a process": sum(re.search(starts, text) is not None for text in texts.values()),
    }


def walked(root: Path) -> dict[str, int]:
    """What a small run of head_on loads and executes."""
    python = root / ".venv/bin/python"
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python if python.exists() else sys.executable), "-c", PROBE, *RUN.split()]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("PROBE")), None)
    if line is None:
        sys.exit(f"the run in {root} failed:\n{done.stdout[-500:]}{done.stderr[-2000:]}")
    code, loaded, run_files, update_files = json.loads(line.removeprefix("PROBE"))
    if code:
        sys.exit(f"the run in {root} ended with code {code}:\n{done.stderr[-2000:]}")
    return {
        "modules loaded by train head_on": loaded,
        "files whose code it executes": run_files,
        "files executed by one PPO update": update_files,
    }


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="another checkout, with its environment in .venv")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    asked = parser.parse_args()
    roots = {"here": HERE} if asked.beside is None else {str(asked.beside): asked.beside.resolve(), "here": HERE}
    columns = {name: counts(root) | walked(root) for name, root in roots.items()}
    first = next(iter(columns.values()))
    print("".join(f"{name:>14}" for name in ("", *(Path(name).name for name in columns))).rjust(34 + 14 * len(columns)))
    for row in first:
        print(f"{row:<48}" + "".join(f"{column[row]:>14,}" for column in columns.values()))
    if asked.out is not None:
        asked.out.write_text(json.dumps(columns, indent=1) + "\n")


if __name__ == "__main__":
    main()
