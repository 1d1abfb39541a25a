"""The permissions that each API requires, in one table.

The handlers check them (`headrace.broker.access.permissions`). A test calls every handler and compares its checks with
this table. docs/reference/protocol-support.md shows the table. Each API of the registry needs a row, or a test fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.protocol.api_keys import ApiKey
from headrace.security.acls import Operation, ResourceType

_TOPIC: Final = "TOPIC_AUTHORIZATION_FAILED for the topic"
_PARTITIONS: Final = "TOPIC_AUTHORIZATION_FAILED for each partition"
_GROUP: Final = "GROUP_AUTHORIZATION_FAILED"
_CLUSTER: Final = "CLUSTER_AUTHORIZATION_FAILED"
_TRANSACTION: Final = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


class Rule(NamedTuple):
    """One permission that an API requires."""

    operation: Operation
    resource_type: ResourceType
    which: str
    """The resources of that type, or the case, for which the permission is required; "" for the cluster."""
    refusal: str
    """The response to a client without the permission."""


def _topic(operation: Operation, which: str = "every topic named", refusal: str = _TOPIC) -> Rule:
    return Rule(operation, ResourceType.TOPIC, which, refusal)


def _group(operation: Operation, which: str = "the group", refusal: str = _GROUP) -> Rule:
    return Rule(operation, ResourceType.GROUP, which, refusal)


def _cluster(operation: Operation, which: str = "", refusal: str = _CLUSTER) -> Rule:
    return Rule(operation, ResourceType.CLUSTER, which, refusal)


def _transaction(
    operation: Operation,
    which: str = "the transactional id, if one is named",
    refusal: str = _TRANSACTION,
) -> Rule:
    return Rule(operation, ResourceType.TRANSACTIONAL_ID, which, refusal)


_ID: Final = "the transactional id"
_MEMBER: Final = (_group(Operation.READ),)


def _configs(operation: Operation) -> tuple[Rule, ...]:
    return (
        _topic(operation, "a topic"),
        _group(operation, "a group"),
        _cluster(operation, "a broker, its loggers, or all brokers"),
    )


RULES: Final[Mapping[ApiKey, tuple[Rule, ...]]] = {
    ApiKey.PRODUCE: (
        _transaction(Operation.WRITE),
        _topic(Operation.WRITE, refusal=_PARTITIONS),
    ),
    ApiKey.FETCH: (
        _topic(Operation.READ, "every topic read, also by a session", _PARTITIONS),
        _cluster(Operation.CLUSTER_ACTION, "to fetch as a replica, in place of READ", _PARTITIONS),
    ),
    ApiKey.LIST_OFFSETS: (_topic(Operation.DESCRIBE, refusal=_PARTITIONS),),
    ApiKey.METADATA: (
        _topic(Operation.DESCRIBE, "every topic", f"{_TOPIC}; not listed where all are"),
        _cluster(Operation.CREATE, "to create a topic by asking for it", "see the next row"),
        _topic(Operation.CREATE, "or the topic created"),
        _cluster(Operation.DESCRIBE, "to see its authorized operations", "an empty set"),
    ),
    ApiKey.OFFSET_COMMIT: (
        _group(Operation.READ, refusal=f"{_GROUP} for each partition"),
        _topic(Operation.READ, refusal=_PARTITIONS),
    ),
    ApiKey.OFFSET_FETCH: (
        _group(Operation.DESCRIBE, "every group named", f"{_GROUP} for the group"),
        _topic(Operation.DESCRIBE, "every topic", f"{_PARTITIONS}; not listed where all are"),
    ),
    ApiKey.FIND_COORDINATOR: (
        _group(Operation.DESCRIBE, "every group named", f"{_GROUP} for the key"),
        _transaction(Operation.DESCRIBE),
    ),
    ApiKey.JOIN_GROUP: _MEMBER,
    ApiKey.HEARTBEAT: _MEMBER,
    ApiKey.LEAVE_GROUP: _MEMBER,
    ApiKey.SYNC_GROUP: _MEMBER,
    ApiKey.DESCRIBE_GROUPS: (
        _group(Operation.DESCRIBE, "every group named", f"{_GROUP} for the group"),
    ),
    ApiKey.LIST_GROUPS: (
        _cluster(Operation.DESCRIBE, "to see all groups", "see the next row"),
        _group(Operation.DESCRIBE, "or every group listed", "not listed"),
    ),
    ApiKey.SASL_HANDSHAKE: (),
    ApiKey.API_VERSIONS: (),
    ApiKey.CREATE_TOPICS: (
        _cluster(Operation.CREATE, "to create any topic", "see the next row"),
        _topic(Operation.CREATE, "or every topic named"),
        _topic(
            Operation.DESCRIBE_CONFIGS,
            "to read its configuration",
            "created, with TOPIC_AUTHORIZATION_FAILED in the place of the configuration",
        ),
    ),
    ApiKey.DELETE_TOPICS: (
        _cluster(Operation.DELETE, "to delete any topic", "see the next rows"),
        _topic(Operation.DESCRIBE, "or every topic, to know of it", f"{_TOPIC}, without its name"),
        _topic(Operation.DELETE, "and to delete it"),
    ),
    ApiKey.DELETE_RECORDS: (_topic(Operation.DELETE, refusal=_PARTITIONS),),
    ApiKey.INIT_PRODUCER_ID: (
        _transaction(Operation.WRITE),
        _cluster(Operation.IDEMPOTENT_WRITE, "without a transactional id", "see the next row"),
        _topic(Operation.WRITE, "or at least one topic", _CLUSTER),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        _cluster(Operation.CLUSTER_ACTION, "as a replica", "see the next row"),
        _topic(Operation.DESCRIBE, "or every topic named", _PARTITIONS),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        _transaction(Operation.WRITE, _ID, f"{_TRANSACTION} for each partition"),
        _topic(Operation.WRITE, refusal=_PARTITIONS),
        _cluster(Operation.CLUSTER_ACTION, "instead, from version 4 on"),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (_transaction(Operation.WRITE, _ID), _group(Operation.READ)),
    ApiKey.END_TXN: (_transaction(Operation.WRITE, _ID),),
    ApiKey.WRITE_TXN_MARKERS: (
        _cluster(Operation.CLUSTER_ACTION, refusal=f"{_CLUSTER} for each partition"),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        _transaction(Operation.WRITE, _ID, f"{_TRANSACTION} for each partition"),
        _group(Operation.READ, refusal=f"{_GROUP} for each partition"),
        _topic(Operation.READ, refusal=_PARTITIONS),
    ),
    ApiKey.DESCRIBE_ACLS: (_cluster(Operation.DESCRIBE),),
    ApiKey.CREATE_ACLS: (_cluster(Operation.ALTER),),
    ApiKey.DELETE_ACLS: (_cluster(Operation.ALTER),),
    ApiKey.DESCRIBE_CONFIGS: _configs(Operation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CONFIGS: _configs(Operation.ALTER_CONFIGS),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        _cluster(Operation.ALTER, refusal=f"{_CLUSTER} for each partition"),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (_cluster(Operation.DESCRIBE),),
    ApiKey.SASL_AUTHENTICATE: (),
    ApiKey.CREATE_PARTITIONS: (_topic(Operation.ALTER),),
    ApiKey.DELETE_GROUPS: (
        _group(Operation.DELETE, "every group named", f"{_GROUP} for the group"),
    ),
    ApiKey.ELECT_LEADERS: (
        _cluster(Operation.ALTER, refusal=f"{_CLUSTER}, and for each partition"),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs(Operation.ALTER_CONFIGS),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        _cluster(Operation.ALTER, refusal=f"{_CLUSTER}, and for each partition"),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (_cluster(Operation.DESCRIBE),),
    ApiKey.OFFSET_DELETE: (
        _group(Operation.DELETE),
        _topic(Operation.READ, refusal=_PARTITIONS),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (_cluster(Operation.DESCRIBE_CONFIGS),),
    ApiKey.ALTER_CLIENT_QUOTAS: (_cluster(Operation.ALTER_CONFIGS),),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (_cluster(Operation.DESCRIBE),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        _cluster(Operation.ALTER, refusal=f"{_CLUSTER} for each user"),
    ),
    ApiKey.DESCRIBE_QUORUM: (_cluster(Operation.DESCRIBE),),
    ApiKey.UPDATE_FEATURES: (_cluster(Operation.ALTER),),
    ApiKey.DESCRIBE_CLUSTER: (
        _cluster(Operation.DESCRIBE, "to see its authorized operations", "an empty set"),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (_topic(Operation.READ, refusal=_PARTITIONS),),
    ApiKey.UNREGISTER_BROKER: (_cluster(Operation.ALTER),),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        _transaction(Operation.DESCRIBE, "every id named", f"{_TRANSACTION} for the id"),
        _topic(Operation.DESCRIBE, "every topic of a transaction", "not listed"),
    ),
    ApiKey.LIST_TRANSACTIONS: (_transaction(Operation.DESCRIBE, "every id", "not listed"),),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        _group(Operation.READ),
        _topic(
            Operation.DESCRIBE,
            "every topic subscribed to by name",
            "TOPIC_AUTHORIZATION_FAILED; not matched by a regular expression",
        ),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (
        _group(Operation.DESCRIBE, "every group named", f"{_GROUP} for the group"),
        _topic(
            Operation.DESCRIBE,
            "every topic that its members hold",
            "TOPIC_AUTHORIZATION_FAILED for the group",
        ),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: (_cluster(Operation.DESCRIBE_CONFIGS),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        _topic(Operation.DESCRIBE, "every topic", f"{_TOPIC}; not listed where all are"),
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: (_group(Operation.READ),),
}
"""The rules by API, in the order in which the handler checks them. APIs without a rule are for every client: clients
call them before they authenticate, and they reveal nothing that is stored."""
