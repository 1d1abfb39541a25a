"""The Kafka APIs that this broker serves: one module each, in the order of their keys.

This tuple is the registry. ApiVersions, the dispatch of requests and docs/protocol-support.md are derived from it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

from headrace.broker.handlers import (
    alter_client_quotas,
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
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
    delete_records,
    init_producer_id,
    offset_for_leader_epoch,
    describe_configs,
    alter_configs,
    describe_log_dirs,
    create_partitions,
    delete_groups,
    incremental_alter_configs,
    offset_delete,
    describe_client_quotas,
    alter_client_quotas,
    describe_cluster,
    list_config_resources,
    describe_topic_partitions,
)
