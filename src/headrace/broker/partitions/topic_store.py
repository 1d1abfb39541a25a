"""The topics as the metadata store has them: the keys of each topic, and the commits that change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partitions.topic import Topic
from headrace.broker.topic_names import check_topic_name
from headrace.config.broker import BrokerConfig
from headrace.config.topic_parsing import parse_topic_config
from headrace.core.cluster.image import Changes
from headrace.core.cluster.partition_states import PartitionStates
from headrace.core.cluster.records import (
    DELETED,
    PLACEMENTS,
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
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from headrace.ports import Check, Conflict, Delete, MetadataEntry, Put

OPERATIONS_LIMIT: Final = 90
"""The greatest number of operations in a commit of many. The store allows 100, with those of `MetadataWriter`."""


class Tombstone(NamedTuple):
    """A deleted topic of which files may be left."""

    topic_id: bytes
    name: str
    partitions_count: int


class StoredTopic(NamedTuple):
    """A topic as it is stored."""

    name: str
    topic_id: bytes
    replicas: list[tuple[int, ...]]


T = TypeVar("T")


class TopicStore:
    """Reads and writes the topics in the metadata store."""

    __slots__ = ("_metadata", "_placements", "_placements_prefix", "_settings")

    def __init__(self, metadata: MetadataWriter, broker_id: int) -> None:
        self._metadata = metadata
        self._placements_prefix = f"{PLACEMENTS}{broker_id}/"
        self._placements: dict[str, PlacementRecord] = {}
        """The log directories of the broker's replicas, by key."""
        self._settings: dict[str, Mapping[str, str]] = {}
        """The settings of topics, by key."""

    # Topics

    def consume(
        self,
        topics: Callable[[Changes[StoredTopic]], object],
        settings: Callable[[Changes[Mapping[str, str]]], object],
    ) -> Mapping[str, StoredTopic]:
        """Follow the topics, their settings and their log directories. Return the present topics by key.

        Args:
            topics: Applies changes of topics.
            settings: Applies changes of the settings of topics, after `topics`.

        Raises:
            StorageError: An entry cannot be read.
        """
        image = self._metadata.image
        placements = image.consume(self._placements_prefix, _placement, self._placed)
        self._placements.update(placements)
        self._settings.update(image.consume(TOPIC_CONFIGS, _settings, self._configured))
        present = image.consume(TOPICS, _stored_topic, topics)
        image.consume(TOPIC_CONFIGS, _settings, settings)
        return present

    def _placed(self, changes: Changes[PlacementRecord]) -> None:
        _update(self._placements, changes)

    def _configured(self, changes: Changes[Mapping[str, str]]) -> None:
        _update(self._settings, changes)

    def topic(self, stored: StoredTopic, broker_config: BrokerConfig) -> Topic:
        """Return a topic with its present settings and log directories.

        Raises:
            StorageError: The settings or the directories are not valid.
        """
        key = TOPIC_CONFIGS + stored.name
        settings = self._settings.get(key, {})
        try:
            config = parse_topic_config(settings, broker_config)
        except (ApiError, ConfigError, ValueError) as error:
            raise StorageError(f"{key}: {error}") from error
        directory_ids = self.directory_ids(stored)
        return Topic(
            stored.name,
            stored.topic_id,
            settings,
            config,
            stored.replicas,
            directory_ids=directory_ids,
        )

    def directory_ids(self, stored: StoredTopic) -> list[str]:
        """Return the log directory of each partition; "" is the first directory.

        Raises:
            StorageError: The stored directories are not valid.
        """
        key = self._placements_prefix + stored.topic_id.hex()
        placement, count = self._placements.get(key), len(stored.replicas)
        try:
            return [""] * count if placement is None else placement.directory_ids(count)
        except ValueError as error:
            raise StorageError(f"{key}: {error}") from error

    def create(self, topic: Topic) -> None:
        """Store a new topic.

        Raises:
            ApiError: The topic could not be stored, or another broker has created it.
        """
        record = TopicRecord(topic.topic_id.hex(), topic.replicas)
        operations: list[Put | Delete] = [Put(TOPICS + topic.name, encode(record))]
        operations += self._placement(topic, topic.directory_ids)
        if topic.settings:
            settings = TopicConfigRecord(topic.settings)
            operations.append(Put(TOPIC_CONFIGS + topic.name, encode(settings)))
        taken = TopicAlreadyExistsError(f"Topic '{topic.name}' already exists.")
        self._commit(Check(TOPICS + topic.name, "absent"), operations, taken)

    def grow(
        self,
        topic: Topic,
        replicas: list[tuple[int, ...]],
        directory_ids: list[str],
    ) -> None:
        """Store a larger number of partitions.

        Args:
            topic: The topic.
            replicas: The brokers of each partition, present and new.
            directory_ids: The log directory of each partition, present and new.

        Raises:
            ApiError: The partitions could not be stored.
        """
        entry = self._metadata.image.get(TOPICS + topic.name)
        if entry is None:
            raise UnknownTopicOrPartitionError(f"{topic.name} is being deleted")
        record = replace(decode(entry, TopicRecord), replicas=replicas)
        operations: list[Put | Delete] = [Put(entry.key, encode(record))]
        operations += self._placement(topic, directory_ids)
        self._commit(Check(entry.key, entry.version), operations)

    def _placement(self, topic: Topic, directory_ids: Sequence[str]) -> list[Put]:
        """Return the operation that stores log directories; none if all partitions are in the first directory."""
        if not any(directory_ids):
            return []
        record = PlacementRecord.of(directory_ids)
        return [Put(self._placements_prefix + topic.topic_id.hex(), encode(record))]

    def configure(self, topic: Topic, settings: Mapping[str, str]) -> None:
        """Replace the settings of a topic.

        Raises:
            ApiError: The settings could not be stored.
        """
        key = TOPIC_CONFIGS + topic.name
        operation: Put | Delete = (
            Put(key, encode(TopicConfigRecord(dict(settings)))) if settings else Delete(key)
        )
        self._commit(Check(TOPICS + topic.name, "exists"), [operation])

    # Deletion

    def delete(self, topic: Topic) -> None:
        """Replace the keys of a topic by a tombstone.

        Raises:
            ApiError: The deletion could not be stored.
        """
        tombstone = TombstoneRecord(topic.name, len(topic.directory_ids))
        self._commit(
            Check(TOPICS + topic.name, "exists"),
            [
                Delete(TOPICS + topic.name),
                Delete(TOPIC_CONFIGS + topic.name),
                Delete(self._placements_prefix + topic.topic_id.hex()),
                Put(DELETED + topic.topic_id.hex(), encode(tombstone)),
            ],
        )

    def tombstones(self) -> Iterator[Tombstone]:
        """Yield the deleted topics of which files may be left."""
        for entry in self._metadata.image.list(DELETED):
            record = decode(entry, TombstoneRecord)
            topic_id = bytes.fromhex(entry.key.removeprefix(DELETED))
            yield Tombstone(topic_id, record.name, record.partitions_count)

    def remove_tombstone(self, topic_id: bytes) -> None:
        """Forget a deleted topic: all its files are removed."""
        states = self._metadata.image.list(f"{STATES}{topic_id.hex()}/")
        keys = [*(entry.key for entry in states), DELETED + topic_id.hex()]
        self._commit_many([Delete(key) for key in keys])

    # States

    def load_states(self, states: PartitionStates) -> None:
        """Read the leaders of all partitions, and follow their changes.

        Raises:
            StorageError: A stored state or registration cannot be read.
        """
        states.consume(self._metadata.image)

    def put_states(self, states: Mapping[str, PartitionState]) -> None:
        """Store states of partitions, by key.

        Raises:
            ApiError: The states could not be stored.
        """
        self._commit_many([Put(key, encode(state)) for key, state in states.items()])

    def _commit_many(self, operations: Sequence[Put | Delete]) -> None:
        for first in range(0, len(operations), OPERATIONS_LIMIT):
            self._metadata.commit_and_wait([], operations[first : first + OPERATIONS_LIMIT])

    def _commit(
        self, check: Check, operations: list[Put | Delete], conflict: ApiError | None = None
    ) -> None:
        try:
            self._metadata.commit_and_wait([check], operations)
        except Conflict as error:
            if conflict is None:
                conflict = ApiError(
                    ErrorCode.UNKNOWN_SERVER_ERROR, "the metadata changed meanwhile"
                )
            raise conflict from error


def _update(known: dict[str, T], changes: Changes[T]) -> None:
    for key in changes.deletes:
        known.pop(key, None)
    known.update(changes.puts)


def _placement(entry: MetadataEntry) -> PlacementRecord:
    return decode(entry, PlacementRecord)


def _settings(entry: MetadataEntry) -> Mapping[str, str]:
    return decode(entry, TopicConfigRecord).settings


def _stored_topic(entry: MetadataEntry) -> StoredTopic:
    name, record = entry.key.removeprefix(TOPICS), decode(entry, TopicRecord)
    try:
        check_topic_name(name)
        topic_id = bytes.fromhex(record.topic_id)
    except (ApiError, ValueError) as error:
        raise StorageError(f"{entry.key}: {error}") from error
    if len(topic_id) != 16 or not all(record.replicas) or not record.replicas:
        raise StorageError(f"{entry.key}: topic id {record.topic_id!r} or its partitions")
    return StoredTopic(name, topic_id, record.replicas)
