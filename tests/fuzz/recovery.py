"""Damaged log directories: opening one ends with a valid log, or with an error that has the reason."""

from __future__ import annotations

import random

from headrace.core.log import LogConfig, PartitionLog
from headrace.errors import StorageError
from headrace.records.batch import BatchHeader, iterate_headers
from headrace.records.builder import build_batch
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.logs import NOW_MS, open_log

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)


def recover_from_damage(seed: int) -> None:
    """Damage any bytes. The log opens with a valid prefix, or with a StorageError, and opening always ends."""
    chance = random.Random(seed)
    files = MemoryFileSystem()
    log = open_log(files, CONFIG)
    for number in range(30):
        log.append(
            build_batch([(None, b"%d" % number, (), NOW_MS)] * 2), leader_epoch=0, now_ms=NOW_MS
        )
    before = {BatchHeader.parse(data).base_offset: data for data in _batches(log)}
    log.close(NOW_MS)
    for _ in range(chance.randint(1, 3)):
        _damage(files, chance)
    recovery_point = chance.choice([0, 0, 20, 60])
    clean = chance.random() < 0.3
    try:
        log = open_log(files, CONFIG, clean=clean, recovery_point=recovery_point)
        found = _batches(log)
        log.offset_for_timestamp(NOW_MS)
        log.offset_of_max_timestamp()
        log.append(
            build_batch([(None, b"after", (), NOW_MS)]), leader_epoch=2**31 - 1, now_ms=NOW_MS
        )
    except StorageError as error:
        # The recovery has read everything again, so it has cut an incomplete batch. Offsets that overlap the next
        # segment are no incomplete write, and no reason to delete that segment.
        if not (clean or recovery_point or "overlaps" in str(error)):
            raise
        return
    if clean:  # the recovery reads nothing again
        return
    sound = {data[16:] for data in before.values()}
    for data in found:
        # Base offset and leader epoch are outside the CRC. And below the recovery point nothing is read again,
        # so that only a reader finds the damage there.
        if BatchHeader.parse(data).base_offset >= recovery_point:
            assert data[16:] in sound
    end = log.log_end_offset
    assert end > recovery_point
    _open_again(files, end, recovery_point)


def _open_again(files: MemoryFileSystem, end: int, recovery_point: int) -> None:
    """Recover a second time, which finds nothing to repair."""
    try:
        log = open_log(files, CONFIG, clean=False, recovery_point=end)
    except StorageError:
        # The first recovery did not read a segment that ended at the recovery point. The segment has grown since.
        # So the second recovery reads it, and finds the damage.
        if not recovery_point:
            raise
        return
    assert (log.log_end_offset, log.recovery.truncated_bytes) == (end, 0)


def _batches(log: PartitionLog) -> list[bytes]:
    offset, found = log.log_start_offset, []
    while offset < log.log_end_offset:
        piece = log.read(offset, max_bytes=300, up_to=log.log_end_offset, minimum_one=True)
        data = b"" if piece is None else piece.read()
        before = offset
        for position, header in iterate_headers(data):
            found.append(data[position : position + header.size])
            offset = header.next_offset
        if offset <= before:
            # Only possible if nothing was read again after the damage: base offsets are outside the CRC.
            raise StorageError("the log does not go on")
    return found


def _damage(files: MemoryFileSystem, chance: random.Random) -> None:
    name = "events-0/" + chance.choice(files.list("events-0"))
    content = bytearray(files.read_file(name) or b"")
    kind = chance.randrange(4)
    if kind == 0 and content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del content[chance.randrange(len(content) + 1) :]
    elif kind == 2:
        content += chance.randbytes(chance.randrange(200))
    else:
        content += bytes(chance.randrange(1, 200))
    files.write_file(name, bytes(content))
