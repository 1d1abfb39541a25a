"""The state of a log that its caches remember: leader epochs, producers and aborted transactions.

Each cache is complete below some offset. The batch headers from that offset on are replayed, so that the state is
complete at the log's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from headrace.core.log.config import LogConfig
from headrace.core.log.index.leader_epochs import EPOCHS_FILE, LeaderEpochCache
from headrace.core.log.index.transaction_index import TRANSACTION_INDEX, decode_aborted
from headrace.core.log.offsets import MAX_OFFSET
from headrace.core.log.producers.aborted_history import AbortedHistory
from headrace.core.log.producers.producer_state import ProducerStates
from headrace.core.log.producers.replay import replay
from headrace.core.log.producers.snapshots import ProducerSnapshots
from headrace.core.log.segments.segment import Segment
from headrace.core.log.shared import Shared
from headrace.ports import File, FileSystem
from headrace.records.batch import (
    BASE_OFFSET,
    BATCH_LENGTH,
    LEADER_EPOCH,
    LOG_OVERHEAD,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    HeaderFields,
)

_REPETITIONS_MS: Final = 3_600_000
"""The time after a start in which a producer may repeat a batch that it wrote before the start, in milliseconds."""


class CachedState:
    """The leader epochs, producers and aborted transactions of one log while it is loaded."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        config: LogConfig,
        shared: Shared,
        now_ms: int,
    ) -> None:
        """Begin without any state; `load_epochs` and `load_producers` read the caches."""
        self._files = files
        self._directory = directory
        self._config = config
        self._shared = shared
        self._now_ms = now_ms
        self.epochs = LeaderEpochCache()
        """The leader epochs of the batches that are known so far."""
        self.producers = self._no_producers()
        """The producers of the batches that are known so far, with the aborted transactions."""
        self.snapshots = ProducerSnapshots(files, directory)
        """The snapshot files of the producers."""
        self.rebuilt = False
        """Whether the snapshot was given up and all batches are replayed, because a `.txnindex` file was unusable."""
        self._epochs_end = 0
        """The offset below which the checkpoint of leader epochs is complete."""
        self._producers_end = 0
        """The offset below which the snapshot of producers is complete."""

    @property
    def end_offset(self) -> int:
        """The offset below which all caches are complete."""
        return min(self._epochs_end, self._producers_end)

    @property
    def aborted(self) -> AbortedHistory:
        """The aborted transactions of these batches."""
        return self.producers.transactions.aborted

    def close(self) -> None:
        """Release what the log holds of the shared bounds. Called when the log cannot be opened."""
        self.producers.close()

    # Leader epochs

    def load_epochs(self, unscanned: Sequence[Segment]) -> None:
        """Read the checkpoint of leader epochs, and complete it from the segments that are not scanned later."""
        content = self._files.read_file(self._epochs_path)
        self.epochs, self._epochs_end = LeaderEpochCache.decode(content)
        self.epochs.truncate_to_end(
            self._epochs_end
        )  # an epoch without a batch may have been given up since
        for segment in unscanned:
            if segment.end_offset > self._epochs_end:
                for _, header in _headers(segment):
                    self.epochs.assign(header[LEADER_EPOCH], header[BASE_OFFSET])

    def cut_epochs(self, end_offset: int) -> None:
        """Forget the epochs from an offset on, in the checkpoint as well."""
        self.epochs.truncate_to_end(end_offset)
        if self._epochs_end > end_offset:
            self._files.write_file(self._epochs_path, self.epochs.encode(end_offset))

    @property
    def _epochs_path(self) -> str:
        return f"{self._directory}/{EPOCHS_FILE}"

    # Producers

    def load_producers(
        self,
        segments: Sequence[Segment],
        unscanned: Sequence[Segment],
        offset: int,
        *,
        end_offset: int = MAX_OFFSET,
        saves: bool = True,
    ) -> None:
        """Restore the newest usable snapshot at or below an offset, and replay the headers after it.

        Args:
            segments: All segments of the log.
            unscanned: The first of them, which are not scanned later.
            offset: The highest offset of a snapshot that may be used.
            end_offset: Batches from this offset on are left out.
            saves: Whether the `.txnindex` files of sealed segments are written again. False while another state is in
                use, which these files have to fit.
        """
        self.restore_producers(offset, segments[0].base_offset if segments else offset)
        if self.producers.aborted_from >= 0 and not self._load_aborted(segments):
            self.producers.close()
            self.producers = self._no_producers()
            self._producers_end = 0
            self.rebuilt = True
        for segment in unscanned:
            if segment.end_offset > self._producers_end:
                for position, header in _headers(segment, end_offset):
                    self.replay(segment.reopen(), position, header)
                if segment is not segments[-1]:
                    self.seal_aborted(segment)
                    if saves:
                        self.aborted.save_sealed()  # it is not kept in memory

    def find_undecided(self, segments: Sequence[Segment], high_watermark: int) -> None:
        """Note the transactions whose markers are not committed, also if the snapshot is newer than the high watermark.

        Args:
            segments: All segments, up to the end of what the state describes.
            high_watermark: Markers from this offset on may still be removed.
        """
        if high_watermark < self._producers_end and _has_marker(segments, high_watermark):
            earlier = CachedState(
                self._files, self._directory, self._config, self._shared, self._now_ms
            )
            earlier.snapshots = self.snapshots
            try:
                earlier.load_producers(segments, segments, high_watermark, saves=False)
                decided = earlier.producers.transactions.decided
                self.producers.transactions.keep_decided(decided, MAX_OFFSET)
            finally:
                earlier.close()

    def _no_producers(self) -> ProducerStates:
        aborted = AbortedHistory(self._files, self._directory, self._shared.aborted)
        return ProducerStates(self._config.max_producer_ids, aborted, self._shared.producers)

    def restore_producers(self, offset: int, start_offset: int) -> None:
        """Restore the newest usable snapshot at or below an offset, unless batches that followed it are gone.

        A crash may leave an old snapshot while the segments after it were deleted. The last sequence of a producer in
        such a snapshot would make the log refuse the producer's next batch. A producer without state may begin with
        any sequence.

        Args:
            offset: The highest offset of a snapshot that may be used.
            start_offset: The base offset of the first segment.
        """
        restored = self.snapshots.restore(self.producers, offset)
        if restored is not None and restored < start_offset:
            self.producers.close()
            self.producers, restored = self._no_producers(), None
        self._producers_end = restored or 0

    def forget_producers(self, offset: int) -> None:
        """Forget the producers and transactions of batches that are all gone, unless a snapshot at an offset has them.

        A transaction whose marker is gone would stay open, and a producer would have to repeat lost batches.
        """
        self.producers.close()
        self.producers = self._no_producers()
        self.restore_producers(offset, offset)

    def replay(self, file: File, position: int, header: HeaderFields) -> None:
        """Update the producers with a batch at a byte position of a file, unless the snapshot knows the batch."""
        if header[PRODUCER_ID] < 0 or header[BASE_OFFSET] < self._producers_end:
            return
        read = partial(file.read, position, LOG_OVERHEAD + header[BATCH_LENGTH])
        replay(self.producers, header, read, self._written_ms(header[MAX_TIMESTAMP]))

    def _written_ms(self, timestamp: int) -> int:
        """Return when a batch was written, as far as its timestamp says: the timestamp may be the time of an event.

        A producer that seems to be idle for longer than `producer.id.expiration.ms` is still kept for an hour. So a
        batch that the producer repeats after the start is recognised.
        """
        forgotten_ms = self._now_ms - self._config.producer_id_expiration_ms
        return min(max(timestamp, forgotten_ms + _REPETITIONS_MS), self._now_ms)

    # Aborted transactions

    def _load_aborted(self, segments: Sequence[Segment]) -> bool:
        """Load the aborted transactions that the snapshot refers to.

        Returns:
            Whether every `.txnindex` file that is needed is there and sound.
        """
        first, end = self.producers.aborted_from, self._producers_end
        following = [*(segment.base_offset for segment in segments[1:]), MAX_OFFSET]
        for segment, next_offset in zip(segments, following, strict=False):  # or no segments
            if segment.base_offset < end and next_offset > first:
                content = self._files.read_file(segment.sidecar_path(TRANSACTION_INDEX))
                known = decode_aborted(content, segment.base_offset)
                if known is None or known.end_offset < min(next_offset, end):
                    return False
                if next_offset <= end:
                    self.aborted.add_known(segment.base_offset, next_offset, known.entries)
                else:
                    for entry in known.entries.marked_within(segment.base_offset, end):
                        self.aborted.append(entry)
        return True

    def seal_aborted(self, segment: Segment) -> None:
        """Note that the markers of all transactions aborted so far lie in a sealed segment or before it."""
        self.aborted.seal(segment.base_offset, segment.end_offset)

    def save_aborted(self, segments: Sequence[Segment], *, has_files: bool) -> None:
        """Write the `.txnindex` files of segments that were read: the old files may describe what was cut off.

        Args:
            segments: The segments, up to the last one of the log.
            has_files: Whether the directory has any `.txnindex` file.
        """
        aborted = self.aborted
        if not aborted and not has_files:
            return
        for segment in segments:
            if segment.end_offset <= aborted.first_marker:
                continue
            if segment is segments[-1]:
                content = aborted.content_of_active(segment.base_offset, segment.end_offset)
                self._files.write_file(segment.sidecar_path(TRANSACTION_INDEX), content)
            else:
                aborted.save(segment.base_offset, segment.end_offset)


def _headers(segment: Segment, end_offset: int = MAX_OFFSET) -> Iterator[tuple[int, HeaderFields]]:
    """Yield (position, header) of the batches below an offset in a segment that is known to be sound."""
    loaded = segment.loaded
    for batch in segment.walk(0, segment.size):
        if batch.base_offset >= end_offset:
            break
        yield batch.position, segment.header_at(batch.position)
    if not loaded:
        segment.unload()


def _has_marker(segments: Sequence[Segment], offset: int) -> bool:
    """Return whether there is a control batch at or after an offset."""
    for segment in segments:
        # Most logs have no transactions, which their indexes say.
        if segment.end_offset > offset and segment.newest_marker >= 0:
            loaded, position = segment.loaded, segment.locate(offset)
            batches = segment.walk(segment.size if position is None else position, segment.size)
            found = any(batch.is_control for batch in batches)
            if not loaded:
                segment.unload()
            if found:
                return True
    return False
