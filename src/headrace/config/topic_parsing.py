"""The effective configuration of a topic: its own settings over the defaults of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from headrace.config.broker import BrokerConfig
from headrace.config.options import Value, parse
from headrace.config.topic import UNSUPPORTED_TOPIC_OPTIONS, TopicConfig
from headrace.errors import ConfigError


def topic_defaults(broker_config: BrokerConfig) -> dict[str, Value]:
    """Return what a topic inherits from the broker for settings that it does not have, by attribute."""
    defaults: dict[str, Value] = {}
    for described in fields(TopicConfig):
        broker_name = described.metadata["option"].broker_name
        if broker_name is not None:
            defaults[described.name] = getattr(broker_config, broker_name.replace(".", "_"))
    return defaults


def parse_topic_config(
    overrides: Mapping[str, str | None], broker_config: BrokerConfig
) -> TopicConfig:
    """Return a topic's effective configuration: its overrides over the broker's defaults.

    Raises:
        ConfigError: A key is unknown, or a value out of bounds or not supported.
    """
    for name in overrides:
        if name in UNSUPPORTED_TOPIC_OPTIONS:
            raise ConfigError(f"{name}: not supported: {UNSUPPORTED_TOPIC_OPTIONS[name]}")
    config = parse(TopicConfig, overrides, defaults=topic_defaults(broker_config))
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError("min.compaction.lag.ms must not be larger than max.compaction.lag.ms")
    if config.headrace_delay_enable and "headrace.delay.enable" in overrides and config.compacts:
        # The record that replaces a scheduled record has no key.
        raise ConfigError("headrace.delay.enable needs cleanup.policy=delete")
    if config.headrace_ttl_enable and "headrace.ttl.enable" in overrides and config.compacts:
        # When a record expired, the previous record of its key would become visible again.
        raise ConfigError("headrace.ttl.enable needs cleanup.policy=delete")
    return config
