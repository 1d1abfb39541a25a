"""Values for the fields of requests: one row for each list, string, bytes and id of every API that the broker answers.

A request whose fields have no row here cannot be made expensive, so `test_bounds.py` fails until each has one. Numbers
need a row only where their default would make the request a cheap one.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final


class Kind(Enum):
    """The meaning of a field's value, which decides how the field is made large."""

    LIST = "a list of structures"
    STRUCT = "a structure"
    TOPIC = "the name of a topic"
    TOPIC_ID = "the id of a topic"
    PARTITION = "a number of a partition"
    DIRECTORY_ID = "the id of a log directory"
    GROUP = "the name of a group"
    MEMBER = "the id of a member of a group"
    TRANSACTIONAL_ID = "a transactional id"
    PRODUCER_ID = "a producer id"
    USER = "the name of a user"
    RESOURCE = "the name of what has a configuration or rights"
    SETTING = "the name of a setting"
    TEXT = "text that the broker keeps, compares, or hands on"
    BYTES = "bytes that the broker keeps, compares, or hands on"
    RECORDS = "a batch of records"
    NUMBER = "a number"


_LIST, _TOPIC, _ID, _PART = Kind.LIST, Kind.TOPIC, Kind.TOPIC_ID, Kind.PARTITION
_GROUP, _MEMBER, _TEXT, _BYTES = Kind.GROUP, Kind.MEMBER, Kind.TEXT, Kind.BYTES
_TRANSACTIONAL, _PRODUCER = Kind.TRANSACTIONAL_ID, Kind.PRODUCER_ID

FIELDS: Final[dict[str, dict[str, Kind]]] = {
    "ProduceRequest": {
        "transactional_id": _TRANSACTIONAL,
        "topic_data": _LIST,
        "topic_data.name": _TOPIC,
        "topic_data.topic_id": _ID,
        "topic_data.partition_data": _LIST,
        "topic_data.partition_data.index": _PART,
        "topic_data.partition_data.records": Kind.RECORDS,
    },
    "FetchRequest": {
        "cluster_id": _TEXT,
        "replica_state": Kind.STRUCT,
        "topics": _LIST,
        "topics.topic": _TOPIC,
        "topics.topic_id": _ID,
        "topics.partitions": _LIST,
        "topics.partitions.partition": _PART,
        "topics.partitions.replica_directory_id": Kind.DIRECTORY_ID,
        "forgotten_topics_data": _LIST,
        "forgotten_topics_data.topic": _TOPIC,
        "forgotten_topics_data.topic_id": _ID,
        "forgotten_topics_data.partitions": _PART,
        "rack_id": _TEXT,
        "headrace_filter": _BYTES,
    },
    "ListOffsetsRequest": {
        "topics": _LIST,
        "topics.name": _TOPIC,
        "topics.partitions": _LIST,
        "topics.partitions.partition_index": _PART,
    },
    "MetadataRequest": {"topics": _LIST, "topics.topic_id": _ID, "topics.name": _TOPIC},
    "OffsetCommitRequest": {
        "group_id": _GROUP,
        "member_id": _MEMBER,
        "group_instance_id": _TEXT,
        "topics": _LIST,
        "topics.name": _TOPIC,
        "topics.partitions": _LIST,
        "topics.partitions.partition_index": _PART,
        "topics.partitions.committed_metadata": _TEXT,
    },
    "OffsetFetchRequest": {
        "group_id": _GROUP,
        "topics": _LIST,
        "topics.name": _TOPIC,
        "topics.partition_indexes": _PART,
        "groups": _LIST,
        "groups.group_id": _GROUP,
        "groups.member_id": _MEMBER,
        "groups.topics": _LIST,
        "groups.topics.name": _TOPIC,
        "groups.topics.partition_indexes": _PART,
    },
    "FindCoordinatorRequest": {"key": _GROUP, "coordinator_keys": _GROUP},
    "JoinGroupRequest": {
        "group_id": _GROUP,
        "member_id": _MEMBER,
        "group_instance_id": _TEXT,
        "protocol_type": _TEXT,
        "protocols": _LIST,
        "protocols.name": _TEXT,
        "protocols.metadata": _BYTES,
        "reason": _TEXT,
    },
    "HeartbeatRequest": {"group_id": _GROUP, "member_id": _MEMBER, "group_instance_id": _TEXT},
    "LeaveGroupRequest": {
        "group_id": _GROUP,
        "member_id": _MEMBER,
        "members": _LIST,
        "members.member_id": _MEMBER,
        "members.group_instance_id": _TEXT,
        "members.reason": _TEXT,
        "headrace_stop": Kind.STRUCT,
        "headrace_stop.member_id": _MEMBER,
        "headrace_stop.group_instance_id": _TEXT,
    },
    "SyncGroupRequest": {
        "group_id": _GROUP,
        "member_id": _MEMBER,
        "group_instance_id": _TEXT,
        "protocol_type": _TEXT,
        "protocol_name": _TEXT,
        "assignments": _LIST,
        "assignments.member_id": _MEMBER,
        "assignments.assignment": _BYTES,
    },
    "DescribeGroupsRequest": {"groups": _GROUP},
    "ListGroupsRequest": {"states_filter": _TEXT, "types_filter": _TEXT},
    "SaslHandshakeRequest": {"mechanism": _TEXT},
    "ApiVersionsRequest": {"client_software_name": _TEXT, "client_software_version": _TEXT},
    "CreateTopicsRequest": {
        "topics": _LIST,
        "topics.name": _TOPIC,
        "topics.assignments": _LIST,
        "topics.assignments.partition_index": _PART,
        "topics.assignments.broker_ids": Kind.NUMBER,
        "topics.configs": _LIST,
        "topics.configs.name": Kind.SETTING,
        "topics.configs.value": _TEXT,
    },
    "DeleteTopicsRequest": {
        "topics": _LIST,
        "topics.name": _TOPIC,
        "topics.topic_id": _ID,
        "topic_names": _TOPIC,
    },
    "DeleteRecordsRequest": {
        "topics": _LIST,
        "topics.name": _TOPIC,
        "topics.partitions": _LIST,
        "topics.partitions.partition_index": _PART,
    },
    "InitProducerIdRequest": {"transactional_id": _TRANSACTIONAL, "producer_id": Kind.NUMBER},
    "OffsetForLeaderEpochRequest": {
        "topics": _LIST,
        "topics.topic": _TOPIC,
        "topics.partitions": _LIST,
        "topics.partitions.partition": _PART,
    },
    "AddPartitionsToTxnRequest": {
        "transactions": _LIST,
        "transactions.transactional_id": _TRANSACTIONAL,
        "transactions.producer_id": _PRODUCER,
        "transactions.topics": _LIST,
        "transactions.topics.name": _TOPIC,
        "transactions.topics.partitions": _PART,
        "v3_and_below_transactional_id": _TRANSACTIONAL,
        "v3_and_below_producer_id": _PRODUCER,
        "v3_and_below_topics": _LIST,
        "v3_and_below_topics.name": _TOPIC,
        "v3_and_below_topics.partitions": _PART,
    },
    "AddOffsetsToTxnRequest": {
        "transactional_id": _TRANSACTIONAL,
        "producer_id": _PRODUCER,
        "group_id": _GROUP,
    },
    "EndTxnRequest": {"transactional_id": _TRANSACTIONAL, "producer_id": _PRODUCER},
    "WriteTxnMarkersRequest": {
        "markers": _LIST,
        "markers.producer_id": _PRODUCER,
        "markers.topics": _LIST,
        "markers.topics.name": _TOPIC,
        "markers.topics.partition_indexes": _PART,
    },
    "TxnOffsetCommitRequest": {
        "transactional_id": _TRANSACTIONAL,
        "group_id": _GROUP,
        "producer_id": _PRODUCER,
        "member_id": _TEXT,
        "group_instance_id": _TEXT,
        "topics": _LIST,
        "topics.name": _TOPIC,
        "topics.partitions": _LIST,
        "topics.partitions.partition_index": _PART,
        "topics.partitions.committed_metadata": _TEXT,
    },
    "DescribeAclsRequest": {
        "resource_name_filter": Kind.RESOURCE,
        "principal_filter": _TEXT,
        "host_filter": _TEXT,
    },
    "CreateAclsRequest": {
        "creations": _LIST,
        "creations.resource_name": Kind.RESOURCE,
        "creations.principal": Kind.USER,
        "creations.host": _TEXT,
    },
    "DeleteAclsRequest": {
        "filters": _LIST,
        "filters.resource_name_filter": Kind.RESOURCE,
        "filters.principal_filter": _TEXT,
        "filters.host_filter": _TEXT,
    },
    "DescribeConfigsRequest": {
        "resources": _LIST,
        "resources.resource_name": _TOPIC,
        "resources.configuration_keys": Kind.SETTING,
    },
    "AlterConfigsRequest": {
        "resources": _LIST,
        "resources.resource_name": _TOPIC,
        "resources.configs": _LIST,
        "resources.configs.name": Kind.SETTING,
        "resources.configs.value": _TEXT,
    },
    "IncrementalAlterConfigsRequest": {
        "resources": _LIST,
        "resources.resource_name": _TOPIC,
        "resources.configs": _LIST,
        "resources.configs.name": Kind.SETTING,
        "resources.configs.value": _TEXT,
    },
    "DescribeLogDirsRequest": {"topics": _LIST, "topics.topic": _TOPIC, "topics.partitions": _PART},
    "SaslAuthenticateRequest": {"auth_bytes": _BYTES},
    "CreatePartitionsRequest": {
        "topics": _LIST,
        "topics.name": _TOPIC,
        "topics.count": Kind.NUMBER,
        "topics.assignments": _LIST,
        "topics.assignments.broker_ids": Kind.NUMBER,
    },
    "DeleteGroupsRequest": {"groups_names": _GROUP},
    "OffsetDeleteRequest": {
        "group_id": _GROUP,
        "topics": _LIST,
        "topics.name": _TOPIC,
        "topics.partitions": _LIST,
        "topics.partitions.partition_index": _PART,
    },
    "DescribeClientQuotasRequest": {
        "components": _LIST,
        "components.entity_type": _TEXT,
        "components.match": Kind.USER,
    },
    "AlterClientQuotasRequest": {
        "entries": _LIST,
        "entries.entity": _LIST,
        "entries.entity.entity_type": _TEXT,
        "entries.entity.entity_name": Kind.USER,
        "entries.ops": _LIST,
        "entries.ops.key": _TEXT,
    },
    "DescribeUserScramCredentialsRequest": {"users": _LIST, "users.name": Kind.USER},
    "AlterUserScramCredentialsRequest": {
        "deletions": _LIST,
        "deletions.name": Kind.USER,
        "upsertions": _LIST,
        "upsertions.name": Kind.USER,
        "upsertions.salt": _BYTES,
        "upsertions.salted_password": _BYTES,
    },
    "AlterReplicaLogDirsRequest": {
        "dirs": _LIST,
        "dirs.path": _TEXT,
        "dirs.topics": _LIST,
        "dirs.topics.name": _TOPIC,
        "dirs.topics.partitions": _PART,
    },
    "ElectLeadersRequest": {
        "topic_partitions": _LIST,
        "topic_partitions.topic": _TOPIC,
        "topic_partitions.partitions": _PART,
    },
    "AlterPartitionReassignmentsRequest": {
        "topics": _LIST,
        "topics.name": _TOPIC,
        "topics.partitions": _LIST,
        "topics.partitions.partition_index": _PART,
        "topics.partitions.replicas": Kind.NUMBER,
    },
    "ListPartitionReassignmentsRequest": {
        "topics": _LIST,
        "topics.name": _TOPIC,
        "topics.partition_indexes": _PART,
    },
    "DescribeQuorumRequest": {
        "topics": _LIST,
        "topics.topic_name": _TOPIC,
        "topics.partitions": _LIST,
        "topics.partitions.partition_index": _PART,
    },
    "UpdateFeaturesRequest": {"feature_updates": _LIST, "feature_updates.feature": _TEXT},
    "UnregisterBrokerRequest": {},
    "DescribeClusterRequest": {},
    "DescribeProducersRequest": {
        "topics": _LIST,
        "topics.name": _TOPIC,
        "topics.partition_indexes": _PART,
    },
    "DescribeTransactionsRequest": {"transactional_ids": _TRANSACTIONAL},
    "ListTransactionsRequest": {
        "state_filters": _TEXT,
        "producer_id_filters": _PRODUCER,
        "transactional_id_pattern": _TEXT,
    },
    "ConsumerGroupHeartbeatRequest": {
        "group_id": _GROUP,
        "member_id": _MEMBER,
        "instance_id": _TEXT,
        "rack_id": _TEXT,
        "subscribed_topic_names": _TOPIC,
        "subscribed_topic_regex": _TEXT,
        "server_assignor": _TEXT,
        "topic_partitions": _LIST,
        "topic_partitions.topic_id": _ID,
        "topic_partitions.partitions": _PART,
    },
    "ConsumerGroupDescribeRequest": {"group_ids": _GROUP},
    "ListConfigResourcesRequest": {"resource_types": Kind.NUMBER},
    "DescribeTopicPartitionsRequest": {
        "topics": _LIST,
        "topics.name": _TOPIC,
        "cursor": Kind.STRUCT,
        "cursor.topic_name": _TOPIC,
    },
    "ShareGroupHeartbeatRequest": {
        "group_id": _GROUP,
        "member_id": _MEMBER,
        "rack_id": _TEXT,
        "subscribed_topic_names": _TOPIC,
    },
}

NUMBERS: Final[dict[str, dict[str, Any]]] = {
    "ProduceRequest": {"acks": 1, "timeout_ms": 1000},
    "FetchRequest": {
        "max_bytes": 1 << 30,
        "isolation_level": 1,
        "topics.partitions.partition_max_bytes": 1 << 30,
        "topics.partitions.current_leader_epoch": -1,
    },
    "ListOffsetsRequest": {
        "replica_id": -1,
        "isolation_level": 1,
        "topics.partitions.timestamp": 1,
        "headrace_delayed": True,
    },
    "MetadataRequest": {
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    },
    "OffsetCommitRequest": {"generation_id_or_member_epoch": -1},
    "OffsetFetchRequest": {"groups.member_epoch": -1},
    "FindCoordinatorRequest": {},
    "JoinGroupRequest": {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000},
    "DescribeGroupsRequest": {"include_authorized_operations": True},
    "CreateTopicsRequest": {
        "topics.num_partitions": 1,
        "topics.replication_factor": 1,
        "validate_only": True,
    },
    "DeleteTopicsRequest": {"timeout_ms": 1000},
    "InitProducerIdRequest": {"transaction_timeout_ms": 10_000, "producer_id": -1},
    "OffsetForLeaderEpochRequest": {"replica_id": -1, "topics.partitions.leader_epoch": 0},
    "AddPartitionsToTxnRequest": {},
    "EndTxnRequest": {"committed": True},
    "WriteTxnMarkersRequest": {"markers.transaction_result": True},
    "TxnOffsetCommitRequest": {"generation_id": -1},
    "DescribeAclsRequest": {
        "resource_type_filter": 1,
        "pattern_type_filter": 2,
        "operation": 1,
        "permission_type": 1,
    },
    "CreateAclsRequest": {
        "creations.resource_type": 2,
        "creations.resource_pattern_type": 3,
        "creations.operation": 3,
        "creations.permission_type": 3,
    },
    "DeleteAclsRequest": {
        "filters.resource_type_filter": 1,
        "filters.pattern_type_filter": 2,
        "filters.operation": 1,
        "filters.permission_type": 1,
    },
    "DescribeConfigsRequest": {
        "resources.resource_type": 2,
        "include_synonyms": True,
        "include_documentation": True,
    },
    "AlterConfigsRequest": {"resources.resource_type": 2, "validate_only": True},
    "IncrementalAlterConfigsRequest": {"resources.resource_type": 2, "validate_only": True},
    "CreatePartitionsRequest": {"topics.count": 100_000, "validate_only": True},
    "DescribeClientQuotasRequest": {},
    "AlterClientQuotasRequest": {"validate_only": True, "entries.ops.value": 1e9},
    "AlterUserScramCredentialsRequest": {
        "deletions.mechanism": 1,
        "upsertions.mechanism": 1,
        "upsertions.iterations": 4096,
    },
    "UpdateFeaturesRequest": {"feature_updates.max_version_level": 1, "validate_only": True},
    "ListTransactionsRequest": {"duration_filter": -1},
    "ConsumerGroupHeartbeatRequest": {"rebalance_timeout_ms": 10_000},
    "ConsumerGroupDescribeRequest": {"include_authorized_operations": True},
    "DescribeTopicPartitionsRequest": {"response_partition_limit": 1 << 30},
}
"""The numbers and switches with which a request does the most. Others have the schema's default."""

WORDS: Final[dict[str, str]] = {
    "DescribeClientQuotasRequest.components.entity_type": "user",
    "AlterClientQuotasRequest.entries.entity.entity_type": "user",
    "AlterClientQuotasRequest.entries.ops.key": "producer_byte_rate",
    "CreateAclsRequest.creations.host": "*",
    "ListGroupsRequest.states_filter": "Stable",
    "ListGroupsRequest.types_filter": "classic",
    "UpdateFeaturesRequest.feature_updates.feature": "group.version",
    "ListTransactionsRequest.state_filters": "Ongoing",
    "ListTransactionsRequest.transactional_id_pattern": "few.*",
    "JoinGroupRequest.protocol_type": "consumer",
    "SaslHandshakeRequest.mechanism": "PLAIN",
    "ConsumerGroupHeartbeatRequest.subscribed_topic_regex": "few.*",
}
"""Texts with a meaning for the broker, for fields where it knows few."""
