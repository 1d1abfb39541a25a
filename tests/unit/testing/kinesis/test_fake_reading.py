"""GetShardIterator and GetRecords of the fake: start positions, replies, and rate limits."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.testing.kinesis import AwsError, Limits
from tests.unit.testing.kinesis.asking import FIRST, ask, datas, fake, get, iterator

MIB = 1 << 20


def test_an_iterator_starts_at_each_kind_of_position() -> None:
    kinesis = fake()
    puts = []
    for data in (b"0", b"1", b"2"):
        puts.append(kinesis.put("orders", data))
        kinesis.advance(1000)
    latest = iterator(kinesis, kind="LATEST")
    at_ms = kinesis.clock.now_ms() - 2000
    number = puts[1].sequence_number
    kinesis.advance(1000)
    kinesis.put("orders", b"3")
    begun = {
        "TRIM_HORIZON": iterator(kinesis),
        "AT": iterator(kinesis, kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=number),
        "AFTER": iterator(kinesis, kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number),
        "AT_TIMESTAMP": iterator(kinesis, kind="AT_TIMESTAMP", Timestamp=at_ms / 1000),
        "LATEST": latest,
    }
    assert {kind: datas(get(kinesis, token)) for kind, token in begun.items()} == {
        "TRIM_HORIZON": [b"0", b"1", b"2", b"3"],
        "AT": [b"1", b"2", b"3"],
        "AFTER": [b"2", b"3"],
        "AT_TIMESTAMP": [b"1", b"2", b"3"],
        "LATEST": [b"3"],
    }


def test_reading_continues_at_the_next_iterator() -> None:
    kinesis = fake()
    for number in range(5):
        kinesis.put("orders", b"%d" % number)
        kinesis.advance(10)
    first = get(kinesis, iterator(kinesis), Limit=2)
    second = get(kinesis, first["NextShardIterator"], Limit=3)
    assert (datas(first), datas(second)) == ([b"0", b"1"], [b"2", b"3", b"4"])
    assert (first["MillisBehindLatest"], second["MillisBehindLatest"]) == (40, 0)
    assert datas(get(kinesis, second["NextShardIterator"])) == []
    again = get(kinesis, first["NextShardIterator"])
    assert datas(again) == [b"2", b"3", b"4"], "an iterator may be used again"


def test_the_sixth_read_of_a_second_is_refused_and_does_not_count() -> None:
    kinesis = fake()
    token = iterator(kinesis)
    for _ in range(5):
        get(kinesis, token)
        kinesis.advance(100)
    for _ in range(3):
        with pytest.raises(
            AwsError, match="Rate exceeded for shard shardId-000000000000 in stream orders"
        ) as refused:
            get(kinesis, token)
        assert refused.value.kind == "ProvisionedThroughputExceededException"
    kinesis.advance(500)
    get(kinesis, token)


def test_a_reply_of_ten_mib_blocks_reads_for_five_seconds() -> None:
    kinesis = fake()
    for _ in range(12):
        kinesis.put("orders", b"x" * (MIB - 3))
    whole = get(kinesis, iterator(kinesis))
    assert len(whole["Records"]) == 10, "10 MiB at most"
    kinesis.advance(4999)
    with pytest.raises(AwsError, match="ProvisionedThroughputExceeded"):
        get(kinesis, whole["NextShardIterator"])
    kinesis.advance(1)
    assert len(get(kinesis, whole["NextShardIterator"])["Records"]) == 2
    kinesis.advance(999)
    with pytest.raises(AwsError, match="ProvisionedThroughputExceeded"):
        get(kinesis, whole["NextShardIterator"])
    kinesis.advance(1)
    get(kinesis, whole["NextShardIterator"])


def test_a_read_returns_no_more_than_the_limits() -> None:
    kinesis = fake(limits=Limits(get_records=2))
    for _ in range(3):
        kinesis.put("orders", b"")
    assert len(get(kinesis, iterator(kinesis), Limit=10_000)["Records"]) == 2


def test_a_read_returns_one_record_even_above_the_limit() -> None:
    kinesis = fake(limits=Limits(get_bytes=10))
    for _ in range(2):
        kinesis.put("orders", b"more than ten bytes")
    assert len(get(kinesis, iterator(kinesis))["Records"]) == 1


def test_an_iterator_expires_after_five_minutes_or_on_request() -> None:
    kinesis = fake()
    token = iterator(kinesis)
    kinesis.advance(300_000)
    get(kinesis, token)
    kinesis.advance(1)
    with pytest.raises(AwsError, match="Iterator expired") as refused:
        get(kinesis, token)
    assert refused.value.kind == "ExpiredIteratorException"
    token = iterator(kinesis)
    kinesis.expire_iterators()
    with pytest.raises(AwsError, match="ExpiredIteratorException"):
        get(kinesis, token)
    get(kinesis, iterator(kinesis))


def test_records_are_removed_after_the_retention_period() -> None:
    kinesis = fake()
    old = kinesis.put("orders", b"old")
    kinesis.advance(23 * 3_600_000)
    kinesis.put("orders", b"new")
    kinesis.advance(3_600_001)
    assert [record.data for record in kinesis.records("orders")] == [b"new"]
    assert datas(get(kinesis, iterator(kinesis))) == [b"new"]
    after = iterator(kinesis, kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=old.sequence_number)
    reply = get(kinesis, after)
    assert datas(reply) == [b"new"]
    kinesis.put("orders", b"newest")
    assert datas(get(kinesis, reply["NextShardIterator"])) == [b"newest"]


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ({"ShardIterator": "nonsense"}, "InvalidArgumentException"),
        ({"ShardIterator": "AAAAAAAAAAE!"}, "InvalidArgumentException"),
        ({"ShardIterator": None}, "ValidationException"),
        ({"ShardIterator": "x", "Limit": 0}, "ValidationException"),
        ({"ShardIterator": "x", "Limit": 10_001}, "ValidationException"),
        ({"ShardIterator": "x", "Limit": "many"}, "SerializationException"),
    ],
)
def test_invalid_reads_are_refused(members: dict[str, Any], kind: str) -> None:
    with pytest.raises(AwsError, match=kind):
        ask(fake(), "GetRecords", **members)


@pytest.mark.parametrize(
    ("kind", "more", "refusal"),
    [
        ("AT_SEQUENCE_NUMBER", {}, "Must specify startingSequenceNumber"),
        ("AT_SEQUENCE_NUMBER", {"StartingSequenceNumber": "12"}, "did not come from this stream"),
        ("AT_SEQUENCE_NUMBER", {"StartingSequenceNumber": "SHARD_END"}, "ValidationException"),
        ("AT_TIMESTAMP", {}, "Must specify timestampInMillis"),
        ("AT_TIMESTAMP", {"Timestamp": 4_000_000_000}, "cannot be greater than"),
        ("EARLIEST", {}, "enum value set"),
    ],
)
def test_invalid_start_positions_are_refused(kind: str, more: dict[str, Any], refusal: str) -> None:
    with pytest.raises(AwsError, match=refusal):
        iterator(fake(), kind=kind, **more)


def test_a_sequence_number_of_another_shard_is_refused() -> None:
    kinesis = fake()
    number = kinesis.put("orders", b"1").sequence_number
    kinesis.split("orders", FIRST)
    with pytest.raises(AwsError, match="did not come from this stream"):
        iterator(
            kinesis, "shardId-000000000001", "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number
        )


def test_iterators_do_not_outlive_their_stream() -> None:
    kinesis = fake()
    token = iterator(kinesis)
    kinesis.call("DeleteStream", StreamName="orders")
    with pytest.raises(AwsError, match="Stream orders under account 000000000000 not found"):
        get(kinesis, token)
    kinesis.advance(1)
    kinesis.create_stream("orders")
    with pytest.raises(AwsError, match="ResourceNotFoundException"):
        get(kinesis, token)
