"""Client settings from the `kafka.*` options of a read."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from headrace.clients.config import ClientConfig, ConsumerConfig, parse_config
from headrace.errors import ConfigError
from headrace.spark.options.reader import ClientOptions

FETCH_BYTES: Final = 32 << 20
"""Default of `kafka.max.partition.fetch.bytes`: the most bytes that a fetch requests of one partition."""


def consumer_config(options: ClientOptions) -> ConsumerConfig:
    """Parse the `kafka.*` options of a read.

    Raises:
        ConfigError: An option is unknown or malformed.
    """
    try:
        return parse_config(
            ConsumerConfig,
            dict(options.properties),
            bootstrap_servers=options.bootstrap,
            client_id="headrace-spark",
            max_partition_fetch_bytes=FETCH_BYTES,
        )
    except ConfigError as error:
        raise ConfigError(f"kafka.* options: {error}") from None


def client_properties(options: ClientOptions) -> dict[str, Any]:
    """Return those `kafka.*` options of a read that other kinds of clients of the same cluster need, too.

    Raises:
        ConfigError: An option is unknown or malformed.
    """
    return common_properties(consumer_config(options))


def common_properties(config: ClientConfig) -> dict[str, Any]:
    """Return the settings that every kind of client has and that differ from their defaults, without the address."""
    given = {field.name: getattr(config, field.name) for field in fields(ClientConfig)}
    defaults = {field.name: field.default for field in fields(ClientConfig)}
    return {
        name: value
        for name, value in given.items()
        if name != "bootstrap_servers" and value != defaults[name]
    }
