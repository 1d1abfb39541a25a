"""A consumer reads fetch responses while its partitions are revoked, paused or moved."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from headrace.clients.blocking import EARLIEST, LATEST
from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.blocking import Consumer
from headrace.clients.consumer.records import ConsumerRecord, FetchedBatches
from headrace.clients.flows.fetch import FetchedPartition
from headrace.errors import ApiError, CorruptRecordError, ErrorCode, NoOffsetError
from headrace.protocol.api_keys import ApiKey
from headrace.records.builder import BatchBuilder, build_batch
from headrace.records.compression import Compression
from headrace.types import TopicPartition
from tests.unit.clients.fake_broker import FakeCluster, Fault

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(
    base: int, *values: bytes, compression: Compression = Compression.NONE, **options
) -> bytes:
    fields = [(None, value, (), 1000 + base + index) for index, value in enumerate(values)]
    return build_batch(fields, compression=compression, base_offset=base, **options)


def transactional(base: int, producer_id: int, *values: bytes) -> bytes:
    builder = BatchBuilder(transactional=True)
    for value in values:
        builder.append(None, value, (), 1000)
    return builder.build(producer_id, 0, 0, base_offset=base)


def marker(base: int, producer_id: int, *, commit: bool) -> bytes:
    builder = BatchBuilder(transactional=True, control=True)
    builder.append(struct.pack(">hh", 0, int(commit)), b"\0" * 6, (), 1000)
    return builder.build(producer_id, 0, -1, base_offset=base)


def decoded(data: bytes, offset: int = 0, aborted=()) -> tuple[list[tuple[int, bytes | None]], int]:
    """Return the records of a response, and the position afterwards."""
    partition = AssignedPartition(T0, offset)
    fetched = FetchedPartition(memoryview(data), aborted_transactions=aborted)
    partition.fetched = FetchedBatches(T0, fetched, check_crcs=True)
    taken = []
    while partition.decode():
        taken += [(record.offset, record.value) for record in partition.records]
        partition.advance(partition.pending)
    assert partition.offset is not None
    return taken, partition.offset


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_that_begins_before_the_position_is_read_from_the_position(
    compression: Compression,
) -> None:
    data = batch(10, b"a", b"b", b"c", compression=compression) + batch(13, b"d")
    assert decoded(data, 12) == ([(12, b"c"), (13, b"d")], 14)


def test_a_batch_cut_off_at_the_end_is_left_for_the_next_fetch() -> None:
    data = batch(0, b"a") + batch(1, b"b" * 100)[:-1]
    assert decoded(data) == ([(0, b"a")], 1)
    assert decoded(data + b"") == ([(0, b"a")], 1)
    assert decoded(batch(0, b"a") + b"\0" * 20) == ([(0, b"a")], 1)


def test_control_batches_are_stepped_over() -> None:
    data = (
        transactional(0, 7, b"a")
        + marker(1, 7, commit=True)
        + batch(2, b"b")
        + marker(3, 7, commit=True)
    )
    assert decoded(data) == ([(0, b"a"), (2, b"b")], 4)


def test_aborted_transactions_are_left_out_and_those_after_them_are_not() -> None:
    data = (
        transactional(0, 7, b"aborted")
        + transactional(1, 8, b"kept")
        + marker(2, 7, commit=False)
        + transactional(3, 7, b"next transaction of the same producer")
        + marker(4, 7, commit=True)
        + marker(5, 8, commit=True)
    )
    records, position = decoded(data, aborted=((7, 0),))
    assert [offset for offset, _ in records] == [1, 3]
    assert position == 6
    records, _ = decoded(data)
    assert [offset for offset, _ in records] == [0, 1, 3], (
        "read_uncommitted gets no aborted transactions"
    )


def test_a_batch_emptied_by_compaction_moves_the_position() -> None:
    # Compaction keeps the last offset of a batch whose last records are gone.
    kept = bytearray(batch(0, b"a"))
    struct.pack_into(">i", kept, 23, 4)
    struct.pack_into(">I", kept, 17, crc32c(bytes(kept[21:])))
    assert decoded(bytes(kept), 1) == ([], 5)


def test_a_damaged_batch_is_an_error_at_its_position() -> None:
    broken = bytearray(batch(1, b"b"))
    broken[-1] ^= 1
    with FakeCluster(topics={"t": 1}) as cluster, Consumer(cluster.bootstrap) as consumer:
        log = cluster.logs[T0]
        log.batches = [batch(0, b"a"), bytes(broken)]
        log.end_offset = 2
        consumer.assign({T0: EARLIEST})
        assert [record.value for record in consumer.poll(5, 1)] == [b"a"]
        with pytest.raises(CorruptRecordError, match="t-0 at offset 1"):
            consumer.poll(5)
        assert consumer.position(T0) == 1


def fill(cluster: FakeCluster, where: TopicPartition, count: int, per_batch: int = 3) -> None:
    log = cluster.logs[where]
    for start in range(0, count, per_batch):
        values = [b"%d" % number for number in range(start, min(start + per_batch, count))]
        log.append(batch(0, *values))


def consumer_of(cluster: FakeCluster, **options) -> Consumer:
    return Consumer(
        cluster.bootstrap, **{"retry_backoff_ms": 5, "fetch_max_wait_ms": 20, **options}
    )


def read_all(consumer: Consumer, count: int, max_records: int = 500) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    while len(records) < count:
        more = consumer.poll(5, max_records)
        assert more, f"nothing more after {len(records)}"
        records += more
    return records


def test_everything_is_read_once_from_several_brokers() -> None:
    with FakeCluster(nodes=2, topics={"t": 4}) as cluster:
        for where in cluster.logs:
            fill(cluster, where, 50)
        with consumer_of(cluster) as consumer:
            consumer.assign(dict.fromkeys(consumer.partitions_for("t"), EARLIEST))
            records = read_all(consumer, 200, 7)
        for number in range(4):
            offsets = [record.offset for record in records if record.partition == number]
            assert offsets == list(range(50))


def test_reading_survives_lost_connections_and_moved_leaders() -> None:
    with FakeCluster(nodes=2, topics={"t": 1}) as cluster:
        fill(cluster, T0, 60)
        faults = [("drop", 0), ("drop_after", 0), ("code", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        cluster.faults.extend(Fault(ApiKey.FETCH, kind, ErrorCode(code)) for kind, code in faults)
        with consumer_of(cluster, max_partition_fetch_bytes=300) as consumer:
            consumer.assign({T0: EARLIEST})
            records = read_all(consumer, 20, 5)
            cluster.leaders[T0] = 2
            records += read_all(consumer, 60 - len(records), 5)
        assert [record.offset for record in records] == list(range(60))


def test_a_seek_drops_records_that_were_read_ahead() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, T0, 30)
        consumer.assign({T0: EARLIEST})
        assert consumer.poll(5, 2)[-1].offset == 1
        consumer.seek(T0, 20)
        assert consumer.poll(5, 1)[0].offset == 20
        consumer.seek(T0, 5)
        assert consumer.poll(5, 1)[0].offset == 5
        assert consumer.position(T0) == 6


@pytest.mark.slow
def test_paused_partitions_wait() -> None:
    with FakeCluster(topics={"t": 2}) as cluster, consumer_of(cluster) as consumer:
        fill(cluster, T0, 3)
        fill(cluster, T1, 3)
        consumer.assign({T0: EARLIEST, T1: EARLIEST})
        consumer.pause([T0])
        assert {record.partition for record in read_all(consumer, 3)} == {1}
        assert consumer.poll(0.05) == []
        consumer.resume([T0])
        assert {record.partition for record in read_all(consumer, 3)} == {0}


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", None)])
def test_an_offset_that_is_gone_goes_on_by_the_policy(reset: str, first: int | None) -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        fill(cluster, T0, 6)
        with consumer_of(cluster, auto_offset_reset=reset) as consumer:
            consumer.assign({T0: 99})
            records = consumer.poll(0.3)
            assert (records[0].offset if records else None) == first
            assert consumer.position(T0) == 6


def test_an_offset_that_is_gone_without_a_policy_is_an_error() -> None:
    with (
        FakeCluster(topics={"t": 1}) as cluster,
        consumer_of(cluster, auto_offset_reset="none") as consumer,
    ):
        consumer.assign({T0: 99})
        with pytest.raises(NoOffsetError, match="offset 99 of t-0 does not exist"):
            consumer.poll(5)


def test_an_empty_topic_gives_nothing_in_time() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        consumer.assign({T0: LATEST})
        assert consumer.poll(0.03) == []
        fill(cluster, T0, 1)
        assert [record.value for record in read_all(consumer, 1)] == [b"0"]


def test_an_error_that_will_not_pass_is_raised() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        cluster.faults.append(Fault(ApiKey.FETCH, "code", ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        consumer.assign({T0: 0})
        with pytest.raises(ApiError, match="TOPIC_AUTHORIZATION_FAILED"):
            consumer.poll(5)


def test_unknown_partitions_cannot_be_assigned() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        with pytest.raises(ApiError, match="no partition 4"):
            consumer.assign({TopicPartition("t", 4): 0})
        with pytest.raises(ApiError, match="no topic"):
            consumer.partitions_for("missing")
