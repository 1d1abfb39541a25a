"""Whether there is space for what clients produce.

Below `headrace.log.dir.min.free.bytes` produces are refused, before the disk is full: what is left is for the broker's
own writes, committed offsets, metadata and checkpoints, without which retention could not free anything. If the disk
is full all the same (others write to it too), the append that noticed leaves no trace, and produces are refused until
there is space again. Neither is a failure of the disk, and neither needs a restart.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import StorageUnavailableError
from headrace.ports import FileSystem, Journal

CHECK_INTERVAL_MS: Final = 5_000
SHORT_INTERVAL_MS: Final = 1_000
"""How often we look while produces are refused."""
UNEXPLAINED_INTERVAL_MS: Final = 10_000
"""How long an error for want of space counts when the file system says that there is enough (quotas, inodes)."""


class DiskSpace:
    """The space of one log directory."""

    __slots__ = (
        "_files",
        "_journal",
        "_left_bytes",
        "_missed_bytes",
        "_refused",
        "is_short",
        "minimum_bytes",
        "next_check_ms",
    )

    def __init__(self, files: FileSystem, minimum_bytes: int, journal: Journal) -> None:
        """Watch a directory.

        Args:
            files: The directory.
            minimum_bytes: The free space below which produces are refused; with 0 only a full disk refuses them.
            journal: Receives an event when the space runs out, and when there is space again.
        """
        self._files = files
        self._journal = journal
        self._left_bytes: int | None = None
        """The free bytes at the last check, less the bytes that were appended since; None if they are not known."""
        self._missed_bytes = 0
        """The size of the append for which there was no space."""
        self._refused = 0
        """How many produces were refused since space ran short."""
        self.minimum_bytes = minimum_bytes
        self.is_short = False
        """Whether produces are refused."""
        self.next_check_ms: int | None = None

    def check(self, now_ms: int) -> None:
        """Look how much space there is."""
        usable = self._files.describe().usable_bytes
        self._left_bytes = usable if usable >= 0 else None
        was_short, self.is_short = self.is_short, 0 <= usable < self._wanted_bytes
        if self.is_short and not was_short:
            self._journal.error("log_directory_short_of_space", **self._fields())
        elif was_short and not self.is_short:
            self._missed_bytes = 0
            self._journal.info(
                "log_directory_has_space_again", refused_produces=self._refused, **self._fields()
            )
            self._refused = 0
        if self.is_short:
            self.next_check_ms = now_ms + SHORT_INTERVAL_MS
        else:
            watches = self.minimum_bytes > 0 and self._left_bytes is not None
            self.next_check_ms = now_ms + CHECK_INTERVAL_MS if watches else None

    def tick(self, now_ms: int) -> None:
        """Look if it is time to."""
        if self.next_check_ms is not None and now_ms >= self.next_check_ms:
            self.check(now_ms)

    def require(self) -> None:
        """Refuse a produce while there is too little space.

        Raises:
            StorageUnavailableError: KAFKA_STORAGE_ERROR; the client may try again.
        """
        if not self.is_short:
            return
        if not self._refused:
            self._journal.error(
                "produce_refused_for_want_of_space",
                **self._fields(),
                meaning="producers try again; this is logged once until there is space again",
            )
        self._refused += 1
        raise StorageUnavailableError(
            f"the broker's disk is short of space: it refuses records until {self._wanted_bytes} bytes are free "
            "(headrace.log.dir.min.free.bytes)"
        )

    @property
    def _wanted_bytes(self) -> int:
        return max(1, self.minimum_bytes, self._missed_bytes)

    def appended(self, size: int, now_ms: int) -> None:
        """Take note of an append; near the minimum it is time to look."""
        if self._left_bytes is not None:
            self._left_bytes -= size
            if self._left_bytes < self.minimum_bytes and not self.is_short:
                self.check(now_ms)

    def ran_out(self, error: OSError, size: int, now_ms: int) -> None:
        """Take note of an append of `size` bytes that failed for want of space."""
        self._missed_bytes = size
        if self._files.describe().usable_bytes < self._wanted_bytes:
            self.check(now_ms)
        if not self.is_short:
            # The file system says that there is enough. It may be a quota, or inodes: believe the error for a while.
            self._journal.error("log_directory_full", error=str(error), **self._fields())
            self.is_short = True
            self.next_check_ms = now_ms + UNEXPLAINED_INTERVAL_MS

    def _fields(self) -> dict[str, object]:
        directory = self._files.describe()
        return {
            "directory": directory.name,
            "free_bytes": directory.usable_bytes,
            "wanted_bytes": self._wanted_bytes,
        }
