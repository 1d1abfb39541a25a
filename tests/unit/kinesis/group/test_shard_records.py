"""Records of a shard, for any order of calls: positions become checkpoints, and no record is skipped."""

from __future__ import annotations

import random

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.kinesis.group.readers import WatchedReader
from headrace.kinesis.group.shard import AssignedShard
from headrace.kinesis.reading.pacing import RECORD_OVERHEAD_BYTES
from headrace.kinesis.reading.reader import Fetched, ReadCounts
from headrace.kinesis.reading.records import KinesisRecord

LEASE = Lease(
    key=LeaseKey("g", "orders@1", "shardId-000000000002"), checkpoint=TRIM_HORIZON, epoch=3
)


class NoReader:
    counts = ReadCounts()


SIZE = 5 + len("k") + RECORD_OVERHEAD_BYTES


def new_shard(limit_bytes: int = 10 * SIZE) -> AssignedShard:
    reader = WatchedReader(NoReader(), LEASE.key, lambda *_: None)  # type: ignore[arg-type] # it is never asked
    return AssignedShard(LEASE, "orders", reader, limit_bytes)


def aggregate(number: int, size: int) -> list[KinesisRecord]:
    return [
        KinesisRecord(
            "orders",
            LEASE.key.shard,
            str(number),
            sub if size > 1 else None,
            sub == size - 1,
            "k",
            None,
            b"12345",
            7,
        )
        for sub in range(size)
    ]


def test_positions_become_checkpoints_of_finished_records() -> None:
    shard = new_shard()
    shard.take_in(Fetched(records=aggregate(100, 1) + aggregate(101, 3)))
    records = shard.hand_out(10)
    assert [record.place for record in records] == ["100", "101:0", "101:1", "101:2"]
    assert {(record.topic, record.partition, record.leader_epoch) for record in records} == {
        ("orders", 2, 3)
    }
    expected = [
        None,
        Checkpoint("100"),
        Checkpoint("101", 0),
        Checkpoint("101", 1),
        Checkpoint("101"),
    ]
    for record, checkpoint in zip(records, expected, strict=False):
        assert shard.checkpoint_at(record.offset) == checkpoint
    assert shard.position is not None
    assert shard.checkpoint_at(shard.position) == expected[-1]
    shard.finish(records[2].offset)
    assert shard.finished == Checkpoint("101", 0)
    assert not shard.is_finished


def test_many_unfinished_bytes_stop_the_delivery() -> None:
    shard = new_shard(limit_bytes=2 * SIZE + 1)
    shard.take_in(
        Fetched(records=[record for number in range(5) for record in aggregate(number, 1)])
    )
    first = shard.hand_out(10)
    assert (len(first), shard.is_full, shard.wants_more) == (3, True, False)
    assert shard.hand_out(10) == []
    shard.finish(first[-1].offset + 1)
    assert len(shard.hand_out(10)) == 2
    assert shard.wants_more


def test_many_unfinished_records_without_data_stop_the_delivery() -> None:
    shard = new_shard(limit_bytes=1 << 20)
    (record,) = aggregate(1, 1)
    empty = record._replace(data=b"", partition_key="k" * 256)
    shard.take_in(Fetched(records=[empty._replace(sequence_number=str(n)) for n in range(10_000)]))
    assert len(shard.hand_out(10_000)) == (1 << 20) // 512


def test_a_shard_is_finished_after_its_last_record() -> None:
    shard = new_shard()
    shard.take_in(Fetched(records=aggregate(1, 1), ended=True))
    assert not shard.is_over
    [record] = shard.hand_out(10)
    assert (shard.is_over, shard.is_finished) == (True, False)
    shard.finish(record.offset + 1)
    assert shard.is_finished


def test_a_thousand_polls_skip_no_record() -> None:
    chance = random.Random(8)
    shard, number, handled = new_shard(12 * SIZE), 0, []
    for _ in range(1_000):
        what = chance.random()
        if what < 0.3 and number < 300:
            size = chance.choice([1, 1, 3])
            shard.take_in(Fetched(records=aggregate(number, size)))
            number += 1
        elif what < 0.6:
            handled += shard.hand_out(chance.randint(1, 5))
        elif what < 0.7 and handled:
            back = chance.choice(handled[-3:])
            if shard.checkpoint_at(back.offset + 1) is not None:  # not finished yet
                shard.take_back(back.offset)
                handled = [record for record in handled if record.offset < back.offset]
        elif handled:
            done = chance.choice(handled).offset + 1
            checkpoint = shard.checkpoint_at(done)
            shard.finish(done)
            assert checkpoint is None or shard.finished == checkpoint
        offsets = [record.offset for record in handled]
        assert offsets == sorted(set(offsets))
    shard.finish(handled[-1].offset + 1)
    while more := shard.hand_out(9):
        handled += more
        shard.finish(handled[-1].offset + 1)
    assert [
        int(record.sequence_number) for record in handled if record.sub_sequence in (None, 0)
    ] == list(range(number))
