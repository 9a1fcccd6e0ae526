"""Names that may become file names: an allow-list, so that no name can point outside its folder."""

from __future__ import annotations

import re

from slipstream.errors import ScenarioError

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def is_name(text: str) -> bool:
    """True for 1 to 64 ASCII letters, digits, '_', '.' and '-', not starting with '.' or '-'."""
    return _NAME.fullmatch(text) is not None


def check_name(text: str, what: str) -> str:
    """Returns `text`, or raises a ScenarioError that says what a name may hold."""
    if not is_name(text):
        shown = text if len(text) <= 64 else text[:61] + "..."
        raise ScenarioError(
            f"{what} {shown!r} is not a name: use 1 to 64 letters, digits, '_', '.' or '-', "
            "not starting with '.' or '-'"
        )
    return text


def name_from(text: str) -> str:
    """Makes a name of any text, for files called 'my scenario (2).yaml'."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).lstrip(".-")[:64] or "scenario"
