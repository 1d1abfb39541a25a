"""Truncation of a log's end: a follower removes what its leader does not have.

A batch goes as a whole, also if the offset lies inside it. The log ends after the last batch that remains. Nothing
below the high watermark is ever removed: it is committed. The steps, each of which a crash may interrupt:

    1. The recovery point and the clean offset are lowered to the new end, durably               `LogManager.truncate`
    2. Files that describe more than remains are removed, durably. `leader-epoch-checkpoint` is  `TruncatableFiles`
       cut, `.snapshot` files above the new end are removed, and `.index`, `.txnindex` and
       `.ttlindex` of the segment that is cut
    3. Later segments are removed, newest first, and then their removal is made durable
    4. The segment is cut and synced
    5. If it was sealed, a new active segment begins at the new end, durably

After a crash in 1 or 2 the log is as before the truncation. After a crash in 3 it ends between the new end and the old
one. After a crash in 4 or 5 it ends at the new end. In each case a start repairs the log as it repairs a torn write,
the follower asks its leader again, and truncates again.

* Without step 1 a start would take the missing batches for damage to data that was safe, and compaction would take
  later batches at the same offsets for clean.
* Without step 2 a file would describe batches that are gone, and later batches at the same offsets would hide that.
* Step 3 may reach the disk in another order. A hole between two segments lies above the recovery point, so it is torn.

What happens at the same time:

* A sync in another thread counts up to the new end only.
* A round of compaction reads segments below the high watermark, which stay, and stay sealed.
* Ranges that readers hold below the new end stay readable. A range above it, which only a follower can have asked for,
  ends early.
* A sealed segment takes no appends again: a `SegmentStorage` may refuse them after `roll`.
* Segments that retention has dropped keep their files until `purge`.

The state of producers and transactions is derived as at a start: from the newest snapshot at or below the new end, and
the batches after it. A transaction is open again if its marker is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.core.log.config import LogConfig
from headrace.core.log.producers.producer_state import ProducerStates
from headrace.core.log.producers.snapshots import ProducerSnapshots
from headrace.core.log.recovery.cached_state import CachedState
from headrace.core.log.segments.segment import Segment
from headrace.core.log.segments.segments import Segments
from headrace.core.log.shared import Shared
from headrace.ports import FileSystem


class Cut(NamedTuple):
    """The place where a log is cut.

    Attributes:
        segment: The segment that has the first batch to remove.
        position: The byte position of that batch.
        end_offset: The offset after the last batch that remains; the base offset of the segment if none remains in it.
    """

    segment: Segment
    position: int
    end_offset: int


def find_cut(segments: Segments, offset: int) -> Cut:
    """Return the place where the batch with an offset begins, or the next batch. The offset is below the log end.

    Raises:
        CorruptRecordError: The segment is damaged.
    """
    segment = next(segments.since(offset))
    position = segment.locate(offset)
    assert position is not None, "the log ends above the offset"
    return Cut(segment, position, segment.end_before(position))


def producers_below(
    files: FileSystem,
    directory: str,
    config: LogConfig,
    shared: Shared,
    *,
    segments: Sequence[Segment],
    snapshots: ProducerSnapshots,
    end_offset: int,
    now_ms: int,
) -> ProducerStates:
    """Return the state of producers and transactions after all batches below an offset. Nothing is changed.

    Args:
        files: The file system of the log.
        directory: The log's directory.
        config: The topic's settings.
        shared: The bounds that the log shares with others.
        segments: The segments that have batches below the offset.
        snapshots: The snapshot files of the log.
        end_offset: An offset where a batch ends.
        now_ms: The wall clock.

    Raises:
        StorageError: A batch that is needed is damaged.
    """
    state = CachedState(files, directory, config, shared, now_ms)
    state.snapshots = snapshots
    try:
        state.load_producers(segments, segments, end_offset, end_offset=end_offset, saves=False)
    except BaseException:
        state.close()
        raise
    return state.producers
