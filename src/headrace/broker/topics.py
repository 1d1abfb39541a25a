"""The topics: which exist, with what settings. The metadata store is the truth, this is its image in memory.

A topic exists from the commit of its key `topics/<name>` on. Nothing is answered before that commit is durable. Then
its logs are opened, in steps if there are thousands, and clients see it with all of its partitions at once. Requests to
create, to grow or to delete a topic of that name wait (`unchanging`). After a crash the next start opens the logs.
Deletion, with its crash windows:

    1. one commit removes the topic's keys and writes a tombstone `deleted/<topic id>`; from here on the topic is gone
    2. whoever waits on a partition is answered; logs are closed, directories removed, of many partitions in steps
    3. the tombstone is removed, unless a log directory is out of service

A crash between 1 and 3 is finished at the next start, and so is what lies in a log directory that was missing. A
directory is never removed without a tombstone: one that no topic claims is left alone, and the journal says so.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar

from headrace.broker.metadata.metadata_records import (
    DELETED,
    TOPIC_CONFIGS,
    TOPICS,
    TombstoneRecord,
    TopicConfigRecord,
    TopicRecord,
    decode,
    encode,
)
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.steps import PARTITION_OPENING_COST, Steps, Work, finished
from headrace.broker.topic import CheckConfig, Topic, accept_any, acceptable_config
from headrace.broker.topic_names import INTERNAL_TOPICS, DeletedNames, check_topic_name, metric_name
from headrace.config.broker import BrokerConfig
from headrace.config.topic import TopicConfig, parse_topic_config
from headrace.core.coordinator.runtime import Reply
from headrace.core.deferred import Deferred
from headrace.errors import (
    ApiError,
    ConfigError,
    ErrorCode,
    InvalidConfigError,
    InvalidTopicError,
    StorageError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from headrace.ports import Check, Conflict, Delete, Entropy, Entry, Journal, Put
from headrace.types import TopicPartition

_ID_ATTEMPTS: Final = 100
_RETRY_INTERVAL_MS: Final = 500
_STORAGE: Final = "headrace.storage"
T = TypeVar("T")


class Topics:
    """All topics of the broker, by name and by id."""

    __slots__ = (
        "_by_id",
        "_by_metric_name",
        "_by_name",
        "_changing",
        "_config",
        "_entropy",
        "_journal",
        "_metadata",
        "_new",
        "_pending",
        "_replicas",
        "_steps",
        "_unopened",
        "changes",
        "check",
        "deleted_names",
        "next_deadline_ms",
    )

    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataWriter,
        replicas: ReplicaManager,
        entropy: Entropy,
        journal: Journal,
        *,
        steps: Steps,
    ) -> None:
        self._config = config
        self._steps = steps
        self._metadata = metadata
        self._replicas = replicas
        self._entropy = entropy
        self._journal = journal
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._by_metric_name: dict[str, str] = {}
        self._changing: dict[str, Deferred[Any]] = {}
        """Resolved when the topic of a name has been created, given partitions or deleted in steps."""
        self._new: dict[str, Topic] = {}
        """Topics that are stored and whose logs are being opened: nobody sees them yet."""
        self._pending = 0
        """How many partitions are stored and have yet to be opened."""
        self.check: CheckConfig = accept_any
        self.deleted_names = DeletedNames()
        self.changes = 0
        """Rises whenever a topic is created, grows or is deleted."""
        self._unopened: dict[tuple[Topic, int], None] = {}
        """Partitions whose files could not be opened when they were created."""
        self.next_deadline_ms: int | None = None
        """When `tick` has something to do next."""
        replicas.on_offline = self._take_offline

    def __iter__(self) -> Iterator[Topic]:
        return iter([self._by_name[name] for name in sorted(self._by_name)])

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def stored(self) -> int:
        """How many topics are stored, those that nobody sees yet included."""
        return len(self._by_name) + len(self._new)

    @property
    def defaults(self) -> TopicConfig:
        """The configuration of a topic without settings of its own."""
        return parse_topic_config({}, self._config)

    def get(self, name: str) -> Topic | None:
        """Return a topic, or None."""
        return self._by_name.get(name)

    def require(self, name: str) -> Topic:
        """Return a topic.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
        """
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {name[:300]!r}")
        return topic

    def by_id(self, topic_id: bytes) -> Topic | None:
        """Return the topic with an id, or None."""
        return self._by_id.get(topic_id)

    def load(self, leader_epoch: int, now_ms: int) -> None:
        """Read all topics from the metadata store, and open their logs.

        Args:
            leader_epoch: The epoch in which this broker leads its partitions from now on.
            now_ms: The time.

        Raises:
            StorageError: What is stored cannot be read, or is not acceptable.
        """
        settings = {
            entry.key.removeprefix(TOPIC_CONFIGS): decode(entry, TopicConfigRecord).settings
            for entry in self._metadata.list(TOPIC_CONFIGS)
        }
        topics: list[Topic] = []
        for entry in self._metadata.list(TOPICS):
            name = entry.key.removeprefix(TOPICS)
            topics.append(self._read_topic(name, entry, settings.get(name, {})))
        self._finish_deletions({topic.name for topic in topics})
        specs = [
            (TopicPartition(topic.name, index), topic.topic_id, topic.config, directory_id)
            for topic in topics
            for index, directory_id in enumerate(topic.directory_ids)
        ]
        self._replicas.load(specs, leader_epoch, now_ms)
        for topic in topics:
            finished(self._add(topic, now_ms))

    def _read_topic(self, name: str, entry: Entry, settings: Mapping[str, str]) -> Topic:
        record = decode(entry, TopicRecord)
        try:
            check_topic_name(name)
            topic_id = bytes.fromhex(record.topic_id)
            config = parse_topic_config(settings, self._config)
        except (ApiError, ConfigError, ValueError) as error:
            raise StorageError(f"{entry.key}: {error}") from error
        if len(topic_id) != 16 or not record.partitions:
            raise StorageError(f"{entry.key}: topic id {record.topic_id!r} or its partitions")
        directory_ids = record.directory_ids
        if len(directory_ids) != len(record.partitions):
            raise StorageError(f"{entry.key}: {len(directory_ids)} directories of its partitions")
        return Topic(name, topic_id, settings, config, directory_ids)

    def _add(self, topic: Topic, now_ms: int) -> Work[None]:
        """Open the partitions of a topic that is stored, then show it."""
        self._new[topic.name] = topic
        self._by_metric_name[metric_name(topic.name)] = topic.name
        try:
            yield from self._open_partitions(topic, now_ms)
        finally:
            del self._new[topic.name]
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def _open_partitions(self, topic: Topic, now_ms: int) -> Work[None]:
        """Open the partitions that are missing, then show all of them at once."""
        config = topic.config
        missing = range(len(topic.partitions), len(topic.directory_ids))
        opened: list[Partition | None] = []
        self._pending += len(missing)
        try:
            for index in missing:
                opened.append(self._open_partition(topic, index, now_ms))
                self._pending -= 1
                yield PARTITION_OPENING_COST
        finally:
            self._pending -= len(missing) - len(opened)
        if topic.config is not config:
            self._replicas.configure(opened, topic.config)
        topic.partitions += [None if each is None or each.gone else each for each in opened]
        self.changes += 1

    def unchanging(self, name: str) -> Work[None]:
        """Wait until the topic of a name is not being created, given partitions or deleted by another request."""
        while (change := self._changing.get(name)) is not None:
            done: Deferred[None] = (
                Deferred()
            )  # of its own: whoever waits may have gone, the change goes on
            change.on_done(partial(_resolve, done))
            yield done

    def is_changing(self, name: str) -> bool:
        """Whether the topic of a name is being created, given partitions or deleted in steps."""
        return name in self._changing

    def _in_steps(self, name: str, work: Work[T]) -> Reply[T]:
        """Change the topic of a name in steps; the work goes on whatever becomes of the client."""

        def changing() -> Work[T]:
            try:
                return (yield from work)
            finally:
                self._changing.pop(name, None)

        reply = self._steps.run(changing(), finishes=True)
        if isinstance(reply, Deferred):
            self._changing[name] = reply
        return reply

    def _open_partition(self, topic: Topic, index: int, now_ms: int) -> Partition | None:
        self._unopened.pop((topic, index), None)
        try:
            return self._replicas.add(
                TopicPartition(topic.name, index),
                topic.topic_id,
                topic.config,
                is_internal=topic.is_internal,
                now_ms=now_ms,
                directory_id=topic.directory_ids[index],
            )
        except ApiError:
            self._unopened[topic, index] = None
            self.next_deadline_ms = now_ms + _RETRY_INTERVAL_MS
            return None

    def tick(self, now_ms: int) -> list[Partition]:
        """Try again to open partitions that could not be opened for want of descriptors; return those that are open."""
        if self.next_deadline_ms is None or now_ms < self.next_deadline_ms:
            return []
        self.next_deadline_ms = None
        opened: list[Partition] = []
        for topic, index in list(self._unopened):
            if topic.name in self._changing:  # its other partitions are being opened
                self.next_deadline_ms = now_ms + _RETRY_INTERVAL_MS
                continue
            if self._by_id.get(topic.topic_id) is not topic:
                del self._unopened[topic, index]  # it was deleted
                continue
            partition = topic.partitions[index] = self._open_partition(topic, index, now_ms)
            if partition is not None:
                opened.append(partition)
        self.changes += len(opened)
        return opened

    def _take_offline(self, partition: Partition) -> None:
        name, index = partition.topic_partition
        topic = self._by_name.get(name)
        if topic is None or index >= len(topic.partitions):
            return  # it is being opened, and is left out then
        if topic.partitions[index] is partition:
            topic.partitions[index] = None

    def _finish_deletions(self, names: Container[str]) -> None:
        """Remove what deletions left behind that a crash cut short."""
        for entry in self._metadata.list(DELETED):
            record = decode(entry, TombstoneRecord)
            all_gone = self._replicas.delete_left_over(
                [TopicPartition(record.name, index) for index in range(record.partitions_count)],
                bytes.fromhex(entry.key.removeprefix(DELETED)),
                name_is_free=record.name not in names,
            )
            if all_gone:
                self._metadata.commit([], [Delete(entry.key)])
                self._journal.info("topic_deletion_finished", topic=record.name)

    def validate_new(
        self, name: str, partitions_count: int, settings: Mapping[str, str | None]
    ) -> TopicConfig:
        """Check whether a topic could be created; return the configuration that it would have.

        Raises:
            ApiError: With the reason why not.
        """
        check_topic_name(name)
        if name in self._by_name or name in self._changing:
            raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")
        other = self._by_metric_name.get(metric_name(name))
        if other is not None:
            raise InvalidTopicError(
                f"topic {name!r} collides with {other!r}: '.' and '_' are one character in metric names"
            )
        self._check_count(partitions_count, added=partitions_count)
        config = acceptable_config(settings, self._config, self.check)
        self._replicas.dirs.storage(config.headrace_storage)
        return config

    def _check_count(self, partitions_count: int, *, added: int) -> None:
        if not 1 <= partitions_count <= self._config.max_partitions_per_topic:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"{partitions_count} partitions; a topic has 1 to {self._config.max_partitions_per_topic}",
            )
        if self._replicas.partitions_count + self._pending + added > self._config.max_partitions:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"the broker holds at most {self._config.max_partitions} partitions (max.partitions)",
            )

    def create(
        self,
        name: str,
        partitions_count: int | None = None,
        settings: Mapping[str, str | None] | None = None,
        *,
        now_ms: int,
    ) -> Topic:
        """Create a topic at once; it is durable when this returns. Directories appear with the first batch.

        Args:
            name: The name.
            partitions_count: How many partitions; None for the broker's default.
            settings: Its own settings, as text under Kafka's names; None as a value means the default.
            now_ms: The time.

        Raises:
            ApiError: With the reason why not.
        """
        topic: Topic = self._create(name, partitions_count, settings or {}, finished, now_ms)
        return topic

    def create_in_steps(
        self,
        name: str,
        partitions_count: int | None = None,
        settings: Mapping[str, str | None] | None = None,
        *,
        now_ms: int,
    ) -> Reply[Topic]:
        """Do the same as `create`, in steps if there are many partitions."""
        run = partial(self._in_steps, name)
        topic: Reply[Topic] = self._create(name, partitions_count, settings or {}, run, now_ms)
        return topic

    def _create(
        self,
        name: str,
        partitions_count: int | None,
        settings: Mapping[str, str | None],
        run: Callable[[Work[Any]], Any],
        now_ms: int,
    ) -> Any:
        """Store a topic, and return what `run` makes of the work that is left: to open its logs."""
        count = self._config.num_partitions if partitions_count is None else partitions_count
        config = self.validate_new(name, count, settings)
        own = {key: text for key, text in settings.items() if text is not None}
        dirs = self._replicas.dirs
        directory_ids = dirs.place(
            count,
            is_internal=name in INTERNAL_TOPICS,
            storage_id=dirs.storage(config.headrace_storage),
        )
        topic = Topic(name, self._new_topic_id(), own, config, directory_ids)
        replicas = [[self._config.broker_id]] * count
        record = TopicRecord.of(topic.topic_id, replicas, directory_ids)
        operations: list[Put | Delete] = [Put(TOPICS + name, encode(record))]
        if own:
            operations.append(Put(TOPIC_CONFIGS + name, encode(TopicConfigRecord(own))))

        def appear() -> Work[Topic]:
            yield from self._add(topic, now_ms)
            self._journal.info(
                "topic_created", topic=name, partitions=count, topic_id=record.topic_id
            )
            return topic

        return self._commit(Check(TOPICS + name, "absent"), operations, lambda: run(appear()))

    def validate_growth(self, topic: Topic, partitions_count: int) -> None:
        """Check whether a topic could be given this many partitions.

        Raises:
            ApiError: With the reason why not.
        """
        present = len(topic.directory_ids)
        if partitions_count <= present:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {topic.name!r} has {present} partitions; {partitions_count} is not an increase",
            )
        self._check_count(partitions_count, added=partitions_count - present)

    def grow(self, topic: Topic, partitions_count: int, *, now_ms: int) -> None:
        """Add partitions to a topic until there are `partitions_count`; they are durable when this returns.

        Raises:
            ApiError: With the reason why not.
        """
        self._grow(topic, partitions_count, finished, now_ms)

    def grow_in_steps(self, topic: Topic, partitions_count: int, *, now_ms: int) -> Reply[None]:
        """Do the same as `grow`, in steps if there are many new partitions."""
        run = partial(self._in_steps, topic.name)
        reply: Reply[None] = self._grow(topic, partitions_count, run, now_ms)
        return reply

    def _grow(
        self,
        topic: Topic,
        partitions_count: int,
        run: Callable[[Work[Any]], Any],
        now_ms: int,
    ) -> Any:
        self.validate_growth(topic, partitions_count)
        entry = self._metadata.get(TOPICS + topic.name)
        if entry is None:
            raise UnknownTopicOrPartitionError(f"{topic.name} is being deleted")
        replicas = decode(entry, TopicRecord).partitions
        added = partitions_count - len(replicas)
        replicas += [[self._config.broker_id]] * added
        directory_ids = [
            *topic.directory_ids,
            *self._replicas.dirs.place(
                added, is_internal=topic.is_internal, storage_id=topic.directory_ids[0]
            ),
        ]
        record = TopicRecord.of(topic.topic_id, replicas, directory_ids)

        def more() -> Work[None]:
            topic.directory_ids = directory_ids
            yield from self._open_partitions(topic, now_ms)
            self._journal.info("topic_grown", topic=topic.name, partitions=partitions_count)

        check = Check(entry.key, entry.version)
        return self._commit(check, [Put(entry.key, encode(record))], lambda: run(more()))

    def configure(self, topic: Topic, settings: Mapping[str, str]) -> None:
        """Give a topic other settings of its own; they are durable and count when this returns.

        Raises:
            ApiError: A setting is not acceptable, or they could not be stored.
        """
        config = self.check_change(topic, settings)
        key = TOPIC_CONFIGS + topic.name
        operation: Put | Delete = (
            Put(key, encode(TopicConfigRecord(dict(settings)))) if settings else Delete(key)
        )

        def applied() -> None:
            topic.settings, topic.config = dict(settings), config
            self._replicas.configure(topic.partitions, config)
            self._journal.info("topic_configured", topic=topic.name, settings=topic.settings)

        self._commit(Check(TOPICS + topic.name, "exists"), [operation], applied)

    def check_change(self, topic: Topic, settings: Mapping[str, str]) -> TopicConfig:
        """Return the configuration that other settings would give a topic.

        Raises:
            ApiError: A setting is not acceptable, or is chosen once for all.
        """
        config = acceptable_config(settings, self._config, self.check)
        if settings.get(_STORAGE, "") != topic.settings.get(_STORAGE, ""):
            raise InvalidConfigError(
                f"{_STORAGE} is chosen when a topic is created; {topic.name!r} cannot get another one"
            )
        return config

    def check_defaults(self, config: BrokerConfig) -> None:
        """Refuse a configuration of the broker that a topic could not inherit from.

        Raises:
            InvalidConfigError: With the reason.
        """
        try:
            parse_topic_config({}, config)
        except ConfigError as error:
            raise InvalidConfigError(f"as defaults of topics: {error}") from error
        for topic in chain(self._by_name.values(), self._new.values()):
            try:
                parse_topic_config(topic.settings, config)
            except ConfigError as error:
                raise InvalidConfigError(
                    f"with the settings of topic {topic.name!r}: {error}"
                ) from error

    def broker_config_changed(self, config: BrokerConfig) -> None:
        """Let all topics inherit from another configuration of the broker."""
        self._config = config
        self._replicas.broker_config_changed(config)
        for topic in chain(self._by_name.values(), self._new.values()):
            topic.config = parse_topic_config(topic.settings, config)
            self._replicas.configure(topic.partitions, topic.config)

    def delete(self, topic: Topic) -> None:
        """Delete a topic and its data; it is gone for good when this returns.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR; the deletion is finished at the next start.
        """
        self._delete(topic, finished)

    def delete_in_steps(self, topic: Topic) -> Reply[None]:
        """Do the same as `delete`, in steps if there are many partitions; nobody sees the topic from now on."""
        reply: Reply[None] = self._delete(topic, partial(self._in_steps, topic.name))
        return reply

    def _delete(self, topic: Topic, run: Callable[[Work[Any]], Any]) -> Any:
        name = topic.name
        tombstone = DELETED + topic.topic_id.hex()
        return self._commit(
            Check(TOPICS + name, "exists"),
            [
                Delete(TOPICS + name),
                Delete(TOPIC_CONFIGS + name),
                Put(tombstone, encode(TombstoneRecord(name, len(topic.directory_ids)))),
            ],
            lambda: run(self._deleted(topic, tombstone)),
        )

    def _deleted(self, topic: Topic, tombstone: str) -> Work[None]:
        name = topic.name
        self.changes += 1
        del self._by_name[name], self._by_id[topic.topic_id]
        del self._by_metric_name[metric_name(name)]
        self.deleted_names.add(name)
        partitions = [TopicPartition(name, index) for index in range(len(topic.partitions))]
        if (yield from self._replicas.delete(partitions)):
            self._metadata.commit([], [Delete(tombstone)])
        self._journal.info("topic_deleted", topic=name, topic_id=topic.topic_id.hex())

    def _commit(
        self, check: Check, operations: list[Put | Delete], applied: Callable[[], Any]
    ) -> Any:
        """Commit, and return what `applied` returns, which is called when the change is stored."""
        outcome: list[Any] = []
        try:
            self._metadata.commit([check], operations, lambda: outcome.append(applied()))
        except Conflict as conflict:
            raise ApiError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "the metadata changed meanwhile"
            ) from conflict
        return outcome[0]

    def _new_topic_id(self) -> bytes:
        for _ in range(_ID_ATTEMPTS):
            topic_id = self._entropy.uuid()
            # Kafka keeps ids free whose text begins with a dash, because tools would take it for an option, and
            # the smallest ones, which it reserves.
            dashed = base64.urlsafe_b64encode(topic_id).startswith(b"-")
            if not dashed and int.from_bytes(topic_id) > 100 and topic_id not in self._by_id:
                return topic_id
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "no topic id could be found")


def _resolve(done: Deferred[None], _: object) -> None:
    done.resolve(None)
