"""A consumer of enhanced fan-out that is registered with a stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from headrace.testing.kinesis.errors import AwsError
from headrace.testing.kinesis.limits import Window
from headrace.testing.kinesis.stream import ACTIVE, CREATING, Stream


class ConsumerSubscription(Protocol):
    """A subscription of a consumer; `fanout.FanOutSubscription` implements it."""

    began_ms: int
    is_over: bool

    def end(self, error: AwsError | None = None) -> None:
        """End the subscription with an error event, or with a broken connection if there is no error."""


@dataclass(slots=True, eq=False)
class RegisteredConsumer:
    """A registered consumer.

    Attributes:
        name: The consumer's name.
        arn: The consumer's ARN. It ends with the time of registration.
        stream: The stream that the consumer reads.
        created_ms: The time of registration in milliseconds.
        ready_ms: The time until which the status is CREATING.
        subscriptions: The last subscription of each shard, by the shard's number.
        calls: The calls of SubscribeToShard in the last second, by the shard's number.
    """

    name: str
    arn: str
    stream: Stream
    created_ms: int
    ready_ms: int
    subscriptions: dict[int, ConsumerSubscription] = field(default_factory=dict)
    calls: dict[int, Window] = field(default_factory=dict)

    def status(self, now_ms: int) -> str:
        """Return the status: ACTIVE if the consumer can subscribe, or CREATING."""
        return ACTIVE if now_ms >= self.ready_ms else CREATING

    def described(self, now_ms: int) -> dict[str, object]:
        """Return the description of the consumer in replies."""
        return {
            "ConsumerName": self.name,
            "ConsumerARN": self.arn,
            "ConsumerStatus": self.status(now_ms),
            "ConsumerCreationTimestamp": self.created_ms / 1000,
        }
