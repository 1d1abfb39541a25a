"""Shared parts of the generators: indented lines, conditions, and runs of fixed-width values."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tools.message_schema import FIXED_SIZES, FieldSchema, MessageSchema, Versions

WIDTH = 100


def snake_case(name: str) -> str:
    """Return a class name as a variable name."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


class Lines:
    """Lines of Python at a current indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def add(self, line: str = "") -> None:
        """Append one line with indentation."""
        self.lines.append("    " * self.depth + line if line else "")

    def add_list(self, head: str, items: Sequence[str], tail: str) -> None:
        """Append `head` + items + `tail`, one item a line when they do not fit into one line."""
        line = head + ", ".join(items) + tail
        if len(line) + 4 * self.depth <= WIDTH:
            self.add(line)
            return
        self.add(head)
        with self.indented():
            for item in items:
                self.add(f"{item},")
        self.add(tail)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append `head` and indent what follows."""
        self.add(head)
        with self.indented():
            yield

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent the lines that follow."""
        self.depth += 1
        yield
        self.depth -= 1


class Layouts:
    """The precompiled Structs of a module: one name per method and format."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}

    def name(self, method: str, codes: Sequence[str]) -> str:
        """Return the name of the bound method (`pack` or `unpack_from`) of the Struct of these codes."""
        key = (method, "".join(codes))
        return self._names.setdefault(
            key, f"_{method.removesuffix('_from')}_{key[1].replace('?', 'o')}"
        )

    def definitions(self) -> list[str]:
        """Return the assignments that the module starts with."""
        return [
            f'{name} = Struct(">{codes}").{method}'
            for (method, codes), name in sorted(self._names.items())
        ]


@dataclass(frozen=True, slots=True)
class RunItem:
    """A fixed-width value within a run: where it exists, its code, and what it is read into or written from."""

    versions: Versions
    code: str
    expression: str
    default: str


def size_of(codes: Sequence[str]) -> int:
    """Return the number of bytes of a run."""
    return sum(FIXED_SIZES[code] for code in codes)


def condition(wanted: Versions, body: Versions) -> str | None:
    """Return the test for `wanted` among the versions of `body`; None when it always holds.

    The caller has made sure that the two overlap.
    """
    wanted &= body
    if wanted == body:
        return None
    if wanted.low == wanted.high:
        return f"version == {wanted.low}"
    if wanted.low == body.low:
        return f"version <= {wanted.high}"
    if wanted.high == body.high:
        return f"version >= {wanted.low}"
    return f"{wanted.low} <= version <= {wanted.high}"


def present(items: Sequence[RunItem], body: Versions) -> list[tuple[Versions, list[RunItem]]]:
    """Split the versions of `body` where the set of existing items changes; newest first."""
    groups: list[tuple[Versions, list[RunItem]]] = []
    for version in range(body.low, body.high + 1):
        existing = [item for item in items if version in item.versions]
        if groups and groups[-1][1] == existing:
            groups[-1] = (Versions(groups[-1][0].low, version), existing)
        else:
            groups.append((Versions(version, version), existing))
    return groups[::-1]


def default_of(f: FieldSchema) -> str:
    """Return the source of a field's default value, a fresh object for lists and structs."""
    if f.default == "null" or (f.tag is not None and f.struct is not None and not f.is_array):
        return "None"
    if f.is_array:
        return "[]"
    if f.struct is not None:
        return f"{f.struct.name}()"
    if f.default is not None:
        return f.default.capitalize() if f.type == "bool" else f.default
    plain = {
        "bool": "False",
        "string": '""',
        "bytes": 'b""',
        "records": "None",
        "uuid": "ZERO_UUID",
    }
    return plain.get(f.type, "0")


def python_type(f: FieldSchema) -> str:
    """Return the annotation of a field."""
    plain = {
        "bool": "bool",
        "string": "str",
        "bytes": "Buffer",
        "records": "Payload",
        "uuid": "bytes",
    }
    base = (
        f.struct.name
        if f.struct is not None
        else plain.get(f.type, "float" if f.type == "float64" else "int")
    )
    if f.is_array:
        base = f"list[{base}]"
    return f"{base} | None" if f.is_optional or f.type == "records" else base


class BodyGenerator(ABC):
    """Writes straight-line code for versions of a message that are all flexible or all not."""

    taken: frozenset[str]
    """Names that the generated code uses already."""

    def __init__(
        self, lines: Lines, layouts: Layouts, message: MessageSchema, versions: Versions
    ) -> None:
        self.lines = lines
        self.layouts = layouts
        self.message = message
        self.versions = versions
        self.flexible = versions.low >= message.first_flexible
        self._run: list[RunItem] = []
        self._names = set(self.taken)

    @abstractmethod
    def generate(self) -> None:
        """Write the whole body."""

    def unique(self, name: str) -> str:
        """Return a variable name that this function does not use yet."""
        candidate, number = name, 2
        while candidate in self._names:
            candidate, number = f"{name}_{number}", number + 1
        self._names.add(candidate)
        return candidate
