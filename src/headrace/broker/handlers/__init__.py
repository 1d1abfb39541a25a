"""The Kafka APIs that this broker serves: one module each, in the order of their keys.

This tuple is the registry. ApiVersions, the dispatch of requests and docs/protocol-support.md are derived from it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

from headrace.broker.handlers import (
    api_versions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    fetch,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)

REGISTRY: Final[tuple[ModuleType, ...]] = (
    produce,
    fetch,
    list_offsets,
    metadata,
    api_versions,
    create_topics,
    delete_topics,
    init_producer_id,
    offset_for_leader_epoch,
    describe_configs,
    describe_cluster,
)
