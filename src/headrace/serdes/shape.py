"""The structure of types: the library that reads a type from JSON, and parts that no library can read."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from headrace.errors import ConfigError

_PYDANTIC: Final = ("pydantic", "pydantic_core", "pydantic_extra_types", "annotated_types")
_MARKS: Final = ("__pydantic_validator__", "__get_pydantic_core_schema__")


def unaliased(kind: Any) -> Any:
    """Return the type behind aliases: `NewType`, `Annotated`, `type X = ...`."""
    while (inner := _named(kind)) is not None:
        kind = inner
    return kind


def _named(kind: Any) -> Any:
    """Return the type behind one alias; None if the type is not an alias."""
    if isinstance(kind, typing.NewType):
        return kind.__supertype__
    if typing.get_origin(kind) is typing.Annotated:
        return kind.__origin__
    return kind.__value__ if type(kind).__name__ == "TypeAliasType" else None


def is_type(given: Any) -> bool:
    """Return whether an object is a type but not a class: a union, a generic type, an alias."""
    return typing.get_origin(given) is not None or _named(given) is not None


def members(kind: Any) -> list[Any]:
    """Return the types of a union, without None. A type that is not a union is returned alone."""
    kind = unaliased(kind)
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return [kind]
    return [unaliased(each) for each in typing.get_args(kind) if each is not type(None)]


def needs_pydantic(kind: Any) -> bool:
    """Return whether a type or one of its fields belongs to pydantic, or has constraints that only pydantic checks.

    Raises:
        ConfigError: The type also has parts that only msgspec reads.
    """
    parts = list(_parts(kind, {}))
    if not any(_is_pydantics(part) for part in parts):
        return False
    if strange := [part for part in parts if _is_msgspecs(part)]:
        raise ConfigError(
            f"no serde can be made of {kind!r}: it mixes types of pydantic with {strange[0]!r} of msgspec, and neither "
            "checks the other's"
        )
    return True


def has_constraints(kind: Any) -> bool:
    """Return whether a type has constraints or belongs to one of the libraries."""
    return any(_is_pydantics(part) or _is_msgspecs(part) for part in _parts(kind, {}))


def unreadable(kind: Any) -> list[type]:
    """Return the classes within a type that msgspec does not read from JSON.

    Raises:
        Exception: msgspec does not support the type at all.
    """
    found = _custom(msgspec.inspect.type_info(kind), set())
    return [each for each in found if each is not object]


def _custom(node: Any, seen: set[int]) -> Iterator[type]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, msgspec.inspect.CustomType):
        yield node.cls
    elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in node.__struct_fields__:
            value = getattr(node, name)
            for each in value if isinstance(value, tuple) else (value,):
                yield from _custom(each, seen)


def _parts(kind: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield the classes that a type consists of, and their annotations in `Annotated`."""
    if id(kind) in seen:
        return
    seen[id(kind)] = kind  # the reference keeps the type alive, so that no other object gets its id
    if typing.get_origin(kind) is typing.Annotated:
        yield from kind.__metadata__
    if (inner := _named(kind)) is not None:
        yield from _parts(inner, seen)
        return
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return
    for argument in typing.get_args(kind):
        yield from _parts(argument, seen)
    cls = origin or kind
    if isinstance(cls, type):
        yield cls
        if not _is_pydantics(cls):
            for hint in _hints(cls).values():
                yield from _parts(hint, seen)


def _hints(cls: type) -> dict[str, Any]:
    if cls.__module__ in ("builtins", "typing", "collections", "datetime", "decimal", "uuid"):
        return {}
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 - a name is not defined; the library that reads the type raises the error
        return {}


def _is_pydantics(part: Any) -> bool:
    if isinstance(part, type):
        return any(hasattr(part, mark) for mark in _MARKS)
    return type(part).__module__.split(".")[0] in _PYDANTIC or hasattr(part, _MARKS[1])


def _is_msgspecs(part: Any) -> bool:
    if isinstance(part, type):
        return issubclass(part, msgspec.Struct | msgspec.Raw)
    return isinstance(part, msgspec.Meta)
