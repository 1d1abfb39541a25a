"""The API versions of releases of Apache Kafka, to test clients with an older broker."""

from __future__ import annotations

from typing import Final

from headrace.broker.apis import Api
from headrace.errors import ConfigError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.versions import VersionRange

RELEASES: Final = ("2.8", "3.3", "3.9")

NEWEST: Final[dict[int, tuple[int | None, ...]]] = {
    ApiKey.PRODUCE: (9, 9, 11),
    ApiKey.FETCH: (12, 13, 17),
    ApiKey.LIST_OFFSETS: (6, 7, 9),
    ApiKey.METADATA: (11, 12, 12),
    ApiKey.OFFSET_COMMIT: (8, 8, 9),
    ApiKey.OFFSET_FETCH: (7, 8, 9),
    ApiKey.FIND_COORDINATOR: (3, 4, 6),
    ApiKey.JOIN_GROUP: (7, 9, 9),
    ApiKey.HEARTBEAT: (4, 4, 4),
    ApiKey.LEAVE_GROUP: (4, 5, 5),
    ApiKey.SYNC_GROUP: (5, 5, 5),
    ApiKey.DESCRIBE_GROUPS: (5, 5, 5),
    ApiKey.LIST_GROUPS: (4, 4, 5),
    ApiKey.SASL_HANDSHAKE: (1, 1, 1),
    ApiKey.API_VERSIONS: (3, 3, 4),
    ApiKey.CREATE_TOPICS: (7, 7, 7),
    ApiKey.DELETE_TOPICS: (6, 6, 6),
    ApiKey.DELETE_RECORDS: (2, 2, 2),
    ApiKey.INIT_PRODUCER_ID: (4, 4, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (4, 4, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (3, 3, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (3, 3, 4),
    ApiKey.END_TXN: (3, 3, 4),
    ApiKey.WRITE_TXN_MARKERS: (1, 1, 1),
    ApiKey.TXN_OFFSET_COMMIT: (3, 3, 4),
    ApiKey.DESCRIBE_ACLS: (2, 3, 3),
    ApiKey.CREATE_ACLS: (2, 3, 3),
    ApiKey.DELETE_ACLS: (2, 3, 3),
    ApiKey.DESCRIBE_CONFIGS: (4, 4, 4),
    ApiKey.ALTER_CONFIGS: (2, 2, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (2, 2, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (2, 4, 4),
    ApiKey.SASL_AUTHENTICATE: (2, 2, 2),
    ApiKey.CREATE_PARTITIONS: (3, 3, 3),
    ApiKey.DELETE_GROUPS: (2, 2, 2),
    ApiKey.ELECT_LEADERS: (2, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (1, 1, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 0, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0, 0),
    ApiKey.OFFSET_DELETE: (0, 0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (1, 1, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (1, 1, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0, 0),
    ApiKey.UPDATE_FEATURES: (0, 1, 1),
    ApiKey.DESCRIBE_CLUSTER: (0, 0, 1),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (None, 0, 0),
    ApiKey.LIST_TRANSACTIONS: (None, 0, 1),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (None, None, 0),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (None, None, 0),
}
"""The newest version of each API in each of `RELEASES`; None if the release lacks the API. None has any other API."""


def apis_of(release: str, apis: tuple[Api, ...]) -> tuple[Api, ...]:
    """Return the APIs and versions of a broker that a release of Kafka has, too.

    Raises:
        ConfigError: The release is not one of `RELEASES`.
    """
    if release not in RELEASES:
        raise ConfigError(
            f"there is no table for Kafka {release}; choose one of {', '.join(RELEASES)}"
        )
    column = RELEASES.index(release)
    kept = []
    for api in apis:
        newest = NEWEST.get(api.key, (None,) * len(RELEASES))[column]
        if newest is not None and newest >= api.served.min:
            kept.append(
                api._replace(
                    advertised=VersionRange(api.advertised.min, min(api.advertised.max, newest)),
                    served=VersionRange(api.served.min, min(api.served.max, newest)),
                )
            )
    return tuple(kept)
