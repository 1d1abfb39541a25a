"""Consumers of enhanced fan-out. A consumer has to be registered with a stream before it can subscribe."""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import KinesisError
from headrace.kinesis.client.backoff import RealTiming, Timing, repeated
from headrace.kinesis.client.errors import FailureKind, failure_kind
from headrace.kinesis.client.settings import AwsClient

_POLL_MS: Final = 1_000


async def registered_consumer(
    client: AwsClient,
    stream_arn: str,
    name: str,
    *,
    register: bool = True,
    within_ms: int = 300_000,
    timing: Timing | None = None,
) -> str:
    """Return the ARN of a consumer that can subscribe. All members of a group share one consumer.

    Args:
        client: The client of Kinesis.
        stream_arn: The ARN of the stream.
        name: The consumer's name, usually the name of the group.
        register: Whether to register a missing consumer. A stream has at most 20 consumers, and AWS charges for each by
            the hour.
        within_ms: How long to wait until the consumer can be used, in milliseconds.
        timing: The clock and random numbers of a test; None: the real ones.

    Raises:
        KinesisError: The consumer is not registered, may not be registered, or cannot be used in time.
        ConfigError: Credentials, region or endpoint are wrong.
    """
    timing = timing or RealTiming()
    doing = f"registering the fan-out consumer {name} with {stream_arn}"

    async def call(operation: str) -> Any:
        """Call an operation. Return None if the consumer is missing, or is registered already."""
        try:
            return await repeated(
                lambda: _once(client, operation, stream_arn, name), doing, client, timing
            )
        except KinesisError as error:
            if error.__cause__ is not None and failure_kind(error.__cause__) is FailureKind.MISSING:
                return None
            raise

    give_up_ms = timing.now_ms() + within_ms
    while True:
        found = await call("describe_stream_consumer")
        described = found["ConsumerDescription"] if found else {"ConsumerStatus": "MISSING"}
        if described["ConsumerStatus"] == "ACTIVE":
            return str(described["ConsumerARN"])
        if found is None and not register:
            raise KinesisError(
                f"{doing}: the consumer is not registered. Register it, or allow its registration"
            )
        if timing.now_ms() >= give_up_ms:
            raise KinesisError(
                f"{doing}: the consumer cannot be used after {within_ms / 1000:g} s: its status is "
                f"{described['ConsumerStatus']}. Start again when it is ACTIVE"
            )
        if found is None:
            await call("register_stream_consumer")
        else:
            await timing.sleep_ms(_POLL_MS)


async def _once(client: AwsClient, operation: str, stream_arn: str, name: str) -> Any:
    try:
        return await getattr(client, operation)(StreamARN=stream_arn, ConsumerName=name)
    except Exception as error:
        if operation.startswith("register") and failure_kind(error) is FailureKind.IN_USE:
            return None  # another member was faster
        raise
