"""Compare the schema of a table with the schema of a frame that is written to it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from headrace.pipelines.encoding import children


def alike(schema: Any, *, case_sensitive: bool) -> Iterator[str]:
    """Yield the columns and the fields of structs whose names are equal."""
    yield from _alike(schema, "", case_sensitive=case_sensitive)


def _alike(kind: Any, path: str, *, case_sensitive: bool) -> Iterator[str]:
    seen: dict[str, str] = {}
    for field in getattr(kind, "fields", ()):
        key = field.name if case_sensitive else field.name.lower()
        if key in seen:
            other = seen[key]
            where = f" in {path}" if path else ""
            both = f"two columns {other}" if other == field.name else f"{other} and {field.name}"
            yield f"the frame has {both}{where}, which readers cannot distinguish: rename or drop one"
        seen[key] = field.name
    for child, name in children(kind, path):
        yield from _alike(child, name.lstrip("."), case_sensitive=case_sensitive)


def differences(
    table: Any, frame: Any, where: str, *, leave_out: Collection[str] = (), evolving: bool = False
) -> Iterator[str]:
    """Yield the differences that prevent a frame's rows from being appended to an existing table.

    Args:
        table: The StructType of the table.
        frame: The StructType of the frame.
        where: The name of the table for messages.
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
                    f"{where} has a column {name} {kind}, but the frame does not: select it, or NULL AS {name}, or "
                    "write to another table"
                )
        elif plain(gives[name].dataType) != kind:
            yield (
                f"column {name} is {kind} in {where}, but {plain(gives[name].dataType)} in the frame: cast it, or "
                "write to another table"
            )
        elif gives[name].nullable and not field.nullable:
            yield (
                f"column {name} of {where} is NOT NULL, but may be null in the frame: use coalesce({name}, ...), "
                "or write to another table"
            )
    for name in gives.keys() - has.keys() if not evolving else ():
        yield (
            f"the frame has a column {name} {plain(gives[name].dataType)}, but {where} does not, so that no reader "
            "would see it: drop it, add it to the table first, or write to another table"
        )


def plain(kind: Any) -> str:
    """Return Spark's text for a type, without nullability and comments, which do not change values."""
    return str(kind.simpleString())
