"""Decodes bytes by the layouts of docs/reference/client-protocol.md, as a reader of the page would.

A layout is a title and one line for each field, indented below the array to which the field belongs. This module uses
nothing of Headrace, because the page alone must be sufficient.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

NUMBERS = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint32": "I", "bool": "?"}
BYTES_A_LINE = 16
HEX_COLUMNS = BYTES_A_LINE * 3 + 1
BLOCK = re.compile(r"^```(layout|hex)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"( *)(\w+): (.+)")


@dataclass
class Field:
    """One field of a layout. `children` are the fields of an array's elements."""

    name: str
    type: str
    children: list[Field] = field(default_factory=list)


def blocks(page: str, kind: str) -> dict[str, str]:
    """Return the blocks of a kind: first line to the text of the other lines."""
    found = {}
    for each, text in BLOCK.findall(page):
        title, rest = text.split("\n", 1)
        if each == kind:
            assert title not in found, f"two blocks are called {title!r}"
            found[title] = rest
    return found


def parse_layout(text: str) -> list[Field]:
    """Return the fields of a layout block."""
    root = Field("", "array")
    stack = [(-1, root)]
    for line in text.splitlines():
        match = FIELD.fullmatch(line)
        assert match is not None, f"not a field: {line!r}"
        depth = len(match[1])
        while stack[-1][0] >= depth:
            stack.pop()
        new = Field(match[2], match[3])
        stack[-1][1].children.append(new)
        stack.append((depth, new))
    return root.children


class Walk:
    """Reads bytes field by field. Each field yields the lines that a hex block shows for it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def fields(self, layout: list[Field], depth: int = 0) -> Iterator[str]:
        """Yield the lines of all fields of a layout."""
        for each in layout:
            yield from self._field(each, depth)

    def _field(self, each: Field, depth: int) -> Iterator[str]:
        start = self.position
        if "array" in each.type:
            count = self._number("varint" if each.type.startswith("var") else "int32")
            yield from self._lines(start, depth, each.name, f"{count} element" + "s" * (count != 1))
            element = [Field(each.name, each.type.partition(" of ")[2])]
            for _ in range(count):
                yield from self.fields(each.children or element, depth + 1)
            return
        yield from self._lines(start, depth, each.name, self._value(each.type))

    def _value(self, kind: str) -> str:
        base = kind.removesuffix("?")
        if base in NUMBERS or base in ("varint", "varlong"):
            return str(self._number(base))
        prefix = "varint" if base.startswith("var") else "int16" if base == "string" else "int32"
        length = self._number(prefix)
        if length < 0:
            assert kind.endswith("?"), f"null where {kind} is not nullable"
            return "null"
        taken = self.data[self.position : self.position + length]
        assert len(taken) == length, "the bytes end inside a field"
        self.position += length
        return json.dumps(taken.decode()) if base.endswith("string") else f"{length} bytes"

    def _number(self, kind: str) -> int:
        if kind not in NUMBERS:
            return self._zigzag()
        layout = struct.Struct(">" + NUMBERS[kind])
        (value,) = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return int(value)

    def _zigzag(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def _lines(self, start: int, depth: int, name: str, value: str) -> Iterator[str]:
        taken = self.data[start : self.position]
        label = f"{'  ' * depth}{name}: {value}"
        for at in range(0, len(taken), BYTES_A_LINE):
            text = taken[at : at + BYTES_A_LINE].hex(" ")
            yield (text.ljust(HEX_COLUMNS) + label).rstrip()
            label = ""


def render(layout: list[Field], data: bytes) -> str:
    """Return the hex block of some bytes. The layout must cover all of them."""
    walk = Walk(data)
    text = "".join(line + "\n" for line in walk.fields(layout))
    assert walk.position == len(data), f"{len(data) - walk.position} bytes left"
    return text
