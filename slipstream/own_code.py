"""Code that a table of ours, a scenario or a flag names as module:attribute, imported when it is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from slipstream.errors import ScenarioError, SlipstreamError, suggest

OWN_NAME = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"


def as_name(value: Any) -> Any:
    """`module:name` of a class or function that was given in Python; anything else as it is."""
    return f"{value.__module__}:{value.__qualname__}" if callable(value) and hasattr(value, "__qualname__") else value


def named(place: str) -> Any:
    """What an entry of one of our tables stands for."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@contextmanager
def files_here() -> Iterator[None]:
    """Lets modules be files in the current folder; what is installed comes first."""
    here = os.getcwd()
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.append(here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def find_own(name: str, where: str, error: type[SlipstreamError] = ScenarioError) -> Any:
    """What `module:attribute` stands for, which must be callable; `where` is the key or flag that names it."""
    module_name, _, attribute = name.partition(":")
    try:
        with files_here():
            module = import_module(module_name)
    except ImportError as missing:
        hint = f"is it installed, or a file in {os.getcwd()}?"
        raise error(f"{where}: cannot import '{module_name}' ({missing}); {hint}") from missing
    found = getattr(module, attribute, None)
    if not callable(found):
        names = [name for name in dir(module) if not name.startswith("_")]
        what = "no" if found is None else "something that cannot be called as"
        raise error(f"{where}: '{module_name}' has {what} '{attribute}'{suggest(attribute, names)}")
    return found
