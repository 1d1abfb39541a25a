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
    describe_groups,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)

REGISTRY: Final[tuple[ModuleType, ...]] = (
    produce,
    fetch,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    find_coordinator,
    join_group,
    heartbeat,
    leave_group,
    sync_group,
    describe_groups,
    list_groups,
    api_versions,
    create_topics,
    delete_topics,
    init_producer_id,
    offset_for_leader_epoch,
    describe_configs,
    describe_cluster,
)
