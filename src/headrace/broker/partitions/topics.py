"""The topics of the broker: which exist, and with which settings. They are an image in memory of the metadata store.

A topic exists as soon as its key `topics/<name>` is committed. No request is answered before that commit is durable.
Then the broker opens the logs of the topic, in steps if there are thousands, and shows it to clients with all of its
partitions at once. Requests that create, grow or delete a topic of that name wait meanwhile (`TopicChanges`). After a
crash the next start opens the logs.

The deletion of a topic, and what a crash leaves behind:

    1. One commit removes the keys of the topic and writes a tombstone `deleted/<topic id>`. The topic no longer exists.
    2. The requests that wait for a partition are answered. The logs are closed and their directories removed, in steps
       if there are many partitions.
    3. The tombstone is removed, unless a log directory is out of service.

The next start completes a deletion that a crash interrupted between 1 and 3, also in a log directory that was missing
before. The broker never removes a directory without a tombstone: it leaves a directory that belongs to no topic alone,
and reports it in the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final

from headrace.broker.context import LatestTime
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partitions.left_over_topics import finish_deletions
from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.partition_deletion import PartitionDeletion
from headrace.broker.partitions.partition_opening import PartitionOpening, opening_spec
from headrace.broker.partitions.topic import CheckConfig, Topic, acceptable_config, new_topic_id
from headrace.broker.partitions.topic_changes import Run, TopicChanges
from headrace.broker.partitions.topic_store import StoredTopic, TopicStore
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.partition_loader import PartitionLoader
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic_names import INTERNAL_TOPICS, DeletedNames, check_topic_name, metric_name
from headrace.broker.waiting.steps import Steps, Work, finished
from headrace.config.broker import BrokerConfig
from headrace.config.topic import TopicConfig
from headrace.config.topic_parsing import parse_topic_config
from headrace.core.cluster.image import Changes
from headrace.core.cluster.partition_states import PartitionStates
from headrace.core.cluster.records import TOPIC_CONFIGS, TOPICS, PartitionState
from headrace.core.coordinator.runtime import Reply
from headrace.errors import (
    ApiError,
    ConfigError,
    ErrorCode,
    InvalidConfigError,
    InvalidTopicError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from headrace.ports import Entropy, Journal
from headrace.types import TopicPartition

_STORAGE: Final = "headrace.storage"


class Topics:
    """All topics of the broker, by name and by id."""

    __slots__ = (
        "_broker_id",
        "_by_id",
        "_by_metric_name",
        "_by_name",
        "_check",
        "_config",
        "_deletion",
        "_entropy",
        "_journal",
        "_loader",
        "_local",
        "_new",
        "_replicas",
        "_store",
        "_time",
        "changes",
        "changing",
        "deleted_names",
        "opening",
        "states",
    )

    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataWriter,
        *,
        replicas: Replicas,
        local: LocalPartitions,
        loader: PartitionLoader,
        deletion: PartitionDeletion,
        entropy: Entropy,
        journal: Journal,
        steps: Steps,
        time: LatestTime,
        check: CheckConfig,
    ) -> None:
        """Begin without topics; `load` reads them.

        Args:
            config: The configuration of the broker.
            metadata: Writes to the metadata store.
            replicas: The partitions of the broker.
            local: The partitions that this broker serves, by topic.
            loader: Opens partitions.
            deletion: Deletes partitions.
            entropy: Makes topic ids.
            journal: Receives the log events.
            steps: Runs the work that takes several steps.
            time: The time of the latest call.
            check: Raises ConfigError for a configuration that clients may not set.
        """
        self._config = config
        self._broker_id = config.broker_id
        self._store = TopicStore(metadata, config.broker_id)
        self._replicas, self._local, self._loader = replicas, local, loader
        self._deletion, self._entropy = deletion, entropy
        self._journal, self._time, self._check = journal, time, check
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._by_metric_name: dict[str, str] = {}
        self.changing = TopicChanges(steps, journal)
        """The changes that the image has brought."""
        self._new: dict[str, Topic] = {}
        """The topics that are stored, but not shown yet: their logs are being opened."""
        self.states = PartitionStates()
        """The leaders of partitions, and their leader epochs."""
        self.opening = PartitionOpening(loader, local, self.states)
        """Opens the partitions; its `next_deadline_ms` is the time of the next `tick`."""
        self.deleted_names = DeletedNames()
        self.changes = 0
        """A number that rises whenever a topic is created, grown or deleted."""

    # Lookup

    def __iter__(self) -> Iterator[Topic]:
        return iter([self._by_name[name] for name in sorted(self._by_name)])

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def stored(self) -> int:
        """The number of stored topics, including those that are not shown yet."""
        return len(self._by_name) + len(self._new)

    @property
    def defaults(self) -> TopicConfig:
        """The configuration of a topic without settings of its own."""
        return parse_topic_config({}, self._config)

    def get(self, name: str) -> Topic | None:
        """Return a topic; None if there is none of this name."""
        return self._by_name.get(name)

    def require(self, name: str) -> Topic:
        """Return a topic.

        Raises:
            UnknownTopicOrPartitionError: There is no topic of this name.
        """
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {name[:300]!r}")
        return topic

    def by_id(self, topic_id: bytes) -> Topic | None:
        """Return the topic with an id; None if there is none."""
        return self._by_id.get(topic_id)

    def state(self, topic: Topic, index: int) -> PartitionState:
        """Return the leader, leader epoch and in-sync replicas of a partition."""
        return self.states.get(topic.topic_id, index, topic.replicas[index])

    # Start, and time

    def load(self, now_ms: int) -> None:
        """Read all topics from the metadata store, complete interrupted deletions, and open the logs.

        Raises:
            StorageError: A stored topic cannot be read, or is not valid.
        """
        self._store.load_states(self.states)
        present = self._store.consume(self._topics_changed, self._settings_changed)
        topics = [self._store.topic(stored, self._config) for stored in present.values()]
        finish_deletions(
            self._store, self._deletion, {topic.name for topic in topics}, self._journal
        )
        local = self._local
        specs = [
            opening_spec(topic, index)
            for topic in topics
            for index in range(topic.partitions_count)
            if local.has_replica(topic, index)
        ]
        self._loader.load(specs, now_ms)
        for topic in topics:
            finished(self._add(topic, now_ms))
        if self.opening.ahead:
            # The metadata is older than the logs: it was restored from a backup.
            self._store.put_states(self.opening.ahead)
            self._journal.warning("leader_epochs_restored", partitions=len(self.opening.ahead))
            self.opening.ahead = {}

    def _add(self, topic: Topic, now_ms: int) -> Work[None]:
        """Open the partitions of a topic that is stored, then show the topic."""
        self._new[topic.name] = topic
        self._by_metric_name[metric_name(topic.name)] = topic.name
        try:
            yield from self._open_partitions(topic, now_ms)
        finally:
            del self._new[topic.name]
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def _open_partitions(self, topic: Topic, now_ms: int) -> Work[None]:
        yield from self.opening.open_missing(topic, now_ms)
        self.changes += 1

    def tick(self, now_ms: int) -> list[Partition]:
        """Do what other brokers have changed. Try again to open partitions, and return those that are open now."""
        self.changing.begin(now_ms)
        opened = self.opening.retry(
            now_ms,
            exists=lambda topic: self._by_id.get(topic.topic_id) is topic,
            is_changing=self.changing.__contains__,
        )
        self.changes += len(opened)
        return opened

    # Changes

    def _topics_changed(self, changes: Changes[StoredTopic]) -> None:
        for key in changes.deletes:
            name = key.removeprefix(TOPICS)
            self.changing.register(name, partial(self._disappear, name))
        for stored in changes.puts.values():
            self.changing.register(stored.name, partial(self._appear, stored))

    def _appear(self, stored: StoredTopic, now_ms: int) -> Work[Topic]:
        """Show a topic that was created, or has more partitions."""
        topic = self._by_name.get(stored.name)
        if topic is not None and topic.topic_id != stored.topic_id:
            yield from self._disappear(stored.name, now_ms)
            topic = None
        if topic is None:
            topic = self._store.topic(stored, self._config)
            yield from self._add(topic, now_ms)
            count, topic_id = topic.partitions_count, topic.topic_id.hex()
            self._journal.info(
                "topic_created", topic=topic.name, partitions=count, topic_id=topic_id
            )
            return topic
        grown = len(stored.replicas) > topic.partitions_count
        topic.replicas, topic.directory_ids = stored.replicas, self._store.directory_ids(stored)
        if grown:
            yield from self._open_partitions(topic, now_ms)
            self._journal.info("topic_grown", topic=topic.name, partitions=topic.partitions_count)
        return topic

    def _disappear(self, name: str, _now_ms: int) -> Work[None]:
        """Show a deleted topic no longer, and remove its files."""
        topic = self._by_name.pop(name, None)
        if topic is None:
            return
        self.changes += 1
        self._local.hide(topic)
        del self._by_id[topic.topic_id]
        del self._by_metric_name[metric_name(name)]
        self.deleted_names.add(name)
        partitions = [TopicPartition(name, index) for index in range(topic.partitions_count)]
        all_gone = yield from self._deletion.delete(partitions)
        if all_gone and all(replicas == (self._broker_id,) for replicas in topic.replicas):
            self._store.remove_tombstone(topic.topic_id)
        self._journal.info("topic_deleted", topic=name, topic_id=topic.topic_id.hex())

    def _settings_changed(self, changes: Changes[Mapping[str, str]]) -> None:
        for key in chain(changes.deletes, changes.puts):
            name = key.removeprefix(TOPIC_CONFIGS)
            topic = self._by_name.get(name) or self._new.get(name)
            settings = changes.puts.get(key, {})
            if topic is None or topic.settings == settings:
                continue  # the topic is deleted, or has begun with the settings
            try:
                topic.config = parse_topic_config(settings, self._config)
            except ConfigError as error:
                self._journal.error("topic_settings_not_applied", topic=name, error=str(error))
                continue
            topic.settings = dict(settings)
            self._loader.configure(self._local.of(topic), topic.config)
            self._journal.info("topic_configured", topic=name, settings=topic.settings)

    # Creation

    def validate_new(
        self, name: str, partitions_count: int, settings: Mapping[str, str | None]
    ) -> TopicConfig:
        """Check whether a topic could be created, and return the configuration that it would have.

        Raises:
            ApiError: The topic could not be created.
        """
        check_topic_name(name)
        if name in self._by_name or name in self.changing:
            raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")
        other = self._by_metric_name.get(metric_name(name))
        if other is not None:
            raise InvalidTopicError(
                f"topic {name!r} collides with {other!r}: '.' and '_' are one character in metric names"
            )
        self._check_count(partitions_count, added=partitions_count)
        config = acceptable_config(settings, self._config, self._check)
        self._replicas.store.dirs.storage(config.headrace_storage)
        return config

    def _check_count(self, partitions_count: int, *, added: int) -> None:
        if not 1 <= partitions_count <= self._config.max_partitions_per_topic:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"{partitions_count} partitions; a topic has 1 to {self._config.max_partitions_per_topic}",
            )
        held = self._replicas.partitions_count + self.opening.pending
        if held + added > self._config.max_partitions:
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
        """Create a topic at once. It is durable on return. Its directories are created with their first batches.

        Args:
            name: The name.
            partitions_count: The number of partitions; None for the default of the broker.
            settings: The settings of the topic as text, by Kafka's names. The value None stands for the default.
            now_ms: The time.

        Raises:
            ApiError: The topic could not be created.
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
        """Create a topic like `create`, in steps if there are many partitions."""
        reply: Reply[Topic] = self._create(name, partitions_count, settings or {}, None, now_ms)
        return reply

    def _create(
        self,
        name: str,
        partitions_count: int | None,
        settings: Mapping[str, str | None],
        run: Run | None,
        now_ms: int,
    ) -> Any:
        """Store a topic. Return the result of `run`, which does the rest of the work: to open the logs."""
        count = self._config.num_partitions if partitions_count is None else partitions_count
        config = self.validate_new(name, count, settings)
        own = {key: text for key, text in settings.items() if text is not None}
        dirs = self._replicas.store.dirs
        directory_ids = dirs.place(
            count,
            is_internal=name in INTERNAL_TOPICS,
            storage_id=dirs.storage(config.headrace_storage),
        )
        topic = Topic(
            name,
            new_topic_id(self._entropy, self._by_id),
            own,
            config,
            [(self._broker_id,)] * count,
            directory_ids=directory_ids,
        )

        self._store.create(topic)
        return self.changing.begin(now_ms, name, run)

    # Growth

    def validate_growth(self, topic: Topic, partitions_count: int) -> None:
        """Check whether a topic could have this many partitions.

        Raises:
            ApiError: The topic could not grow.
        """
        present = topic.partitions_count
        if partitions_count <= present:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {topic.name!r} has {present} partitions; {partitions_count} is not an increase",
            )
        self._check_count(partitions_count, added=partitions_count - present)

    def grow_in_steps(self, topic: Topic, partitions_count: int, *, now_ms: int) -> Reply[None]:
        """Add partitions to a topic until it has `partitions_count`, in steps if there are many new partitions.

        The new partitions are durable with the reply.

        Raises:
            ApiError: The topic could not grow.
        """
        self.validate_growth(topic, partitions_count)
        present = topic.directory_ids
        added = self._replicas.store.dirs.place(
            partitions_count - len(present), is_internal=topic.is_internal, storage_id=present[0]
        )
        directory_ids = [*present, *added]
        replicas = [*topic.replicas, *[(self._broker_id,)] * len(added)]

        self._store.grow(topic, replicas, directory_ids)
        reply: Reply[None] = self.changing.begin(now_ms, topic.name)
        return reply

    # Configuration

    def configure(self, topic: Topic, settings: Mapping[str, str]) -> None:
        """Replace the settings of a topic. They are durable and in force on return.

        Raises:
            ApiError: A setting is invalid, or the settings could not be stored.
        """
        self.check_change(topic, settings)
        self._store.configure(topic, settings)

    def check_change(self, topic: Topic, settings: Mapping[str, str]) -> TopicConfig:
        """Return the configuration that a topic would have with other settings.

        Raises:
            ApiError: A setting is invalid, or cannot be changed after the creation of a topic.
        """
        config = acceptable_config(settings, self._config, self._check)
        if settings.get(_STORAGE, "") != topic.settings.get(_STORAGE, ""):
            raise InvalidConfigError(
                f"{_STORAGE} is chosen when a topic is created; {topic.name!r} cannot get another one"
            )
        return config

    def check_defaults(self, config: BrokerConfig) -> None:
        """Raise an error if a topic could not inherit from a configuration of the broker.

        Raises:
            InvalidConfigError: A topic would have an invalid configuration.
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
        self._loader.broker_config_changed(config)
        for topic in chain(self._by_name.values(), self._new.values()):
            topic.config = parse_topic_config(topic.settings, config)
            self._loader.configure(self._local.of(topic), topic.config)

    # Deletion

    def delete(self, topic: Topic) -> None:
        """Delete a topic and its data. The deletion is durable on return.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR. The next start completes the deletion.
        """
        self._store.delete(topic)
        self.changing.begin(self._time.now_ms, topic.name, finished)

    def delete_in_steps(self, topic: Topic) -> Reply[None]:
        """Delete a topic like `delete`, in steps if it has many partitions. Clients see the topic no longer."""
        self._store.delete(topic)
        reply: Reply[None] = self.changing.begin(self._time.now_ms, topic.name)
        return reply
