"""The verb that shows runs in a browser."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from slipstream.errors import RunFolderError, SlipstreamError

DEFAULT = ("runs", "federations", "sweeps")
EXTRA = "the web viewer needs starlette and uvicorn: pip install 'slipstream[web]'"


def view(argv: Sequence[str]) -> int:
    """Serve the page on this machine and open it."""
    parser = argparse.ArgumentParser(
        "slipstream view",
        description="Show runs in a browser: curves while they grow, episodes to replay, comparisons, federations, "
        "sweeps. Reads only, and answers this machine only.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, help="runs, or folders of them (default: runs/, federations/ and sweeps/)"
    )
    parser.add_argument("--port", type=int, default=8765, help="of 127.0.0.1; the next free one if it is in use")
    parser.add_argument("--no-open", action="store_true", help="print the address and open no browser")
    args = parser.parse_args(argv)
    if not 1 <= args.port <= 65535:
        parser.error("--port is a number from 1 to 65535")
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise SlipstreamError(EXTRA)
    return _serve(_roots(args.paths), args.port, not args.no_open)


def _roots(paths: Sequence[Path]) -> list[Path]:
    for path in paths:
        if not path.is_dir():
            raise RunFolderError(f"{path}: there is no such folder; give a run, or a folder of runs such as runs/")
    if paths:
        return list(paths)
    here = [Path(name) for name in DEFAULT if Path(name).is_dir()]
    if not here:
        raise RunFolderError("runs/: there is no such folder here; train something first, or name the folder of a run")
    return here


def _serve(roots: Sequence[Path], port: int, opens: bool) -> int:
    import webbrowser

    from slipstream.view.catalogue import Catalogue
    from slipstream.view.server import listen, serve

    catalogue = Catalogue(roots)
    listening = listen(port)
    got = listening.getsockname()[1]
    address = f"http://127.0.0.1:{got}/"
    if got != port:
        print(f"port {port} is in use, so another one is")
    print(f"{address}  {len(catalogue)} runs; Ctrl+C ends it", flush=True)
    if opens and _has_screen():
        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        serve(catalogue, listening)
    return 0


def _has_screen() -> bool:
    """Whether there is a display; without one, a text browser would open in this terminal."""
    return sys.platform == "darwin" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))
