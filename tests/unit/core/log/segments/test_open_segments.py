"""The number of open segment files, counted by a file system."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Sequence

import pytest

from headrace.core.log import LogConfig, LogManager, OpenSegments, PartitionLog, PartitionSpec
from headrace.ports import File
from headrace.storage.memory_files import MemoryFileSystem
from headrace.types import Buffer, TopicPartition
from tests.fixtures.logs import NOW_MS, RecordingJournal, append, batch_of, raw_batches

CONFIG = LogConfig(segment_bytes=500, retention_ms=-1)


class CountedFile:
    """A descriptor that stays open while it is referenced, and refuses appends after its owner has closed it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._closed = False

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, buffers: Sequence[Buffer]) -> None:
        assert not self._closed
        self._file.append(buffers)

    def buffers(self, position: int, size: int) -> Sequence[Buffer]:
        return self._file.buffers(position, size)

    def read(self, position: int, size: int) -> bytes:
        return self._file.read(position, size)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        pass

    def fileno(self) -> None:
        return None

    def close(self) -> None:
        self._closed = True


class CountingFiles(MemoryFileSystem):
    __slots__ = ("most", "open_files", "opened")

    def __init__(self) -> None:
        super().__init__()
        self.open_files: weakref.WeakSet[CountedFile] = weakref.WeakSet()
        self.opened = 0
        self.most = 0

    def open(self, path: str, *, create: bool = False) -> CountedFile:
        file = CountedFile(super().open(path, create=create))
        if path.endswith(".log"):
            self.open_files.add(file)
            self.opened += 1
            self.most = max(self.most, len(self.open_files))
        return file


@pytest.fixture
def files() -> CountingFiles:
    return CountingFiles()


def manager_of(files: CountingFiles, count: int, limit: int) -> tuple[LogManager, RecordingJournal]:
    journal = RecordingJournal()
    manager = LogManager.open(files, cluster_id="c", node_id=1, journal=journal)
    manager.shared.open_segments.limit = limit
    specs = [PartitionSpec(TopicPartition("t", n), b"\1" * 16, CONFIG) for n in range(count)]
    manager.load(specs, NOW_MS)
    return manager, journal


def commit(manager: LogManager) -> None:
    batch = manager.start_sync()
    if batch is not None:
        batch.run()
        for log in manager.finish_sync(batch):
            log.advance_high_watermark(log.synced_offset)


def write_all(manager: LogManager, rounds: int) -> None:
    for number in range(rounds):
        for log in manager.logs.values():
            append(log, batch_of(1, tag=str(number), size=100))
            commit(manager)


def test_files_stay_below_the_bound_and_all_can_be_written_and_read(files: CountingFiles) -> None:
    manager, journal = manager_of(files, count=60, limit=20)
    write_all(manager, 10)
    assert sum(log.segment_count for log in manager.logs.values()) > 100
    for log in manager.logs.values():
        assert len(raw_batches(log)) == 10
        assert log.offset_for_timestamp(NOW_MS) is not None
    assert files.most <= 21  # one is opened before another closes
    assert len(manager.shared.open_segments) <= 20
    assert journal.named("open_segments_limited")[0]["limit"] == 20
    assert len(journal.named("open_segments_limited")) == 1


def test_no_segment_file_is_closed_below_the_bound(files: CountingFiles) -> None:
    manager, journal = manager_of(files, count=10, limit=100)
    write_all(manager, 2)
    assert files.opened == 10
    assert not journal.named("open_segments_limited")


def test_unsynced_segments_stay_open_beyond_the_bound(files: CountingFiles) -> None:
    manager, _ = manager_of(files, count=30, limit=5)
    for log in manager.logs.values():
        append(log, batch_of())
    assert len(files.open_files) == 30
    batch = manager.start_sync()
    assert batch is not None
    batch.run()
    manager.finish_sync(batch)
    del batch
    gc.collect()
    assert len(files.open_files) == 5


def test_logs_that_are_written_to_stay_open_and_idle_ones_close(files: CountingFiles) -> None:
    manager, _ = manager_of(files, count=9, limit=8)
    logs: list[PartitionLog] = list(manager.logs.values())
    for log in logs:
        append(log, batch_of())
        commit(manager)
    assert [number for number, log in enumerate(logs) if log.segments.active.file is None] == [0]
    for log in logs[1:5]:
        append(log, batch_of())
        commit(manager)
    append(logs[0], batch_of())
    assert [number for number, log in enumerate(logs) if log.segments.active.file is None] == [5]


def test_a_closed_active_segment_can_be_rolled_read_and_closed(files: CountingFiles) -> None:
    manager, _ = manager_of(files, count=3, limit=1)
    logs = list(manager.logs.values())
    for log in logs:
        append(log, batch_of(2))
        commit(manager)
    first, second, _ = logs
    assert first.segments.active.file is None
    assert len(raw_batches(first)) == 1
    assert second.segments.active.file is None
    second.roll(NOW_MS)
    assert append(second, batch_of()) == 2
    assert append(first, batch_of()) == 2
    commit(manager)
    manager.close(NOW_MS)
    again, _ = manager_of(files, count=3, limit=1)
    assert [log.log_end_offset for log in again.logs.values()] == [3, 3, 2]
    assert not any(log.recovery.scanned_bytes for log in again.logs.values())


def test_deleted_logs_are_not_counted(files: CountingFiles) -> None:
    manager, _ = manager_of(files, count=4, limit=10)
    write_all(manager, 12)
    for partition in list(manager.logs):
        manager.delete_log(partition)
    assert len(manager.shared.open_segments) == 0
    gc.collect()
    assert not files.open_files


def test_the_default_bound_is_4096_open_segments() -> None:
    assert OpenSegments().limit == 4096
    assert OpenSegments().most is None


@pytest.mark.parametrize(("most", "limit"), [(16, 12), (384, 288), (8192, 4096)])
def test_a_bound_of_descriptors_also_bounds_idle_open_segments(most: int, limit: int) -> None:
    assert OpenSegments(most).limit == limit


def test_an_append_above_the_bound_of_files_is_refused_until_a_sync(
    files: CountingFiles,
) -> None:
    manager, _ = manager_of(files, count=30, limit=8)
    manager.shared.open_segments.most = 10
    logs = list(manager.logs.values())
    for log in logs[:10]:
        append(log, batch_of())
    for log in logs[10:]:
        with pytest.raises(OSError, match="wait for their syncs") as caught:
            append(log, batch_of())
        assert caught.value.errno == errno.EMFILE
    assert append(logs[0], batch_of()) == 1  # its file is open
    assert len(files.open_files) == 10
    commit(manager)
    assert append(logs[10], batch_of()) == 0
    assert append(logs[11], batch_of()) == 0
