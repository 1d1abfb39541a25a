"""The optional accelerator: loops that run once for each record, written in C.

It is used if `headrace-accel` is installed. The functions here define what it does, and everything works without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from headrace.types import Buffer

API_VERSION: Final = 4
"""The version of the accelerator's functions that this package calls."""


class Writer(Protocol):
    """Collects the encoded records of one batch."""

    @property
    def size(self) -> int:
        """The size of the batch so far in bytes, with its header, before compression."""

    @property
    def count(self) -> int:
        """The number of records so far."""

    @property
    def base_timestamp(self) -> int:
        """The timestamp of the first record in milliseconds; 0 without records."""

    @property
    def max_timestamp(self) -> int:
        """The latest timestamp in milliseconds; -1 without records."""

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int = 0,
    ) -> bool:
        """Add a record. Returns false, without a change, when it does not fit."""

    def extend(self, values: list[bytes | None], start: int, timestamp_ms: int, /) -> int:
        """Add `values[start:]` without keys and headers, as many as fit, and return how many that were."""

    def join(self) -> Buffer:
        """Return the bytes of the records. The caller drops them before it adds more records."""


class ColumnWriter(Protocol):
    """Collects records into the buffers of Arrow columns."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def walk(  # noqa: PLR0917 - positional arguments are faster, and this is called for each batch
        self,
        section: bytes | bytearray | memoryview,
        place: int,
        count: int,
        base_offset: int,
        base_timestamp: int,
        fixed_timestamp: int | None,
        timestamp_type: int,
        start: int,
        end: int,
        /,
    ) -> tuple[int, int, int]:
        """Add records whose offsets lie from `start` to below `end`, out of `count` records from byte `place` on.

        Returns the byte position and the number of the remaining records, and the reason: 0 if no record remains, 1 if
        the next record does not fit, 2 for a malformed record.
        """

    def take(self) -> dict[str, Any]:
        """Return the buffers of the rows by the names of their columns, and start over.

        Columns of bytes are (nulls, validity or None, ends, bytes). Headers are (entries, ends, names, contents).
        """


class RowColumns(Protocol):
    """Rows of Arrow columns, which are sent one after the other."""

    def fill(
        self, queues: dict[int, Any], count: int, hashed: int, sticky: int, /
    ) -> tuple[bytes | None, bytes | None, tuple[()], int, int | None] | None:
        """Add rows to the open batches of queues, and return the first row that does not fit, None after the last.

        A row without a partition goes to the partition of its key's hash, among `hashed` partitions unless that is 0.
        Otherwise it goes to the partition `sticky` unless that is -1.
        """


Column = tuple[int, Any, Any, Any] | None
"""An Arrow column: its first row in the buffers; validity or None, ends or None, and content. None for no column."""


class Kernels(Protocol):
    """The functions of the accelerator."""

    RecordWriter: Callable[[int, Callable[[Any], bytes]], Writer]
    ColumnWriter: Callable[[tuple[str, ...], int, int], ColumnWriter]
    RowColumns: Callable[[int, int, Column, Column, Column, Column], RowColumns]
    """A class for rows of columns: keys, values, microseconds, partitions. Rows without a time get the milliseconds."""

    def decode_records(  # noqa: PLR0917 - positional arguments are faster, and this is called for each batch
        self,
        data: bytes | bytearray | memoryview,
        place: int,
        count: int,
        most_bytes: int,
        base_offset: int,
        base_timestamp: int,
        fixed_timestamp: int | None,
        kind: type[Any],
        before: tuple[Any, ...],
        after: tuple[Any, ...],
        /,
    ) -> tuple[list[Any], int] | None:
        """Return `count` records of a batch from byte `place` on, and the place after the last one.

        The result ends early with a record with headers that ends `most_bytes` after `place`, or later. None means that
        the records are malformed: then the loop in Python finds out why.
        """

    def murmur2(self, data: bytes, /) -> int:
        """Return the murmur2 hash of a key."""


def _find() -> tuple[Kernels | None, str]:
    try:
        package = importlib.import_module("headrace_accel")
    except ImportError:
        return None, "not installed"
    if package.API_VERSION != API_VERSION:
        return None, (
            f"headrace-accel {package.VERSION} does not fit this version of Headrace; "
            "install the one that came with it"
        )
    if not package.enabled:
        return None, "switched off by HEADRACE_ACCEL=0"
    return package.kernels, f"headrace-accel {package.VERSION}"


kernels, state = _find()
"""The accelerator's functions, or None; and the state of the accelerator as text."""
