"""The state of the fake: streams, consumers, tokens, settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.errors import AwsError, invalid, not_found
from headrace.testing.kinesis.limits import Limits, Window
from headrace.testing.kinesis.registered_consumer import RegisteredConsumer
from headrace.testing.kinesis.stream import ACCOUNT, ACTIVE, DELETING, UPDATING, Stream
from headrace.testing.kinesis.tokens import Tokens

ShardEnd = Literal["with_data", "extra_call"]
"""The end of a closed shard for readers: with the last records, or by one more reply without records."""


@dataclass(slots=True)
class Account:
    """An account in a region.

    Attributes:
        region: The region in ARNs.
        limits: The limits of streams.
        transition_ms: The milliseconds that creating, deleting and resharding take.
        shard_end: How a reader learns the end of a closed shard.
        streams: The streams by name.
        consumers: The registered consumers of fan-out, by ARN.
        tokens: Iterators and tokens of pages.
    """

    region: str = "us-east-1"
    limits: Limits = field(default_factory=Limits)
    transition_ms: int = 0
    shard_end: ShardEnd = "with_data"
    streams: dict[str, Stream] = field(default_factory=dict)
    consumers: dict[str, RegisteredConsumer] = field(default_factory=dict)
    tokens: Tokens = field(default_factory=Tokens)
    _calls: dict[str, Window] = field(default_factory=dict)

    def arn(self, name: str) -> str:
        """Return a stream's ARN."""
        return f"arn:aws:kinesis:{self.region}:{ACCOUNT}:stream/{name}"

    def settle(self, now_ms: int) -> None:
        """Execute what is due by now."""
        for stream in list(self.streams.values()):
            stream.settle(now_ms)

    def stream(self, call: Call) -> Stream:
        """Return the stream that a request names, in any state.

        Raises:
            AwsError: The request names no stream, or the stream does not exist.
        """
        name = stream_name(call.request)
        if name is None:
            raise invalid(
                "When invoking this API, you must use either the StreamARN or the StreamName "
                "parameter, or both."
            )
        return self.named(name, call.now_ms)

    def named(self, name: str, now_ms: int) -> Stream:
        """Return a stream by its name."""
        found = self.streams.get(name)
        if found is not None:
            found.settle(now_ms)
            found = self.streams.get(name)
        if found is None:
            raise not_found(f"Stream {name} under account {ACCOUNT} not found.")
        return found

    def usable(self, call: Call) -> Stream:
        """Return the stream that a request names, if it can be read and written."""
        found = self.stream(call)
        if found.status not in {ACTIVE, UPDATING}:
            raise not_found(f"Stream {found.name} under account {ACCOUNT} not found.")
        return found

    def begin(
        self, stream: Stream, status: str, now_ms: int, then: Callable[[int], object]
    ) -> None:
        """Begin a change of a stream. Without a transition time the change is done at once."""
        stream.begin(status, now_ms + self.transition_ms, then)
        stream.settle(now_ms)

    def remove(self, stream: Stream) -> None:
        """Remove a stream and its consumers."""
        stream.status = DELETING
        self.streams.pop(stream.name, None)
        for arn in [arn for arn, each in self.consumers.items() if each.stream is stream]:
            del self.consumers[arn]

    def admit(self, call: Call) -> None:
        """Count a call against the limit of its operation.

        Raises:
            AwsError: LimitExceededException.
        """
        limit = self.limits.calls_per_s.get(call.operation)
        if limit is None or not self.limits.throttled:
            return
        key = (
            f"{call.operation} {call.stream}" if call.operation == "ListShards" else call.operation
        )
        window = self._calls.setdefault(key, Window())
        if not window.take(call.now_ms, 1, limit):
            raise AwsError("LimitExceededException", f"Rate exceeded for account {ACCOUNT}.")


def stream_name(request: dict[str, object]) -> str | None:
    """Return the stream that a request names by name or ARN, or None."""
    name, arn = request.get("StreamName"), request.get("StreamARN")
    if isinstance(name, str):
        return name
    return arn.partition(":stream/")[2].partition("/")[0] if isinstance(arn, str) else None
