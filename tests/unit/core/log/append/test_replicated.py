"""A follower appends the bytes of its leader after checks, with gaps where the leader has compacted."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from headrace.core.log import LogConfig, Marker, PartitionLog, build_marker
from headrace.core.log.files.offset_gaps import GAPS_FILE
from headrace.errors import (
    ApiError,
    CorruptMessageError,
    ErrorCode,
    InvalidRecordError,
    StorageError,
)
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.crash_files import CrashFileSystem
from tests.fixtures.logs import DIRECTORY, NOW_MS, append, batch_of, open_log, raw_batches, sync
from tests.fixtures.transactions import transactional


def placed(batch: bytes, base_offset: int, epoch: int = 0) -> bytes:
    """Return a batch as a leader has it at an offset."""
    return struct.pack(">q", base_offset) + batch[8:12] + struct.pack(">i", epoch) + batch[16:]


def replicate(log: PartitionLog, *batches: bytes) -> int:
    return log.append_replicated(b"".join(batches), now_ms=NOW_MS)


def marker(producer_id: int, *, committed: bool) -> bytes:
    return build_marker(Marker(producer_id, 0, 3, committed), NOW_MS)


def test_a_follower_has_the_bytes_and_the_state_of_its_leader() -> None:
    config = LogConfig(segment_bytes=400, index_interval_bytes=1)
    leader, follower = open_log(MemoryFileSystem(), config), open_log(MemoryFileSystem(), config)
    for epoch in range(3):
        append(leader, batch_of(3, size=50), leader_epoch=epoch)
        append(
            leader,
            batch_of(2, producer_id=5, producer_epoch=0, base_sequence=2 * epoch),
            leader_epoch=epoch,
        )
    for sequence, committed in enumerate((True, False)):
        append(
            leader, transactional((b"k", b"v"), producer_id=8, sequence=sequence), leader_epoch=2
        )
        leader.append_marker(Marker(8, 0, 3, committed), leader_epoch=2, now_ms=NOW_MS)
    append(leader, transactional((b"k", b"v"), producer_id=8, sequence=2), leader_epoch=2)
    assert replicate(follower, *raw_batches(leader).values()) == leader.log_end_offset
    assert raw_batches(follower) == raw_batches(leader)
    assert follower.epochs.entries == leader.epochs.entries
    assert dict(follower.producers.items()) == dict(leader.producers.items())
    ours, theirs = follower.producers.transactions, leader.producers.transactions
    assert (ours.open, list(ours.aborted), list(ours.decided)) == (
        theirs.open,
        list(theirs.aborted),
        list(theirs.decided),
    )
    assert ours.first_unstable_offset == theirs.first_unstable_offset
    assert follower.offset_for_timestamp(NOW_MS + 2) == leader.offset_for_timestamp(NOW_MS + 2)
    assert follower.high_watermark == 0


@pytest.mark.parametrize("clean", [True, False])
def test_gaps_survive_a_restart(*, clean: bool) -> None:
    files = MemoryFileSystem()
    log = open_log(files)
    replicate(log, placed(batch_of(1), 0), placed(batch_of(2), 7), placed(batch_of(1), 12))
    sync(log)
    expected = raw_batches(log)
    assert list(expected) == [0, 7, 12]
    log.close(NOW_MS)
    files.remove(f"{DIRECTORY}/{0:020d}.index")
    for recovery_point in (0, 9, 13):
        again = open_log(files, clean=clean, recovery_point=recovery_point)
        assert (again.log_end_offset, raw_batches(again)) == (13, expected)
        assert not again.recovery.reason


def test_the_synced_offset_is_the_end_of_batches_after_gaps() -> None:
    log = open_log(CrashFileSystem(), LogConfig(segment_bytes=200), high_watermark=0)
    replicate(log, placed(batch_of(1), 5), placed(batch_of(2), 9))
    task = log.start_sync()
    assert task is not None
    replicate(log, placed(batch_of(1), 40), placed(batch_of(1), 300))
    task.run()
    log.finish_sync(task)
    assert (log.synced_offset, log.log_end_offset) == (11, 301)
    sync(log)
    assert log.synced_offset == 301


def test_offsets_before_a_gap_are_read_as_the_batch_after_it() -> None:
    log = open_log(MemoryFileSystem())
    replicate(log, placed(batch_of(1), 5), placed(batch_of(1), 9))
    found = log.read(6, max_bytes=1000, up_to=10, minimum_one=True)
    assert found is not None
    assert struct.unpack_from(">q", found.read())[0] == 9


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda batch: batch[:40], CorruptMessageError),
        (lambda batch: batch[:-1], CorruptMessageError),
        (lambda batch: batch[:16] + b"\1" + batch[17:], CorruptMessageError),
        (lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]), CorruptMessageError),
        (lambda batch: batch[:8] + struct.pack(">i", 48) + batch[12:], CorruptMessageError),
        (lambda batch: batch[:8] + struct.pack(">i", 2**31 - 1) + batch[12:], CorruptMessageError),
        (lambda batch: batch[:23] + struct.pack(">i", -1) + batch[27:], CorruptMessageError),
        (lambda batch: batch[:57] + struct.pack(">i", 2**31 - 1), CorruptMessageError),
        (lambda batch: placed(batch, 3, 1), InvalidRecordError),
        (lambda batch: placed(batch, 1, 1), InvalidRecordError),
        (lambda batch: placed(batch, 2**40, 1), InvalidRecordError),
        (lambda batch: placed(batch, 2**63 - 1, 1), InvalidRecordError),
        (lambda batch: placed(batch, -1, 1), InvalidRecordError),
        (lambda batch: placed(batch, 8, 0), InvalidRecordError),
    ],
)
def test_batches_that_are_unsound_or_do_not_continue_the_log_change_nothing(
    damage, error: type[ApiError]
) -> None:
    log = open_log(MemoryFileSystem())
    replicate(log, placed(batch_of(2), 0, 1))
    before = raw_batches(log)
    sound = placed(batch_of(2), 4, 1)
    with pytest.raises(error):
        replicate(log, sound, damage(placed(batch_of(1), 8, 1)))
    assert (log.log_end_offset, raw_batches(log), log.producer_count) == (2, before, 0)
    assert replicate(log, sound) == 6
    assert replicate(log) == 6


def test_a_marker_that_cannot_be_decoded_is_refused_before_anything_is_written() -> None:
    log = open_log(MemoryFileSystem())
    end = marker(5, committed=True)
    body = end[21:23] + struct.pack(">i", 8) + end[27:57] + struct.pack(">i", 9) + end[61:]
    wrong = end[:17] + struct.pack(">I", crc32c(body)) + body  # nine records in the bytes of one
    with pytest.raises(CorruptMessageError, match="marker"):
        replicate(log, placed(batch_of(1), 0), placed(wrong, 1))
    assert log.log_end_offset == 0


def test_a_failed_log_takes_no_replicated_batches() -> None:
    log = open_log(MemoryFileSystem())
    log.fail(OSError("broken"))
    with pytest.raises(ApiError) as caught:
        replicate(log, placed(batch_of(), 0))
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_write_that_fails_leaves_the_batches_before_it() -> None:
    files = CrashFileSystem()
    log = open_log(files)
    replicate(log, placed(batch_of(), 0))
    appends = 0

    def fail_second(kind: str, _path: str) -> int | None:
        nonlocal appends
        appends += kind == "append"
        return 28 if kind == "append" and appends == 2 else None

    files.fault = fail_second
    batches = [placed(batch_of(), offset) for offset in (1, 2, 3)]
    with pytest.raises(OSError, match="ENOSPC"):
        replicate(log, *batches)
    assert (log.log_end_offset, list(raw_batches(log))) == (2, [0, 1])
    assert replicate(log, *batches[1:]) == 4


def test_the_first_batch_of_a_log_may_hold_its_start() -> None:
    files = MemoryFileSystem()
    log = open_log(files, log_start_offset=7)
    with pytest.raises(InvalidRecordError):
        replicate(log, placed(batch_of(2), 5))
    assert replicate(log, placed(batch_of(4), 5), placed(batch_of(1), 9)) == 10
    assert log.log_start_offset == 7
    with pytest.raises(InvalidRecordError):
        replicate(log, placed(batch_of(4), 8))
    sync(log)
    again = open_log(files, clean=False, recovery_point=10, log_start_offset=7)
    assert (again.log_start_offset, again.log_end_offset, list(raw_batches(again))) == (
        7,
        10,
        [5, 9],
    )


def test_the_file_that_allows_gaps_is_synced_with_the_first_gap() -> None:
    files = CrashFileSystem()
    log = open_log(files)
    replicate(log, placed(batch_of(), 0))
    assert GAPS_FILE not in files.list(DIRECTORY)
    sync(log)
    replicate(log, placed(batch_of(), 5))
    sync(log)
    for seed in range(10):
        again = open_log(files.after_power_cut(seed), clean=False, recovery_point=6)
        assert list(raw_batches(again)) == [0, 5]


@pytest.mark.parametrize("has_gaps", [True, False])
def test_a_gap_is_damage_in_a_log_that_cannot_have_one(*, has_gaps: bool) -> None:
    files = MemoryFileSystem()
    log = open_log(files)
    replicate(log, placed(batch_of(), 0), placed(batch_of(), 7), placed(batch_of(), 12))
    if not has_gaps:
        files.remove(f"{DIRECTORY}/{GAPS_FILE}")
    assert open_log(files, clean=False).log_end_offset == (13 if has_gaps else 1)


@pytest.mark.parametrize("recovery_point", [0, 20])
def test_a_wrong_base_offset_is_found_in_a_log_with_gaps(recovery_point: int) -> None:
    files = MemoryFileSystem()
    log = open_log(files)
    batches = [placed(batch_of(), offset) for offset in (0, 3, 6, 9)]
    replicate(log, *batches)
    path = f"{DIRECTORY}/{0:020d}.log"
    batches[1] = placed(batches[1], 1000)
    files.write_file(path, b"".join(batches))
    if recovery_point:
        with pytest.raises(StorageError, match="the next batch begins at 6"):
            open_log(files, clean=False, recovery_point=recovery_point)
    else:
        assert open_log(files, clean=False).log_end_offset == 1
    batches[1], batches[2] = placed(batches[1], 3), placed(batches[2], 2)
    files.write_file(path, b"".join(batches))
    assert open_log(files, clean=False).log_end_offset in (1, 4)


def test_a_torn_sealed_segment_with_gaps_is_cut_where_it_is_torn() -> None:
    files = MemoryFileSystem()
    log = open_log(files)
    batches = [placed(batch_of(), offset) for offset in (0, 3, 6, 9)]
    replicate(log, *batches)
    log.roll(NOW_MS)
    replicate(log, placed(batch_of(), 15))
    files.write_file(f"{DIRECTORY}/{0:020d}.log", b"".join(batches)[:-5])
    again = open_log(files, clean=False, recovery_point=5)
    assert list(raw_batches(again)) == [0, 3, 6]


def test_a_retry_after_a_failover_is_recognised() -> None:
    leader, follower = open_log(MemoryFileSystem()), open_log(MemoryFileSystem())
    batch = batch_of(producer_id=5, producer_epoch=0, base_sequence=0, timestamp=1000)
    append(leader, batch)
    append(leader, batch_of())
    follower.append_replicated(b"".join(raw_batches(leader).values()), now_ms=NOW_MS)
    later_ms = NOW_MS + follower.config.producer_id_expiration_ms
    follower.expire_producers(later_ms)
    info = follower.append(batch, leader_epoch=1, now_ms=later_ms)
    assert (info.base_offset, info.duplicate) == (0, True)


def test_replicas_with_the_same_batches_forget_the_same_producers() -> None:
    config = LogConfig(max_producer_ids=10)
    leader, follower = open_log(MemoryFileSystem(), config), open_log(MemoryFileSystem(), config)
    for number in range(60):
        append(
            leader,
            batch_of(producer_id=number % 37, producer_epoch=0, base_sequence=number),
            now_ms=NOW_MS + number,
        )
    for batch in raw_batches(leader).values():
        follower.append_replicated(batch, now_ms=NOW_MS + 1000)
    assert set(follower.producers.last_offsets) == set(leader.producers.last_offsets)


def test_an_epoch_without_a_batch_does_not_begin_in_a_gap() -> None:
    log = open_log(MemoryFileSystem())
    replicate(log, placed(batch_of(), 0))
    log.become_leader(1)
    replicate(log, placed(batch_of(), 5, 2))
    assert log.epochs.entries == [(0, 0), (2, 5)]


@pytest.mark.parametrize("restarts", ["never", "before", "after", "twice"])
def test_a_leader_without_a_batch_follows_a_leader_with_an_earlier_epoch(restarts: str) -> None:
    """(1) Broker 1 appends in epoch 3. (2) This replica leads in epoch 5, and appends nothing.

    (3) Broker 1 leads again in epoch 6, before it has truncated its log.
    """
    files = MemoryFileSystem()
    log = open_log(files)
    replicate(log, placed(batch_of(), 0, 3))
    log.become_leader(5)
    if restarts in {"before", "twice"}:
        sync(log)
        log.close(NOW_MS)
        log = open_log(files)
    replicate(log, placed(batch_of(), 1, 3), placed(batch_of(), 2, 6))
    if restarts in {"after", "twice"}:
        log = open_log(files, clean=False, recovery_point=1)
        assert not log.recovery.reason
    assert log.epochs.entries == [(3, 0), (6, 2)]
    assert log.log_end_offset == 3


@pytest.mark.parametrize("count", [0, 2], ids=["an empty log", "a log with batches"])
def test_a_leader_without_an_append_follows_a_leader_with_older_batches(count: int) -> None:
    """The next leader may have batches of an older epoch, which the first leader did not have when it was elected."""
    log = open_log(MemoryFileSystem())
    for _ in range(count):
        append(log, batch_of(), leader_epoch=3)
    log.become_leader(7)
    assert replicate(
        log, placed(batch_of(), count, epoch=3), placed(batch_of(), count + 1, epoch=9)
    )
    assert log.epochs.entries == [(3, 0), (9, count + 1)]


def test_the_epoch_of_deleted_batches_stays_before_a_gap() -> None:
    log = open_log(MemoryFileSystem())
    replicate(log, placed(batch_of(2), 0))
    log.advance_high_watermark(2)
    log.advance_log_start_offset(2)
    log.purge()
    replicate(log, placed(batch_of(), 4, 2))
    assert log.epochs.entries == [(0, 2), (2, 4)]


def test_a_negative_base_offset_is_refused_by_an_empty_log() -> None:
    with pytest.raises(InvalidRecordError, match="base offset -5"):
        replicate(open_log(MemoryFileSystem()), placed(batch_of(10), -5))
