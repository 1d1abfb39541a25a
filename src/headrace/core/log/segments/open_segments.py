"""The bound of open segments over all logs that share it: file descriptors are limited.

Each log keeps only a few sealed segments open (`segments`). This module bounds their sum, together with the active
segments of logs that are written to now and then. Above the bound the longest unused segment closes. An active segment
that closes keeps its index in memory, and the next append or read opens it again. An active segment with unsynced data
stays open.

So there is a second bound, which leaves descriptors for connections. When it is reached, an append that has to open
another file is refused with EMFILE, until a sync lets files close.
"""

from __future__ import annotations

import errno
from itertools import islice
from typing import Final, Protocol

from headrace.ports import Journal

MAX_OPEN_SEGMENTS: Final = 4096
_LOOK: Final = 32
"""The number of segments to look at when one is opened above the bound. Possibly none of them can close."""


class Closable(Protocol):
    """A segment, as far as `OpenSegments` needs it."""

    @property
    def size(self) -> int:
        """The size of the segment in bytes."""

    def release(self) -> bool:
        """Close the segment's file, and return whether that was possible."""


class OpenSegments:
    """The open segments, the longest unused one first."""

    __slots__ = ("_journal", "_logged", "_recent", "limit", "most")

    def __init__(self, most: int | None = None, journal: Journal | None = None) -> None:
        """Bound the number of open segments.

        Args:
            most: The largest number of open segment files; None for no limit.
            journal: Logs the first time that a segment is closed because of the bound.
        """
        self.limit = MAX_OPEN_SEGMENTS if most is None else min(MAX_OPEN_SEGMENTS, most * 3 // 4)
        """The number of open segments above which unused ones close."""
        self.most = most
        self._journal = journal
        self._recent: dict[Closable, int] = {}
        self._logged = False

    def __len__(self) -> int:
        return len(self._recent)

    def use(self, segment: Closable) -> None:
        """Note that a segment was opened or is used. Others may be closed for it."""
        self._recent.pop(segment, None)
        self._recent[segment] = segment.size
        self.trim(segment)

    def trim(self, used: Closable | None = None) -> None:
        """Close segments above the bound if they can be closed now, but not the one that is `used`."""
        if len(self._recent) > self.limit:
            self._close_idle(used)

    def require_space(self) -> None:
        """Refuse to open one more file for an append when too many are open and none of them can be closed.

        Raises:
            OSError: EMFILE; too many files are open.
        """
        if self.most is None or len(self._recent) < self.most:
            return
        self.trim()
        if len(self._recent) >= self.most:
            reason = f"{len(self._recent)} segments are open and wait for their syncs; raise the limit of open files"
            raise OSError(errno.EMFILE, reason)

    def forget(self, segment: Closable) -> None:
        """Note that a segment was closed."""
        self._recent.pop(segment, None)

    def _close_idle(self, used: Closable | None) -> None:
        self._log_once()
        recent = self._recent
        for spare_used in (True, False):
            for segment in list(islice(recent, _LOOK)):
                if len(recent) <= self.limit:
                    return
                # An append does not call this class, which would cost time. That a segment was appended to shows in its
                # size.
                spared = segment is used or (spare_used and segment.size != recent[segment])
                if spared or not segment.release():
                    del recent[segment]
                    recent[segment] = segment.size

    def _log_once(self) -> None:
        if not self._logged and self._journal is not None:
            self._journal.info(
                "open_segments_limited",
                limit=self.limit,
                meaning="unused segments are closed, and opened again when they are used",
            )
        self._logged = True
