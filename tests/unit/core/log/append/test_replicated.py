"""A follower appends the bytes of its leader after checks, with gaps where the leader has compacted."""

from __future__ import annotations

import struct

import pytest

from headrace.core.log import LogConfig, Marker, PartitionLog, build_marker
from headrace.storage.memory_files import MemoryFileSystem
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


def test_offsets_before_a_gap_are_read_as_the_batch_after_it() -> None:
    log = open_log(MemoryFileSystem())
    replicate(log, placed(batch_of(1), 5), placed(batch_of(1), 9))
    found = log.read(6, max_bytes=1000, up_to=10, minimum_one=True)
    assert found is not None
    assert struct.unpack_from(">q", found.read())[0] == 9
