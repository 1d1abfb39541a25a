"""The common format of the files beside a segment.

A sidecar is a file that describes one segment and can be rebuilt from the segment. All kinds have the same layout:

    magic (4 bytes), version uint16, unused uint16, header fields int64 each, number of entries uint32
    columns, one after the other: arrays of int64
    CRC-32C uint32 of everything before

A kind is one `Sidecar` object. The tuple `SIDECARS` in `sidecars` has all kinds. By this tuple recovery finds the files
of every kind, and a segment removes them when it is removed itself.

The rest depends on the kind: when entries are added, when the file is written, and what a missing file means. A new
kind therefore also needs code of its own, as today's kinds have it:

* `.index`: `segments.segment` fills, reads and writes it; `recovery.loader` removes a file that may be out of date
* `.ttlindex`: `segments.segment_expiries` reads and writes it, and `append` and `cleaning` fill it
* `.txnindex`: `producers.aborted_history` fills, reads and writes it; `recovery.cached_state` restores it after a crash
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Final, Literal

from crc32c import crc32c

from headrace.core.log.files.paths import segment_path

_CRC_BYTES: Final = 4
_INT64_BYTES: Final = 8
_NATIVE: Final = "<" if sys.byteorder == "little" else ">"


class Sidecar:
    """One kind of file beside a segment: its suffix and its format."""

    __slots__ = (
        "_columns",
        "_crc",
        "_entry_numbers",
        "_header",
        "_magic",
        "_swaps",
        "_version",
        "suffix",
    )

    def __init__(
        self,
        suffix: str,
        magic: bytes,
        version: int,
        *,
        header_fields: int,
        columns: int,
        entry_numbers: int = 1,
        byte_order: Literal["<", ">"] = "<",
    ) -> None:
        """Define a kind.

        Args:
            suffix: The end of the file's name, with the dot.
            magic: The first four bytes of the file.
            version: The version of the format. A file of another version counts as missing.
            header_fields: How many int64 numbers the header has.
            columns: How many arrays follow the header.
            entry_numbers: How many numbers of each array belong to one entry.
            byte_order: "<" for little-endian, ">" for big-endian.
        """
        self.suffix = suffix
        self._magic = magic
        self._version = version
        self._columns = columns
        self._entry_numbers = entry_numbers
        self._header = struct.Struct(f"{byte_order}4sHH{header_fields}qI")
        self._crc = struct.Struct(f"{byte_order}I")
        self._swaps = byte_order != _NATIVE

    def path(self, directory: str, base_offset: int) -> str:
        """Return the path of the file beside the segment with this base offset."""
        return segment_path(directory, base_offset, self.suffix)

    def encode(self, header: Sequence[int], columns: Sequence[array[int]]) -> bytes:
        """Return the content of a file."""
        count = len(columns[0]) // self._entry_numbers
        parts = [self._header.pack(self._magic, self._version, 0, *header, count)]
        parts += [self._in_byte_order(column).tobytes() for column in columns]
        content = b"".join(parts)
        return content + self._crc.pack(crc32c(content))

    def _in_byte_order(self, column: array[int]) -> array[int]:
        if not self._swaps:
            return column
        swapped = column[:]
        swapped.byteswap()
        return swapped

    def decode(self, content: bytes | None) -> tuple[Sequence[int], Sequence[array[int]]] | None:
        """Return the header fields and the columns of a file, or None if the file is missing or damaged."""
        start = self._header.size
        if content is None or len(content) < start + _CRC_BYTES:
            return None
        body = memoryview(content)[:-_CRC_BYTES]
        magic, version, _, *header, count = self._header.unpack_from(content)
        column_bytes = count * self._entry_numbers * _INT64_BYTES
        if (
            (magic, version) != (self._magic, self._version)
            or len(body) != start + self._columns * column_bytes
            or self._crc.unpack_from(content, len(body))[0] != crc32c(body)
        ):
            return None
        columns: list[array[int]] = []
        for position in range(start, len(body), column_bytes) if column_bytes else ():
            column = array("q", bytes(body[position : position + column_bytes]))
            if self._swaps:
                column.byteswap()
            columns.append(column)
        return header, columns or [array("q") for _ in range(self._columns)]
