"""The first thing a `Child` runs: it takes the pipes to its parent and goes on as a module of Slipstream.

python -m slipstream.runtime.child PARENT REPORT ON_PARENT_END MODULE WORDS...
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

from slipstream.runtime.process import become_child, report_exception


def main(parent: str, report: str, on_parent_end: Any, module: str, *words: str) -> None:
    """Run a module as `python -m` would."""
    become_child(None if parent == "-" else int(parent), int(report), on_parent_end)
    sys.argv = [module, *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception as error:
        report_exception(error)
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
