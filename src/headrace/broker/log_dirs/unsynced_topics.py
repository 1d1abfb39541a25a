"""The topics whose replicas in a log directory may lose records that other brokers count on, if the power fails.

A replica of a topic with durability `os` or `interval:<ms>` reports records before they are synced. If the power fails,
the replica must leave the in-sync replicas when its broker starts again: it may lack committed records. The present
durability of the topic does not show that: it may have become `fsync` since. So a broker of a cluster keeps the ids of
such topics in the file `unsynced_topics` of each log directory, together with the boot id of the machine:

1. A replica with a weaker durability than `fsync` is opened, or its topic gets one. The file gets the topic first.
2. The broker ends. If it is killed, its records survive in the page cache, and the boot id remains the same.
3. The broker starts. Without the mark of a clean shutdown and with another boot id, the records of the topics in the
   file may be lost. The file keeps that until the replicas have left.
4. The broker registers. The file gets the topics that have a weaker durability now: all logs are synced.

A new directory lacks the records of all topics. The file says so before the directory is used: the start may end before
the replicas have left, and the next one finds a directory that is not new.
"""

from __future__ import annotations

from typing import Final

from headrace.core.log import CLEAN_FILE, decode_checkpoint, encode_checkpoint
from headrace.ports import FileSystem

UNSYNCED_FILE: Final = "unsynced_topics"
_LOST: Final = "lost"
"""The first line of the file instead of a boot id, while replicas with lost records have not left."""
_ALL: Final = "*"
"""A line instead of topics: the records of all topics may be lost."""


class UnsyncedTopics:
    """The topics of one log directory whose records are acknowledged before their sync."""

    __slots__ = ("_all_lost", "_boot_id", "_files", "_has_begun", "_is_there", "_lost", "_topics")

    def __init__(self, files: FileSystem, boot_id: str | None) -> None:
        """Read what the last process has left. The mark of its clean shutdown must still exist.

        Args:
            files: The log directory.
            boot_id: An id that changes when the machine starts; None if it is unknown.
        """
        self._files = files
        self._boot_id = boot_id or ""
        content = files.read_file(UNSYNCED_FILE)
        lines = decode_checkpoint(UNSYNCED_FILE, content)
        self._is_there = content is not None
        boot, *topics = lines or [""]
        is_clean = decode_checkpoint(CLEAN_FILE, files.read_file(CLEAN_FILE)) is not None
        is_same_boot = bool(boot) and boot == boot_id
        is_lost = boot == _LOST or not (is_clean or is_same_boot)
        self._lost = frozenset(topics) if is_lost else frozenset[str]()
        """The topics whose records may be lost."""
        self._all_lost = _ALL in self._lost or (content is not None and lines is None)
        """Whether the records of any topic may be lost: the file is damaged, or the directory was new."""
        self._topics: set[str] = set()
        """The topics whose records are acknowledged before their sync now."""
        self._has_begun = False

    def begin_new(self) -> None:
        """Keep in the file that the directory is new: its replicas lack all records, until they have left.

        Raises:
            OSError: The file cannot be written.
        """
        self._lost, self._all_lost = frozenset({_ALL}), True
        self._write(_LOST, self._lost)

    def opened(self) -> None:
        """Keep in the file that records may be lost: from now on, a clean shutdown proves nothing.

        Raises:
            OSError: The file cannot be written.
        """
        if self._lost:
            self._write(_LOST, self._lost)

    def may_have_lost(self, topic_id: bytes) -> bool:
        """Return whether the replicas of a topic may have lost records."""
        return self._all_lost or topic_id.hex() in self._lost

    def begin(self) -> None:
        """Forget what may be lost: the replicas have left. The records of all logs are synced.

        Raises:
            OSError: The file cannot be written.
        """
        if self._topics or self._is_there:
            self._write(self._boot_id, self._topics)
        self._lost, self._all_lost = frozenset(), False
        self._has_begun = True

    def add(self, topic_id: bytes) -> None:
        """Note durably that the records of a topic are acknowledged before their sync from now on.

        Raises:
            OSError: The file cannot be written.
        """
        topic = topic_id.hex()
        if topic not in self._topics:
            if self._has_begun:
                self._write(self._boot_id, self._topics | {topic})
            self._topics.add(topic)

    def _write(self, boot: str, topics: frozenset[str] | set[str]) -> None:
        content = encode_checkpoint(UNSYNCED_FILE, (boot, *sorted(topics)))
        self._files.write_file(UNSYNCED_FILE, content)
        self._is_there = True
