"""Faults that a test injects into the fakes: refusals, lost requests and replies, delays, empty replies.

aws.kinesis.faults.on("GetRecords", throttle(), times=3) aws.kinesis.faults.on("PutRecords",
once=drop_connection(handled=True), stream="orders")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.testing import fault_list
from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.errors import THROTTLED, AwsError
from headrace.testing.kinesis.stream import ACCOUNT

if TYPE_CHECKING:
    from headrace.testing.kinesis.fanout import FanOutSubscription

_MESSAGES: Final = {
    "KMSThrottlingException": "The request was denied due to request throttling by AWS KMS.",
    "KMSAccessDeniedException": "The ciphertext refers to a customer master key that you have no access to.",
    "KMSDisabledException": "The customer master key is not enabled.",
    "InternalFailure": "Internal service failure.",
}


class Reply(NamedTuple):
    """The reply to a request.

    Attributes:
        status: The HTTP status.
        body: The body as JSON.
        delay_s: The delay in seconds before the reply is sent.
        is_lost: Whether the connection is closed instead of the reply.
        subscription: The subscription whose events follow; None if there is none.
    """

    status: int
    body: bytes = b""
    delay_s: float = 0.0
    is_lost: bool = False
    subscription: FanOutSubscription | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request to which a fault applies.

    Attributes:
        call: The request.
        proceed: Executes the request, and returns the reply.
        empty: Returns a reply without records to a GetRecords.
    """

    call: Call
    proceed: Callable[[], Reply]
    empty: Callable[[], Reply]


Action = Callable[[Exchange], Reply]
"""A function that handles a request: it returns the reply, or raises `AwsError`."""


def error(kind: str, message: str | None = None) -> Action:
    """Refuse a request with an error of AWS. The request is not executed.

    Args:
        kind: The error type, such as `InternalFailure`, `KMSThrottlingException`, `AccessDeniedException`.
        message: The message; None is the message of AWS for this type.
    """

    def act(exchange: Exchange) -> Reply:
        if kind == THROTTLED:
            raise AwsError(kind, message or _enough(exchange.call))
        raise AwsError(kind, message or _MESSAGES.get(kind, "A fault of the test."))

    return act


def _enough(call: Call) -> str:
    """Return the message of a throttled request: about a table of DynamoDB, or a shard of Kinesis."""
    if "TableName" in call.request:
        return "The level of configured provisioned throughput for the table was exceeded."
    shard = f"shard {call.shard} in " if call.shard else ""
    return f"Rate exceeded for {shard}stream {call.stream} under account {ACCOUNT}."


def throttle() -> Action:
    """Refuse a request because a rate limit of a shard or table is exceeded."""
    return error(THROTTLED)


def delay(seconds: float) -> Action:
    """Execute a request at once, and send the reply so many seconds later."""
    return lambda exchange: exchange.proceed()._replace(delay_s=seconds)


def drop_connection(*, handled: bool = False) -> Action:
    """Close the connection instead of the reply.

    Args:
        handled: Whether the request is executed before: then only the reply is lost.
    """

    def act(exchange: Exchange) -> Reply:
        if handled:
            exchange.proceed()
        return Reply(0, is_lost=True)

    return act


def empty() -> Action:
    """Reply to a GetRecords without records. The next call returns the records."""
    return lambda exchange: exchange.empty()


def fail_records(*indexes: int, kind: str = THROTTLED) -> Action:
    """Refuse some records of a PutRecords, and accept the others.

    Args:
        *indexes: The indexes of the refused records in the request, from 0.
        kind: `ProvisionedThroughputExceededException` or `InternalFailure`.
    """

    def act(exchange: Exchange) -> Reply:
        exchange.call.failing = dict.fromkeys(indexes, kind)
        return exchange.proceed()

    return act


Fault = fault_list.Fault[Exchange, Reply]


class Faults(fault_list.FaultList[Exchange, Reply]):
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
        """Handle requests in another way. If several faults match a request, they take turns in their order.

        Args:
            operation: The operation, such as `GetRecords`; None matches all.
            action: The action: `error(...)`, `throttle()`, `delay(...)`, `drop_connection()`, `empty()`, or a function.
            once: An action for the next request only.
            times: The number of requests to which the fault applies; None is any number.
            stream: Match only requests about this stream or table.
            shard: Match only requests about this shard. The shard of PutRecord and PutRecords is not known yet.
            when: Match only requests for which this function of a `Call` returns true.

        Returns:
            The fault. It counts its requests, and can be removed.

        Raises:
            ConfigError: Neither an action nor `once` was passed, or both.
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
