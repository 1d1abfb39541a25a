"""PutRecord and PutRecords of the fake, and the sequence numbers of records."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from headrace.testing.kinesis import AwsError, throttle
from headrace.testing.kinesis.faults import fail_records
from headrace.testing.kinesis.numbers import parse_sequence, sequence_number
from tests.unit.testing.kinesis.asking import FIRST, ask, datas, entry, fake, get, iterator

MIB = 1 << 20


def put_many(kinesis: Any, *records: dict[str, Any]) -> list[str]:
    """Return the result of each record: a shard, or an error."""
    reply = ask(kinesis, "PutRecords", StreamName="orders", Records=list(records))
    assert reply["FailedRecordCount"] == sum("ErrorCode" in each for each in reply["Records"])
    return [each.get("ErrorCode") or each["ShardId"] for each in reply["Records"]]


def test_sequence_numbers_have_56_digits_and_grow_as_integers() -> None:
    kinesis = fake()
    numbers = [kinesis.put("orders", b"").sequence_number for _ in range(20)]
    kinesis.advance(100_000_000)
    numbers.append(kinesis.put("orders", b"").sequence_number)
    kinesis.split("orders", FIRST)
    numbers.append(kinesis.put("orders", b"").sequence_number)
    assert {len(number) for number in numbers} == {56}
    assert sorted(set(map(int, numbers))) == list(map(int, numbers))


def test_parsing_a_sequence_number_returns_its_fields() -> None:
    number = sequence_number(17, 1_700_000_000, 5, 1_700_000_001)
    assert parse_sequence(number) == (17, 1_700_000_000, 5, 1_700_000_001)
    assert [parse_sequence(wrong) for wrong in (0, 12, number + 1, number << 4)] == [None] * 4


def test_a_record_goes_to_the_shard_of_its_hash_key() -> None:
    kinesis = fake()
    kinesis.reshard("orders", 2)
    low, high = kinesis.shards("orders", only_open=True)
    for key in map(str, range(20)):
        digest = int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest())
        wanted = low if digest <= low.hash_range.last else high
        assert kinesis.put("orders", b"", key).shard == wanted.name
    assert kinesis.put("orders", b"", explicit_hash_key=0).shard == low.name
    assert kinesis.put("orders", b"", explicit_hash_key=(1 << 128) - 1).shard == high.name


def test_a_shard_takes_1000_records_and_one_mib_a_second() -> None:
    kinesis = fake()
    first = put_many(kinesis, *[entry(b"")] * 500)
    second = put_many(kinesis, *[entry(b"")] * 499)
    assert {*first, *second} == {FIRST}
    assert put_many(kinesis, entry(b""), entry(b"")) == [
        FIRST,
        "ProvisionedThroughputExceededException",
    ]
    kinesis.advance(1000)
    assert put_many(kinesis, entry(b"x" * (MIB - 3)), entry(b"")) == [
        FIRST,
        "ProvisionedThroughputExceededException",
    ]
    with pytest.raises(AwsError, match="Rate exceeded for shard"):
        ask(kinesis, "PutRecord", StreamName="orders", **entry(b""))


def test_records_of_more_than_one_mib_are_taken_where_the_stream_allows_them() -> None:
    kinesis = fake()
    large = entry(b"x" * (2 * MIB))
    with pytest.raises(AwsError, match="have length less than or equal to 1048576"):
        put_many(kinesis, large)
    kinesis.call(
        "UpdateMaxRecordSize", StreamARN=kinesis.account.arn("orders"), MaxRecordSizeInKiB=10_240
    )
    assert put_many(kinesis, large, large) == [FIRST, "ProvisionedThroughputExceededException"]
    assert put_many(kinesis, entry(b"small")) == [FIRST]
    kinesis.advance(2001)
    assert put_many(kinesis, large) == [FIRST]


def test_a_fault_refuses_some_records_of_a_request() -> None:
    kinesis = fake()
    kinesis.faults.on("PutRecords", once=fail_records(1, 3, kind="InternalFailure"))
    wanted = [FIRST, "InternalFailure", FIRST, "InternalFailure"]
    assert put_many(kinesis, *(entry(b"%d" % number) for number in range(4))) == wanted
    assert datas(get(kinesis, iterator(kinesis))) == [b"0", b"2"]


@pytest.mark.parametrize(
    ("records", "refusal"),
    [
        ([], "have length between 1 and 500"),
        ([entry(b"")] * 501, "have length between 1 and 500"),
        ([entry(b"x" * (MIB - 3))] * 11, "Records size exceeds 10 MB limit"),
        ([entry(b"", "")], "'records.1.member.partitionKey'"),
        ([entry(b""), entry(b"", "k" * 257)], "'records.2.member.partitionKey'"),
        ([{"PartitionKey": "k"}], "'records.1.member.data'"),
        ([{"Data": "no base64!", "PartitionKey": "k"}], "SerializationException"),
        ([entry(b"", ExplicitHashKey=str(1 << 128))], "ExplicitHashKey must be in the range"),
    ],
)
def test_a_request_that_breaks_a_rule_writes_nothing(records: Any, refusal: str) -> None:
    kinesis = fake()
    with pytest.raises(AwsError, match=refusal):
        put_many(kinesis, *records)
    assert kinesis.records("orders") == []


def test_writes_of_the_test_skip_limits_faults_and_the_log() -> None:
    kinesis = fake()
    kinesis.faults.on("PutRecord", throttle())
    for number in range(1100):
        kinesis.put("orders", b"%d" % number)
    stored = kinesis.records("orders")
    assert [record.data for record in stored] == [b"%d" % number for number in range(1100)]
    assert stored[0].approximate_arrival_timestamp * 1000 == kinesis.clock.now_ms()
    assert kinesis.calls.count() == 0


def test_encrypted_records_are_marked() -> None:
    kinesis = fake()
    kinesis.put("orders", b"plain")
    kinesis.call("StartStreamEncryption", StreamName="orders", EncryptionType="KMS", KeyId="alias")
    reply = ask(kinesis, "PutRecord", StreamName="orders", **entry(b"secret"))
    records = get(kinesis, iterator(kinesis))["Records"]
    kinds = [each.get("EncryptionType") for each in (reply, *records)]
    assert kinds == ["KMS", None, "KMS"]
