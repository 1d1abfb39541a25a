"""Progress of long work: one line on standard error that is redrawn, only on a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import Final, Self

from headrace.cli.output.printing import is_terminal
from headrace.cli.output.terminal import unshielded

EVERY_S: Final = 0.2
"""The interval in seconds at which the line is redrawn."""
_LOOK_EVERY: Final = 64
"""The number of records between two reads of the clock, if records are counted one by one."""
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


class Progress:
    """Counts records and shows the count. As a context manager, it ends with a line for the total."""

    def __init__(self, done: str, *, wanted: bool = True, total_bytes: int | None = None) -> None:
        """Begin at zero.

        Args:
            done: The word for the counted records: "written" or "read".
            wanted: Whether to draw the line on a terminal.
            total_bytes: The size of the input in bytes; None if it is unknown.
        """
        self._done = done
        self._shown = wanted and is_terminal(sys.stderr)
        self._total = total_bytes or None
        self._began = self._drawn = time.monotonic()
        self._lines = 0
        self._since_look = 0
        self.records = 0
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lines:
            self._write(f"\r\x1b[K{self._line()}\n")

    def add(self, records: int, size: int) -> None:
        """Count records, and bytes of the records or of the input."""
        self.records += records
        self.bytes += size
        self._since_look += records
        if self._shown and self._since_look >= _LOOK_EVERY:
            self.look()

    def look(self) -> None:
        """Draw the line if the interval has passed."""
        self._since_look = 0
        now = time.monotonic()
        if self._shown and now - self._drawn >= EVERY_S:
            self._drawn = now
            self._lines += 1
            width = shutil.get_terminal_size().columns
            self._write(f"\r{self._line()[: width - 1]}\x1b[K")

    def _line(self) -> str:
        passed_s = max(time.monotonic() - self._began, 1e-3)
        part = ""
        if self._total is not None:
            part = f", {min(100, 100 * self.bytes // self._total)}% of the input"
        return (
            f"{self.records:,} records {self._done}, {size_text(self.bytes)}{part}, "
            f"{self.records / passed_s:,.0f} records/s, {passed_s:.0f} s"
        )

    @staticmethod
    def _write(text: str) -> None:
        stream = unshielded(sys.stderr)
        stream.write(text)
        stream.flush()


def size_text(size: float) -> str:
    """Return a size with a suitable unit: 1.5 MB."""
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
