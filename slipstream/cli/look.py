"""Verbs that show: a world to play."""

from __future__ import annotations

from collections.abc import Sequence


def drmario(argv: Sequence[str]) -> int:
    """Play Dr. Mario; its own module is loaded by those who do."""
    from slipstream.cli.drmario import main

    return main(argv)
