"""SubscribeToShard: records are pushed for five minutes, with a rate limit for each consumer."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from headrace.testing.kinesis import eventstream
from headrace.testing.kinesis.account import Account
from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.consumers import consumer_of
from headrace.testing.kinesis.errors import AwsError, in_use, malformed, not_found
from headrace.testing.kinesis.limits import MIB, Window
from headrace.testing.kinesis.reading import Start, has_ended, starting_sequence
from headrace.testing.kinesis.registered_consumer import RegisteredConsumer
from headrace.testing.kinesis.shard import Shard, Slice
from headrace.testing.kinesis.stream import ACCOUNT, ACTIVE
from headrace.testing.kinesis.validation import KINDS_OF_START

_AGAIN_AFTER_MS: Final = 5_000
_QUIET_MS: Final = 5_000
"""The milliseconds without records after which an event without records is pushed."""
_EVENT_BYTES: Final = MIB
_BUSY_MS: Final = 50


class Push(NamedTuple):
    """The next event of a subscription.

    Attributes:
        frame: The event in its frame; empty if there is no event yet.
        is_over: Whether this is the last event.
        is_lost: Whether the connection is broken afterwards.
        due_ms: The time of the next look if `frame` is empty, in milliseconds.
    """

    frame: bytes = b""
    is_over: bool = False
    is_lost: bool = False
    due_ms: int = 0


class FanOutSubscription:
    """The subscription of a consumer to the records of a shard.

    Attributes:
        consumer: The consumer that has subscribed.
        shard: The shard whose records are pushed.
        began_ms: The time of the subscription's start in milliseconds.
        is_over: Whether the subscription has ended.
    """

    def __init__(
        self, consumer: RegisteredConsumer, shard: Shard, sequence: int, now_ms: int
    ) -> None:
        self.consumer = consumer
        self.shard = shard
        self.began_ms = now_ms
        self.is_over = False
        self._sequence = sequence
        self._quiet_until_ms = now_ms
        self._sent = Window()
        self._end: Push | None = None

    def end(self, error: AwsError | None = None) -> None:
        """End the subscription with an error event, or with a broken connection if there is no error."""
        if error is None:
            self._end = Push(is_over=True, is_lost=True)
        else:
            self._end = Push(eventstream.exception(error.kind, error.body()), is_over=True)

    def next(self, account: Account, now_ms: int) -> Push:
        """Return the next event."""
        found = self._end or self._expired(account, now_ms) or self._event(account, now_ms)
        self.is_over = found.is_over
        return found

    def _expired(self, account: Account, now_ms: int) -> Push | None:
        if account.consumers.get(self.consumer.arn) is not self.consumer:
            gone = not_found(f"Consumer {self.consumer.arn} under account {ACCOUNT} not found.")
            self.end(gone)
            return self._end
        if now_ms >= self.began_ms + account.limits.subscription_ms:
            return Push(is_over=True)
        return None

    def _event(self, account: Account, now_ms: int) -> Push:
        limits = account.limits
        if limits.throttled and self._sent.total(now_ms) >= limits.read_bytes_per_s:
            return Push(due_ms=now_ms + _BUSY_MS)
        self.shard.trim(self.consumer.stream.horizon_ms(now_ms))
        found = self.shard.read(self._sequence, limits.get_records, _EVENT_BYTES, now_ms)
        ended = has_ended(account, self.shard, found)
        if not found.records and not ended and now_ms < self._quiet_until_ms:
            return Push(due_ms=min(self._quiet_until_ms, self.began_ms + limits.subscription_ms))
        self._sequence = found.next_sequence
        self._quiet_until_ms = now_ms + _QUIET_MS
        self._sent.add(now_ms, found.size)
        return Push(self._framed(found, ended=ended), is_over=ended)

    def _framed(self, found: Slice, *, ended: bool) -> bytes:
        rest: dict[str, object] = {"MillisBehindLatest": found.behind_ms}
        if ended:
            rest["ChildShards"] = self.shard.child_shards()
        else:
            last = found.next_sequence - 1 if found.records else self.shard.last_sequence
            rest["ContinuationSequenceNumber"] = str(last)
        body = b'{"Records":[%b],%b' % (found.body, msgspec.json.encode(rest)[1:])
        return eventstream.event("SubscribeToShardEvent", body)


def subscribe(account: Account, call: Call) -> FanOutSubscription:
    """Start to push a shard's records to a consumer. An earlier subscription of the consumer to the shard ends."""
    request = call.request
    consumer = consumer_of(account, request["ConsumerARN"])
    call.stream = consumer.stream.name
    stream = account.named(consumer.stream.name, call.now_ms)
    if consumer.status(call.now_ms) != ACTIVE:
        raise in_use(
            f"Consumer {consumer.arn} not ACTIVE, instead in state {consumer.status(call.now_ms)}."
        )
    shard = stream.shard(request["ShardId"])
    _admit(account, consumer, shard, call.now_ms)
    shard.trim(stream.horizon_ms(call.now_ms))
    sequence = starting_sequence(stream, shard, _start(request["StartingPosition"]), call)
    before = consumer.subscriptions.get(shard.number)
    if before is not None:
        before.end(in_use("Another active subscription exists for this consumer."))
    begun = FanOutSubscription(consumer, shard, sequence, call.now_ms)
    consumer.subscriptions[shard.number] = begun
    return begun


def _admit(account: Account, consumer: RegisteredConsumer, shard: Shard, now_ms: int) -> None:
    if not account.limits.throttled:
        return
    if not consumer.calls.setdefault(shard.number, Window()).take(now_ms, 1, 1):
        raise AwsError(
            "LimitExceededException",
            f"Rate exceeded for consumer {consumer.arn} and shard {shard.name}.",
        )
    before = consumer.subscriptions.get(shard.number)
    if before is not None and now_ms < before.began_ms + _AGAIN_AFTER_MS:
        raise in_use("Another active subscription exists for this consumer.")


def _start(position: dict[str, Any]) -> Start:
    kind = position.get("Type")
    if kind not in KINDS_OF_START:
        raise malformed(
            kind,
            "startingPosition.type",
            f"satisfy enum value set: [{', '.join(sorted(KINDS_OF_START))}]",
        )
    return Start(kind, position.get("SequenceNumber"), position.get("Timestamp"))
