"""Clients of aiobotocore. Only this module imports it, and only `open_client` imports this module."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError
from botocore.loaders import Loader, create_loader

from headrace.errors import ConfigError
from headrace.kinesis.client.errors import explained
from headrace.kinesis.client.settings import AwsClient, AwsSettings


@cache
def _loader(data_path: str | None) -> Loader:
    """Return the loader of service descriptions. All clients share it, because descriptions are megabytes of JSON."""
    return create_loader(data_path)


@asynccontextmanager
async def opened(settings: AwsSettings, service: str) -> AsyncIterator[AwsClient]:
    """Open a client of a service, for `open_client`.

    Raises:
        ConfigError: There is no region, profile or usable configuration.
    """
    session = AioSession(profile=settings.profile)
    session.lazy_register_component(
        "data_loader", lambda: _loader(session.get_config_variable("data_path"))
    )
    creation = session.create_client(
        service,
        region_name=settings.region or os.environ.get("AWS_REGION"),  # botocore ignores it
        endpoint_url=settings.endpoint_url,
        aws_access_key_id=settings.access_key_id,
        aws_secret_access_key=settings.secret_access_key,
        aws_session_token=settings.session_token,
        config=AioConfig(
            connect_timeout=settings.connect_timeout_ms / 1000,
            read_timeout=settings.read_timeout_ms / 1000,
            max_pool_connections=settings.max_pool_connections or 0,  # aiohttp's "no limit"
            retries={"mode": "standard", "total_max_attempts": 1},
            warm_up_loader_caches=True,  # in a thread: megabytes of JSON would hold up the event loop
        ),
    )
    try:
        client = await creation.__aenter__()
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(str(explained(error, f"opening a client of {service}"))) from error
    try:
        yield client
    finally:
        await creation.__aexit__(None, None, None)
