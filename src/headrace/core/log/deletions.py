"""Deleting the directories of logs: one durable rename, and then the files, whenever that succeeds.

A directory that is called `-delete` belongs to no log any more, so what keeps its files from being removed (a file
without permission, a reader on a network file system) is no reason to stop: it is tried again, and by the next start.
A rename that could not be done for a passing reason is tried again likewise.
"""

from __future__ import annotations

import contextlib
from typing import Final

from headrace.core.log.disk_errors import is_passing
from headrace.ports import FileSystem, Journal

DELETE_SUFFIX: Final = "-delete"
NAME_LENGTH: Final = 150
"""How much of a topic's name a deleted directory keeps: with all suffixes it stays below 255 bytes."""
RETRY_INTERVAL_MS: Final = 10_000


class Deletions:
    """The deleted directories of one log directory."""

    __slots__ = ("_count", "_files", "_journal", "_unnamed", "_unremoved", "next_deadline_ms")

    def __init__(self, files: FileSystem, journal: Journal) -> None:
        """Delete directories in `files`; the journal is told of those that cannot be removed now."""
        self._files = files
        self._journal = journal
        self._unnamed: dict[str, str] = {}
        """Directories that wait for a rename: their names, and those that they get."""
        self._unremoved: dict[str, None] = {}
        """Directories that are called `-delete` and have yet to be removed."""
        self._count = 0
        self.next_deadline_ms: int | None = None
        """When `tick` has something to do next."""

    def finish(self) -> None:
        """Remove what an earlier life of the broker has left.

        Raises:
            OSError: The log directory cannot be read.
        """
        for name in self._files.list(""):
            if name.endswith(DELETE_SUFFIX) and "." in name:
                self._remove(name)

    def delete(self, name: str, owner: str) -> bool:
        """Delete a directory; no error if it is not there.

        Args:
            name: The directory.
            owner: The id of its topic in hexadecimal.

        Returns:
            Whether nothing has the name any more; otherwise that is tried again.

        Raises:
            OSError: The disk has failed.
        """
        doomed = f"{name[-NAME_LENGTH:]}.{owner}{DELETE_SUFFIX}"
        if doomed in self._unremoved:
            self._count += 1
            doomed = f"{name[-NAME_LENGTH:]}.{owner}.{self._count}{DELETE_SUFFIX}"
        self._unnamed[name] = doomed
        return self._try_to_free(name)

    def _try_to_free(self, name: str) -> bool:
        try:
            self.free(name)
        except OSError as error:
            if not is_passing(error):
                raise
            self._put_off(name, error)
            return False
        return True

    def _remove(self, doomed: str) -> None:
        try:
            self._files.remove_tree(doomed)
        except OSError as error:
            self._unremoved[doomed] = None
            self._put_off(doomed, error)
        else:
            self._unremoved.pop(doomed, None)

    def _put_off(self, name: str, error: OSError) -> None:
        if self.next_deadline_ms is None:
            self.next_deadline_ms = 0
        self._journal.warning(
            "directory_not_removed",
            directory=name,
            reason=str(error),
            action="trying again; it belongs to a topic that was deleted",
        )

    def free(self, name: str) -> None:
        """Have nothing of a deleted log under a name, which may be needed for another log.

        Raises:
            OSError: That is not possible now.
        """
        doomed = self._unnamed.get(name)
        if doomed is None:
            return
        if self._files.list(name):
            self._files.rename(name, doomed)
            del self._unnamed[name]
            self._remove(doomed)
            with contextlib.suppress(OSError):  # the next start removes what comes back
                self._files.sync_directory("")
        else:
            del self._unnamed[name]

    def tick(self, now_ms: int) -> None:
        """Try again what could not be removed, when it is time to.

        Raises:
            OSError: The disk has failed.
        """
        if self.next_deadline_ms is None or now_ms < self.next_deadline_ms:
            return
        first, self.next_deadline_ms = not self.next_deadline_ms, None
        if not first:
            for doomed in list(self._unremoved):
                self._remove(doomed)
            for name in list(self._unnamed):
                self._try_to_free(name)
        if self._unremoved or self._unnamed:
            self.next_deadline_ms = now_ms + RETRY_INTERVAL_MS
