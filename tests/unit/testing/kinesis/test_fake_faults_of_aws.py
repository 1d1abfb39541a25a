"""Faults that a test injects into the fakes, and the log of calls."""

from __future__ import annotations

import threading

import pytest

from headrace.errors import ConfigError
from headrace.testing.kinesis import AwsError, delay, drop_connection, empty, error, throttle
from tests.unit.testing.kinesis.asking import FIRST, ask, datas, entry, fake, get, iterator
from tests.unit.testing.kinesis.dynamodb.test_fake_tables import fake_tables, item


def test_a_throttle_fault_ends_after_its_times_and_affects_one_shard_only() -> None:
    kinesis = fake()
    kinesis.reshard("orders", 2)
    other = iterator(kinesis, "shardId-000000000002")
    token = iterator(kinesis, "shardId-000000000001")
    fault = kinesis.faults.on("GetRecords", throttle(), times=2, shard="shardId-000000000001")
    get(kinesis, other)
    for _ in range(2):
        with pytest.raises(
            AwsError, match="Rate exceeded for shard shardId-000000000001 in stream orders"
        ):
            get(kinesis, token)
    get(kinesis, token)
    assert fault.hits == 2
    log = kinesis.calls
    assert log.count("GetRecords") == 4
    assert log.count("GetRecords", shard="shardId-000000000001") == 3
    assert log.count(error="ProvisionedThroughputExceededException") == 2
    assert log.counts() == {"GetShardIterator": 2, "GetRecords": 4}
    assert (log.last[-1].operation, log.last[-1].stream, log.last[-1].error) == (
        "GetRecords",
        "orders",
        None,
    )
    log.clear()
    assert log.count() == 0


@pytest.mark.parametrize("handled", [False, True])
def test_a_lost_request_is_not_executed_and_a_lost_reply_is(handled: bool) -> None:  # noqa: FBT001 - a parameter
    kinesis = fake()
    kinesis.faults.on("PutRecord", once=drop_connection(handled=handled))
    body = b'{"StreamName":"orders","Data":"MQ==","PartitionKey":"k"}'
    assert kinesis.handle("PutRecord", body).is_lost
    assert len(kinesis.records("orders")) == handled
    assert not kinesis.handle("PutRecord", body).is_lost


def test_a_request_with_a_delayed_reply_is_executed_at_once() -> None:
    kinesis = fake()
    kinesis.faults.on(
        "PutRecord", delay(2.5), when=lambda call: call.request["PartitionKey"] == "k"
    )
    body = b'{"StreamName":"orders","Data":"MQ==","PartitionKey":"k"}'
    assert kinesis.handle("PutRecord", body).delay_s == 2.5
    assert len(kinesis.records("orders")) == 1


def test_an_empty_reply_keeps_the_position() -> None:
    kinesis = fake()
    kinesis.put("orders", b"1")
    kinesis.advance(30)
    kinesis.faults.on("GetRecords", once=empty())
    answer = get(kinesis, iterator(kinesis))
    assert (datas(answer), answer["MillisBehindLatest"]) == ([], 30)
    assert datas(get(kinesis, answer["NextShardIterator"])) == [b"1"]


@pytest.mark.parametrize(
    ("kind", "status"),
    [("KMSThrottlingException", 400), ("AccessDeniedException", 400), ("InternalFailure", 500)],
)
def test_a_fault_can_be_any_error_of_aws(kind: str, status: int) -> None:
    kinesis = fake()
    with kinesis.faults.on(None, error(kind)):
        reply = kinesis.handle("ListShards", b'{"StreamName":"orders"}')
        assert (reply.status, kind.encode() in reply.body) == (status, True)
    assert kinesis.handle("ListShards", b'{"StreamName":"orders"}').status == 200


def test_a_fault_needs_an_action_or_once() -> None:
    faults = fake().faults
    with pytest.raises(ConfigError, match="either"):
        faults.on("GetRecords")
    with pytest.raises(ConfigError, match="either"):
        faults.on("GetRecords", throttle(), once=throttle())


def test_faults_end_together() -> None:
    kinesis = fake()
    kinesis.faults.on("PutRecord", error("InternalFailure"))
    kinesis.faults.clear()
    ask(kinesis, "PutRecord", StreamName="orders", **entry(b""))
    assert kinesis.calls.count("PutRecord", shard=FIRST) == 1


def test_wait_until_returns_after_a_request() -> None:
    kinesis = fake()
    token = iterator(kinesis)
    reader = threading.Thread(target=lambda: [get(kinesis, token) for _ in range(3)])
    reader.start()
    kinesis.wait_until(lambda: kinesis.calls.count("GetRecords") == 3)
    reader.join()
    with pytest.raises(TimeoutError, match="'GetRecords': 3"):
        kinesis.wait_until(lambda: False, timeout_s=0.01)


def test_a_throttled_table_has_the_message_of_dynamodb() -> None:
    dynamodb = fake_tables()
    dynamodb.faults.on("GetItem", once=throttle(), stream="leases")
    request = {"TableName": "leases", "Key": item("a", "1")}
    with pytest.raises(AwsError, match="provisioned throughput for the table") as refused:
        ask(dynamodb, "GetItem", **request)
    assert refused.value.kind == "ProvisionedThroughputExceededException"
    assert ask(dynamodb, "GetItem", **request) == {}
    assert dynamodb.calls.count("GetItem", stream="leases") == 2
