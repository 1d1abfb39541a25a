"""Enhanced fan-out of the fake: consumers, and the events that are pushed to them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from botocore.eventstream import EventStreamBuffer

from headrace.testing.kinesis import AwsError, FakeKinesis
from headrace.testing.kinesis.fanout import FanOutSubscription
from tests.unit.testing.kinesis.asking import FIRST, ask, datas, fake


def subscribe(
    kinesis: FakeKinesis, arn: str, kind: str = "TRIM_HORIZON", **position: Any
) -> FanOutSubscription:
    request = {"ConsumerARN": arn, "ShardId": FIRST, "StartingPosition": {"Type": kind, **position}}
    reply = kinesis.handle("SubscribeToShard", msgspec.json.encode(request))
    if reply.subscription is None:
        answer = msgspec.json.decode(reply.body)
        raise AwsError(answer["__type"], answer["message"])
    return reply.subscription


def pushed(kinesis: FakeKinesis, subscription: FanOutSubscription) -> dict[str, Any]:
    """Return the next event in the form of botocore."""
    buffer = EventStreamBuffer()
    buffer.add_data(kinesis.next_push(subscription).frame)
    (message,) = buffer
    headers = message.headers
    answer: dict[str, Any] = msgspec.json.decode(message.payload)
    if headers[":message-type"] == "exception":
        raise AwsError(str(headers[":exception-type"]), answer["message"])
    assert headers[":event-type"] == "SubscribeToShardEvent"
    return answer


@pytest.fixture
def kinesis() -> FakeKinesis:
    return fake()


@pytest.fixture
def arn(kinesis: FakeKinesis) -> str:
    return kinesis.register_consumer("orders", "billing")


def test_a_subscription_continues_behind_the_continuation_number(
    kinesis: FakeKinesis, arn: str
) -> None:
    kinesis.put("orders", b"1")
    subscription = subscribe(kinesis, arn)
    first = pushed(kinesis, subscription)
    assert datas(first) == [b"1"]
    assert not kinesis.next_push(subscription).frame
    kinesis.put("orders", b"2")
    assert datas(pushed(kinesis, subscription)) == [b"2"]
    kinesis.advance(5000)
    quiet = pushed(kinesis, subscription)
    assert datas(quiet) == []
    again = subscribe(
        kinesis, arn, "AFTER_SEQUENCE_NUMBER", SequenceNumber=first["ContinuationSequenceNumber"]
    )
    assert datas(pushed(kinesis, again)) == [b"2"]
    with pytest.raises(AwsError, match="ResourceInUseException"):
        pushed(kinesis, subscription)
    assert subscription.is_over


def test_a_shard_ends_with_its_children_and_no_continuation(kinesis: FakeKinesis, arn: str) -> None:
    kinesis.put("orders", b"1")
    subscription = subscribe(kinesis, arn)
    kinesis.split("orders", FIRST)
    last = pushed(kinesis, subscription)
    assert (len(last["ChildShards"]), "ContinuationSequenceNumber" in last) == (2, False)
    assert subscription.is_over


def test_a_subscription_lasts_five_minutes(kinesis: FakeKinesis, arn: str) -> None:
    subscription = subscribe(kinesis, arn)
    kinesis.advance(299_999)
    pushed(kinesis, subscription)
    kinesis.advance(1)
    assert kinesis.next_push(subscription) == (b"", True, False, 0)


def test_at_most_two_mib_a_second_are_pushed(kinesis: FakeKinesis, arn: str) -> None:
    for _ in range(3):
        kinesis.put("orders", b"x" * ((1 << 20) - 3))
    subscription = subscribe(kinesis, arn)
    assert [len(pushed(kinesis, subscription)["Records"]) for _ in range(2)] == [1, 1]
    waiting = kinesis.next_push(subscription)
    assert (waiting.frame, waiting.due_ms > kinesis.clock.now_ms()) == (b"", True)
    kinesis.advance(1000)
    assert len(pushed(kinesis, subscription)["Records"]) == 1


def test_a_consumer_subscribes_again_after_five_seconds_only(
    kinesis: FakeKinesis, arn: str
) -> None:
    subscribe(kinesis, arn)
    with pytest.raises(AwsError, match="LimitExceededException"):
        subscribe(kinesis, arn)
    kinesis.advance(1000)
    with pytest.raises(AwsError, match="ResourceInUseException: Another active subscription"):
        subscribe(kinesis, arn)
    kinesis.advance(4000)
    subscribe(kinesis, arn)


def test_end_subscriptions_ends_a_push(kinesis: FakeKinesis, arn: str) -> None:
    subscription = subscribe(kinesis, arn)
    kinesis.end_subscriptions()
    assert kinesis.next_push(subscription).is_lost
    kinesis.advance(5000)
    subscription = subscribe(kinesis, arn)
    kinesis.end_subscriptions("InternalFailureException")
    with pytest.raises(AwsError, match="InternalFailureException"):
        pushed(kinesis, subscription)


def test_a_push_ends_with_its_consumer(kinesis: FakeKinesis, arn: str) -> None:
    subscription = subscribe(kinesis, arn)
    ask(kinesis, "DeregisterStreamConsumer", ConsumerARN=arn)
    with pytest.raises(AwsError, match="ResourceNotFoundException"):
        pushed(kinesis, subscription)
    with pytest.raises(AwsError, match="not found"):
        ask(kinesis, "DescribeStreamConsumer", ConsumerARN=arn)


def test_consumers_are_found_by_name_and_by_the_page(kinesis: FakeKinesis, arn: str) -> None:
    stream = kinesis.account.arn("orders")
    kinesis.register_consumer("orders", "audit")
    answer = ask(kinesis, "ListStreamConsumers", StreamARN=stream, MaxResults=1)
    more = ask(kinesis, "ListStreamConsumers", StreamARN=stream, NextToken=answer["NextToken"])
    assert [each["ConsumerName"] for each in answer["Consumers"] + more["Consumers"]] == [
        "audit",
        "billing",
    ]
    found = ask(kinesis, "DescribeStreamConsumer", StreamARN=stream, ConsumerName="billing")
    assert (
        found["ConsumerDescription"]["ConsumerARN"],
        found["ConsumerDescription"]["ConsumerStatus"],
    ) == (arn, "ACTIVE")
    with pytest.raises(AwsError, match="already exists"):
        kinesis.register_consumer("orders", "billing")
    with pytest.raises(AwsError, match="enhanced consumers registered"):
        kinesis.call("DeleteStream", StreamName="orders")


def test_a_consumer_cannot_subscribe_while_it_is_created() -> None:
    slow = fake(transition_ms=100)
    slow.advance(100)
    arn = slow.register_consumer("orders", "billing")
    with pytest.raises(AwsError, match="not ACTIVE, instead in state CREATING"):
        subscribe(slow, arn)
    slow.advance(100)
    with pytest.raises(AwsError, match="enum value set"):
        subscribe(slow, arn, "EARLIEST")
