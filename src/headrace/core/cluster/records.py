"""The values under the keys of the metadata store: JSON with a format number, which is checked when a value is read.

meta/cluster_id         the id of the cluster
topics/<name>           topic id, replicas and log directory of each partition; the topic exists while this key exists
config/topic/<name>     the topic's own settings
config/group/<name>     the settings of a group; the name is percent-encoded
config/broker/<id>      the settings of one broker that were changed while it ran; "default" stands for all brokers
acl/<digest>            an ACL; the digest is SHA-256 of the value
quota/<entity>          the quotas of a user, of a client id, or of both together
scram/<mechanism>/<user>  the stored keys of a user's password; the name is percent-encoded
scram_secret            the secret for made-up credentials of users that do not exist
deleted/<topic id>      a deleted topic whose directories may still exist
brokers/epoch/<id>      the leader epoch of this broker's partitions
brokers/commit/<id>     the broker's last commit, see `headrace.broker.metadata.metadata_writer`
brokers/directories/<id>  the last known names of this broker's log directories, if it ever had several
partitioner/<topic id>  the state of the topic's partitioner, shared by the clients of an embedded broker
pid_block               see `headrace.broker.coordinators.producer_ids`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from headrace.errors import StorageError
from headrace.ports import MetadataEntry
from headrace.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType

CLUSTER_ID_KEY: Final = "meta/cluster_id"
TOPICS: Final = "topics/"
TOPIC_CONFIGS: Final = "config/topic/"
BROKER_CONFIGS: Final = "config/broker/"
GROUP_CONFIGS: Final = "config/group/"
CLIENT_QUOTAS: Final = "quota/"
ACLS: Final = "acl/"
SCRAM: Final = "scram/"
UNKNOWN_USERS_KEY: Final = "scram_secret"
DELETED: Final = "deleted/"
BROKER_EPOCHS: Final = "brokers/epoch/"
LOG_DIRECTORIES: Final = "brokers/directories/"
FORMAT: Final = 1
FORMAT_WITH_DIRECTORIES: Final = 2


class ClusterIdRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The id of the cluster, 22 characters of base64."""

    cluster_id: str
    format: int = FORMAT


class TopicRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic: its id in hexadecimal, and the brokers and the log directory of each partition.

    Format 1 has no directories: all partitions are in the first directory, which has the metadata. A broker with one
    directory still writes format 1.
    """

    topic_id: str
    partitions: list[list[int]]
    format: int = FORMAT
    directories: list[str] | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(
        cls, topic_id: bytes, replicas: list[list[int]], directory_ids: Sequence[str]
    ) -> TopicRecord:
        """Return a record in the oldest format that can express it. "" as a directory is the first one."""
        if not any(directory_ids):
            return cls(topic_id.hex(), replicas)
        return cls(topic_id.hex(), replicas, FORMAT_WITH_DIRECTORIES, list(directory_ids))

    @property
    def directory_ids(self) -> list[str]:
        """The directory of each partition; "" is the first one."""
        return (
            [""] * len(self.partitions) if self.directories is msgspec.UNSET else self.directories
        )


class TopicConfigRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic's own settings, under Kafka's names."""

    settings: dict[str, str]
    format: int = FORMAT


class BrokerConfigRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a broker, or of all brokers, that were changed while they ran, under Kafka's names."""

    settings: dict[str, str]
    format: int = FORMAT


class GroupConfigRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a group, by name."""

    settings: dict[str, str]
    format: int = FORMAT


class ClientQuotaRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The quotas of an entity. For each type of the entity, a null name stands for `<default>`."""

    entity: dict[str, str | None]
    quotas: dict[str, float]
    format: int = FORMAT


class AclRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ACL. Type, pattern, operation and permission have Kafka's names."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str
    format: int = FORMAT

    @classmethod
    def of(cls, acl: AclBinding) -> AclRecord:
        """Return the record of an ACL."""
        return cls(
            acl.resource_type.name,
            acl.resource_name,
            acl.pattern_type.name,
            acl.principal,
            acl.host,
            acl.operation.name,
            acl.permission.name,
        )

    def binding(self) -> AclBinding:
        """Return the ACL.

        Raises:
            StorageError: This version does not know a name. An ACL that was left out could be a denial.
        """
        try:
            return AclBinding(
                ResourceType[self.resource_type],
                self.resource_name,
                PatternType[self.pattern_type],
                self.principal,
                self.host,
                Operation[self.operation],
                Permission[self.permission],
            )
        except KeyError as error:
            raise StorageError(f"an ACL with {error}, which this version does not know") from error


class ScramRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The credential of a user for one SCRAM mechanism, with salt and keys in hexadecimal."""

    salt: str
    iterations: int
    stored_key: str
    server_key: str
    format: int = FORMAT

    def __repr__(self) -> str:
        return "ScramRecord(...)"


class ScramSecretRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The secret for made-up credentials, in hexadecimal."""

    secret: str
    format: int = FORMAT

    def __repr__(self) -> str:
        return "ScramSecretRecord(...)"


class TombstoneRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A deleted topic, with the names of its directories."""

    name: str
    partitions_count: int
    format: int = FORMAT


class LogDirectoriesRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The log directories of a broker: the last known name of each directory id."""

    names: dict[str, str]
    format: int = FORMAT


class LeaderEpochRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The leader epoch of a broker's partitions."""

    leader_epoch: int
    format: int = FORMAT


R = TypeVar(
    "R",
    ClusterIdRecord,
    TopicRecord,
    TopicConfigRecord,
    BrokerConfigRecord,
    GroupConfigRecord,
    ClientQuotaRecord,
    ScramRecord,
    ScramSecretRecord,
    AclRecord,
    TombstoneRecord,
    LogDirectoriesRecord,
    LeaderEpochRecord,
)
_NEWEST: Final[dict[type[msgspec.Struct], int]] = {TopicRecord: FORMAT_WITH_DIRECTORIES}


class _FormatOnly(msgspec.Struct, frozen=True):
    format: int


def encode(record: msgspec.Struct) -> bytes:
    """Encode a record for the store."""
    return msgspec.json.encode(record)


def decode(entry: MetadataEntry, record_type: type[R]) -> R:
    """Decode a stored record.

    Raises:
        StorageError: The record is damaged, or of a format that this version does not know.
    """
    found: int | None = None
    try:
        found = msgspec.json.decode(entry.value, type=_FormatOnly).format
        newest = _NEWEST.get(record_type, FORMAT)
        if found > newest:
            raise StorageError(
                f"{entry.key}: the entry is written in format {found}, this version reads up to {newest}; "
                "start the newer version of Headrace that wrote the entry"
            )
        if found < FORMAT:
            raise msgspec.ValidationError(f"there is no format {found}")
        return msgspec.json.decode(entry.value, type=record_type)
    except msgspec.MsgspecError as error:
        written = "" if found is None else f" in format {found}"
        raise StorageError(
            f"{entry.key}: the entry{written} cannot be read: {error}; "
            "start the version of Headrace that wrote the entry, or restore the metadata from a backup"
        ) from error
