"""A consumer of enhanced fan-out that is registered with a stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from headrace.testing.kinesis.errors import AwsError
from headrace.testing.kinesis.limits import Window
from headrace.testing.kinesis.stream import ACTIVE, CREATING, Stream


class ConsumerSubscription(Protocol):
    """A subscription of a consumer; `fanout.Subscription` implements it."""

    began_ms: int
    is_over: bool

    def end(self, error: AwsError | None = None) -> None:
        """End the subscription with an error event, or with a broken connection if there is no error."""


@dataclass(slots=True, eq=False)
class RegisteredConsumer:
    """A registered consumer.

    Attributes:
        name: What it is called.
        arn: The same for all of AWS; it ends with the time of registration.
        stream: What it reads.
        created_ms: When it was registered.
        ready_ms: Until when it is CREATING.
        subscriptions: What was last pushed to it of each shard, by the shard's number.
        calls: Its SubscribeToShard of each shard.
    """

    name: str
    arn: str
    stream: Stream
    created_ms: int
    ready_ms: int
    subscriptions: dict[int, ConsumerSubscription] = field(default_factory=dict)
    calls: dict[int, Window] = field(default_factory=dict)

    def status(self, now_ms: int) -> str:
        """Return whether it can subscribe."""
        return ACTIVE if now_ms >= self.ready_ms else CREATING

    def described(self, now_ms: int) -> dict[str, object]:
        """Return what is said about it."""
        return {
            "ConsumerName": self.name,
            "ConsumerARN": self.arn,
            "ConsumerStatus": self.status(now_ms),
            "ConsumerCreationTimestamp": self.created_ms / 1000,
        }
