"""Build Arrow columns of decoded objects, field by field. No Arrow object is made for a single value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Protocol

import pyarrow as pa

from headrace.spark.decode.ddl import array_of, map_of, struct_of


class Column(Protocol):
    """The conversion of decoded objects to an Arrow column."""

    @property
    def type(self) -> Any:
        """The Arrow type of the column."""

    def build(self, values: Sequence[Any]) -> Any:
        """Build the column. None is null. Arrow's own exception is raised for a value that does not fit."""


@dataclass(frozen=True)
class Leaf:
    """A column without child columns."""

    type: Any
    convert: Callable[[Sequence[Any]], Any] | None = None
    """Converts the objects to values for Arrow, or directly to the column; None if Arrow takes the objects as they
    are."""

    def build(self, values: Sequence[Any]) -> Any:
        """Build the column of values; see `Column`."""
        if self.convert is not None:
            values = self.convert(values)
        return values if isinstance(values, pa.Array) else pa.array(values, self.type)


@dataclass(frozen=True)
class Field:
    """A field of a struct: its name, the function that reads it from the decoded object, and its column."""

    name: str
    get: Callable[[Any], Any]
    column: Column


class Struct:
    """A column of structs, with one child column for each field."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self.type = struct_of([(each.name, each.column.type) for each in fields])

    def build(self, values: Sequence[Any]) -> Any:
        """Build the column of values; see `Column`."""
        absent = None
        if None in values:
            absent = pa.array([value is None for value in values], pa.bool_())
        arrays = [
            field.column.build(
                list(map(field.get, values))
                if absent is None
                else [None if value is None else field.get(value) for value in values]
            )
            for field in self.fields
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(self.type), mask=absent)


class Array:
    """A column of arrays, with one child column for all elements."""

    def __init__(self, element: Column) -> None:
        self._element = element
        self.type = array_of(element.type)

    def build(self, values: Sequence[Any]) -> Any:
        """Build the column of values; see `Column`."""
        elements = self._element.build([each for value in values if value for each in value])
        return pa.ListArray.from_arrays(_offsets(values), elements, type=self.type)


class Map:
    """A column of maps. The decoded objects are dictionaries."""

    def __init__(self, key: Column, item: Column) -> None:
        self._key = key
        self._item = item
        self.type = map_of(key.type, item.type)

    def build(self, values: Sequence[Any]) -> Any:
        """Build the column of values; see `Column`."""
        present = [value for value in values if value]
        keys = self._key.build(list(chain.from_iterable(present)))
        items = self._item.build([item for value in present for item in value.values()])
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=self.type)


def _offsets(values: Sequence[Any]) -> Any:
    """Return the index of each value's first element among the elements of all values; null for a null value."""
    ends = list(accumulate((len(value) if value else 0 for value in values), initial=0))
    starts = [None if value is None else end for value, end in zip(values, ends, strict=False)]
    return pa.array([*starts, ends[-1]], pa.int32())
