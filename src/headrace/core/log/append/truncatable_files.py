"""The files of one log whose end can be removed: steps 2 to 5 of `truncation`."""

from __future__ import annotations

from headrace.core.log.append.log_files import LogFiles
from headrace.core.log.config import LogConfig
from headrace.core.log.producers.producer_state import ProducerStates
from headrace.core.log.segments.segment import Segment
from headrace.core.log.truncation import Cut, producers_below


class TruncatableFiles(LogFiles):
    """The files of one log, which can lose its end."""

    __slots__ = ()

    def producers_below(self, cut: Cut, config: LogConfig, now_ms: int) -> ProducerStates:
        """Return the state of the producers after the batches before a cut.

        Raises:
            StorageError: A batch that is needed is damaged.
        """
        return producers_below(
            self.files,
            self.directory,
            config,
            self._shared,
            segments=[each for each in self.segments if each.base_offset < cut.end_offset],
            snapshots=self._snapshots,
            end_offset=cut.end_offset,
            now_ms=now_ms,
        )

    def truncate(
        self, cut: Cut, end_offset: int, producers: ProducerStates, config: LogConfig, now_ms: int
    ) -> None:
        """Remove all batches from a cut on, after `save_epochs`.

        Args:
            cut: The place of the cut.
            end_offset: The new log end offset: that of the cut, or the log start offset if nothing remains above it.
            producers: The state of the producers at the new end.
            config: The topic's settings.
            now_ms: The wall clock.

        Raises:
            OSError: A step failed. A start finds the log between the new end and the old one.
        """
        self._forget_end(end_offset, producers)
        removed = self._drop(cut, end_offset, config, now_ms)
        is_cut = cut.segment not in removed
        if is_cut:
            cut.segment.forget_end(cut.position)
        self._remove_caches(cut, end_offset)
        for segment in removed:
            segment.remove()
        if removed:
            self.files.sync_directory(self.directory)
        if is_cut:
            file = cut.segment.reopen()
            file.truncate(cut.position)
            file.sync()
            cut.segment.synced_offset = cut.end_offset
        if not self.segments.active.loaded and len(self.segments) > 1:
            self.create(self.segments.active)
            self.files.sync_directory(self.directory)
        self._write_caches_after_cut()

    def _forget_end(self, end_offset: int, producers: ProducerStates) -> None:
        """Forget what was noted of the files above an offset."""
        self._synced_offset = min(self._synced_offset, end_offset)
        if self._task is not None:
            self._task.end_offset = min(self._task.end_offset, end_offset)
        self._producers = producers
        self._snapshot_at, self._unwritten, self.cached_end_offset = (-1, 0), 0, None

    def _drop(self, cut: Cut, end_offset: int, config: LogConfig, now_ms: int) -> list[Segment]:
        """Remove segments from the list, and begin an active one unless the active one is cut.

        Returns:
            The segments whose files have to be removed, newest first.
        """
        kept = self.segments.all.index(cut.segment)
        if cut.end_offset < end_offset:
            # All segments go. Those below the log start offset are left to `purge`: one of them may be the result of a
            # compaction that is not named yet.
            self.segments.drop_oldest(kept)
            return self.segments.cut_end(0, self._segment(end_offset, config, now_ms))
        if cut.segment is self.segments.active:
            return []
        kept += bool(cut.position)
        return self.segments.cut_end(kept, self._segment(end_offset, config, now_ms))

    def _write_caches_after_cut(self) -> None:
        """Write the caches of the last segment with batches."""
        active = self.segments.active
        if active.size:
            self.write_caches(active)
        elif len(self.segments) > 1:
            sealed = self.segments.all[-2]
            self._aborted.seal(sealed.base_offset, sealed.end_offset)
            self.write_caches(sealed)
        else:
            self._snapshots.write(self._producers, active.end_offset)
