"""The kinds of resources that have a configuration, by Kafka's numbers."""

from __future__ import annotations

from enum import IntEnum


class ConfigResourceType(IntEnum):
    """The kind of a resource, as Kafka's `ConfigResource.Type`."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32
