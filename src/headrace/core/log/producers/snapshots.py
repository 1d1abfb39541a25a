"""The snapshot files of a log's producer state, `<offset>.snapshot`. They are written at rolls and at a clean close.

They are caches. A recovery restores the newest usable snapshot, and reads only the batches after it. The newest few are
kept, so that one is left when the end of the log is cut off.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.core.log.files.caches import write_cache
from headrace.core.log.files.paths import segment_path
from headrace.core.log.producers.producer_state import ProducerStates
from headrace.ports import FileSystem

SNAPSHOT_SUFFIX: Final = ".snapshot"
_KEPT: Final = 8


class ProducerSnapshots:
    """The snapshot files in one log directory."""

    __slots__ = ("_directory", "_files", "_offsets")

    def __init__(self, files: FileSystem, directory: str, offsets: Iterable[int] = ()) -> None:
        self._files = files
        self._directory = directory
        self._offsets = sorted(offsets)

    @property
    def offsets(self) -> list[int]:
        """The offsets that have a snapshot, ascending."""
        return list(self._offsets)

    @property
    def newest_offset(self) -> int:
        """The highest offset that has a snapshot, -1 without one."""
        return self._offsets[-1] if self._offsets else -1

    def write(self, state: ProducerStates, offset: int) -> None:
        """Write the state after all batches below `offset`. Removes the oldest snapshot if there are too many."""
        write_cache(self._files, self._path(offset), state.encode(offset))
        if offset not in self._offsets:
            self._offsets.append(offset)
        while len(self._offsets) > _KEPT:
            self._remove(0)

    def restore(self, state: ProducerStates, offset: int) -> int | None:
        """Load the newest sound snapshot at or below `offset`. Returns its offset, None without one."""
        for snapshot in reversed(self._offsets):
            if snapshot <= offset:
                content = self._files.read_file(self._path(snapshot))
                if state.restore(content, snapshot):
                    return snapshot
        return None

    def remove_below(self, offset: int) -> None:
        """Remove snapshots below an offset, but keep the newest of them: recovery may start there."""
        while len(self._offsets) > 1 and self._offsets[1] <= offset:
            self._remove(0)

    def remove_before(self, offset: int) -> None:
        """Remove all snapshots below an offset: the markers of transactions that are open in them may be gone."""
        while self._offsets and self._offsets[0] < offset:
            self._remove(0)

    def remove_above(self, offset: int) -> None:
        """Remove the snapshots above an offset, where the log was cut off."""
        while self._offsets and self._offsets[-1] > offset:
            self._remove(-1)

    def _remove(self, number: int) -> None:
        self._files.remove(self._path(self._offsets.pop(number)))

    def _path(self, offset: int) -> str:
        return segment_path(self._directory, offset, SNAPSHOT_SUFFIX)
