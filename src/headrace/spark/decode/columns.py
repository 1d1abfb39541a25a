"""Columns of Arrow from what decoders make of values, field by field, without an object of Arrow's for each value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Protocol

import pyarrow as pa

from headrace.spark.decode.ddl import array_of, map_of, struct_of


class Column(Protocol):
    """How values become a column."""

    @property
    def type(self) -> Any:
        """Its Arrow type."""

    def build(self, values: Sequence[Any]) -> Any:
        """Return the column of values, None is null; the error for one that does not fit is whatever Arrow raises."""


@dataclass(frozen=True)
class Leaf:
    """A column of plain values."""

    type: Any
    convert: Callable[[Sequence[Any]], Any] | None = None
    """Makes of the values those that Arrow takes, or the column itself."""

    def build(self, values: Sequence[Any]) -> Any:
        """See `Column`."""
        if self.convert is not None:
            values = self.convert(values)
        return values if isinstance(values, pa.Array) else pa.array(values, self.type)


@dataclass(frozen=True)
class Field:
    """A part of a struct: its name, how it is got from the whole, and its column."""

    name: str
    get: Callable[[Any], Any]
    column: Column


class Struct:
    """A column of structs."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self.type = struct_of([(each.name, each.column.type) for each in fields])

    def build(self, values: Sequence[Any]) -> Any:
        """See `Column`."""
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
    """A column of arrays."""

    def __init__(self, element: Column) -> None:
        self._element = element
        self.type = array_of(element.type)

    def build(self, values: Sequence[Any]) -> Any:
        """See `Column`."""
        elements = self._element.build([each for value in values if value for each in value])
        return pa.ListArray.from_arrays(_offsets(values), elements, type=self.type)


class Map:
    """A column of maps, from dictionaries."""

    def __init__(self, key: Column, item: Column) -> None:
        self._key = key
        self._item = item
        self.type = map_of(key.type, item.type)

    def build(self, values: Sequence[Any]) -> Any:
        """See `Column`."""
        present = [value for value in values if value]
        keys = self._key.build(list(chain.from_iterable(present)))
        items = self._item.build([item for value in present for item in value.values()])
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=self.type)


def _offsets(values: Sequence[Any]) -> Any:
    """Return where each value begins among all their elements; a null there makes it null."""
    ends = list(accumulate((len(value) if value else 0 for value in values), initial=0))
    starts = [None if value is None else end for value, end in zip(values, ends, strict=False)]
    return pa.array([*starts, ends[-1]], pa.int32())
