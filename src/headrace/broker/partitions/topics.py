"""The topics of the cluster: which exist, and with which settings. They follow the image of the metadata store.

A topic exists as soon as its key `topics/<name>` is committed, by this broker or another one. When the image has the
key, the broker opens the logs of the replicas that lie on it, in steps if there are thousands. Then it shows the topic
to clients with all of its partitions at once. Requests that create, grow or delete a topic of that name wait meanwhile
(`TopicChanges`). After a crash the next start opens the logs.

The deletion of a topic, and what a crash leaves behind:

    1. One commit removes the keys of the topic and writes a tombstone `deleted/<topic id>`. The topic no longer exists.
    2. The requests that wait for a partition are answered. The logs are closed and their directories removed, in steps
       if there are many partitions. Each broker with replicas of the topic does so.
    3. The last of these brokers removes the tombstone, unless one of its log directories is out of service.

The next start completes a deletion that a crash interrupted between 1 and 3, also in a log directory that was missing
before. The broker never removes a directory without a tombstone: it leaves a directory that belongs to no topic alone,
and reports it in the journal.

A notification of the store may skip states: a topic was created, grown and deleted, and created again under its name.
So a notification only says which names have changed (`_mark`). The broker then compares what it has with what the image
has, and takes one step after the other until they are equal (`_follow`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from headrace.broker.context import LatestTime
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.partition_deletion import PartitionDeletion
from headrace.broker.partitions.partition_opening import PartitionOpening
from headrace.broker.partitions.topic import Topic, TopicDeletion
from headrace.broker.partitions.topic_changes import TopicChanges
from headrace.broker.partitions.topic_store import TopicStore
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.partition_loader import OpeningSpec, PartitionLoader
from headrace.broker.topic_names import DeletedNames, metric_name
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
    InvalidConfigError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from headrace.ports import Journal
from headrace.types import TopicPartition


class Topics:
    """All topics of the cluster, by name and by id."""

    __slots__ = (
        "_by_id",
        "_by_metric_name",
        "_by_name",
        "_changed",
        "_config",
        "_deletion",
        "_journal",
        "_loader",
        "_local",
        "_metadata",
        "_new",
        "_not_applied",
        "_not_removed",
        "_steps",
        "_store",
        "_time",
        "changes",
        "changing",
        "deleted_names",
        "ids",
        "on_deleted",
        "on_fewer_settings",
        "on_opened",
        "opening",
        "replica_counts",
        "states",
    )

    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataWriter,
        *,
        local: LocalPartitions,
        loader: PartitionLoader,
        deletion: PartitionDeletion,
        steps: Steps,
        time: LatestTime,
        journal: Journal,
    ) -> None:
        """Begin without topics; `load` reads them.

        Args:
            config: The configuration of the broker.
            metadata: The metadata store.
            local: The partitions that this broker serves, by topic.
            loader: Opens partitions.
            deletion: Deletes partitions.
            steps: Runs the work that takes several steps.
            time: The time of the latest call of the broker.
            journal: Receives the log events.
        """
        self._config, self._metadata = config, metadata
        self._store = TopicStore(metadata, config.broker_id)
        self._local = local
        self._loader, self._deletion = loader, deletion
        self._steps = steps
        self._time = time
        self._journal = journal
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self.ids: Mapping[bytes, Topic] = self._by_id
        """The topics by id."""
        self._by_metric_name: dict[str, str] = {}
        self._changed: dict[str, None] = {}
        """The names of topics that have changed in the image, and that `follow_image` has not looked at yet."""
        self.changing = TopicChanges(steps, journal)
        """The changes that are being done in steps."""
        self._not_applied: dict[str, str] = {}
        """The names of stored topics that this broker cannot accept, with the reasons."""
        self._not_removed: dict[bytes, Topic] = {}
        """Deleted topics whose files or tombstones could not be removed, by id."""
        self._new: dict[str, Topic] = {}
        """The topics that are stored, but not shown yet: their logs are being opened."""
        self.states = PartitionStates()
        """The leaders of partitions, and their leader epochs."""
        self.opening = PartitionOpening(loader, local, self.states)
        """Opens the partitions; its `next_deadline_ms` is the time of the next `tick`."""
        self.deleted_names = DeletedNames()
        self.replica_counts: Counter[int] = Counter()  # of all topics on each broker
        self.on_deleted: Callable[[str], Work[Reply[Any]]] = _forget_nothing
        """Forgets what the broker keeps under the name of a deleted topic. The reply is ready when that is durable."""
        self.on_opened: Callable[[Partition], object] = lambda _: None
        """Called with each partition that is opened after the start, and shown with its topic."""
        self.on_fewer_settings: Callable[[], object] = lambda: None
        """Called when a topic has other settings or is deleted: another configuration of the broker may fit now."""
        self.changes = 0
        """A number that rises whenever a topic is created, grown or deleted."""

    # Lookup

    def __iter__(self) -> Iterator[Topic]:
        return iter([self._by_name[name] for name in sorted(self._by_name)])

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def defaults(self) -> TopicConfig:
        """The configuration of a topic without settings of its own."""
        return parse_topic_config({}, self._config)

    def named_like(self, name: str) -> str | None:
        """Return the name of the topic that would have the same name in Kafka's metrics; None if there is none."""
        return self._by_metric_name.get(metric_name(name))

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

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id; None if there is none."""
        topic = self._by_id.get(topic_id)
        return None if topic is None else topic.name

    def state(self, topic: Topic, index: int) -> PartitionState:
        """Return the leader, leader epoch and in-sync replicas of a partition."""
        return self.states.get(topic.topic_id, index, topic.replicas[index])

    # Start, and time

    def load(self) -> None:
        """Read all topics from the image, complete interrupted deletions, and open the logs.

        A topic that cannot be accepted is logged, and the others are served.
        """
        self.states.consume(self._metadata.image)
        names = self._store.load(partial(self._mark, TOPICS), partial(self._mark, TOPIC_CONFIGS))
        self._finish_deletions(frozenset(names))
        topics = [topic for name in names if (topic := self._stored(name)) is not None]
        specs_of = [(topic, list(self.opening.specs(topic))) for topic in topics]
        here = [spec for _, specs in specs_of for spec in specs if spec is not None]
        self._loader.load(here, self._time.now_ms)
        for topic, specs in specs_of:
            finished(self._add(topic, specs))
        if self.opening.ahead:
            # The metadata is older than the logs: it was restored from a backup.
            self._store.put_states(self.opening.ahead)
            self._journal.warning("leader_epochs_restored", partitions=len(self.opening.ahead))
            self.opening.ahead = {}

    def _finish_deletions(self, names: Container[str]) -> None:
        """Remove the files of deleted topics that a crash or a missing log directory has left."""
        for topic_id, tombstone in self._store.tombstones():
            name = tombstone.name
            all_gone = self._deletion.delete_left_over(
                [TopicPartition(name, index) for index in range(tombstone.partitions_count)],
                topic_id,
                name_is_free=name not in names,
            )
            if all_gone:
                self._store.end_deletion_and_wait(topic_id)
                self._journal.info("topic_deletion_finished", topic=name)

    def tick(self, now_ms: int) -> None:
        """Apply the changes of other brokers. Retry to open partitions, and to remove deleted topics."""
        self.follow_image()
        is_due = self.opening.is_due(now_ms)
        opened = self.opening.retry(
            now_ms,
            exists=lambda topic: self._by_id.get(topic.topic_id) is topic,
            is_changing=self.changing.__contains__,
        )
        self.changes += len(opened)
        for partition in opened:
            self.on_opened(partition)
        if is_due:
            self._remove_again()

    def change(self, name: str, work: Work[None]) -> None:
        """Change a topic in steps, then apply what has changed in the image meanwhile. No change may be in progress."""

        def changing() -> Work[None]:
            yield from work
            yield from self._follow(name)

        self.changing.run(name, changing())

    def reopen(self, topic: Topic, index: int) -> None:
        """Open a partition that is offline. If its files cannot be opened now, `tick` tries again."""
        partition = self.opening.reopen(topic, index, self._time.now_ms)
        if partition is not None:
            self.changes += 1
            self.on_opened(partition)

    # Changes of the image

    def _mark(self, prefix: str, changes: Changes[Any]) -> None:
        """Remember which topics have changed in the image. A commit of the broker, or a tick, calls `follow_image`."""
        for key in chain(changes.deletes, changes.puts):
            self._changed[key.removeprefix(prefix)] = None
        self.opening.wake()

    def follow_image(self) -> None:
        """Begin to create, grow, configure and delete the topics that have changed in the image.

        Large topics are changed in steps, see `changing`.
        """
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        self.opening.rest()
        for name in changed:
            self._configure(name)
            # A change in progress looks at the image again before it ends.
            if name not in self.changing:
                self.changing.run(name, self._follow(name))

    def _stored(self, name: str) -> Topic | None:
        """Return the topic of a name as the image has it; None if there is none, or one that cannot be accepted.

        A topic that cannot be accepted is looked at again when its entries or the broker's configuration change.
        """
        try:
            stored = self._store.read(name, self._config)
        except StorageError as error:
            if self._not_applied.get(name) != str(error):
                self._not_applied[name] = str(error)
                self._journal.error("topic_not_applied", topic=name, error=str(error))
            return None
        self._not_applied.pop(name, None)
        return stored

    def _follow(self, name: str) -> Work[None]:
        """Create, grow or delete the topic of a name until this broker has what the image has."""
        while True:
            stored, present = self._stored(name), self._by_name.get(name)
            if present is not None and not self._store.exists(present):
                yield from self._delete(present)
            elif stored is None:
                return
            elif any(chosen := self._not_placed(stored, present)):
                if not (yield from self._place(stored, chosen)):
                    return
            elif present is None:
                yield from self._add(stored)
                self._report_opened(stored, 0)
                self._report("topic_created", stored, partitions=stored.partitions_count)
            elif stored.partitions_count > present.partitions_count:
                first = present.partitions_count
                present.replicas, present.directory_ids = stored.replicas, stored.directory_ids
                self.replica_counts.update(chain.from_iterable(stored.replicas[first:]))
                yield from self._open_partitions(present)
                self._report_opened(present, first)
                self._journal.info("topic_grown", topic=name, partitions=present.partitions_count)
            else:
                return

    def _not_placed(self, stored: Topic, present: Topic | None) -> list[str]:
        """Choose log directories for the new replicas that another broker has placed on this one; "" for others."""
        first = 0 if present is None else present.partitions_count
        here = [False] * first
        for index in range(first, stored.partitions_count):
            here.append(not stored.directory_ids[index] and self._local.has_replica(stored, index))
        return self._loader.dirs.place_replicas(
            here, is_internal=stored.is_internal, storage=stored.config.headrace_storage
        )

    def _place(self, stored: Topic, chosen: Sequence[str]) -> Work[bool]:
        """Store the log directories of new replicas. Without that, the next start would look for them elsewhere.

        Returns:
            Whether they are stored. Otherwise directories are chosen again later.
        """
        ids = [new or known for new, known in zip(chosen, stored.directory_ids, strict=True)]
        try:
            yield from self._store.place(stored, ids)
        except ApiError as error:
            self._journal.warning("topic_not_placed", topic=stored.name, error=error.message)
            self._changed[stored.name] = None
            self.opening.retry_later(self._time.now_ms)
            return False
        return True

    def _add(self, topic: Topic, specs: Iterable[OpeningSpec | None] | None = None) -> Work[None]:
        """Open the partitions of a topic that is stored, then show the topic."""
        self._new[topic.name] = topic
        self._by_metric_name[metric_name(topic.name)] = topic.name
        try:
            yield from self._open_partitions(topic, specs)
        finally:
            del self._new[topic.name]
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self.replica_counts.update(chain.from_iterable(topic.replicas))

    def _open_partitions(
        self, topic: Topic, specs: Iterable[OpeningSpec | None] | None = None
    ) -> Work[None]:
        yield from self.opening.open_missing(topic, self._time.now_ms, specs)
        self.changes += 1

    def _report_opened(self, topic: Topic, first: int) -> None:
        for partition in self._local.of(topic)[first:]:
            if partition is not None:
                self.on_opened(partition)

    def _delete(self, topic: Topic) -> Work[None]:
        """Serve a topic no longer, and remove its files if there is a tombstone."""
        name = topic.name
        self.changes += 1
        self._local.hide(topic)
        del self._by_name[name], self._by_id[topic.topic_id]
        self.replica_counts.subtract(chain.from_iterable(topic.replicas))
        self._by_metric_name.pop(metric_name(name), None)
        self.deleted_names.add(name)
        self.on_fewer_settings()
        forgotten = self._steps.run(self.on_deleted(name), finishes=True)
        topic.deletion = TopicDeletion(forgotten)
        if self._store.has_tombstone(topic.topic_id):
            yield from self._remove(topic)
        else:
            yield from self._deletion.release(_partitions_of(topic))
            self._report("topic_deleted", topic, files="left alone")

    def _remove(self, topic: Topic) -> Work[None]:
        """Remove the files of a deleted topic, and this broker from the tombstone. `tick` repeats what fails."""
        name, deletion = topic.name, topic.deletion
        assert deletion is not None, f"topic {name} is not deleted"
        try:
            if not deletion.is_removed:
                deletion.is_removed = yield from self._deletion.delete(_partitions_of(topic))
            if deletion.is_removed:
                yield from self._store.end_deletion(topic.topic_id)
        except ApiError as error:
            if deletion.error is None:
                self._journal.error("topic_deletion_not_finished", topic=name, error=error.message)
            deletion.error = error
            self._not_removed[topic.topic_id] = topic
            self.opening.retry_later(self._time.now_ms)
        else:
            self._report("topic_deleted", topic)

    def _remove_again(self) -> None:
        """Try again to remove deleted topics."""
        for topic in list(self._not_removed.values()):
            name, deletion = topic.name, topic.deletion
            if name in self.changing:
                self.opening.retry_later(self._time.now_ms)
                continue
            del self._not_removed[topic.topic_id]
            # The files of a new topic have the same names. The next start knows them apart by their topic ids.
            if name not in self._by_name or (deletion is not None and deletion.is_removed):
                self.changing.run(name, self._remove(topic))

    def _report(self, event: str, topic: Topic, **fields: object) -> None:
        self._journal.info(event, topic=topic.name, **fields, topic_id=topic.topic_id.hex())

    # Configuration

    def _configure(self, name: str) -> None:
        """Use the settings that the image has for a topic."""
        topic = self._by_name.get(name) or self._new.get(name)
        stored = None if topic is None else self._stored(name)
        if (
            topic is None
            or stored is None
            or stored.topic_id != topic.topic_id
            or stored.settings == topic.settings
        ):
            return
        topic.settings, topic.config = stored.settings, stored.config
        self._loader.configure(self._local.of(topic), topic.config)
        self._journal.info("topic_configured", topic=name, settings=topic.settings)
        self.on_fewer_settings()

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
        if self._not_applied:
            self._changed.update(dict.fromkeys(self._not_applied))
            self.opening.wake()


def _forget_nothing(_name: str) -> Work[Reply[Any]]:
    yield 0
    return None


def _partitions_of(topic: Topic) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for index in range(topic.partitions_count)]
