"""The optional accelerator: the loops that run once for each record, in C, if `headrace-accel` is installed.

What it does is defined by the functions here that it stands in for; nothing needs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from headrace.types import Buffer

API_VERSION: Final = 4
"""The version of the accelerator's functions that is called here."""


class Writer(Protocol):
    """Collects the encoded records of one batch."""

    @property
    def size(self) -> int:
        """Bytes of the batch so far, its header included, before compression."""

    @property
    def count(self) -> int:
        """Number of records."""

    @property
    def base_timestamp(self) -> int:
        """Timestamp of the first record; 0 without any."""

    @property
    def max_timestamp(self) -> int:
        """The latest timestamp; -1 without any."""

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int = 0,
    ) -> bool:
        """Add a record; false, and nothing added, when it does not fit any more."""

    def extend(self, values: list[bytes | None], start: int, timestamp_ms: int, /) -> int:
        """Add `values[start:]` without keys and headers, as many as fit; return how many that were."""

    def join(self) -> Buffer:
        """Return the bytes of the records, to be let go of before more are added."""


class ColumnWriter(Protocol):
    """Collects records as the buffers of Arrow columns."""

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
        """Add those of `count` records, the first at byte `place`, whose offsets lie from `start` to below `end`.

        Returns the place and number of those that are left, and why: 0 none are, 1 there is no room for the next,
        2 the next is not well-formed.
        """

    def take(self) -> dict[str, Any]:
        """Return the buffers of the rows by the names of their columns, and start over.

        Columns of bytes are (nulls, validity or None, ends, bytes); headers are (entries, ends, names, contents).
        """


class RowColumns(Protocol):
    """Rows of Arrow columns, which leave one after the other."""

    def fill(
        self, queues: dict[int, Any], count: int, hashed: int, sticky: int, /
    ) -> tuple[bytes | None, bytes | None, tuple[()], int, int | None] | None:
        """Add rows to the open batches of queues until there is none with room for the next; return that one, or None.

        A row without a partition goes where its key's hash says, among `hashed` unless that is 0, or else to the
        partition `sticky` unless that is -1.
        """


Column = tuple[int, Any, Any, Any] | None
"""Of Arrow: where it begins in its buffers; validity or None, ends or None, and content; None for no column."""


class Kernels(Protocol):
    """The functions of the accelerator."""

    RecordWriter: Callable[[int, Callable[[Any], bytes]], Writer]
    ColumnWriter: Callable[[tuple[str, ...], int, int], ColumnWriter]
    RowColumns: Callable[[int, int, Column, Column, Column, Column], RowColumns]
    """Of so many rows, at a time in milliseconds where they have none: keys, values, microseconds, partitions."""

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
        """Return `count` records of a batch, the first at byte `place`, and the place behind the last.

        They are fewer where a record with headers ends `most_bytes` behind `place`, or later: it is the last then. None
        says that they are not well-formed, so that Python's own loop tells why.
        """

    def murmur2(self, data: bytes, /) -> int:
        """Return the hash of a key."""


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
"""The accelerator's functions, or None; and in words what became of it."""
