"""The base of every config class: frozen, closed to unknown keys, strict about types."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Config(BaseModel):
    """A frozen value read from YAML; sequences are tuples, floats are finite, unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, data: Any) -> Any:
        return {key: _strict(value) for key, value in data.items()} if isinstance(data, dict) else data


def _strict(value: Any) -> Any:
    """Turns what YAML has (lists, 1e6) into what strict fields want (tuples, whole numbers)."""
    if isinstance(value, list):
        return tuple(_strict(item) for item in value)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # a float field turns it back; an int field would refuse 1e6
    return value
