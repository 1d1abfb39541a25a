"""A batch for a topic with a codec is refused, or stored with that codec and with the same records."""

from __future__ import annotations

import struct

from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ErrorCode
from headrace.records.batch import CRC_POSITION, CRC_START, HEADER_SIZE, BatchHeader
from headrace.records.builder import build_batch
from headrace.records.compression import Compression, compress
from headrace.records.reader import decode_batch
from tests.effort import examples
from tests.fixtures.broker_harness import START_MS, BrokerHarness, produce_request

REFUSALS = {
    ErrorCode.INVALID_RECORD,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
}
names = st.text("abü", max_size=4)
data = st.none() | st.binary(max_size=40)
records = st.lists(
    st.tuples(data, data, st.lists(st.tuples(names, data), max_size=3), st.integers(-1000, 1000)),
    min_size=1,
    max_size=30,
)
codecs = st.sampled_from(list(Compression))
harness = BrokerHarness()


def stored(topic: str) -> tuple[int, bytes]:
    """Return the number of records of a topic, and its last batch."""
    end = harness.fetch(topic, 0).high_watermark
    content = b"" if not end else bytes(harness.fetch(topic, end - 1).records)
    return end, content


def topic_of(target: Compression) -> str:
    name = target.name.lower() if target else "uncompressed"
    if harness.broker.services.topics.get(name) is None:
        harness.create_topic(name, compression_type=name)
    return name


@given(records=records, sent=codecs, target=codecs)
@settings(max_examples=examples(150), deadline=None)
def test_recompressed_records_equal_the_sent_records(
    records, sent: Compression, target: Compression
):
    topic = topic_of(target)
    rows = [(key, value, headers, START_MS + delta) for key, value, headers, delta in records]
    batch = build_batch(rows, compression=sent)
    before, _ = stored(topic)
    response = harness.call(produce_request(topic, 0, batch))
    assert response.responses[0].partition_responses[0].error_code == 0
    end, content = stored(topic)
    assert end == before + len(rows)
    header = BatchHeader.parse(content)
    assert Compression(header.compression) is target
    assert header.max_timestamp == max(row[3] for row in rows)
    found = [
        (record.key, record.value, list(record.headers), record.timestamp)
        for record in decode_batch(header, content, 0)
    ]
    assert found == [(key, value, headers, at) for key, value, headers, at in rows]


@given(
    records=records,
    sent=codecs,
    target=codecs,
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=3),
    cut=st.integers(0, 20),
    before=st.booleans(),
)
@settings(max_examples=examples(300), deadline=None)
def test_a_damaged_file_is_refused_or_readable(
    records, sent: Compression, target: Compression, changes, cut: int, *, before: bool
):
    """Damage the records before the compression if `before` is true, otherwise after it."""
    topic = topic_of(target)
    rows = [(key, value, headers, START_MS + delta) for key, value, headers, delta in records]
    plain = build_batch(rows)
    body = plain[HEADER_SIZE:]
    if before:
        body = compress(sent, changed(body, changes, cut))
    else:
        body = changed(compress(sent, body), changes, cut)
    batch = bytearray(plain[:HEADER_SIZE] + body)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    batch[CRC_START + 1] = sent
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(batch[CRC_START:]))
    response = harness.call(produce_request(topic, 0, bytes(batch)))
    error = ErrorCode(response.responses[0].partition_responses[0].error_code)
    assert error is ErrorCode.NONE or error in REFUSALS
    if error is ErrorCode.NONE and sent is not target:
        _, content = stored(topic)
        header = BatchHeader.parse(content)
        assert Compression(header.compression) is target
        assert len(decode_batch(header, content, 0)) == len(rows)


def changed(content: bytes, changes: list[tuple[int, int]], cut: int) -> bytes:
    damaged = bytearray(content[: max(1, len(content) - cut)])
    for position, value in changes:
        damaged[position % len(damaged)] = value
    return bytes(damaged)
