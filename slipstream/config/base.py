"""The base of every config class: frozen, closed to unknown keys, strict about types."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeGuard

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from slipstream.config.records import NAME_PATTERN
from slipstream.own_code import OWN_NAME, as_name

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]

Problem = tuple[tuple[str, ...], str]  # the path of a key, and what is wrong there


class Config(BaseModel):
    """A frozen value read from YAML; sequences are tuples, floats are finite, unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _from_yaml(cls, data: Any) -> Any:
        return {key: _strict(value) for key, value in data.items()} if isinstance(data, dict) else data


class OfKind(Config):
    """A base of config classes told apart by `kind`: a field of such a base takes any of them.

    Only the class that is asked for is imported. Annotate fields with `SerializeAsAny`, so that dumps have all keys.
    """

    kind: str
    every: ClassVar[Callable[[], Iterable[type[Any]]]]  # the classes of all kinds; each base has its own

    @classmethod
    def of_kind(cls, kind: str) -> type[Any] | None:
        """The class of this kind; None where there is none."""
        return next((own for own in cls.every() if kind in own.kinds()), None)

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """The kinds that this class is for; none, where it is a base."""
        return typing.get_args(cls.model_fields["kind"].annotation)

    @model_validator(mode="wrap")
    @classmethod
    def _as_its_class(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not is_base(cls) or not isinstance(data, Mapping):
            return handler(data)
        asked = data.get("kind")
        if asked is None:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
        own = cls.of_kind(asked) if isinstance(asked, str) else None
        if own is None:
            tags = {"discriminator": "'kind'", "tag": str(asked), "expected_tags": "others"}
            raise PydanticKnownError("union_tag_invalid", tags)
        made: Self = own.model_validate(data)
        return made


def is_base(model: type[BaseModel]) -> TypeGuard[type[OfKind]]:
    """Whether a config class stands for the classes of all kinds."""
    return OfKind in model.__bases__


# Names of the user's code; in Python, the class or function itself.
OwnName = Annotated[str, BeforeValidator(as_name), Field(pattern=OWN_NAME, max_length=256)]


class OwnCode(Config):
    """A class, or a function, of the user's: what makes something."""

    target: OwnName = Field(description="module:name; the module may be a file in the current folder.")
    kwargs: dict[str, JsonValue] = Field(default_factory=dict, description="Its keyword arguments (plain values only).")


def _strict(value: Any) -> Any:
    """Turns what YAML has (lists, 1e6) into what strict fields want (tuples, whole numbers)."""
    if isinstance(value, list):
        return tuple(_strict(item) for item in value)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # a float field turns it back; an int field would refuse 1e6
    return value


def refuse_problems(problems: Iterable[Problem]) -> None:
    """Raises, in a validator of a config class, all problems between its fields; their paths begin at that class."""
    found = list(problems)
    if found:
        text = "; ".join(f"{dotted(path)}: {sentence}" for path, sentence in found)
        raise PydanticCustomError("cross_field", "{text}", {"text": text, "problems": found})


def plain(value: Any) -> Any:
    """Configs, tuples and numpy values as what JSON and YAML have: mappings, lists, numbers, text, null."""
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def flag_of(path: str) -> str:
    """A dotted path as a flag of the command line."""
    return f"--{path.replace('_', '-')}"


def dotted(path: Iterable[str | int]) -> str:
    """A path as people write it: world.aircraft.0.speed_kt."""
    return ".".join(map(str, path))
