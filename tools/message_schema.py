"""The message schemas in `tools/schemas`: their data model and their parser."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

FOREVER = 32767
"""The upper end of an open version range, and the first flexible version of a message that has none."""

FIXED_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
FIXED_SIZES = {
    "?": 1,
    "b": 1,
    "B": 1,
    "x": 1,
    "h": 2,
    "H": 2,
    "i": 4,
    "I": 4,
    "q": 8,
    "d": 8,
    "16s": 16,
}
_FIELD = re.compile(r"(\w+): (\[\])?(\w+) (\S+)(?: \?(\S+))?(?: #(\d+))?(?: =(\S+))?")


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions, both ends included; empty when `low` exceeds `high`."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Read "3", "3+", "3-7" or "none"."""
        if text == "none":
            return cls(FOREVER, FOREVER - 1)
        match = re.fullmatch(r"(\d+)(\+)?(?:-(\d+))?", text)
        if match is None:
            raise ValueError(f"not a range of versions: {text}")
        low, plus, high = match.groups()
        return cls(int(low), FOREVER if plus else int(high or low))

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __bool__(self) -> bool:
        return self.low <= self.high

    def __and__(self, other: Versions) -> Versions:
        return Versions(max(self.low, other.low), min(self.high, other.high))


@dataclass(slots=True)
class StructSchema:
    """A struct: the message itself, or one nested in it."""

    name: str
    fields: list[FieldSchema] = field(default_factory=list)

    def tagged(self, versions: Versions) -> list[FieldSchema]:
        """Return the tagged fields that exist somewhere in `versions`, by tag."""
        fields = [f for f in self.fields if f.tag is not None and f.versions & versions]
        return sorted(fields, key=lambda f: f.tag or 0)


@dataclass(slots=True)
class FieldSchema:
    """One field; `struct` is set when its type, or its elements' type, is a struct."""

    name: str
    type: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None = None
    default: str | None = None
    struct: StructSchema | None = None

    @property
    def code(self) -> str | None:
        """The Struct code of a single fixed-width value, else None."""
        return None if self.is_array else FIXED_CODES.get(self.type)

    @property
    def is_optional(self) -> bool:
        """Whether Python code may see None here: nulls, records, and tagged structs that are absent."""
        absent = self.tag is not None and self.struct is not None and not self.is_array
        return bool(self.nullable) or absent

    def element(self) -> FieldSchema:
        """Return one element of an array of plain values as a field of its own."""
        never = Versions.parse("none")
        return FieldSchema(
            self.name, self.type, is_array=False, versions=self.versions, nullable=never
        )


@dataclass(slots=True)
class MessageSchema(StructSchema):
    """A request, a response, or stored data."""

    kind: str = "data"
    api_key: int = -1
    versions: Versions = Versions(0, 0)
    first_flexible: int = FOREVER

    def structs(self) -> list[StructSchema]:
        """Return the nested structs, inner ones first, then the message."""
        found: list[StructSchema] = []

        def visit(struct: StructSchema) -> None:
            for f in struct.fields:
                if f.struct is not None and f.struct not in found:
                    visit(f.struct)
            if struct not in found:
                found.append(struct)

        visit(self)
        return found


def smallest(struct: StructSchema, version: int, *, flexible: bool) -> int:
    """Return the least number of bytes that a struct takes in a version."""
    total = 1 if flexible else 0
    for f in struct.fields:
        if version in f.versions and f.tag is None:
            total += smallest_value(f, version, flexible=flexible)
    return total


def smallest_value(f: FieldSchema, version: int, *, flexible: bool, element: bool = False) -> int:
    """Return the least number of bytes of a field, or of one element of an array field."""
    if f.is_array and not element:
        return 1 if flexible else 4
    if f.type in FIXED_CODES:
        return FIXED_SIZES[FIXED_CODES[f.type]]
    if f.struct is not None:
        return (
            1
            if version in f.nullable and not f.is_array
            else smallest(f.struct, version, flexible=flexible)
        )
    return 1 if flexible else 2 if f.type == "string" else 4


def parse_schema(path: Path) -> list[MessageSchema]:
    """Read one schema file.

    A struct name that two messages of the file define is prefixed with the message's name, so that all structs can
    be classes of one module.
    """
    messages: list[MessageSchema] = []
    stack: list[tuple[int, StructSchema]] = []
    for line in path.read_text().splitlines():
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        if not text or text.startswith("#"):
            continue
        if depth == 0:
            kind, name, key, valid, _, flexible = text.split()
            message = MessageSchema(
                name, [], kind, -1 if key == "-" else int(key), Versions.parse(valid)
            )
            message.first_flexible = Versions.parse(flexible).low
            messages.append(message)
            stack = [(0, message)]
            continue
        while stack[-1][0] >= depth:
            stack.pop()
        parsed = _parse_field(text, messages[-1])
        stack[-1][1].fields.append(parsed)
        if parsed.struct is not None:
            stack.append((depth, parsed.struct))
    _separate(messages)
    return messages


def _parse_field(text: str, message: MessageSchema) -> FieldSchema:
    match = _FIELD.fullmatch(text)
    if match is None:
        raise ValueError(f"not a field: {text}")
    name, array, kind, versions, nullable, tag, default = match.groups()
    parsed = FieldSchema(
        name=name,
        type=kind,
        is_array=array is not None,
        versions=Versions.parse(versions),
        nullable=Versions.parse(nullable or "none"),
        tag=None if tag is None else int(tag),
        default=default,
    )
    if kind[0].isupper():
        known = {struct.name: struct for struct in message.structs()}
        parsed.struct = known.get(kind) or StructSchema(kind)
    return parsed


def _separate(messages: list[MessageSchema]) -> None:
    names = [struct.name for message in messages for struct in message.structs()]
    for message in messages:
        for struct in message.structs():
            if names.count(struct.name) > 1:
                struct.name = f"{message.name}{struct.name}"
