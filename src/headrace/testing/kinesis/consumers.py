"""Consumers of enhanced fan-out: registered, described, listed, taken off the register."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.errors import AwsError, in_use, invalid, not_found
from headrace.testing.kinesis.limits import Window
from headrace.testing.kinesis.stream import ACCOUNT, ACTIVE, CREATING, Stream
from headrace.testing.kinesis.tokens import Page
from headrace.testing.kinesis.world import World

if TYPE_CHECKING:
    from headrace.testing.kinesis.fanout import Subscription

_MOST: Final = 20
_DEFAULT_PAGE: Final = 100


@dataclass(slots=True, eq=False)
class Consumer:
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
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
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


def register_consumer(world: World, call: Call) -> dict[str, object]:
    """Handle RegisterStreamConsumer: register a consumer."""
    stream = world.usable(call)
    name = call.request["ConsumerName"]
    others = _of_stream(world, stream)
    if any(each.name == name for each in others):
        raise in_use(
            f"Consumer {name} under stream {stream.name} already exists for account {ACCOUNT}."
        )
    if len(others) >= _MOST:
        raise AwsError(
            "LimitExceededException",
            f"Stream {stream.name} under account {ACCOUNT} has {_MOST} consumers registered "
            "already.",
        )
    arn = f"{stream.arn}/consumer/{name}:{call.now_ms // 1000}"
    consumer = Consumer(name, arn, stream, call.now_ms, call.now_ms + world.transition_ms)
    world.consumers[arn] = consumer
    return {"Consumer": consumer.described(call.now_ms)}


def describe_consumer(world: World, call: Call) -> dict[str, object]:
    """Handle DescribeStreamConsumer: describe a consumer."""
    consumer = _wanted(world, call)
    told = consumer.described(call.now_ms) | {"StreamARN": consumer.stream.arn}
    return {"ConsumerDescription": told}


def deregister_consumer(world: World, call: Call) -> None:
    """Take a consumer off the register: what is pushed to it ends."""
    del world.consumers[_wanted(world, call).arn]


def list_consumers(world: World, call: Call) -> dict[str, object]:
    """List a stream's consumers by name."""
    token = call.request.get("NextToken")
    after = world.tokens.read_page(token, call.now_ms, world.limits).after if token else ""
    stream = world.stream(call)
    limit = call.request.get("MaxResults", _DEFAULT_PAGE)
    rest = sorted(
        (each for each in _of_stream(world, stream) if each.name > after),
        key=lambda each: each.name,
    )
    told: dict[str, object] = {"Consumers": [each.described(call.now_ms) for each in rest[:limit]]}
    if len(rest) > limit:
        page = Page(stream.name, rest[limit - 1].name, "")
        told["NextToken"] = world.tokens.write_page(page, call.now_ms)
    return told


def consumer_of(world: World, arn: str) -> Consumer:
    """Return a consumer by its ARN."""
    found = world.consumers.get(arn)
    if found is None:
        raise not_found(f"Consumer {arn} under account {ACCOUNT} not found.")
    return found


def _of_stream(world: World, stream: Stream) -> list[Consumer]:
    return [each for each in world.consumers.values() if each.stream is stream]


def _wanted(world: World, call: Call) -> Consumer:
    """Return the consumer that a request names: by its ARN, or by the stream and its name."""
    arn, name = call.request.get("ConsumerARN"), call.request.get("ConsumerName")
    if arn is not None:
        return consumer_of(world, arn)
    if name is None or call.stream is None:
        raise invalid("Either ConsumerARN, or StreamARN and ConsumerName must be specified.")
    stream = world.stream(call)
    for each in _of_stream(world, stream):
        if each.name == name:
            return each
    raise not_found(f"Consumer {name} under stream {stream.name} not found for account {ACCOUNT}.")
