"""ListShards and the descriptions of streams, with the fake."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.testing.kinesis import AwsError, FakeKinesis
from tests.unit.testing.kinesis.asking import FIRST, ask, fake, get, iterator


def numbers(kinesis: FakeKinesis, **members: Any) -> list[int]:
    reply = ask(kinesis, "ListShards", StreamName="orders", **members)
    return [int(shard["ShardId"][-3:]) for shard in reply["Shards"]]


def test_shards_are_listed_by_the_page() -> None:
    kinesis = fake()
    kinesis.create_stream("wide", 5)
    reply = ask(kinesis, "ListShards", StreamName="wide", MaxResults=2)
    seen = [reply["Shards"]]
    while "NextToken" in reply:
        reply = ask(kinesis, "ListShards", NextToken=reply["NextToken"], MaxResults=2)
        seen.append(reply["Shards"])
    assert [len(page) for page in seen] == [2, 2, 1]
    assert len({shard["ShardId"] for page in seen for shard in page}) == 5


def test_a_page_token_expires_and_excludes_other_members() -> None:
    kinesis = fake()
    kinesis.reshard("orders", 2)
    token = ask(kinesis, "ListShards", StreamName="orders", MaxResults=1)["NextToken"]
    with pytest.raises(AwsError, match="NextToken and StreamName cannot be provided together"):
        ask(kinesis, "ListShards", StreamName="orders", NextToken=token)
    kinesis.advance(300_001)
    with pytest.raises(AwsError, match="ExpiredNextTokenException"):
        ask(kinesis, "ListShards", NextToken=token)
    with pytest.raises(AwsError, match="NextToken is invalid"):
        ask(kinesis, "ListShards", NextToken="nonsense")


def test_list_shards_applies_its_filters() -> None:
    kinesis = fake()
    created_ms = kinesis.clock.now_ms()
    kinesis.advance(1000)
    kinesis.split("orders", FIRST)
    kinesis.advance(1000)
    kinesis.split("orders", "shardId-000000000001")
    kinesis.advance(1000)

    def kept(kind: str, after_ms: int | None = None, **more: Any) -> list[int]:
        stamp = {} if after_ms is None else {"Timestamp": (created_ms + after_ms) / 1000}
        return numbers(kinesis, ShardFilter={"Type": kind, **stamp, **more})

    assert numbers(kinesis) == [0, 1, 2, 3, 4]
    assert kept("AT_LATEST") == [2, 3, 4]
    assert kept("AT_TRIM_HORIZON") == [0]
    assert kept("FROM_TRIM_HORIZON") == [0, 1, 2, 3, 4]
    assert kept("AT_TIMESTAMP", 1500) == [1, 2]
    assert kept("FROM_TIMESTAMP", 1500) == [1, 2, 3, 4]
    assert kept("AFTER_SHARD_ID", ShardId="shardId-000000000002") == [3, 4]
    for kind in ("AT_TIMESTAMP", "AFTER_SHARD_ID", "OTHER"):
        with pytest.raises(AwsError, match=r"must be provided|enum value set"):
            kept(kind)


def test_a_closed_shard_is_removed_with_its_records() -> None:
    kinesis = fake()
    kinesis.split("orders", FIRST)
    kinesis.advance(24 * 3_600_000)
    assert numbers(kinesis) == [0, 1, 2]
    token = iterator(kinesis)
    kinesis.advance(1)
    assert numbers(kinesis) == [1, 2]
    with pytest.raises(AwsError, match="ResourceNotFoundException: Could not find shard"):
        iterator(kinesis)
    with pytest.raises(AwsError, match="ResourceNotFoundException"):
        get(kinesis, token)


def test_a_stream_is_found_by_its_arn_and_distinguished_from_the_one_before() -> None:
    kinesis = fake()
    reply = ask(kinesis, "DescribeStreamSummary", StreamARN=kinesis.account.arn("orders"))
    summary = reply["StreamDescriptionSummary"]
    assert (summary["StreamName"], summary["OpenShardCount"], summary["RetentionPeriodHours"]) == (
        "orders",
        1,
        24,
    )
    kinesis.call("DeleteStream", StreamName="orders")
    kinesis.advance(2000)
    kinesis.create_stream("orders")
    again = ask(kinesis, "DescribeStreamSummary", StreamName="orders")["StreamDescriptionSummary"]
    assert again["StreamCreationTimestamp"] == summary["StreamCreationTimestamp"] + 2
    with pytest.raises(AwsError, match="ResourceNotFoundException"):
        numbers(kinesis, StreamCreationTimestamp=summary["StreamCreationTimestamp"])


def test_an_account_describes_twenty_times_a_second() -> None:
    kinesis = fake()
    for _ in range(20):
        ask(kinesis, "DescribeStreamSummary", StreamName="orders")
    with pytest.raises(AwsError, match="LimitExceededException: Rate exceeded"):
        ask(kinesis, "DescribeStreamSummary", StreamName="orders")


def test_retention_grows_and_shrinks_by_an_operation_of_its_own() -> None:
    kinesis = fake()
    ask(kinesis, "IncreaseStreamRetentionPeriod", StreamName="orders", RetentionPeriodHours=48)
    for operation, hours in (("Increase", 47), ("Decrease", 49), ("Increase", 8761)):
        with pytest.raises(AwsError, match="etention period"):
            ask(
                kinesis,
                f"{operation}StreamRetentionPeriod",
                StreamName="orders",
                RetentionPeriodHours=hours,
            )
    ask(kinesis, "DecreaseStreamRetentionPeriod", StreamName="orders", RetentionPeriodHours=24)


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(AwsError, match="has no operation 'CreateChannel'"):
        ask(fake(), "CreateChannel", StreamName="orders")
    with pytest.raises(AwsError, match="StreamARN or the StreamName"):
        ask(fake(), "ListShards")
    assert fake().handle("ListShards", b"[]").status == 400


def test_a_description_of_a_stream_has_its_shards_by_the_page() -> None:
    kinesis = fake()
    kinesis.create_stream("wide", 3)
    first = ask(kinesis, "DescribeStream", StreamName="wide", Limit=2)["StreamDescription"]
    last = first["Shards"][-1]["ShardId"]
    rest = ask(kinesis, "DescribeStream", StreamName="wide", ExclusiveStartShardId=last)
    assert (len(first["Shards"]), first["HasMoreShards"]) == (2, True)
    assert (
        len(rest["StreamDescription"]["Shards"]),
        rest["StreamDescription"]["HasMoreShards"],
    ) == (1, False)


def test_streams_are_listed_by_the_page() -> None:
    kinesis = fake()
    kinesis.create_stream("billing")
    first = ask(kinesis, "ListStreams", Limit=1)
    rest = ask(kinesis, "ListStreams", NextToken=first["NextToken"])
    assert (first["StreamNames"], first["HasMoreStreams"]) == (["billing"], True)
    assert (rest["StreamNames"], rest["HasMoreStreams"]) == (["orders"], False)


def test_a_stream_on_demand_has_four_shards_that_aws_alone_changes() -> None:
    kinesis = fake()
    on_demand = {"StreamMode": "ON_DEMAND"}
    ask(kinesis, "CreateStream", StreamName="flow", StreamModeDetails=on_demand)
    assert len(kinesis.shards("flow")) == 4
    with pytest.raises(AwsError, match="ValidationException: Stream flow is in mode ON_DEMAND"):
        kinesis.reshard("flow", 8)
    provisioned = {"StreamMode": "PROVISIONED"}
    arn = kinesis.account.arn("flow")
    ask(kinesis, "UpdateStreamMode", StreamARN=arn, StreamModeDetails=provisioned)
    kinesis.reshard("flow", 8)
    with pytest.raises(AwsError, match="ShardCount must be specified"):
        ask(kinesis, "CreateStream", StreamName="other")
