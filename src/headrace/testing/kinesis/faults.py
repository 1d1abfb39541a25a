"""Faults that a test has the fakes commit: refusals, lost requests and replies, delays, empty answers.

aws.kinesis.faults.on("GetRecords", throttle(), times=3)
aws.kinesis.faults.on("PutRecords", once=drop_connection(handled=True), stream="orders")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.testing import ordering
from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.errors import THROTTLED, AwsError
from headrace.testing.kinesis.stream import ACCOUNT

if TYPE_CHECKING:
    from headrace.testing.kinesis.fanout import Subscription

_MESSAGES: Final = {
    "KMSThrottlingException": "The request was denied due to request throttling by AWS KMS.",
    "KMSAccessDeniedException": "The ciphertext refers to a customer master key that you have no access to.",
    "KMSDisabledException": "The customer master key is not enabled.",
    "InternalFailure": "Internal service failure.",
}


class Reply(NamedTuple):
    """The handling of a request.

    Attributes:
        status: The HTTP status.
        body: The body, in JSON.
        delay_s: How much later it is sent.
        is_lost: Whether the connection is closed instead.
        subscription: What is pushed after it.
    """

    status: int
    body: bytes = b""
    delay_s: float = 0.0
    is_lost: bool = False
    subscription: Subscription | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that a fault has to do with.

    Attributes:
        call: What is asked.
        proceed: Does it, and returns the reply.
        empty: Returns a reply without records to a GetRecords.
    """

    call: Call
    proceed: Callable[[], Reply]
    empty: Callable[[], Reply]


Action = Callable[[Exchange], Reply]
"""Handles a request: returns the reply, or raises `AwsError`."""


def error(kind: str, message: str | None = None) -> Action:
    """Refuse a request with an error of AWS; what it asks for is not done.

    Args:
        kind: Its type, such as `InternalFailure`, `KMSThrottlingException`, `AccessDeniedException`.
        message: What is said about it.
    """

    def act(exchange: Exchange) -> Reply:
        if kind == THROTTLED:
            raise AwsError(kind, message or _enough(exchange.call))
        raise AwsError(kind, message or _MESSAGES.get(kind, "A fault of the test."))

    return act


def _enough(call: Call) -> str:
    """Return what a service says that has had enough: DynamoDB of a table, Kinesis of a shard."""
    if "TableName" in call.request:
        return "The level of configured provisioned throughput for the table was exceeded."
    shard = f"shard {call.shard} in " if call.shard else ""
    return f"Rate exceeded for {shard}stream {call.stream} under account {ACCOUNT}."


def throttle() -> Action:
    """Refuse a request because a shard, or a table, has had enough for now."""
    return error(THROTTLED)


def delay(seconds: float) -> Action:
    """Do what a request asks for at once, and answer so many seconds later."""
    return lambda exchange: exchange.proceed()._replace(delay_s=seconds)


def drop_connection(*, handled: bool = False) -> Action:
    """Close the connection instead of answering.

    Args:
        handled: Whether what the request asks for is done before: then only the answer is lost.
    """

    def act(exchange: Exchange) -> Reply:
        if handled:
            exchange.proceed()
        return Reply(0, is_lost=True)

    return act


def empty() -> Action:
    """Answer a GetRecords without records, though there may be some: the next call brings them."""
    return lambda exchange: exchange.empty()


def fail_records(*indexes: int, kind: str = THROTTLED) -> Action:
    """Refuse some records of a PutRecords, and take the others.

    Args:
        *indexes: Which, from 0 in the request.
        kind: `ProvisionedThroughputExceededException` or `InternalFailure`.
    """

    def act(exchange: Exchange) -> Reply:
        exchange.call.failing = dict.fromkeys(indexes, kind)
        return exchange.proceed()

    return act


Fault = ordering.Fault[Exchange, Reply]


class Faults(ordering.Orders[Exchange, Reply]):
    """The faults of one service."""

    def on(
        self,
        operation: str | None,
        action: Action | None = None,
        *,
        once: Action | None = None,
        times: int | None = None,
        stream: str | None = None,
        shard: str | None = None,
        when: Callable[[Call], bool] | None = None,
    ) -> Fault:
        """Do something else with requests. Several faults for the same requests take their turns in order.

        Args:
            operation: Which requests, such as `GetRecords`; None is all of them.
            action: What to do: `error(...)`, `throttle()`, `delay(...)`, `drop_connection()`, `empty()`, or a function.
            once: What to do with the next request only.
            times: How many requests it is for; None is any number.
            stream: Only requests about this stream, or table.
            shard: Only requests about this shard; PutRecord and PutRecords are about none yet.
            when: Only requests for which this is true; it is given a `Call`.

        Returns:
            The fault: it counts, and can be removed.

        Raises:
            ConfigError: Neither an action nor `once` was given, or both.
        """

        def meets(exchange: Exchange) -> bool:
            call = exchange.call
            return (
                operation in {None, call.operation}
                and stream in {None, call.stream}
                and shard in {None, call.shard}
                and (when is None or when(call))
            )

        return self.order(action, once, times, meets)
