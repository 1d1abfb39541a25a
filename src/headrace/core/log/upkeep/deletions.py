"""Deleting the directories of logs: one durable rename, then the files are removed.

A directory whose name ends with `-delete` belongs to no log. Its files may be impossible to remove for now, for example
a file without permission, or one that is open on a network file system. Then the broker tries again later and at its
next start. It also retries a rename that failed for a passing reason.
"""

from __future__ import annotations

import contextlib
from typing import Final

from headrace.core.log.files.disk_errors import is_passing
from headrace.core.log.files.partition_metadata import METADATA_FILE, decode_topic_id
from headrace.ports import FileSystem, Journal

DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"
DAMAGED_SUFFIX: Final = "-damaged"
"""The end of the name of a directory whose log was damaged, and fetched anew."""
NAME_LENGTH: Final = 150
"""The number of characters of a topic's name that a deleted directory keeps. With all suffixes it stays below 255
bytes."""
RETRY_INTERVAL_MS: Final = 10_000


class Deletions:
    """The deleted directories of one log directory."""

    __slots__ = (
        "_count",
        "_files",
        "_journal",
        "_logged",
        "_unnamed",
        "_unremoved",
        "next_deadline_ms",
    )

    def __init__(self, files: FileSystem, journal: Journal) -> None:
        """Delete directories in `files`. The journal logs each directory that cannot be removed now."""
        self._files = files
        self._journal = journal
        self._unnamed: dict[str, str] = {}
        """The directories that have yet to be renamed, with their new names."""
        self._unremoved: dict[str, None] = {}
        """The renamed directories that have yet to be removed."""
        self._logged: set[str] = set()
        """The names of directories for which a warning was logged."""
        self._count = 0
        self.next_deadline_ms: int | None = None
        """The time at which `tick` has something to do next, in milliseconds; None for never."""

    def finish(self) -> None:
        """Remove the directories that were renamed before the last start.

        Raises:
            OSError: The data directory cannot be read.
        """
        for name in self._files.list(""):
            if name.endswith(DELETE_SUFFIX) and "." in name:
                self._remove(name)

    def delete(self, name: str, owner: str) -> bool:
        """Delete a directory. Does nothing if there is none.

        Args:
            name: The directory.
            owner: The id of its topic in hexadecimal.

        Returns:
            Whether the name is free. If not, `tick` tries again.

        Raises:
            OSError: The disk has failed.
        """
        doomed = f"{name[-NAME_LENGTH:]}.{owner}{DELETE_SUFFIX}"
        if doomed in self._unremoved:
            self._count += 1
            doomed = f"{name[-NAME_LENGTH:]}.{owner}.{self._count}{DELETE_SUFFIX}"
        self._unnamed[name] = doomed
        return self._try_to_free(name)

    def set_aside(self, name: str, owner: str) -> None:
        """Keep a directory under another name, in place of one that was kept before. Does nothing if there is none.

        Args:
            name: The directory.
            owner: The id of its topic in hexadecimal.

        Raises:
            OSError: The directory cannot be renamed now.
        """
        if self._files.list(name):
            kept = f"{name[-NAME_LENGTH:]}.{owner}{DAMAGED_SUFFIX}"
            self._files.remove_tree(kept)
            self._files.rename(name, kept)
            self._files.sync_directory("")

    def _try_to_free(self, name: str) -> bool:
        try:
            self.free(name)
        except OSError as error:
            if not is_passing(error):
                raise
            self._put_off(name, error)
            return False
        self._logged.discard(name)
        return True

    def _remove(self, doomed: str) -> None:
        try:
            self._files.remove_tree(doomed)
        except OSError as error:
            self._unremoved[doomed] = None
            self._put_off(doomed, error)
        else:
            self._unremoved.pop(doomed, None)
            self._logged.discard(doomed)

    def _put_off(self, name: str, error: OSError) -> None:
        if self.next_deadline_ms is None:
            self.next_deadline_ms = 0
        if name not in self._logged:
            self._logged.add(name)
            self._journal.warning(
                "directory_not_removed",
                directory=name,
                reason=str(error),
                meaning="it belongs to a deleted topic; the broker tries again, and logs this once",
            )

    def free(self, name: str) -> None:
        """Rename the directory of a deleted log if it still has this name, because another log may need the name.

        Raises:
            OSError: The directory cannot be renamed now.
        """
        doomed = self._unnamed.get(name)
        if doomed is None:
            return
        if self._files.list(name):
            self._files.rename(name, doomed)
            del self._unnamed[name]
            self._remove(doomed)
            with contextlib.suppress(OSError):  # the next start removes a directory that comes back
                self._files.sync_directory("")
        else:
            del self._unnamed[name]

    def make_way(self, name: str, topic_id: bytes) -> None:
        """Free a name for the log of a topic. A directory that an earlier topic with the same name left is set aside.

        Raises:
            OSError: The directory cannot be renamed now.
        """
        self.free(name)
        found = decode_topic_id(self._files.read_file(f"{name}/{METADATA_FILE}"))
        if found is not None and found != topic_id:
            stray = f"{name[-NAME_LENGTH:]}.{found.hex()}{STRAY_SUFFIX}"
            self._files.rename(name, stray)
            self._journal.warning("stray_directory_set_aside", directory=name, renamed=stray)

    def tick(self, now_ms: int) -> None:
        """Retry what could not be removed, if the time has come.

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
