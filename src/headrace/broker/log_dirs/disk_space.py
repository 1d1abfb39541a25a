"""The free space of a log directory, and the refusal of records when it runs short.

Below `headrace.log.dir.min.free.bytes` the broker refuses produces, before the disk is full. The rest is for the writes
of the broker itself: committed offsets, metadata, checkpoints. Without these writes retention could not free anything.

The disk may become full all the same, because others write to it. The append that gets the error then leaves no trace,
and the broker refuses produces until there is space again. In both cases the disk has not failed, and the broker needs
no restart.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import StorageUnavailableError
from headrace.ports import FileSystem, Journal

CHECK_INTERVAL_MS: Final = 5_000
"""The time between two checks, in milliseconds."""
SHORT_INTERVAL_MS: Final = 1_000
"""The time between two checks while produces are refused, in milliseconds."""
UNEXPLAINED_INTERVAL_MS: Final = 10_000
"""The time for which produces are refused after an error that the free space does not explain (quotas, inodes)."""


class DiskSpace:
    """The space of one log directory."""

    __slots__ = (
        "_cause",
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
        self._cause = ""
        """The error of the append for which there was no space, for messages; "" if no append has failed."""
        self._left_bytes: int | None = None
        """The free bytes at the last check, less the bytes that were appended since; None if they are not known."""
        self._missed_bytes = 0
        """The size of the append for which there was no space; 0 if no append has failed."""
        self._refused = 0
        """The number of produces that were refused since space ran short."""
        self.minimum_bytes = minimum_bytes
        self.is_short = False
        """Whether produces are refused."""
        self.next_check_ms: int | None = None
        """The time of the next check; None if the free space is not watched."""

    def check(self, now_ms: int) -> None:
        """Read the free space, and begin or end to refuse produces."""
        usable = self._files.describe().usable_bytes
        self._left_bytes = usable if usable >= 0 else None
        was_short, self.is_short = self.is_short, 0 <= usable < self._wanted_bytes
        if self.is_short and not was_short:
            self._journal.error("log_directory_short_of_space", **self._fields())
        elif was_short and not self.is_short:
            self._missed_bytes = 0
            self._cause = ""
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
        """Check the free space if a check is due."""
        if self.next_check_ms is not None and now_ms >= self.next_check_ms:
            self.check(now_ms)

    def require(self) -> None:
        """Refuse a produce while there is too little space.

        Raises:
            StorageUnavailableError: KAFKA_STORAGE_ERROR; clients retry.
        """
        if not self.is_short:
            return
        if not self._refused:
            self._journal.error(
                "produce_refused_for_want_of_space",
                **self._fields(),
                meaning="producers retry; this event is logged once until there is space again",
            )
        self._refused += 1
        raise self.refusal()

    def refusal(self) -> StorageUnavailableError:
        """Return the error for a client whose records have no space."""
        return StorageUnavailableError(
            f"the broker's disk is short of space{self._cause}: the broker refuses records until "
            f"{self._wanted_bytes} bytes are free (headrace.log.dir.min.free.bytes)"
        )

    @property
    def _wanted_bytes(self) -> int:
        return max(1, self.minimum_bytes, self._missed_bytes)

    def appended(self, size: int, now_ms: int) -> None:
        """Subtract an append from the free space; check the space when it is below the minimum."""
        if self._left_bytes is not None:
            self._left_bytes -= size
            if self._left_bytes < self.minimum_bytes and not self.is_short:
                self.check(now_ms)

    def ran_out(self, error: OSError, size: int, now_ms: int) -> StorageUnavailableError:
        """Refuse produces after an append of `size` bytes found no space. Return the error for the client."""
        self._missed_bytes, self._cause = size, f" ({error})"
        if self._files.describe().usable_bytes < self._wanted_bytes:
            self.check(now_ms)
        if not self.is_short:
            # By the file system there is enough space. A quota or the inodes may have run out: believe the error.
            self._journal.error("log_directory_full", error=str(error), **self._fields())
            self.is_short = True
            self.next_check_ms = now_ms + UNEXPLAINED_INTERVAL_MS
        return self.refusal()

    def _fields(self) -> dict[str, object]:
        directory = self._files.describe()
        return {
            "directory": directory.name,
            "free_bytes": directory.usable_bytes,
            "wanted_bytes": self._wanted_bytes,
        }
