"""Opens clients of AWS services. It loads aiobotocore only when a client is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.errors import ConfigError
from headrace.kinesis.client.settings import AwsClient, AwsSettings


@asynccontextmanager
async def open_client(settings: AwsSettings, service: str) -> AsyncIterator[AwsClient]:
    """Open a client of a service (`kinesis`, `dynamodb`) until the block ends.

    The client does not retry by itself: the callers know the limits, and retry with a backoff.

    Raises:
        ConfigError: Headrace was installed without its extra `kinesis`, or there is no region, profile or key.
    """
    given = settings.clients.get(service)
    if given is not None:
        yield given
        return
    try:
        from headrace.kinesis.client.session import opened  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError(
            "Kinesis and DynamoDB need aiobotocore: pip install 'headrace[kinesis]'"
        ) from None
    async with opened(settings, service) as client:
        yield client
