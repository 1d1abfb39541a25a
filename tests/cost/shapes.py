"""Requests of any shape, made from the schemas: the lengths of their lists, and the values of their fields."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from headrace.broker.dispatch import APIS
from headrace.protocol.codec import Message
from tests.cost.broker import framed
from tests.cost.fields import FIELDS, NUMBERS, WORDS, Kind
from tests.fixtures.messages import schemas
from tools.message_schema import FieldSchema, MessageSchema, StructSchema


@dataclass
class Shape:
    """The shape of a request: the lengths of its lists, and the values of its fields."""

    counts: dict[str, int] = field(default_factory=dict)
    """The number of elements of a list, by the list's path. Other lists have one element."""
    value: Callable[[Kind, str, int], Any] = lambda kind, path, number: None
    """Returns the value of a field for its kind, its path, and the number of its element."""
    empty: frozenset[str] = frozenset()
    """The lists whose elements have only default values."""


@cache
def request_schemas() -> dict[str, tuple[str, MessageSchema, range]]:
    """Return every request that the broker serves: its module, its schema, and the served versions."""
    by_key = {s.api_key: (m, s) for m, s in schemas().values() if s.kind == "request"}
    found = {}
    for api in APIS:
        module, schema = by_key[api.key]
        found[schema.name] = (module, schema, range(api.served.min, api.served.max + 1))
    return found


def walk(struct: StructSchema, prefix: str = "") -> Iterator[tuple[str, FieldSchema]]:
    """Yield every field of a structure and of its inner structures, with its path."""
    for each in struct.fields:
        path = f"{prefix}{each.name}"
        yield path, each
        if each.struct is not None:
            yield from walk(each.struct, f"{path}.")


def needs_row(each: FieldSchema) -> bool:
    """Return whether the client chooses a field's size, or the field names something."""
    return (
        each.is_array
        or each.struct is not None
        or each.type in {"string", "bytes", "records", "uuid"}
    )


def served_fields(name: str) -> dict[str, FieldSchema]:
    """Return the fields of a request that exist in a served version."""
    _, schema, versions = request_schemas()[name]
    return {
        path: each
        for path, each in walk(schema)
        if any(version in each.versions for version in versions)
        and not _below_absent(schema, path, versions)
    }


def _below_absent(struct: StructSchema, path: str, versions: range) -> bool:
    """Return whether a structure around a field exists in no served version."""
    first, _, rest = path.partition(".")
    each = next(f for f in struct.fields if f.name == first)
    if not any(version in each.versions for version in versions):
        return True
    return bool(rest) and each.struct is not None and _below_absent(each.struct, rest, versions)


def versions_of(name: str) -> list[int]:
    """Return the versions to try: the lowest, the highest, and for each field the last one that has it."""
    _, _, versions = request_schemas()[name]
    chosen = {versions[0], versions[-1]}
    for each in served_fields(name).values():
        chosen.add(max(version for version in versions if version in each.versions))
    return sorted(chosen)


def exists(name: str, path: str, version: int) -> bool:
    _, schema, _ = request_schemas()[name]
    struct: StructSchema | None = schema
    for part in path.split("."):
        assert struct is not None
        each = next(f for f in struct.fields if f.name == part)
        if version not in each.versions:
            return False
        struct = each.struct
    return True


def message_class(name: str) -> type[Message]:
    """Return the class of a request."""
    module = request_schemas()[name][0]
    found: type[Message] = getattr(
        importlib.import_module(f"headrace.protocol.messages.{module}"), name
    )
    return found


def make(name: str, version: int, shape: Shape) -> Message:
    """Return a request of a shape."""
    maker = _Maker(name, version, shape)
    made: Message = maker.structure(maker.schema)
    return made


def frame_of(name: str, version: int, shape: Shape) -> bytes:
    """Return the encoded request of a shape."""
    return framed(make(name, version, shape), version)


class _Maker:
    """Builds one request of a shape."""

    def __init__(self, name: str, version: int, shape: Shape) -> None:
        module, self.schema, _ = request_schemas()[name]
        self.module = importlib.import_module(f"headrace.protocol.messages.{module}")
        self.name = name
        self.version = version
        self.shape = shape

    def structure(self, struct: StructSchema, prefix: str = "", number: int = 0) -> Any:
        """Return a structure. Fields without a value of their own have the schema's default."""
        values = {
            each.name: self.field(each, f"{prefix}{each.name}", number)
            for each in struct.fields
            if self.version in each.versions
        }
        return getattr(self.module, struct.name)(
            **{name: value for name, value in values.items() if value is not ...}
        )

    def field(self, each: FieldSchema, path: str, number: int) -> Any:
        """Return a field's value, or `...` for the default."""
        if each.is_array:
            return self.elements(each, path)
        if each.struct is None:
            return self.value(each, path, number)
        if each.tag is not None or self.version in each.nullable:
            return None
        return self.structure(each.struct, f"{path}.")

    def elements(self, each: FieldSchema, path: str) -> list[Any]:
        """Return a list. Equal elements are one object."""
        count = self.shape.counts.get(path, 1)
        if each.struct is None:
            return [self.value(each, path, i) for i in range(count)]
        if path in self.shape.empty:
            return [getattr(self.module, each.struct.name)()] * count
        if count > 1 and not self.differ(f"{path}."):
            return [self.structure(each.struct, f"{path}.")] * count
        return [self.structure(each.struct, f"{path}.", i) for i in range(count)]

    def differ(self, prefix: str) -> bool:
        """Return whether two elements of a list differ."""
        value = self.shape.value
        return any(
            value(kind, path, 0) != value(kind, path, 1)
            for path, kind in FIELDS[self.name].items()
            if path.startswith(prefix)
        )

    def value(self, each: FieldSchema, path: str, number: int) -> Any:
        """Return a single value, or `...` for the default."""
        kind = FIELDS[self.name].get(path, Kind.NUMBER)
        found = self.shape.value(kind, path, number)
        if found is None:
            found = WORDS.get(f"{self.name}.{path}")
        if found is None:
            found = NUMBERS.get(self.name, {}).get(path)
        if found is None and each.is_array:
            return "" if each.type == "string" else 0
        return ... if found is None else found
