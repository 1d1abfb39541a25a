"""Bounds of Avro values: nesting depth and the number of items without bytes, which the writer of a record chooses.

fastavro recurses on the stack of the thread, and the process crashes when the stack is exhausted; a value of twenty
kilobytes can do this. Items without bytes, such as null, need memory, and a few bytes can announce any number of them.
Therefore values of a schema that allows one of the two are checked before they are decoded. Most schemas allow neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MAX_DEPTH: Final = 200
"""The largest nesting depth of records, arrays, maps and unions, as for JSON values."""
MAX_EMPTY_ITEMS: Final = 100_000
"""The largest number of array items without bytes in one value."""
MAX_VARINT_BYTES: Final = 10

_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBERS: Final = {"int", "long", "enum"}
_TEXTS: Final = {"string", "bytes"}


class AvroBounds:
    """The bounds of the values of one schema."""

    def __init__(self, schema: Any) -> None:
        """Find out whether values need a check. The schema was parsed by fastavro."""
        self._named: dict[str, Any] = {}
        self._open: list[str] = []
        self._needed = False
        self._root = schema
        self._look(schema)

    def check(self, data: bytes) -> None:
        """Check that a value can be decoded safely.

        Raises:
            ValueError: The value nests too deep, has too many empty items, or does not fit the schema.
        """
        if self._needed:
            _Walk(data, self._named).skip(self._root, 0)

    def _look(self, schema: Any) -> None:
        """Collect the named types, and find out whether a part of the schema has no bound."""
        if isinstance(schema, list):
            for each in schema:
                self._look(each)
            return
        if isinstance(schema, str):
            self._needed |= schema in self._open
            return
        kind = schema["type"]
        name = schema.get("name")
        if name is not None:
            self._named[name] = schema
        if kind == "array":
            self._look(schema["items"])
            self._needed = self._needed or self._is_empty(schema["items"])
        elif kind == "map":
            self._look(schema["values"])
        elif kind in {"record", "error"}:
            self._open.append(name)
            for each in schema["fields"]:
                self._look(each["type"])
            self._open.pop()
        else:
            self._needed |= kind in self._open

    def _is_empty(self, schema: Any) -> bool:
        """Return whether a value of a schema may have no bytes. The schema is not recursive."""
        if isinstance(schema, list):
            return False  # a value of a union has at least one byte
        if isinstance(schema, str):
            return schema == "null" or (
                schema in self._named and self._is_empty(self._named[schema])
            )
        kind = schema["type"]
        if kind in {"record", "error"}:
            return all(self._is_empty(each["type"]) for each in schema["fields"])
        return bool(kind == "null" or (kind == "fixed" and schema["size"] == 0))


class _Walk:
    """A walk through an encoded value, without decoding it."""

    def __init__(self, data: bytes, named: Mapping[str, Any]) -> None:
        self._data = data
        self._named = named
        self._at = 0
        self._empty_items = 0

    def skip(self, schema: Any, depth: int) -> None:
        """Move past a value of a schema."""
        if depth > MAX_DEPTH:
            raise ValueError(f"the value nests deeper than {MAX_DEPTH}")
        if isinstance(schema, list):
            self.skip(schema[self._choice(len(schema))], depth + 1)
            return
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if kind in self._named:
            self.skip(self._named[kind], depth)
        elif kind in {"record", "error"}:
            for each in schema["fields"]:
                self.skip(each["type"], depth + 1)
        elif kind == "array":
            self._items(schema["items"], depth)
        elif kind == "map":
            self._items(schema["values"], depth, is_map=True)
        else:
            self._leaf(kind, schema)

    def _leaf(self, kind: str, schema: Mapping[str, Any]) -> None:
        if kind in _NUMBERS:
            self._long()
        else:
            size = self._long() if kind in _TEXTS else _SIZES.get(kind, schema.get("size", 0))
            self._forward(size)

    def _choice(self, count: int) -> int:
        choice = self._long()
        if not 0 <= choice < count:
            raise ValueError(f"the value chooses number {choice} of {count} types")
        return choice

    def _items(self, items: Any, depth: int, *, is_map: bool = False) -> None:
        while (count := self._long()) != 0:
            if count < 0:
                count = -count
                self._long()  # the size of the block in bytes
            for _ in range(count):
                before = self._at
                if is_map:
                    self._forward(self._long())
                self.skip(items, depth + 1)
                self._empty_items += self._at == before
                if self._empty_items > MAX_EMPTY_ITEMS:
                    raise ValueError(f"the value has more than {MAX_EMPTY_ITEMS} empty items")

    def _forward(self, size: int) -> None:
        self._at += size
        if size < 0 or self._at > len(self._data):
            raise ValueError("the data ends within the value")

    def _long(self) -> int:
        value = shift = 0
        while True:
            if self._at >= len(self._data) or shift >= 7 * MAX_VARINT_BYTES:
                raise ValueError("the data ends within the value")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
