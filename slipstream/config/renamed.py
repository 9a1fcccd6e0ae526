"""Keys that had another name: files and runs that an older version wrote still load."""

from __future__ import annotations

from typing import Any


def with_new_names(values: dict[str, Any]) -> dict[str, Any]:
    """Plain values of a scenario with every old key under its new name; what is wrong with them is said later."""
    return _shaping_coef(values)


def _shaping_coef(values: dict[str, Any]) -> dict[str, Any]:
    """`collect.shaping_coef`, of which 0 meant none, became `shaping.kappa` and `.use_potential_shaping`."""
    collect, shaping = values.get("collect"), values.get("shaping", {})
    if not isinstance(collect, dict) or "shaping_coef" not in collect or not isinstance(shaping, dict):
        return values
    kappa = collect["shaping_coef"]
    new = {"use_potential_shaping": False} if kappa == 0 else {"use_potential_shaping": True, "kappa": kappa}
    rest = {key: value for key, value in collect.items() if key != "shaping_coef"}
    return {**values, "collect": rest, "shaping": {**shaping, **new}}
