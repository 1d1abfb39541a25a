"""The values under the keys of the metadata store: JSON with a format number, which is checked when a value is read.

Entries of earlier formats are carried over by `headrace.broker.metadata.migration`.

meta/cluster_id         the id of the cluster
topics/<name>           topic id, and the replicas of each partition; the topic exists while this key exists
state/<topic id>/<partition>  leader, leader epoch and in-sync replicas of a partition, see `partition_states`
config/topic/<name>     the topic's own settings
config/group/<name>     the settings of a group; the name is percent-encoded
config/broker/<id>      the settings of one broker that were changed while it ran; "default" stands for all brokers
acl/<digest>            an ACL; the digest is SHA-256 of the value
quota/<entity>          the quotas of a user, of a client id, or of both together
scram/<mechanism>/<user>  the stored keys of a user's password; the name is percent-encoded
scram_secret            the secret for made-up credentials of users that do not exist
deleted/<topic id>      a deleted topic whose directories may still exist
brokers/registration/<id>  the broker epoch of a broker, which rises with every start
brokers/live/<id>       the addresses, rack and state of a broker of a cluster; it exists while the broker has a session
brokers/placement/<id>/<topic id>  the log directories of this broker's replicas, except those in the first directory
brokers/process/<id>    the newest process of the broker, see `headrace.broker.metadata.store_client`
brokers/commit/<id>     the last commit of the broker's requests, see `headrace.broker.metadata.commit_lane`
brokers/commit/<id>/<lane>  the last commit of another lane
brokers/directories/<id>  the last known names of this broker's log directories, if it ever had several
controller              the broker that is the controller of a cluster; it exists while that broker has a session
controller_epoch        the last controller; the version of the entry is the controller epoch
partitioner/<topic id>  the state of the topic's partitioner, shared by the clients of an embedded broker
pid_block               see `headrace.broker.coordinators.producer_ids`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, Literal, NamedTuple, TypeVar

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
STATES: Final = "state/"
REGISTRATIONS: Final = "brokers/registration/"
LIVE_BROKERS: Final = "brokers/live/"
CONTROLLER_KEY: Final = "controller"
CONTROLLER_EPOCH_KEY: Final = "controller_epoch"
PLACEMENTS: Final = "brokers/placement/"
LOG_DIRECTORIES: Final = "brokers/directories/"
FORMAT: Final = 1
TOPIC_FORMAT: Final = 3
TOMBSTONE_FORMAT: Final = 2
REGISTRATION_FORMAT: Final = 3
STATE_FORMAT: Final = 3
NO_LEADER: Final = -1
"""The leader in the state of a partition that no broker leads."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of an entry.

    Attributes:
        FORMATS: The formats that the class reads. It writes the newest.
    """

    FORMATS: ClassVar[range] = range(FORMAT, FORMAT + 1)


class ClusterIdRecord(Record, frozen=True):
    """The id of the cluster, 22 characters of base64."""

    cluster_id: str
    format: int = FORMAT


class TopicRecord(Record, frozen=True):
    """A topic: its id in hexadecimal, and the brokers of its partitions.

    Attributes:
        topic_id: The topic's id.
        replicas: The brokers of each partition. The first one is the preferred leader.
        adding: The brokers that a reassignment adds to a partition, by partition.
        removing: The brokers that a reassignment removes from a partition, by partition.
    """

    FORMATS: ClassVar[range] = range(TOPIC_FORMAT, TOPIC_FORMAT + 1)

    topic_id: str
    replicas: list[tuple[int, ...]]
    adding: dict[int, tuple[int, ...]] = {}
    removing: dict[int, tuple[int, ...]] = {}
    format: int = TOPIC_FORMAT


class LastKnown(NamedTuple):
    """The end of the log of a replica that has left ISR and ELR after a power cut.

    Attributes:
        broker: The broker id of the replica.
        leader_epoch: The leader epoch of the newest record; -1 if there is none.
        log_end_offset: The log end offset.
    """

    broker: int
    leader_epoch: int
    log_end_offset: int


class PartitionState(Record, frozen=True):
    """The leader of a partition. `headrace.core.cluster.partition_states` has its rules.

    Attributes:
        leader: The broker that leads the partition; -1 for none.
        leader_epoch: The leader epoch in which the leader began to lead.
        isr: The in-sync replicas.
        elr: The eligible leader replicas (KIP-966).
        registration: The broker epoch of the leader at which `leader_epoch` began.
        unclean_epoch: The leader epoch that the last unclean election began; -1 if there was none. A replica whose
            newest record is older may have records that were committed, and that the present leader does not have.
            Entries of format 1 do not have the field.
        last_known: The replicas that have left ISR and ELR after a power cut since the last election or change of the
            ISR by a leader, each with the end of its log (`election`). Entries of formats 1 and 2 do not have it.
    """

    FORMATS: ClassVar[range] = range(FORMAT, STATE_FORMAT + 1)

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    registration: int = 0
    unclean_epoch: int = -1
    last_known: tuple[LastKnown, ...] = ()
    format: int = STATE_FORMAT


class RegistrationRecord(Record, frozen=True):
    """The registration of a broker.

    Attributes:
        broker_epoch: A number that every registration of the broker increments.
        incarnation: The id of the broker's first log directory. "" if it is not known: in entries of format 1, and for
            a broker without a cluster.
        endpoints: Host and port of each listener, by the name of the listener: where the broker is when it runs. Empty
            in entries of formats 1 and 2, and for a broker without a cluster.
        rack: The rack of the broker; None if it has none, and where there are no endpoints.
    """

    FORMATS: ClassVar[range] = range(FORMAT, REGISTRATION_FORMAT + 1)

    broker_epoch: int
    incarnation: str = ""
    endpoints: dict[str, tuple[str, int]] = {}
    rack: str | None = None
    format: int = REGISTRATION_FORMAT


BrokerState = Literal["running", "draining"]
"""The state of a live broker. A draining broker shuts down: it gives its partitions to other leaders."""


class LiveRecord(Record, frozen=True):
    """A broker of a cluster whose process runs. The entry is ephemeral.

    Attributes:
        broker_epoch: The broker epoch of the process.
        incarnation: The id of the broker's first log directory. Another broker with the same broker id has another.
        endpoints: Host and port of each listener, by the name of the listener.
        rack: The rack of the broker; None if it has none.
        state: The state of the broker.
    """

    broker_epoch: int
    incarnation: str
    endpoints: dict[str, tuple[str, int]] = {}
    rack: str | None = None
    state: BrokerState = "running"
    format: int = FORMAT


class ControllerRecord(Record, frozen=True):
    """The controller of a cluster. The value of both `controller`, which is ephemeral, and `controller_epoch`.

    Attributes:
        broker: The broker that is the controller.
        broker_epoch: The broker epoch of its process.
    """

    broker: int
    broker_epoch: int
    format: int = FORMAT


class PlacementRecord(Record, frozen=True):
    """The partitions of a topic in each log directory of a broker, by directory id.

    A replica of the broker without a directory is in the first log directory.
    """

    directories: dict[str, list[int]]
    format: int = FORMAT

    @classmethod
    def of(cls, directory_ids: Sequence[str]) -> PlacementRecord:
        """Return the record of a topic from the directory id of each partition; "" is the first directory."""
        directories: dict[str, list[int]] = {}
        for partition, directory_id in enumerate(directory_ids):
            if directory_id:
                directories.setdefault(directory_id, []).append(partition)
        return cls(directories)

    def directory_ids(self, count: int) -> list[str]:
        """Return the directory id of each of `count` partitions; "" is the first directory.

        Raises:
            ValueError: A partition does not exist, or has two directories.
        """
        found = [""] * count
        for directory_id, partitions in self.directories.items():
            for partition in partitions:
                if not 0 <= partition < count or found[partition]:
                    raise ValueError(f"the directory of partition {partition}")
                found[partition] = directory_id
        return found


class TopicConfigRecord(Record, frozen=True):
    """A topic's own settings, under Kafka's names."""

    settings: dict[str, str]
    format: int = FORMAT


class BrokerConfigRecord(Record, frozen=True):
    """The settings of a broker, or of all brokers, that were changed while they ran, under Kafka's names."""

    settings: dict[str, str]
    format: int = FORMAT


class GroupConfigRecord(Record, frozen=True):
    """The settings of a group, by name."""

    settings: dict[str, str]
    format: int = FORMAT


class ClientQuotaRecord(Record, frozen=True):
    """The quotas of an entity. For each type of the entity, a null name stands for `<default>`."""

    entity: dict[str, str | None]
    quotas: dict[str, float]
    format: int = FORMAT


class AclRecord(Record, frozen=True):
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


class ScramRecord(Record, frozen=True):
    """The credential of a user for one SCRAM mechanism, with salt and keys in hexadecimal."""

    salt: str
    iterations: int
    stored_key: str
    server_key: str
    format: int = FORMAT

    def __repr__(self) -> str:
        return "ScramRecord(...)"


class ScramSecretRecord(Record, frozen=True):
    """The secret for made-up credentials, in hexadecimal."""

    secret: str
    format: int = FORMAT

    def __repr__(self) -> str:
        return "ScramSecretRecord(...)"


class TombstoneRecord(Record, frozen=True):
    """A deleted topic, with the names of its directories.

    Attributes:
        name: The name of the topic.
        partitions_count: The number of its partitions.
        brokers: The brokers that may have files of the topic. In entries of format 1 it is empty: the only broker may.
    """

    FORMATS: ClassVar[range] = range(FORMAT, TOMBSTONE_FORMAT + 1)

    name: str
    partitions_count: int
    brokers: tuple[int, ...] = ()
    format: int = TOMBSTONE_FORMAT


class LogDirectoriesRecord(Record, frozen=True):
    """The log directories of a broker: the last known name of each directory id."""

    names: dict[str, str]
    format: int = FORMAT


R = TypeVar("R", bound=Record)


class _FormatOnly(msgspec.Struct, frozen=True):
    format: int


def broker_id_of(key: str, prefix: str) -> int:
    """Return the broker id at the end of a key.

    Raises:
        StorageError: The end of the key is not a broker id.
    """
    number = key.removeprefix(prefix)
    if not (number.isascii() and number.isdecimal()):
        raise StorageError(f"{key}: {number!r} is not a broker id")
    return int(number)


def encode(record: Record) -> bytes:
    """Encode a record for the store."""
    return msgspec.json.encode(record)


def format_of(entry: MetadataEntry) -> int:
    """Return the format number of a stored record.

    Raises:
        StorageError: The record is damaged.
    """
    try:
        return msgspec.json.decode(entry.value, type=_FormatOnly).format
    except msgspec.MsgspecError as error:
        raise _unreadable(entry, "", str(error)) from error


def decode(entry: MetadataEntry, record_type: type[R]) -> R:
    """Decode a stored record.

    Raises:
        StorageError: The record is damaged, or of a format that this version does not know.
    """
    found, formats = format_of(entry), record_type.FORMATS
    if found > formats[-1]:
        raise StorageError(
            f"{entry.key}: the entry is written in format {found}, this version reads up to {formats[-1]}; "
            "start the newer version of Headrace that wrote the entry"
        )
    written = f" in format {found}"
    if found not in formats:
        raise _unreadable(entry, written, f"this version reads format {formats[0]} or newer")
    try:
        return msgspec.json.decode(entry.value, type=record_type)
    except msgspec.MsgspecError as error:
        raise _unreadable(entry, written, str(error)) from error


def _unreadable(entry: MetadataEntry, written: str, reason: str) -> StorageError:
    return StorageError(
        f"{entry.key}: the entry{written} cannot be read: {reason}; "
        "start the version of Headrace that wrote the entry, or restore the metadata from a backup"
    )


for _each in (_FormatOnly, *Record.__subclasses__()):
    msgspec.json.Decoder(_each)  # prepared here: the first decoder of a type leaves garbage
