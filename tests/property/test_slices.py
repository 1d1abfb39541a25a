"""The slices of a batch are the whole batch, for any records, codec and decoder, and any positions of the reader."""

from __future__ import annotations

import struct
from random import Random
from typing import Any
from unittest import mock

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.records import FetchedBatches
from headrace.clients.flows.fetch import FetchedPartition
from headrace.records import decoding, reader
from headrace.records.batch import BatchHeader
from headrace.records.builder import BatchBuilder, build_batch
from headrace.records.compression import Compression
from headrace.records.reader import Record, decode_batch, read_records, slices_of
from headrace.types import TopicPartition
from tests.fixtures.accelerator import built_kernels

T0 = TopicPartition("t", 0)
CONTENT = st.none() | st.binary(max_size=80) | st.sampled_from([b"x" * 64, b"x" * 9000])
HEADERS = st.lists(
    st.tuples(st.sampled_from(["", "h", "é"]), st.none() | st.binary(max_size=9)), max_size=3
)
RECORDS = st.lists(st.tuples(CONTENT, CONTENT, HEADERS, st.integers(0, 2**45)), max_size=60)
LIMITS = st.tuples(st.integers(1, 70), st.integers(1, 20_000))


@pytest.fixture(scope="module", params=["Python", "C"], autouse=True)
def decoder(request: pytest.FixtureRequest) -> Any:
    kernels = built_kernels() if request.param == "C" else None
    with mock.patch.object(decoding, "_decode_fast", kernels and kernels.decode_records):
        yield


def limited(limits: tuple[int, int]) -> Any:
    return mock.patch.multiple(reader, SLICE_RECORDS=limits[0], SLICE_BYTES=limits[1])


@given(RECORDS, st.sampled_from(list(Compression)), LIMITS, st.integers(0, 1))
@settings(deadline=None)
def test_the_slices_of_a_batch_are_its_records(
    records: list[Any], codec: Compression, limits: tuple[int, int], released: int
) -> None:
    data = build_batch(records, compression=codec, base_offset=7)
    header = BatchHeader.parse(data)
    whole = decode_batch(header, data, 0)
    with limited(limits):
        assert list(read_records(data)) == whole
        batch = slices_of(header, data, 0)
        found: list[Record] = []
        while batch.left:
            if released:
                batch.release()
                assert batch.held == 0
            part = batch.next_slice()
            assert 1 <= len(part) <= limits[0]
            found += part
        assert batch.next_slice() == []
    assert found == whole


def resealed(batch: bytes, **fields: int) -> bytes:
    """Return a batch with other header fields and the right CRC."""
    header = BatchHeader.parse(batch)._replace(**fields)
    data = bytearray(struct.pack(">qiibIhiqqqhii", *header) + batch[61:])
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def make_log(
    chance: Random,
) -> tuple[bytes, tuple[tuple[int, int], ...], list[tuple[int, bytes | None]], int]:
    """Return batches, their aborted ranges, the records that must be read, and the end offset."""
    parts: list[bytes] = []
    aborted: list[tuple[int, int]] = []
    wanted: list[tuple[int, bytes | None]] = []
    offset = 0
    for _ in range(chance.randrange(1, 8)):
        offset += chance.choice((0, 0, 5))  # compaction removed batches
        codec = chance.choice(list(Compression))
        kind = chance.choice(("plain", "plain", "gaps", "committed", "aborted", "empty"))
        values = [b"%d" % chance.randrange(10**6) for _ in range(chance.randrange(1, 30))]
        if kind == "empty":
            parts.append(resealed(build_batch([], base_offset=offset), last_offset_delta=3))
            offset += 4
            continue
        transactional = kind in {"committed", "aborted"}
        builder = BatchBuilder(codec, transactional=transactional)
        for value in values:
            builder.append(None, value, [("tag", value[-1:])], 1000)
        producer = (5, 0, 0) if transactional else (-1, -1, -1)
        batch = builder.build(*producer, base_offset=offset)
        if kind == "gaps":  # the log's compaction keeps offsets: here behind the last record
            batch = resealed(batch, last_offset_delta=len(values) + 6)
        parts.append(batch)
        found = [(offset + index, value) for index, value in enumerate(values)]
        offset = BatchHeader.parse(batch).next_offset
        if transactional:
            if kind == "aborted":
                aborted.append((5, found[0][0]))
                found = []
            end = BatchBuilder(transactional=True, control=True)
            end.append(struct.pack(">hh", 0, int(kind == "committed")), b"\0" * 6, (), 1000)
            parts.append(end.build(5, 0, -1, base_offset=offset))
            offset += 1
        wanted += found
    return b"".join(parts), tuple(aborted), wanted, offset


@given(st.integers(0, 2**32), LIMITS)
@settings(deadline=None)
def test_a_reader_stopped_at_any_slice_neither_loses_nor_repeats_records(
    seed: int, limits: tuple[int, int]
) -> None:
    chance = Random(seed)
    data, aborted, wanted, end = make_log(chance)
    taken: list[tuple[int, bytes | None]] = []
    partition = AssignedPartition(T0, 0)

    def fetch() -> None:
        partition.fetched = FetchedBatches(
            T0, FetchedPartition(data, aborted_transactions=aborted), check_crcs=True
        )

    with limited(limits):
        while partition.offset != end:
            if partition.fetched is None:
                fetch()
            before = partition.offset
            if not partition.decode():
                continue
            count = chance.randrange(1, partition.pending + 1)
            first = partition.next_record
            taken += [
                (each.offset, each.value) for each in partition.records[first : first + count]
            ]
            partition.advance(count)
            assert before is not None
            assert partition.offset is not None
            assert before <= taken[-1][0] < partition.offset <= end
            event = chance.randrange(6)
            if event == 0:  # a rebalance or a restart: the reader continues at the committed offset
                assert partition.position() is not None
                partition.move(partition.offset)
            elif event == 1:
                partition.release()
    assert taken == wanted
