"""Batches that are much larger when decompressed: the memory of a consumer, and the work that it does at a time."""

from __future__ import annotations

import asyncio
import itertools
import struct
import tracemalloc
from typing import Any
from unittest import mock

import pytest

from headrace.clients.blocking import EARLIEST
from headrace.clients.consumer import aio, assigned_partition, fetch_collector
from headrace.clients.consumer.assigned_partition import STEP_COST, AssignedPartition
from headrace.clients.consumer.blocking import Consumer
from headrace.clients.consumer.fetch_collector import FetchCollector
from headrace.clients.consumer.records import FetchedBatches
from headrace.clients.flows.fetch import FetchedPartition
from headrace.clients.producer.blocking import Producer
from headrace.errors import CorruptRecordError, MessageTooLargeError
from headrace.records import decoding
from headrace.records.batch import BatchHeader
from headrace.records.builder import BatchBuilder, build_batch
from headrace.records.compression import Compression
from headrace.records.decoding import MAX_HEADERS
from headrace.records.directives import TAG
from headrace.records.reader import SLICE_BYTES, SLICE_RECORDS, read_records, slices_of
from headrace.records.tags import TagFilter
from headrace.records.varint import encode_varint
from headrace.types import TopicPartition
from tests.fixtures.accelerator import built_kernels
from tests.property.test_slices import resealed
from tests.unit.clients.consumer.test_reading import consumer_of
from tests.unit.clients.fake_broker import FakeCluster

pytestmark = pytest.mark.slow  # not in `make check`

T0 = TopicPartition("t", 0)
MANY = 40_000


@pytest.fixture(params=["Python", "C"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = built_kernels() if request.param == "C" else None
    monkeypatch.setattr(decoding, "_decode_fast", kernels and kernels.decode_records)


def many(count: int = MANY, *, base: int = 0, codec: Compression = Compression.ZSTD) -> bytes:
    """Return a batch of some kilobytes with a large number of records."""
    builder = BatchBuilder(codec, max_bytes=1 << 40)
    assert builder.extend([b""] * count, 0, 1000) == count
    return builder.build(base_offset=base)


def partition_holding(
    data: bytes, offset: int = 0, name: TopicPartition = T0, **options: Any
) -> AssignedPartition:
    partition = AssignedPartition(name, offset)
    fetched = FetchedPartition(memoryview(data))
    partition.fetched = FetchedBatches(name, fetched, **{"check_crcs": True, **options})
    return partition


class Plain:
    """Decoders that leave bytes as they are."""

    def of(self, _topic: str) -> tuple[None, None]:
        return None, None


def hand_out_of(*given: AssignedPartition) -> FetchCollector:
    return FetchCollector({each.name: each for each in given}, Plain())  # type: ignore[arg-type]  # all that is asked


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_a_slice_is_decoded_at_a_time(codec: Compression) -> None:
    data = many(codec=codec)
    tracemalloc.start()
    try:
        partition = partition_holding(data)
        giving = hand_out_of(partition)
        seen = 0
        while not partition.empty:
            assert giving.ready()
            assert partition.pending <= SLICE_RECORDS
            seen += len(giving.take(500))
            assert partition.offset == seen
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == MANY
    # All records at once take 10 MB and more; their bytes 0.4 MB, once or twice.
    assert peak < 4_000_000


@pytest.mark.usefixtures("decoder")
def test_other_readers_decode_slices_too() -> None:
    data = many()
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_records(data)) == MANY
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


def test_skipped_records_are_decoded_in_steps() -> None:
    partition = partition_holding(many(), MANY - 1)
    steps = 0
    while not partition.decode():
        assert not partition.empty, "there is more to look at"
        steps += 1
    assert [record.offset for record in partition.records] == [MANY - 1]
    assert steps == pytest.approx(MANY / STEP_COST, abs=2)


def test_batches_without_records_are_looked_at_in_steps() -> None:
    empty = b"".join(
        resealed(build_batch([], base_offset=offset), last_offset_delta=0) for offset in range(3000)
    )
    partition = partition_holding(empty)
    steps = 0
    while not partition.empty:
        assert not partition.decode()
        steps += 1
    assert steps == pytest.approx(3000 * 16 / STEP_COST, abs=1)
    assert partition.offset == 3000


def test_poll_continues_a_read_of_several_steps_without_a_further_call() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        for data in (many(), build_batch([(None, b"wanted", [(TAG, b"a")], 1000)])):
            cluster.logs[T0].append(data)
        with consumer_of(cluster, tags=["a"], fetch_max_wait_ms=20_000) as consumer:
            consumer.assign({T0: EARLIEST})
            assert [record.value for record in consumer.poll(10)] == [b"wanted"]
            assert consumer.position(T0) == MANY + 1


def test_other_tasks_run_between_the_steps_of_a_poll() -> None:
    steps: list[bool] = []
    decode = AssignedPartition.decode

    def step(partition: AssignedPartition) -> bool:
        steps.append(decode(partition))
        return steps[-1]

    async def program(address: str) -> list[int]:
        turns: list[int] = []

        async def other() -> None:
            while True:
                turns.append(len(steps))
                await asyncio.sleep(0)

        async with aio.Consumer(address, tags=["a"]) as consumer:
            await consumer.assign({T0: EARLIEST})
            task = asyncio.create_task(other())
            assert [record.value for record in await consumer.poll(60)] == [b"wanted"]
            task.cancel()
        return turns

    with (
        FakeCluster(topics={"t": 1}) as cluster,
        mock.patch.object(AssignedPartition, "decode", step),
    ):
        for data in (many(80_000), build_batch([(None, b"wanted", [(TAG, b"a")], 1000)])):
            cluster.logs[T0].append(data)
        turns = asyncio.run(program(cluster.bootstrap))
    assert len(steps) >= 80_000 / STEP_COST
    longest = max(after - before for before, after in itertools.pairwise(turns))
    assert longest <= 4, "the others have their turn after two looks, or two times two"


def test_steps_of_one_partition_do_not_hold_up_the_others() -> None:
    other = TopicPartition("t", 1)
    long = partition_holding(many(50_000), 49_999)
    giving = hand_out_of(
        long, partition_holding(build_batch([(None, b"short", (), 1)]), name=other)
    )
    assert not giving.ready()
    assert giving.unfinished
    assert giving.ready()
    assert [record.value for record in giving.take(10)] == [b"short"]
    assert not giving.ready()
    while not giving.ready():
        assert giving.unfinished
    assert [record.offset for record in giving.take(10)] == [49_999]


def test_large_batches_are_decompressed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_collector, "HELD_BYTES", 400_000)
    data = many()
    size = slices_of(BatchHeader.parse(data), data, 0).held
    assert 300_000 < size < 400_000
    given = [partition_holding(data, name=TopicPartition("t", number)) for number in range(20)]
    giving = hand_out_of(*given)
    turns = []
    for _ in range(60):
        records = giving.take(2000)
        turns.append({record.partition for record in records})
        assert sum(partition.held for partition in given) <= 2 * size
    assert len(set().union(*turns)) <= 5, "a batch that was begun is read to its end"
    assert (
        sum(partition.offset >= MANY - SLICE_RECORDS for partition in given if partition.offset)
        >= 2
    )


def test_partitions_take_turns_within_batches_that_are_not_large() -> None:
    given = [partition_holding(many(5000), name=TopicPartition("t", number)) for number in range(4)]
    giving = hand_out_of(*given)
    assert [giving.take(100)[0].partition for _ in range(8)] == [0, 1, 2, 3] * 2


def test_a_pause_lets_go_of_a_large_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assigned_partition, "RELEASE_BYTES", 1000)
    with FakeCluster(topics={"t": 1}) as cluster, consumer_of(cluster) as consumer:
        cluster.logs[T0].append(many())
        consumer.assign({T0: EARLIEST})
        first = consumer.poll(5)
        core: Any = consumer._core
        assert core.assigned[T0].held > 1000
        consumer.pause([T0])
        assert core.assigned[T0].held == 0
        consumer.resume([T0])
        offsets = [record.offset for record in first]
        while len(offsets) < MANY:
            offsets += [record.offset for record in consumer.poll(5, 20_000)]
        assert offsets == list(range(MANY))


def test_a_commit_in_the_middle_of_a_batch_is_where_a_restart_goes_on() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        cluster.logs[T0].append(many())
        with consumer_of(cluster) as consumer:
            consumer.assign({T0: EARLIEST})
            assert len(consumer.poll(5, 9_999)) == 9_999
            assert consumer.position(T0) == 9_999
        with consumer_of(cluster) as consumer:
            consumer.assign({T0: 9_999})
            assert consumer.poll(5, 1)[0].offset == 9_999
            consumer.seek(T0, 3)
            assert consumer.poll(5, 1)[0].offset == 3


@pytest.mark.usefixtures("decoder")
def test_damage_behind_some_slices_is_an_error_at_its_position_each_time() -> None:
    whole = many(codec=Compression.NONE)
    data = resealed(whole[:-1] + b"\x02")  # the last record has a header, it says
    partition = partition_holding(data)
    while MANY - (seen := partition.offset or 0) > SLICE_RECORDS:
        assert partition.decode()
        partition.advance(partition.pending)
    for _ in range(2):
        with pytest.raises(
            CorruptRecordError,
            match=f"^t-0 at offset {seen}: .*; seek to {MANY} to skip the batch$",
        ):
            partition.decode()
        assert partition.offset == seen


def headers_alone(count: int) -> bytes:
    """Return a batch with one record that has a number of headers of two bytes each."""
    body = b"\0\0\0\1\1" + encode_varint(count) + b"\0\1" * count
    body = encode_varint(len(body)) + body
    whole = build_batch([(None, None, (), 0)])[:61] + body
    return resealed(whole, batch_length=len(whole) - 12)


@pytest.mark.usefixtures("decoder")
def test_a_record_of_headers_alone_is_refused() -> None:
    assert len(next(read_records(headers_alone(MAX_HEADERS))).headers) == MAX_HEADERS
    with pytest.raises(CorruptRecordError, match="65537 headers; 65536 are the most"):
        next(read_records(headers_alone(MAX_HEADERS + 1)))


@pytest.mark.parametrize("way", ["Python", "C"])
def test_columns_for_spark_take_no_more_headers(way: str) -> None:
    arrow = pytest.importorskip("headrace.spark.source.arrow")
    schema = pytest.importorskip("headrace.spark.source.schema").topic_schema(include_headers=True)
    kernels = built_kernels() if way == "C" else None
    good = arrow.RangeDecoder(T0, 0, 1, schema, compiled=kernels)
    rows = list(good.feed(headers_alone(MAX_HEADERS)))
    rows += good.finish()
    assert [len(row) for each in rows for row in each.column("headers")] == [MAX_HEADERS]
    bad = arrow.RangeDecoder(T0, 0, 1, schema, compiled=kernels)
    with pytest.raises(CorruptRecordError, match="65537 headers; 65536 are the most"):
        list(bad.feed(headers_alone(MAX_HEADERS + 1)))


def test_a_producer_writes_no_record_that_consumers_refuse() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, Producer(cluster.bootstrap) as producer:
        producer.send("t", b"v", headers=[("", None)] * MAX_HEADERS)
        with pytest.raises(MessageTooLargeError, match="at most 65536 headers, not 65537"):
            producer.send("t", b"v", headers=[("", None)] * (MAX_HEADERS + 1))


@pytest.mark.usefixtures("decoder")
def test_records_with_many_headers_come_in_slices_of_few() -> None:
    headers = [("", None)] * 40_000
    data = build_batch([(None, b"", headers, 0)] * 50)
    batch = slices_of(BatchHeader.parse(data), data, 0)
    sizes = []
    while batch.left:
        sizes.append(len(batch.next_slice()))
    assert sum(sizes) == 50
    assert max(sizes) * 80_000 <= SLICE_BYTES + 80_000


def test_records_of_many_bytes_come_in_slices_of_few() -> None:
    data = build_batch([(None, b"x" * 100_000, (), 0)] * 50)
    batch = slices_of(BatchHeader.parse(data), data, 0)
    while batch.left:
        assert sum(len(record.value or b"") for record in batch.next_slice()) <= SLICE_BYTES


def test_the_length_of_a_batch_is_checked_even_without_checksums() -> None:
    """A length that points back to the begin of the batch would be an endless loop."""
    for length in (-12, -100, 0, 48):
        data = bytearray(build_batch([(None, b"v", (), 0)]))
        struct.pack_into(">i", data, 8, length)
        with pytest.raises(CorruptRecordError, match=r"t-0 at offset 0: .*length"):
            partition_holding(bytes(data), check_crcs=False).decode()


def test_offsets_that_no_batch_has_move_no_position_back_or_beyond_the_batch() -> None:
    good = bytearray(build_batch([(None, b"%d" % number, (), 0) for number in range(4)]))
    # The second record's offset delta becomes -1, the third's 60.
    body = bytes(good[61:])
    size = len(body) // 4
    records = [bytearray(body[at : at + size]) for at in range(0, len(body), size)]
    records[1][3], records[2][3] = 1, 120
    data = resealed(bytes(good[:61]) + b"".join(map(bytes, records)), base_offset=50)
    partition = partition_holding(data, 50)
    assert partition.decode()
    places = []
    while partition.pending:
        partition.advance(1)
        places.append(partition.offset)
    assert places == [51, 51, 54, 54]


def test_tags_are_looked_for_slice_by_slice() -> None:
    partition = partition_holding(many(9000), tags=TagFilter.of(["a"]))
    assert not partition.decode()
    assert partition.empty
    assert partition.offset == 9000


def test_a_consumer_that_is_closed_in_the_middle_of_a_batch_is_closed() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, Consumer(cluster.bootstrap) as consumer:
        cluster.logs[T0].append(many())
        consumer.assign({T0: EARLIEST})
        assert len(consumer.poll(5)) == 500
