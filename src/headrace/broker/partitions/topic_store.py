"""The topics as the metadata store has them: the keys of each topic, and the commits that change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partitions.topic import Topic
from headrace.broker.topic_names import check_topic_name
from headrace.broker.waiting.steps import Work
from headrace.config.broker import BrokerConfig
from headrace.config.topic_parsing import parse_topic_config
from headrace.core.cluster.image import Changes
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
Changed = Callable[[Changes[Any]], object]
"""Receives the changes of keys. `Changes` have the keys with their prefix."""


class TopicCommit(NamedTuple):
    """A change of topics in the metadata store."""

    checks: Sequence[Check]
    operations: Sequence[Put | Delete]
    taken: ApiError | None = None
    """The error if a check does not hold; None for UNKNOWN_SERVER_ERROR."""

    @property
    def refusal(self) -> ApiError:
        """The error of the request if a check does not hold."""
        return self.taken or ApiError(
            ErrorCode.UNKNOWN_SERVER_ERROR, "the metadata changed meanwhile"
        )


class TopicStore:
    """Reads the topics in the image of the metadata store, and commits changes of topics."""

    __slots__ = ("_broker_id", "_image", "_metadata", "_placements")

    def __init__(self, metadata: MetadataWriter, broker_id: int) -> None:
        self._metadata = metadata
        self._image = metadata.image
        self._broker_id = broker_id
        self._placements = f"{PLACEMENTS}{broker_id}/"

    # Topics

    def load(
        self, broker_config: BrokerConfig, topics_changed: Changed, settings_changed: Changed
    ) -> list[Topic]:
        """Read all topics, and follow their changes from now on.

        Args:
            broker_config: The configuration of the broker.
            topics_changed: Receives the changes of topics.
            settings_changed: Receives the changes of the settings of topics.

        Raises:
            StorageError: A stored topic cannot be read, or is not valid.
        """
        consume = self._image.consume
        settings = consume(
            TOPIC_CONFIGS, partial(decode, record_type=TopicConfigRecord), settings_changed
        )
        records = consume(TOPICS, partial(decode, record_type=TopicRecord), topics_changed)
        placements = {
            entry.key.removeprefix(self._placements): decode(entry, PlacementRecord)
            for entry in self._image.list(self._placements)
        }
        topics: list[Topic] = []
        for key, record in records.items():
            name = key.removeprefix(TOPICS)
            own = settings.get(TOPIC_CONFIGS + name)
            placement = placements.get(record.topic_id)
            topics.append(_topic(name, record, own, placement, broker_config))
        return topics

    def read(self, name: str, broker_config: BrokerConfig) -> Topic | None:
        """Return the topic of a name as the image has it now; None if there is none.

        Raises:
            StorageError: The stored topic cannot be read, or is not valid.
        """
        entry = self._image.get(TOPICS + name)
        if entry is None:
            return None
        record = decode(entry, TopicRecord)
        settings = self._image.get(TOPIC_CONFIGS + name)
        placement = self._image.get(self._placements + record.topic_id)
        return _topic(
            name,
            record,
            None if settings is None else decode(settings, TopicConfigRecord),
            None if placement is None else decode(placement, PlacementRecord),
            broker_config,
        )

    def exists(self, topic: Topic) -> bool:
        """Return whether the image has a topic, and not another one of its name."""
        entry = self._image.get(TOPICS + topic.name)
        try:
            return entry is not None and _is_of(topic, entry)
        except StorageError:
            return True  # a newer broker has written the entry: nothing is deleted for that reason

    def creation(self, topic: Topic) -> TopicCommit:
        """Return the commit that stores a new topic."""
        record = TopicRecord(topic.topic_id.hex(), topic.replicas)
        operations: list[Put | Delete] = [Put(TOPICS + topic.name, encode(record))]
        operations += self._placement(topic, topic.directory_ids)
        if topic.settings:
            settings = TopicConfigRecord(topic.settings)
            operations.append(Put(TOPIC_CONFIGS + topic.name, encode(settings)))
        exists = TopicAlreadyExistsError(f"Topic '{topic.name}' already exists.")
        return TopicCommit([Check(TOPICS + topic.name, "absent")], operations, exists)

    def growth(
        self, topic: Topic, replicas: list[tuple[int, ...]], directory_ids: list[str]
    ) -> TopicCommit:
        """Return the commit that stores a larger number of partitions.

        Args:
            topic: The topic.
            replicas: The brokers of each partition, present and new.
            directory_ids: The log directory of each partition, present and new.

        Raises:
            UnknownTopicOrPartitionError: The topic is deleted.
        """
        entry = self._entry(topic)
        record = replace(decode(entry, TopicRecord), replicas=replicas)
        operations = [Put(entry.key, encode(record)), *self._placement(topic, directory_ids)]
        return TopicCommit([Check(entry.key, entry.version)], operations)

    def _placement(self, topic: Topic, directory_ids: Sequence[str]) -> list[Put]:
        """Return the operation that stores log directories; none if all partitions are in the first directory."""
        if not any(directory_ids):
            return []
        record = PlacementRecord.of(directory_ids)
        return [Put(self._placements + topic.topic_id.hex(), encode(record))]

    def configuration(self, topic: Topic, settings: Mapping[str, str]) -> TopicCommit:
        """Return the commit that replaces the settings of a topic.

        Raises:
            UnknownTopicOrPartitionError: The topic is deleted.
        """
        key = TOPIC_CONFIGS + topic.name
        operation: Put | Delete = (
            Put(key, encode(TopicConfigRecord(dict(settings)))) if settings else Delete(key)
        )
        entry, present = self._entry(topic), self._image.get(key)
        checks = [
            Check(entry.key, entry.version),
            Check(key, "absent" if present is None else present.version),
        ]
        return TopicCommit(checks, [operation])

    # Deletion

    def deletion(self, topic: Topic) -> TopicCommit:
        """Return the commit that replaces the keys of a topic by a tombstone.

        Raises:
            UnknownTopicOrPartitionError: The topic is deleted already.
        """
        entry = self._entry(topic)
        replicas = decode(entry, TopicRecord).replicas
        brokers = tuple(sorted({broker for each in replicas for broker in each}))
        tombstone = TombstoneRecord(topic.name, len(replicas), brokers)
        operations: list[Put | Delete] = [
            Delete(TOPICS + topic.name),
            Delete(TOPIC_CONFIGS + topic.name),
            Delete(self._placements + topic.topic_id.hex()),
            Put(DELETED + topic.topic_id.hex(), encode(tombstone)),
        ]
        return TopicCommit([Check(entry.key, entry.version)], operations)

    def tombstones(self) -> Iterator[tuple[bytes, TombstoneRecord]]:
        """Yield the ids and tombstones of deleted topics of which this broker may have files."""
        for entry in self._image.list(DELETED):
            tombstone = decode(entry, TombstoneRecord)
            if self._broker_id in tombstone.brokers or not tombstone.brokers:
                yield bytes.fromhex(entry.key.removeprefix(DELETED)), tombstone

    def has_tombstone(self, topic_id: bytes) -> bool:
        """Return whether a topic was deleted, and its files may not all be removed."""
        return self._image.get(DELETED + topic_id.hex()) is not None

    def end_of_deletion(self, topic_id: bytes) -> Iterator[TopicCommit]:
        """Yield the commits which store that this broker has removed all files of a deleted topic.

        The last broker removes the tombstone.
        """
        entry = self._image.get(DELETED + topic_id.hex())
        if entry is None:
            return
        tombstone = decode(entry, TombstoneRecord)
        operations: list[Put | Delete] = []
        if self._image.get(self._placements + topic_id.hex()) is not None:
            operations.append(Delete(self._placements + topic_id.hex()))
        left = tuple(broker for broker in tombstone.brokers if broker != self._broker_id)
        if left == tombstone.brokers != ():
            return  # no replica was on this broker
        if left:
            operations.append(Put(entry.key, encode(replace(tombstone, brokers=left))))
            yield TopicCommit([Check(entry.key, entry.version)], operations)
            return
        states = self._image.list(f"{STATES}{topic_id.hex()}/")
        keys = [*(state.key for state in states), entry.key]
        yield from _in_commits([*operations, *(Delete(key) for key in keys)])

    # States

    def put_states(self, states: Mapping[str, PartitionState]) -> None:
        """Store states of partitions, by key.

        Raises:
            ApiError: The states could not be stored.
        """
        for commit in _in_commits([Put(key, encode(state)) for key, state in states.items()]):
            self.commit_and_wait(commit)

    # Commits

    def _entry(self, topic: Topic) -> MetadataEntry:
        """Return the entry of a topic in the image.

        Raises:
            UnknownTopicOrPartitionError: The topic is deleted.
        """
        entry = self._image.get(TOPICS + topic.name)
        if entry is None or not _is_of(topic, entry):
            raise UnknownTopicOrPartitionError(f"{topic.name} is deleted")
        return entry

    def commit(self, commit: TopicCommit) -> Work[None]:
        """Commit a change, and wait until the image has it.

        Raises:
            ApiError: The change could not be stored.
        """
        try:
            yield from self._metadata.committing(commit.checks, commit.operations)
        except Conflict as conflict:
            raise commit.refusal from conflict

    def commit_and_wait(self, commit: TopicCommit) -> None:
        """Commit a change, and block until the image has it.

        Raises:
            ApiError: The change could not be stored.
        """
        try:
            self._metadata.commit_and_wait(commit.checks, commit.operations)
        except Conflict as conflict:
            raise commit.refusal from conflict


def _in_commits(operations: Sequence[Put | Delete]) -> Iterator[TopicCommit]:
    """Yield as few commits as possible."""
    for first in range(0, len(operations), OPERATIONS_LIMIT):
        yield TopicCommit([], operations[first : first + OPERATIONS_LIMIT])


def _is_of(topic: Topic, entry: MetadataEntry) -> bool:
    return decode(entry, TopicRecord).topic_id == topic.topic_id.hex()


def _topic(
    name: str,
    record: TopicRecord,
    settings: TopicConfigRecord | None,
    placement: PlacementRecord | None,
    broker_config: BrokerConfig,
) -> Topic:
    own = {} if settings is None else settings.settings
    try:
        check_topic_name(name)
        topic_id = bytes.fromhex(record.topic_id)
        config = parse_topic_config(own, broker_config)
        count = len(record.replicas)
        directory_ids = [""] * count if placement is None else placement.directory_ids(count)
    except (ApiError, ConfigError, ValueError) as error:
        raise StorageError(f"{TOPICS}{name}: {error}") from error
    if len(topic_id) != 16 or not all(record.replicas) or not record.replicas:
        raise StorageError(f"{TOPICS}{name}: topic id {record.topic_id!r} or its partitions")
    return Topic(name, topic_id, own, config, record.replicas, directory_ids=directory_ids)
