"""The error codes of the Kafka protocol, as of Apache Kafka 4.3."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class ErrorCode(IntEnum):
    """An error code of the Kafka protocol.

    A code that a later Kafka adds is valid too: `ErrorCode(9999)` returns a member named `ERROR_9999`, which equals the
    number and is not retriable.

    Attributes:
        retriable: Whether the same request may succeed later.
        description: What the code means, in one sentence.
    """

    _value_: int
    retriable: bool
    description: str

    def __new__(
        cls,
        code: int,
        retriable: bool = False,  # noqa: FBT001, FBT002 - a column of the table
        description: str = "",
    ) -> Self:
        """Build one member from its row in the table."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.description = description
        return member

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        if not isinstance(value, int):
            return None
        member = int.__new__(cls, value)
        member._name_ = f"ERROR_{value}"
        member._value_ = int(value)
        member.retriable = False
        member.description = f"Error code {value}, which this version does not know."
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "The broker failed in a way that no other code describes."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The offset lies before the log start or after the log end."
    CORRUPT_MESSAGE = 2, True, "The batch's checksum, size or layout is wrong."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "The broker has no such topic or partition."
    INVALID_FETCH_SIZE = 4, False, "The fetch size is not a valid size."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, True, "The broker does not lead the partition, or holds no replica."
    REQUEST_TIMED_OUT = 7, True, "The broker did not complete the request in time."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica is not available on this broker."
    MESSAGE_TOO_LARGE = 10, False, "The batch is larger than the topic or broker accepts."
    STALE_CONTROLLER_EPOCH = 11, False, "A newer controller has taken over."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata text of a committed offset is too long."
    NETWORK_EXCEPTION = 13, True, "The connection closed before the response arrived."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, True, "There is no coordinator at the moment."
    NOT_COORDINATOR = 16, True, "Another broker coordinates this group or transaction."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic name is not allowed for this operation."
    RECORD_LIST_TOO_LARGE = 18, False, "The batch does not fit into a segment."
    NOT_ENOUGH_REPLICAS = 19, True, "Fewer replicas are in sync than min.insync.replicas asks for."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "Appended, but too few replicas were in sync."
    INVALID_REQUIRED_ACKS = (
        21,
        False,
        "acks is not -1, 0, 1 or, in Headrace, a number of replicas that the partition has.",
    )
    ILLEGAL_GENERATION = 22, False, "The generation is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member shares no protocol with its group."
    INVALID_GROUP_ID = 24, False, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, False, "The group has no such member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside the broker's limits."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing. The member must join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The offset commit is too large to be stored."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Not authorized for the topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Not authorized for the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Not authorized for the cluster."
    INVALID_TIMESTAMP = 32, False, "A record's timestamp is outside the accepted range."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request does not fit the state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, False, "The broker does not support this version of the request."
    TOPIC_ALREADY_EXISTS = 36, False, "A topic with this name exists already."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = (
        38,
        False,
        "The replication factor is not possible in this cluster.",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The replica assignment is not valid."
    INVALID_CONFIG = 40, False, "A configuration value is not valid."
    NOT_CONTROLLER = 41, True, "The broker is not the active controller."
    INVALID_REQUEST = 42, False, "The request contradicts itself or the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The batch format does not support this operation."
    POLICY_VIOLATION = 44, False, "A policy of the cluster forbids the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The producer's sequence has a gap."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The producer's sequence was seen before."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is older than the one on record."
    INVALID_TXN_STATE = 48, False, "The transaction is in a state that forbids the operation."
    INVALID_PRODUCER_ID_MAPPING = (
        49,
        False,
        "The producer id does not belong to the transactional id.",
    )
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout exceeds the broker's maximum."
    CONCURRENT_TRANSACTIONS = 51, True, "The previous transaction is still being completed."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "A newer transaction coordinator has taken over."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Not authorized for the transactional id."
    SECURITY_DISABLED = 54, False, "The broker runs without security features."
    OPERATION_NOT_ATTEMPTED = (
        55,
        False,
        "Not attempted, because another part of the request failed.",
    )
    KAFKA_STORAGE_ERROR = 56, True, "The broker cannot read or write its log directory."
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, False, "The credentials were refused."
    UNKNOWN_PRODUCER_ID = 59, False, "The broker holds no state for the producer id."
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition is being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are switched off."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = (
        63,
        False,
        "The delegation token belongs to another principal.",
    )
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "This connection may not ask for tokens."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Not authorized for the delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "The principal type is not supported."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "The broker has no such fetch session."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The fetch session epoch is not the expected one."
    LISTENER_NOT_FOUND = 72, True, "The leader has no listener of the requested name."
    TOPIC_DELETION_DISABLED = 73, False, "The broker does not delete topics."
    FENCED_LEADER_EPOCH = 74, True, "The leader epoch is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The leader epoch is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The compression codec is not supported here."
    STALE_BROKER_EPOCH = 77, False, "The broker epoch has changed."
    OFFSET_NOT_AVAILABLE = 78, True, "A new leader has not caught up with the high watermark yet."
    MEMBER_ID_REQUIRED = 79, False, "The member must join again with the member id in the response."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred replica cannot become leader."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group has its maximum number of members."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken over the group instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica is eligible to lead."
    ELECTION_NOT_NEEDED = 84, True, "The partition has the right leader already."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "The partition is not being reassigned."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group is subscribed to the topic."
    INVALID_RECORD = 87, False, "A record violates a rule of the topic or of the batch format."
    UNSTABLE_OFFSET_COMMIT = 88, True, "A transaction has offsets pending for the partition."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "A quota is exceeded. Retry after the throttle time."
    PRODUCER_FENCED = 90, False, "A newer producer uses the same transactional id."
    RESOURCE_NOT_FOUND = 91, False, "The named resource does not exist."
    DUPLICATE_RESOURCE = 92, False, "The request names a resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential does not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, False, "The sender is no voter, or the recipient expects others."
    INVALID_UPDATE_VERSION = 95, False, "The version in the update is not valid."
    FEATURE_UPDATE_FAILED = 96, False, "A feature could not be changed."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "A forwarded principal could not be read."
    SNAPSHOT_NOT_FOUND = 98, False, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position lies outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "The broker has no topic with this id."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "The broker id is registered already."
    BROKER_ID_NOT_REGISTERED = 102, False, "The broker id is not registered."
    INCONSISTENT_TOPIC_ID = 103, True, "The topic id differs from the one in the log."
    INCONSISTENT_CLUSTER_ID = 104, False, "The cluster id is a different one."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session mixes topic ids and names."
    INELIGIBLE_REPLICA = 107, False, "The replica may not join the in-sync replicas."
    NEW_LEADER_ELECTED = 108, False, "The partition has a new leader already."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset is in tiered storage."
    FENCED_MEMBER_EPOCH = 110, False, "The member epoch was fenced by the coordinator."
    UNRELEASED_INSTANCE_ID = 111, False, "The group instance id is still in use by a member."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group does not support this assignor."
    STALE_MEMBER_EPOCH = 113, False, "The member epoch is out of date."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request went to the wrong kind of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "The kind of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, False, "The controller id is not known."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The telemetry subscription is not the current one."
    TELEMETRY_TOO_LARGE = 118, False, "The pushed metrics are too large."
    INVALID_REGISTRATION = 119, False, "The controller refused the broker's registration."
    TRANSACTION_ABORTABLE = 120, False, "The transaction failed and must be aborted."
    INVALID_RECORD_STATE = 121, False, "The record's delivery state forbids the operation."
    SHARE_SESSION_NOT_FOUND = 122, True, "The broker has no such share session."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session epoch is not the expected one."
    FENCED_STATE_EPOCH = 124, False, "The share coordinator's state epoch has moved on."
    INVALID_VOTER_KEY = 125, False, "The voter key is not the key of the recipient."
    DUPLICATE_VOTER = 126, False, "The voter is in the set already."
    VOTER_NOT_FOUND = 127, False, "The voter is not in the set."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, False, "The client must start again from its bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, False, "The streams topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The streams topology epoch is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The streams topology epoch is out of date."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "The broker has its maximum number of share sessions."
