"""The topics as the metadata store has them: the keys of each topic, and the commits that change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from headrace.broker.configs.config_changes import MergeSettings
from headrace.broker.metadata.commit_lane import Change
from headrace.broker.metadata.metadata_writer import MetadataWriter, replacement
from headrace.broker.partitions.topic import Topic
from headrace.broker.topic_names import check_topic_name
from headrace.broker.waiting.steps import Work
from headrace.config.broker import BrokerConfig
from headrace.config.topic_parsing import parse_topic_config
from headrace.core.cluster.image import Changes
from headrace.core.cluster.partition_states import state_key
from headrace.core.cluster.records import (
    DELETED,
    PLACEMENTS,
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
from headrace.ports import Check, Conflict, Delete, MetadataEntry, Put, check_of

OPERATIONS_LIMIT: Final = 90
"""The greatest number of operations in a commit of many. The store allows 100, with those of `MetadataWriter`."""
STATES_A_COMMIT: Final = OPERATIONS_LIMIT - 3
"""The greatest number of states in a commit that also stores the entry, the directories and the settings of a topic."""
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

    def load(self, topics_changed: Changed, settings_changed: Changed) -> list[str]:
        """Return the names of all topics, and follow their changes from now on.

        Args:
            topics_changed: Receives the keys of changed topics. The values are None.
            settings_changed: Receives the keys of changed settings of topics. The values are None.
        """
        self._image.consume(TOPIC_CONFIGS, _unread, settings_changed)
        return [
            key.removeprefix(TOPICS) for key in self._image.consume(TOPICS, _unread, topics_changed)
        ]

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

    def creation(self, topic: Topic, states: Mapping[str, PartitionState]) -> TopicCommit:
        """Return the commit that stores a new topic, with the states of some partitions by key."""
        record = TopicRecord(topic.topic_id.hex(), topic.replicas)
        operations: list[Put | Delete] = [Put(TOPICS + topic.name, encode(record)), *_puts(states)]
        operations += self._placement(topic, topic.directory_ids)
        if topic.settings:
            settings = TopicConfigRecord(topic.settings)
            operations.append(Put(TOPIC_CONFIGS + topic.name, encode(settings)))
        exists = TopicAlreadyExistsError(f"Topic '{topic.name}' already exists.")
        return TopicCommit([Check(TOPICS + topic.name, "absent")], operations, exists)

    def growth(
        self,
        topic: Topic,
        replicas: list[tuple[int, ...]],
        directory_ids: list[str],
        states: Mapping[str, PartitionState],
    ) -> TopicCommit:
        """Return the commit that stores a larger number of partitions.

        The commit is refused if another broker has added partitions meanwhile.

        Args:
            topic: The topic.
            replicas: The brokers of each partition, present and new.
            directory_ids: The log directory of each partition, present and new.
            states: The states of new partitions, by key.

        Raises:
            UnknownTopicOrPartitionError: The topic is deleted.
            ApiError: UNKNOWN_SERVER_ERROR: another broker was faster.
        """
        entry = self._entry(topic)
        present = decode(entry, TopicRecord)
        record = replace(present, replicas=replicas)
        operations = [Put(entry.key, encode(record)), *_puts(states)]
        operations += self._placement(topic, directory_ids)
        commit = TopicCommit([check_of(entry.key, entry)], operations)
        if replicas[: len(present.replicas)] != present.replicas:
            raise commit.refusal
        return commit

    def _placement(self, topic: Topic, directory_ids: Sequence[str]) -> list[Put]:
        """Return the operation that stores log directories; none if all partitions are in the first directory."""
        if not any(directory_ids):
            return []
        record = PlacementRecord.of(directory_ids)
        return [Put(self._placements + topic.topic_id.hex(), encode(record))]

    def place(self, topic: Topic, directory_ids: Sequence[str]) -> Work[None]:
        """Store the log directories of this broker's replicas of a topic, unless the topic is deleted.

        Raises:
            ApiError: The directories could not be stored, or it is not known whether they are.
        """
        yield from self._metadata.merging(partial(self._placing, topic, directory_ids))

    def _placing(self, topic: Topic, directory_ids: Sequence[str]) -> Change | None:
        try:
            entry = self._entry(topic)
        except UnknownTopicOrPartitionError:
            return None
        return [check_of(entry.key, entry)], self._placement(topic, directory_ids)

    def place_anew(self, topic: Topic, chosen: Mapping[int, str]) -> Work[None]:
        """Store other log directories of some replicas of this broker, unless the topic is deleted.

        Args:
            topic: The topic.
            chosen: The directory id of each of these partitions; "" for the first directory.

        Raises:
            ApiError: The directories could not be stored, or it is not known whether they are.
        """
        yield from self._metadata.merging(partial(self._placing_anew, topic, chosen))

    def _placing_anew(self, topic: Topic, chosen: Mapping[int, str]) -> Change | None:
        try:
            entry = self._entry(topic)
        except UnknownTopicOrPartitionError:
            return None
        key = self._placements + topic.topic_id.hex()
        present, count = self._image.get(key), len(decode(entry, TopicRecord).replicas)
        ids = [""] * count
        if present is not None:
            ids = decode(present, PlacementRecord).directory_ids(count)
        for index, directory_id in chosen.items():
            ids[index] = directory_id
        value = encode(PlacementRecord.of(ids)) if any(ids) else None
        checks, operations = replacement(key, present, value)
        return [check_of(entry.key, entry), *checks], operations

    def configure(self, topic: Topic, merge: MergeSettings) -> Work[None]:
        """Change the settings of a topic, and wait until the image has them.

        Raises:
            ApiError: The topic is deleted, or the settings could not be stored, or `merge` has raised the error.
        """
        yield from self._metadata.merging(partial(self._configuration, topic, merge))

    def _configuration(self, topic: Topic, merge: MergeSettings) -> Change | None:
        key = TOPIC_CONFIGS + topic.name
        entry, present = self._entry(topic), self._image.get(key)
        before = {} if present is None else decode(present, TopicConfigRecord).settings
        settings = merge(before)
        if settings == before:
            return None
        value = encode(TopicConfigRecord(dict(settings))) if settings else None
        checks, operations = replacement(key, present, value)
        return [check_of(entry.key, entry), *checks], operations

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

    def end_deletion(self, topic_id: bytes) -> Work[None]:
        """Store that this broker has removed all files of a deleted topic. The last broker removes the tombstone.

        Raises:
            ApiError: The change could not be stored.
        """
        yield from self._metadata.merging(partial(self._without_this_broker, topic_id))
        for commit in self._removal_of_tombstone(topic_id):
            yield from self.commit(commit)

    def end_deletion_and_wait(self, topic_id: bytes) -> None:
        """Do the same as `end_deletion`, and block until it is stored.

        Raises:
            StorageError: The change could not be stored.
        """
        self._metadata.merge_and_wait(partial(self._without_this_broker, topic_id))
        for commit in self._removal_of_tombstone(topic_id):
            self.commit_and_wait(commit)

    def _without_this_broker(self, topic_id: bytes) -> Change | None:
        """Return the change of a tombstone that other brokers need; None if no other broker needs it."""
        entry = self._image.get(DELETED + topic_id.hex())
        if entry is None:
            return None
        tombstone = decode(entry, TombstoneRecord)
        left = tuple(broker for broker in tombstone.brokers if broker != self._broker_id)
        if left in ((), tombstone.brokers):  # the last broker, or a broker without replicas
            return None
        checks, operations = replacement(entry.key, entry, encode(replace(tombstone, brokers=left)))
        return checks, [*operations, *self._removal_of_placement(topic_id)]

    def _removal_of_placement(self, topic_id: bytes) -> list[Delete]:
        key = self._placements + topic_id.hex()
        return [] if self._image.get(key) is None else [Delete(key)]

    def _removal_of_tombstone(self, topic_id: bytes) -> Iterator[TopicCommit]:
        """Yield the commits that remove a tombstone and the states, if no other broker needs the tombstone."""
        entry = self._image.get(DELETED + topic_id.hex())
        if entry is None or set(decode(entry, TombstoneRecord).brokers) - {self._broker_id}:
            return
        count = decode(entry, TombstoneRecord).partitions_count
        states = [state_key(topic_id, index) for index in range(count)]
        keys = [*(key for key in states if self._image.get(key) is not None), entry.key]
        deletes = [Delete(key) for key in keys]
        yield from _in_commits([*self._removal_of_placement(topic_id), *deletes])

    # States

    def put_states(self, states: Mapping[str, PartitionState]) -> None:
        """Store states of partitions, by key.

        Raises:
            ApiError: The states could not be stored.
        """
        for commit in _in_commits(_puts(states)):
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
        metadata = self._metadata
        error = metadata.wait(metadata.commit(commit.checks, commit.operations))
        if error is not None:
            raise commit.refusal if isinstance(error, Conflict) else error


def _puts(states: Mapping[str, PartitionState]) -> list[Put]:
    return [Put(key, encode(state)) for key, state in states.items()]


def _in_commits(operations: Sequence[Put | Delete]) -> Iterator[TopicCommit]:
    """Yield as few commits as possible."""
    for first in range(0, len(operations), OPERATIONS_LIMIT):
        yield TopicCommit([], operations[first : first + OPERATIONS_LIMIT])


def _unread(_: MetadataEntry) -> None:
    """Return no value: `TopicStore.read` reads the entry, together with the other entries of the topic."""


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
