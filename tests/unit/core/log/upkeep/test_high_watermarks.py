"""The checkpoint of the high watermarks: Kafka's format, damage, entries above the log end offset, and its times."""

from __future__ import annotations

import errno

import pytest

from headrace.core.log import LogConfig, LogManager, PartitionSpec
from headrace.core.log.files.high_watermark_file import (
    HIGH_WATERMARK_FILE,
    decode_high_watermarks,
    encode_high_watermarks,
    entry_of,
)
from headrace.core.log.log_manager import CLEAN_FILE
from headrace.core.log.upkeep.high_watermarks import CHECKPOINT_INTERVAL_MS
from headrace.core.log.upkeep.log_offsets import RECOVERY_FILE, START_FILE
from headrace.ports import FileSystem
from headrace.storage.memory_files import MemoryFileSystem
from headrace.types import TopicPartition
from tests.fixtures.crash_files import CrashFileSystem
from tests.fixtures.logs import NOW_MS, RecordingJournal, append, batch_of
from tests.unit.core.log.test_log_manager import (
    ID,
    OTHER_ID,
    A,
    B,
    commit,
    log_of,
)


def start(
    files: FileSystem,
    *partitions: TopicPartition,
    topic_id: bytes = ID,
    journal: RecordingJournal | None = None,
) -> LogManager:
    """Open the logs of partitions that have replicas on other brokers."""
    manager = LogManager.open(
        files, cluster_id="c1", node_id=1, journal=journal or RecordingJournal()
    )
    manager.load(
        [PartitionSpec(each, topic_id, LogConfig(), is_replicated=True) for each in partitions],
        NOW_MS,
    )
    return manager


def stored(files: FileSystem) -> dict[TopicPartition, int]:
    return decode_high_watermarks(files.read_file(HIGH_WATERMARK_FILE))


def filled(files: FileSystem, batches: int, *, high_watermark: int, manager: LogManager) -> None:
    """Append synced batches of one record, of which the high watermark has passed some."""
    log = log_of(manager, A)
    for _ in range(batches):
        append(log, batch_of())
    commit(manager)
    log.advance_high_watermark(high_watermark)


def test_the_file_has_the_format_of_kafka() -> None:
    content = encode_high_watermarks([entry_of(A, 7), entry_of(B, 0)])
    assert content == b"0\n2\na 0 7\nb.c-d 11 0\n"
    assert decode_high_watermarks(content) == {A: 7, B: 0}


SEED_THAT_CUTS = 2
WHOLE = b"0\n2\na 0 7\nb.c-d 11 12\n"


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_file_that_was_cut_short_counts_as_missing(length: int) -> None:
    assert decode_high_watermarks(WHOLE[:length]) == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1\n1\na 0 7\n",  # another version
        b"0\n2\na 0 7\n",  # too few entries
        b"0\n1\na 0 7\na 1 7\n",  # too many entries
        b"0\n1\na 0 -7\n",
        b"0\n1\na 0 7.5\n",
        b"0\n1\na 0\n",
        b"0\n1\na zero 7\n",
        b"0\none\na 0 7\n",
        b"\0" * 20,
        b"\xff\xfe\n",
    ],
)
def test_a_damaged_file_counts_as_missing(content: bytes) -> None:
    assert decode_high_watermarks(content) == {}


def test_a_log_begins_with_the_high_watermark_of_the_checkpoint() -> None:
    files = MemoryFileSystem()
    manager = start(files, A)
    filled(files, 5, high_watermark=3, manager=manager)
    manager.close(NOW_MS)
    log = log_of(start(files, A), A)
    assert (log.high_watermark, log.log_end_offset) == (3, 5)


@pytest.mark.parametrize("content", [None, b"0\n9\n"])
def test_without_a_checkpoint_a_log_begins_at_its_log_start_offset(content: bytes | None) -> None:
    files = MemoryFileSystem()
    manager = start(files, A)
    filled(files, 5, high_watermark=5, manager=manager)
    log_of(manager, A).advance_log_start_offset(2)
    manager.close(NOW_MS)
    if content is None:
        files.remove(HIGH_WATERMARK_FILE)
    else:
        files.write_file(HIGH_WATERMARK_FILE, content)
    assert log_of(start(files, A), A).high_watermark == 2


def test_without_other_replicas_a_log_begins_at_its_log_end_offset() -> None:
    files = MemoryFileSystem()
    manager = start(files, A)
    filled(files, 5, high_watermark=3, manager=manager)
    manager.close(NOW_MS)
    manager = LogManager.open(files, cluster_id="c1", node_id=1, journal=RecordingJournal())
    manager.load([PartitionSpec(A, ID, LogConfig())], NOW_MS)
    assert log_of(manager, A).high_watermark == 5


def test_a_checkpoint_is_written_after_the_interval_only_if_a_high_watermark_has_moved() -> None:
    files = MemoryFileSystem()
    manager = start(files, A)
    checkpoints = manager.high_watermarks
    manager.tick(NOW_MS + CHECKPOINT_INTERVAL_MS)
    assert (checkpoints.next_ms, HIGH_WATERMARK_FILE in files.list("")) == (None, False)
    filled(files, 2, high_watermark=2, manager=manager)
    checkpoints.moved(NOW_MS)
    assert manager.next_deadline_ms == checkpoints.next_ms == NOW_MS + CHECKPOINT_INTERVAL_MS
    manager.tick(NOW_MS + CHECKPOINT_INTERVAL_MS - 1)
    assert stored(files) == {}
    manager.tick(NOW_MS + CHECKPOINT_INTERVAL_MS)
    assert stored(files) == {A: 2}
    assert checkpoints.next_ms == NOW_MS + 2 * CHECKPOINT_INTERVAL_MS
    manager.tick(NOW_MS + 2 * CHECKPOINT_INTERVAL_MS)  # nothing has moved
    assert checkpoints.next_ms is None


def test_a_power_cut_that_cuts_a_log_does_not_leave_a_high_watermark_above_its_end() -> None:
    files = CrashFileSystem()
    manager = start(files, A)
    filled(files, 3, high_watermark=3, manager=manager)
    for _ in range(6):
        append(log_of(manager, A), batch_of())  # never synced, but below the high watermark
    log_of(manager, A).advance_high_watermark(9)
    manager.high_watermarks.write()
    files = files.after_power_cut(SEED_THAT_CUTS)
    log = log_of(manager := start(files, A), A)
    assert 3 <= log.high_watermark == log.log_end_offset < 9
    while log.log_end_offset < 9:
        append(log, batch_of())  # which no other replica has
    commit(manager)
    log = log_of(start(files.after_power_cut(SEED_THAT_CUTS), A), A)
    assert (log.log_end_offset, log.high_watermark) == (9, 0)


def test_a_new_topic_does_not_get_the_high_watermark_of_a_deleted_one() -> None:
    files = MemoryFileSystem()
    manager = start(files, A, B)
    filled(files, 4, high_watermark=4, manager=manager)
    manager.high_watermarks.write()
    manager.delete_log(A)
    again = start(files, A, B, topic_id=OTHER_ID)
    filled(files, 4, high_watermark=0, manager=again)
    assert log_of(start(files, A, B, topic_id=OTHER_ID), A).high_watermark == 0


def test_the_entries_of_deleted_partitions_leave_and_those_of_damaged_ones_stay() -> None:
    files = MemoryFileSystem()
    manager = start(files, A, B)
    for partition in (A, B):
        append(log_of(manager, partition), batch_of(2))
        log_of(manager, partition).advance_high_watermark(2)
    commit(manager)
    manager.write_checkpoints()
    assert manager.high_watermarks.write()
    content = files.read_file(f"{B}/{0:020d}.log")
    assert content is not None
    files.write_file(f"{B}/{0:020d}.log", content[:20])
    manager = start(files, A, B)
    assert list(manager.failed) == [B]
    manager.delete_log(A)
    assert manager.high_watermarks.write()
    assert stored(files) == {B: 2}


class FullFiles(MemoryFileSystem):
    """Files whose disk refuses to write files while `error` is not 0."""

    error = 0

    def write_file(self, path: str, content: bytes) -> None:
        if self.error:
            raise OSError(self.error, "refused", path)
        super().write_file(path, content)


def test_a_full_disk_puts_the_checkpoint_off() -> None:
    files, journal = FullFiles(), RecordingJournal()
    manager = start(files, A, journal=journal)
    filled(files, 2, high_watermark=2, manager=manager)
    files.error = errno.ENOSPC
    manager.high_watermarks.tick(NOW_MS + CHECKPOINT_INTERVAL_MS)
    manager.high_watermarks.tick(NOW_MS + 2 * CHECKPOINT_INTERVAL_MS)
    assert len(journal.named("checkpoint_not_written")) == 1
    files.error = 0
    manager.high_watermarks.tick(NOW_MS + 3 * CHECKPOINT_INTERVAL_MS)
    assert stored(files) == {A: 2}


def test_a_disk_that_cannot_write_the_checkpoint_goes_out_of_service() -> None:
    files = FullFiles()
    manager = start(files, A)
    filled(files, 2, high_watermark=2, manager=manager)
    manager.tick(NOW_MS)
    files.error = errno.EIO
    with pytest.raises(OSError, match="refused"):
        manager.tick(NOW_MS + CHECKPOINT_INTERVAL_MS)
    assert manager.failure is not None


def test_a_clean_shutdown_writes_the_checkpoint_before_its_mark() -> None:
    files = FullFiles()
    manager = start(files, A, topic_id=ID)
    filled(files, 2, high_watermark=1, manager=manager)
    manager.close(NOW_MS)
    assert stored(files) == {A: 1}


def test_without_other_replicas_only_a_clean_shutdown_writes_the_checkpoint() -> None:
    files = MemoryFileSystem()
    manager = LogManager.open(files, cluster_id="c1", node_id=1, journal=RecordingJournal())
    manager.load([PartitionSpec(A, ID, LogConfig())], NOW_MS)
    filled(files, 2, high_watermark=2, manager=manager)
    manager.high_watermarks.moved(NOW_MS)
    assert manager.high_watermarks.next_ms is None
    manager.close(NOW_MS)
    assert stored(files) == {A: 2}


class UnreadableFiles(MemoryFileSystem):
    """Files of which one cannot be read."""

    unreadable = ""

    def read_file(self, path: str) -> bytes | None:
        if path == self.unreadable:
            raise OSError(errno.EIO, "refused", path)
        return super().read_file(path)


@pytest.mark.parametrize("name", [HIGH_WATERMARK_FILE, RECOVERY_FILE, START_FILE])
def test_a_checkpoint_that_cannot_be_read_leaves_the_mark_of_a_clean_shutdown(name: str) -> None:
    files = UnreadableFiles()
    start(files, A).close(NOW_MS)
    files.unreadable = name
    with pytest.raises(OSError, match="refused"):
        start(files, A)
    files.unreadable = ""
    assert CLEAN_FILE in files.list("")
