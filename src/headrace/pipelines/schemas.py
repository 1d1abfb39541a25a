"""Schemas of Spark compared: what a table has, and what a frame would write to it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from headrace.pipelines.encoding import children


def alike(schema: Any, *, case_sensitive: bool) -> Iterator[str]:
    """Yield the columns, and the fields of structs, that have the name of another one."""
    yield from _alike(schema, "", case_sensitive=case_sensitive)


def _alike(kind: Any, path: str, *, case_sensitive: bool) -> Iterator[str]:
    seen: dict[str, str] = {}
    for field in getattr(kind, "fields", ()):
        key = field.name if case_sensitive else field.name.lower()
        if key in seen:
            other = seen[key]
            where = f" in {path}" if path else ""
            both = f"two columns {other}" if other == field.name else f"{other} and {field.name}"
            yield f"the frame has {both}{where}, which readers cannot tell apart: rename or drop one"
        seen[key] = field.name
    for child, name in children(kind, path):
        yield from _alike(child, name.lstrip("."), case_sensitive=case_sensitive)


def differences(
    table: Any, frame: Any, where: str, *, leave_out: Collection[str] = (), evolving: bool = False
) -> Iterator[str]:
    """Yield what keeps a frame's rows from being rows of a table that exists.

    Args:
        table: The table's StructType.
        frame: The frame's.
        where: The table, for messages.
        leave_out: Columns that are not compared.
        evolving: Whether readers merge the schemas of files, so that columns may be added and left out.
    """
    has = {each.name: each for each in table if each.name not in leave_out}
    gives = {each.name: each for each in frame if each.name not in leave_out}
    for name, field in has.items():
        kind = plain(field.dataType)
        if name not in gives:
            if not evolving:
                yield (
                    f"{where} has a column {name} {kind}, and the frame has not: select it, or NULL AS {name}, or "
                    "write to another table"
                )
        elif plain(gives[name].dataType) != kind:
            yield (
                f"column {name} is {kind} in {where}, and {plain(gives[name].dataType)} in the frame: cast it, or "
                "write to another table"
            )
        elif gives[name].nullable and not field.nullable:
            yield (
                f"column {name} of {where} is NOT NULL, and in the frame it may be null: use coalesce({name}, ...), "
                "or write to another table"
            )
    for name in gives.keys() - has.keys() if not evolving else ():
        yield (
            f"the frame has a column {name} {plain(gives[name].dataType)}, and {where} has not, so that no reader "
            "would see it: drop it, add it to the table first, or write to another table"
        )


def plain(kind: Any) -> str:
    """Return the text of a type without what does not change values: whether parts may be null, and comments."""
    return str(kind.simpleString())
