"""The topics as the metadata store has them: the keys of each topic, and the commits that change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partitions.topic import Topic
from headrace.broker.topic_names import check_topic_name
from headrace.config.broker import BrokerConfig
from headrace.config.topic_parsing import parse_topic_config
from headrace.core.cluster.partition_states import PartitionStates
from headrace.core.cluster.records import (
    DELETED,
    PLACEMENTS,
    REGISTRATIONS,
    STATES,
    TOPIC_CONFIGS,
    TOPICS,
    PartitionState,
    PlacementRecord,
    TombstoneRecord,
    TopicConfigRecord,
    TopicRecord,
    decode,
    encode,
)
from headrace.errors import (
    ApiError,
    ConfigError,
    ErrorCode,
    StorageError,
    UnknownTopicOrPartitionError,
)
from headrace.ports import Check, Conflict, Delete, MetadataEntry, Put

Applied = Callable[[], Any]
"""Called when a commit is stored. Its result is the result of the method that commits."""


OPERATIONS_LIMIT: Final = 90
"""The greatest number of operations in a commit of many. The store allows 100, with those of `MetadataWriter`."""


class Tombstone(NamedTuple):
    """A deleted topic of which files may be left."""

    topic_id: bytes
    name: str
    partitions_count: int


class TopicStore:
    """Reads and writes the topics in the metadata store."""

    __slots__ = ("_metadata", "_placements")

    def __init__(self, metadata: MetadataWriter, broker_id: int) -> None:
        self._metadata = metadata
        self._placements = f"{PLACEMENTS}{broker_id}/"

    # Topics

    def load(self, broker_config: BrokerConfig) -> list[Topic]:
        """Read all topics, without partitions.

        Raises:
            StorageError: A stored topic cannot be read, or is not valid.
        """
        settings = {
            entry.key.removeprefix(TOPIC_CONFIGS): decode(entry, TopicConfigRecord).settings
            for entry in self._metadata.list(TOPIC_CONFIGS)
        }
        placements = {
            entry.key.removeprefix(self._placements): decode(entry, PlacementRecord)
            for entry in self._metadata.list(self._placements)
        }
        topics: list[Topic] = []
        for entry in self._metadata.list(TOPICS):
            name = entry.key.removeprefix(TOPICS)
            topics.append(_read(name, entry, settings.get(name, {}), placements, broker_config))
        return topics

    def create(self, topic: Topic, applied: Applied) -> Any:
        """Store a new topic, and return what `applied` returns.

        Raises:
            ApiError: The topic could not be stored.
        """
        record = TopicRecord(topic.topic_id.hex(), topic.replicas)
        operations: list[Put | Delete] = [Put(TOPICS + topic.name, encode(record))]
        operations += self._placement(topic, topic.directory_ids)
        if topic.settings:
            settings = TopicConfigRecord(topic.settings)
            operations.append(Put(TOPIC_CONFIGS + topic.name, encode(settings)))
        return self._commit(Check(TOPICS + topic.name, "absent"), operations, applied)

    def grow(
        self,
        topic: Topic,
        replicas: list[tuple[int, ...]],
        directory_ids: list[str],
        applied: Applied,
    ) -> Any:
        """Store a larger number of partitions, and return what `applied` returns.

        Args:
            topic: The topic.
            replicas: The brokers of each partition, present and new.
            directory_ids: The log directory of each partition, present and new.
            applied: Called when the partitions are stored.

        Raises:
            ApiError: The partitions could not be stored.
        """
        entry = self._metadata.get(TOPICS + topic.name)
        if entry is None:
            raise UnknownTopicOrPartitionError(f"{topic.name} is being deleted")
        record = replace(decode(entry, TopicRecord), replicas=replicas)
        operations: list[Put | Delete] = [Put(entry.key, encode(record))]
        operations += self._placement(topic, directory_ids)
        return self._commit(Check(entry.key, entry.version), operations, applied)

    def _placement(self, topic: Topic, directory_ids: Sequence[str]) -> list[Put]:
        """Return the operation that stores log directories; none if all partitions are in the first directory."""
        if not any(directory_ids):
            return []
        record = PlacementRecord.of(directory_ids)
        return [Put(self._placements + topic.topic_id.hex(), encode(record))]

    def configure(self, topic: Topic, settings: Mapping[str, str], applied: Applied) -> None:
        """Replace the settings of a topic.

        Raises:
            ApiError: The settings could not be stored.
        """
        key = TOPIC_CONFIGS + topic.name
        operation: Put | Delete = (
            Put(key, encode(TopicConfigRecord(dict(settings)))) if settings else Delete(key)
        )
        self._commit(Check(TOPICS + topic.name, "exists"), [operation], applied)

    # Deletion

    def delete(self, topic: Topic, applied: Applied) -> Any:
        """Replace the keys of a topic by a tombstone, and return what `applied` returns.

        Raises:
            ApiError: The deletion could not be stored.
        """
        tombstone = TombstoneRecord(topic.name, len(topic.directory_ids))
        return self._commit(
            Check(TOPICS + topic.name, "exists"),
            [
                Delete(TOPICS + topic.name),
                Delete(TOPIC_CONFIGS + topic.name),
                Delete(self._placements + topic.topic_id.hex()),
                Put(DELETED + topic.topic_id.hex(), encode(tombstone)),
            ],
            applied,
        )

    def tombstones(self) -> Iterator[Tombstone]:
        """Yield the deleted topics of which files may be left."""
        for entry in self._metadata.list(DELETED):
            record = decode(entry, TombstoneRecord)
            topic_id = bytes.fromhex(entry.key.removeprefix(DELETED))
            yield Tombstone(topic_id, record.name, record.partitions_count)

    def remove_tombstone(self, topic_id: bytes) -> None:
        """Forget a deleted topic: all its files are removed."""
        states = self._metadata.list(f"{STATES}{topic_id.hex()}/")
        keys = [*(entry.key for entry in states), DELETED + topic_id.hex()]
        self._commit_many([Delete(key) for key in keys])

    # States

    def load_states(self, states: PartitionStates) -> None:
        """Read the leaders of all partitions.

        Raises:
            StorageError: A stored state or registration cannot be read.
        """
        states.put_registrations(self._metadata.list(REGISTRATIONS))
        states.put_states(self._metadata.list(STATES))

    def put_states(self, states: Mapping[str, PartitionState]) -> None:
        """Store states of partitions, by key.

        Raises:
            ApiError: The states could not be stored.
        """
        self._commit_many([Put(key, encode(state)) for key, state in states.items()])

    def _commit_many(self, operations: Sequence[Put | Delete]) -> None:
        for first in range(0, len(operations), OPERATIONS_LIMIT):
            self._metadata.commit([], operations[first : first + OPERATIONS_LIMIT])

    def _commit(self, check: Check, operations: list[Put | Delete], applied: Applied) -> Any:
        outcome: list[Any] = []
        try:
            self._metadata.commit([check], operations, lambda: outcome.append(applied()))
        except Conflict as conflict:
            raise ApiError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "the metadata changed meanwhile"
            ) from conflict
        return outcome[0]


def _read(
    name: str,
    entry: MetadataEntry,
    settings: Mapping[str, str],
    placements: Mapping[str, PlacementRecord],
    broker_config: BrokerConfig,
) -> Topic:
    record = decode(entry, TopicRecord)
    try:
        check_topic_name(name)
        topic_id = bytes.fromhex(record.topic_id)
        config = parse_topic_config(settings, broker_config)
        placement = placements.get(record.topic_id)
        count = len(record.replicas)
        directory_ids = [""] * count if placement is None else placement.directory_ids(count)
    except (ApiError, ConfigError, ValueError) as error:
        raise StorageError(f"{entry.key}: {error}") from error
    if len(topic_id) != 16 or not all(record.replicas) or not record.replicas:
        raise StorageError(f"{entry.key}: topic id {record.topic_id!r} or its partitions")
    return Topic(name, topic_id, settings, config, record.replicas, directory_ids=directory_ids)
