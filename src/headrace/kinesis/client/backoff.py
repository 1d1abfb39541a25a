"""Retries of AWS calls, their pauses, and the clock that tests replace."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from headrace.kinesis.client.errors import FailureKind, explained, failure_kind, is_silence, of_aws
from headrace.kinesis.client.settings import AwsClient

_Answer = TypeVar("_Answer")

FIRST_CONTACT_MS: Final = 3_000
"""The time in milliseconds for which the first call is retried without a response: a wrong address is more likely than
an outage."""
REPEATABLE: Final = frozenset({FailureKind.THROTTLED, FailureKind.REPEAT, FailureKind.IN_USE})


class Timing(Protocol):
    """A clock and random numbers. Tests have their own."""

    def now_ms(self) -> int:
        """Return milliseconds that never go back. Only differences have a meaning."""

    def random(self) -> float:
        """Return a number from 0 to 1, as `random.random` does."""

    async def sleep_ms(self, duration_ms: float) -> None:
        """Wait for some milliseconds."""


class RealTiming:
    """The clock and the random numbers of this machine."""

    def now_ms(self) -> int:
        """Return milliseconds of the machine's monotonic clock."""
        return time.monotonic_ns() // 1_000_000

    def random(self) -> float:
        """Return a number from 0 to 1."""
        return random.random()  # noqa: S311 - pauses, no secrets

    async def sleep_ms(self, duration_ms: float) -> None:
        """Sleep without blocking the event loop."""
        await asyncio.sleep(duration_ms / 1000)


class JitteredBackoff:
    """Growing pauses with full jitter, up to 0.2 s, 0.4 s, … 10 s, so that clients do not retry at the same time."""

    __slots__ = ("_failures", "_first_ms", "_most_ms", "_random")

    def __init__(
        self, chance: Callable[[], float], *, first_ms: int = 200, most_ms: int = 10_000
    ) -> None:
        self._random = chance
        self._first_ms = first_ms
        self._most_ms = most_ms
        self._failures = 0

    def next_ms(self) -> int:
        """Return the pause after one more failure, in milliseconds."""
        ceiling_ms = min(self._most_ms, self._first_ms << min(self._failures, 30))
        self._failures += 1
        return round(self._random() * ceiling_ms)

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self._failures = 0


async def repeated(
    call: Callable[[], Awaitable[_Answer]],
    doing: str,
    client: AwsClient,
    timing: Timing,
    *,
    within_ms: int = 30_000,
    answer_within_ms: int | None = None,
    stream: str = "",
) -> _Answer:
    """Call AWS until it answers, as long as a retry can help.

    Args:
        call: Makes one attempt.
        doing: What the call does, for messages.
        client: The client, whose region messages name.
        timing: The clock and the random numbers of pauses.
        within_ms: The time in milliseconds after which the last failure is raised.
        answer_within_ms: The same time for calls without any response so far. None: `within_ms`.
        stream: The stream of the call, if a missing resource can only be this stream.

    Raises:
        ConfigError: Credentials, region or endpoint are wrong.
        StreamNotFoundError: The stream does not exist.
        KinesisError: AWS refused the call, or did not answer in time.
    """
    backoff = JitteredBackoff(timing.random)
    begun_ms = timing.now_ms()
    first_ms = within_ms if answer_within_ms is None else answer_within_ms
    is_answered = False
    while True:
        try:
            return await call()
        except Exception as error:
            if not of_aws(error):
                raise
            delay_ms = backoff.next_ms()
            is_answered = is_answered or not is_silence(error)
            limit_ms = within_ms if is_answered else first_ms
            late = timing.now_ms() + delay_ms > begun_ms + limit_ms
            if late or failure_kind(error) not in REPEATABLE:
                raise explained(
                    error,
                    doing,
                    stream=stream,
                    region=region_of(client),
                    endpoint=endpoint_of(client),
                ) from error
        await timing.sleep_ms(delay_ms)


def region_of(client: AwsClient) -> str:
    """Return the region of a client; empty if the client is a fake without one."""
    return _meta_value(client, "region_name")


def endpoint_of(client: AwsClient) -> str:
    """Return the address of a client's server; empty if the client is a fake without one."""
    return _meta_value(client, "endpoint_url")


def _meta_value(client: AwsClient, name: str) -> str:
    value = getattr(getattr(client, "meta", None), name, None)
    return value if isinstance(value, str) else ""
