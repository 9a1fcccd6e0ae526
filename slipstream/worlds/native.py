"""From frozen configs to the core's structs: the same names on both sides, copied one by one."""

from __future__ import annotations

from typing import Any, TypeVar

from slipstream.config.base import Config

Native = TypeVar("Native")


def fields(config: Config) -> dict[str, Any]:
    """A config's values by name, nested configs as they are."""
    return {name: getattr(config, name) for name in type(config).model_fields}


def fill(native: Native, values: dict[str, Any]) -> Native:
    """Set attributes by name."""
    for name, value in values.items():
        setattr(native, name, value)
    return native
