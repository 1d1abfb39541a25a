"""Bounds on the cost of requests: a row for each API that the broker answers, and for each way to make a field large.

`docs/reference/limits.md` lists the bounds for users. An API without a row, and a field without one in `fields.py`,
fail `test_bounds.py`: a new API or field needs its bound here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.protocol.api_keys import ApiKey
from tests.cost.fields import Kind

LOOP_MS: Final = 50.0
"""The longest step of the event loop, in CPU time."""
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Bound:
    """The greatest cost that one request of an API may have.

    Attributes:
        loop_ms: The longest step of the event loop, in milliseconds of CPU time.
        memory_mb: The greatest rise of the process's memory, in MiB.
        answer_bytes: The size of the response: 16 MiB, and one group.
    """

    loop_ms: float = LOOP_MS
    memory_mb: float = 64.0
    answer_bytes: int = 18 * MIB


SCENARIO: Final = Bound(answer_bytes=64 * MIB)
"""The bound for a scenario, which may contain a fetch, or many requests that are handled in turn."""
_SMALL: Final = Bound(memory_mb=16.0, answer_bytes=64 << 10)
"""The bound of a request that names one thing: its response has no lists whose length the client chooses."""
_LISTS: Final = Bound()

BOUNDS: Final[dict[ApiKey, Bound]] = {
    ApiKey.PRODUCE: Bound(memory_mb=256.0),  # a request of 100 MiB is in memory while it arrives
    ApiKey.FETCH: Bound(answer_bytes=57 * MIB),  # from files: 55 MiB, and one batch
    ApiKey.LIST_OFFSETS: _LISTS,
    ApiKey.METADATA: _LISTS,
    ApiKey.OFFSET_COMMIT: _LISTS,
    ApiKey.OFFSET_FETCH: _LISTS,
    ApiKey.FIND_COORDINATOR: _LISTS,
    ApiKey.JOIN_GROUP: _LISTS,
    ApiKey.HEARTBEAT: _SMALL,
    ApiKey.LEAVE_GROUP: _LISTS,
    ApiKey.SYNC_GROUP: _LISTS,
    ApiKey.DESCRIBE_GROUPS: _LISTS,
    ApiKey.LIST_GROUPS: _LISTS,
    ApiKey.SASL_HANDSHAKE: _SMALL,
    ApiKey.API_VERSIONS: _SMALL,
    ApiKey.CREATE_TOPICS: _LISTS,
    ApiKey.DELETE_TOPICS: _LISTS,
    ApiKey.DELETE_RECORDS: _LISTS,
    ApiKey.INIT_PRODUCER_ID: _SMALL,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _LISTS,
    ApiKey.ADD_PARTITIONS_TO_TXN: _LISTS,
    ApiKey.ADD_OFFSETS_TO_TXN: _SMALL,
    ApiKey.END_TXN: _SMALL,
    ApiKey.WRITE_TXN_MARKERS: _LISTS,
    ApiKey.TXN_OFFSET_COMMIT: _LISTS,
    ApiKey.DESCRIBE_ACLS: _LISTS,
    ApiKey.CREATE_ACLS: _LISTS,
    ApiKey.DELETE_ACLS: _LISTS,
    ApiKey.DESCRIBE_CONFIGS: _LISTS,
    ApiKey.ALTER_CONFIGS: _LISTS,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _LISTS,
    ApiKey.DESCRIBE_LOG_DIRS: _LISTS,
    ApiKey.SASL_AUTHENTICATE: _SMALL,
    ApiKey.CREATE_PARTITIONS: _LISTS,
    ApiKey.DELETE_GROUPS: _LISTS,
    ApiKey.ELECT_LEADERS: _LISTS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _LISTS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _LISTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _SMALL,
    ApiKey.OFFSET_DELETE: _LISTS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _LISTS,
    ApiKey.ALTER_CLIENT_QUOTAS: _LISTS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _LISTS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _LISTS,
    ApiKey.DESCRIBE_QUORUM: _LISTS,
    ApiKey.UPDATE_FEATURES: _LISTS,
    ApiKey.DESCRIBE_CLUSTER: _SMALL,
    ApiKey.DESCRIBE_PRODUCERS: _LISTS,
    ApiKey.UNREGISTER_BROKER: _SMALL,
    ApiKey.DESCRIBE_TRANSACTIONS: _LISTS,
    ApiKey.LIST_TRANSACTIONS: _LISTS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _LISTS,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _LISTS,
    ApiKey.LIST_CONFIG_RESOURCES: _LISTS,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _LISTS,
    ApiKey.SHARE_GROUP_HEARTBEAT: _SMALL,
}

WHAT_BOUNDS: Final[dict[Kind, str]] = {
    Kind.LIST: "repeat, nest and empty: the elements of all lists of a request",
    Kind.STRUCT: "it is there once",
    Kind.TOPIC: "repeat and existing: an answer's size; fill: 249 characters exist",
    Kind.TOPIC_ID: "repeat and existing: an answer's size",
    Kind.DIRECTORY_ID: "repeat: the elements of a request",
    Kind.PARTITION: "repeat and existing: the elements of a request, an answer's size",
    Kind.GROUP: "repeat and existing: an answer's size; fill: what the store's key can hold",
    Kind.MEMBER: "fill: the size of a request",
    Kind.TRANSACTIONAL_ID: "repeat and existing: an answer's size",
    Kind.PRODUCER_ID: "invented_producers: the producers that are remembered",
    Kind.USER: "fill: the size of a request",
    Kind.RESOURCE: "fill: the size of an entry",
    Kind.SETTING: "repeat and unknown: the elements of a request",
    Kind.TEXT: "fill: the size of a request, and what is kept of it",
    Kind.BYTES: "fill: the size of a request, and what is kept of it",
    Kind.RECORDS: "bombs: the records of a batch, and what it inflates to",
    Kind.NUMBER: "repeat: the elements of a request",
}
"""The ways in which a value can be expensive (of `requests.py` and the scenarios), and the bound of each."""
