"""The requests that create, grow, configure and delete topics: checks, then commits to the metadata store.

A change takes effect when the image has it, see `Topics`. A request waits for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from headrace.broker.configs.broker_settings import BrokerSettings
from headrace.broker.configs.config_changes import MergeSettings
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partitions.replica_placement import NewPartitions, ReplicaPlacement
from headrace.broker.partitions.topic import CheckConfig, Topic, acceptable_config, new_topic_id
from headrace.broker.partitions.topic_store import STATES_A_COMMIT, TopicStore
from headrace.broker.partitions.topics import Topics
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic_names import INTERNAL_TOPICS, check_topic_name
from headrace.broker.waiting.steps import Work, value_of
from headrace.config.topic import TopicConfig
from headrace.core.coordinator.runtime import Reply
from headrace.errors import (
    ApiError,
    ErrorCode,
    InvalidConfigError,
    InvalidTopicError,
    TopicAlreadyExistsError,
)
from headrace.ports import Entropy

_STORAGE: Final = "headrace.storage"


class TopicAdmin:
    """Creates, grows, configures and deletes topics. A change is durable when its work is done."""

    __slots__ = (
        "_broker_id",
        "_check",
        "_entropy",
        "_replicas",
        "_settings",
        "_store",
        "_topics",
        "creations",
        "placement",
    )

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: MetadataWriter,
        topics: Topics,
        replicas: Replicas,
        placement: ReplicaPlacement,
        *,
        entropy: Entropy,
        check: CheckConfig,
    ) -> None:
        """Change the topics of the cluster.

        Args:
            settings: The configuration of the broker.
            metadata: The metadata store.
            topics: The topics.
            replicas: The replicas of this broker.
            placement: Chooses the brokers of new partitions.
            entropy: Makes topic ids.
            check: Raises ConfigError for a configuration that clients may not set.
        """
        self._settings = settings
        self._broker_id = settings.config.broker_id
        self._store = TopicStore(metadata, self._broker_id)
        self._topics = topics
        self._replicas = replicas
        self._entropy = entropy
        self._check = check
        self.placement = placement
        """Chooses the brokers of new partitions."""
        self.creations = 0
        """The number of topics that `create_in_steps` has begun to create."""

    # Creation

    def validate_new(
        self, name: str, new: NewPartitions, settings: Mapping[str, str | None]
    ) -> TopicConfig:
        """Check whether a topic could be created, and return the configuration that it would have.

        Raises:
            ApiError: The topic could not be created.
        """
        check_topic_name(name)
        if self._topics.get(name) is not None or name in self._topics.changing:
            raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")
        other = self._topics.named_like(name)
        if other is not None:
            raise InvalidTopicError(
                f"topic {name!r} collides with {other!r}: '.' and '_' are one character in metric names"
            )
        self._check_count(new.partitions_count, new)
        config = acceptable_config(settings, self._settings.config, self._check)
        _check_acks(config, new.replication_factor)
        self._replicas.store.dirs.storage(config.headrace_storage)
        return config

    def _check_count(self, partitions_count: int, new: NewPartitions) -> None:
        config = self._settings.config
        if not 1 <= partitions_count <= config.max_partitions_per_topic:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"{partitions_count} partitions; a topic has 1 to {config.max_partitions_per_topic}",
            )
        held = self._replicas.partitions_count + self._topics.opening.pending
        if held + self.placement.share(new, self._broker_id) > config.max_partitions:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"the broker holds at most {config.max_partitions} partitions (max.partitions)",
            )

    def _placed(
        self, topic_id: bytes, new: NewPartitions, present: Sequence[tuple[int, ...]] = ()
    ) -> Work[list[tuple[int, ...]]]:
        """Return the brokers of new partitions; see `ReplicaPlacement.place`.

        Raises:
            ApiError: POLICY_VIOLATION: another broker would hold too many partitions.
        """
        replicas = yield from self.placement.place(topic_id, new, present)
        limit = self._settings.config.max_partitions
        for broker, added in Counter(chain.from_iterable(replicas)).items():
            held = self._topics.replica_counts[broker]
            if broker != self._broker_id and held + added > limit:
                raise ApiError(
                    ErrorCode.POLICY_VIOLATION,
                    f"broker {broker} holds {held} partitions, at most {limit} (max.partitions)",
                )
        return replicas

    def create_in_steps(
        self,
        name: str,
        new: NewPartitions | None = None,
        settings: Mapping[str, str | None] | None = None,
    ) -> Work[Topic]:
        """Create a topic, in steps if there are many partitions. Its directories are created with their first batches.

        Args:
            name: The name.
            new: The partitions; None for the defaults of the broker, with fewer replicas if there are fewer live
                brokers.
            settings: The settings of the topic as text, by Kafka's names. The value None stands for the default.

        Raises:
            ApiError: The topic could not be created.
        """
        if new is None:
            defaults = self._settings.config
            new = self.placement.reduced(
                defaults.num_partitions, defaults.default_replication_factor
            )
        settings = settings or {}
        config = self.validate_new(name, new, settings)
        self.creations += 1
        topic_id = new_topic_id(self._entropy, self._topics.ids)
        replicas = yield from self._placed(topic_id, new)
        own = {key: text for key, text in settings.items() if text is not None}
        directory_ids = self._directories(replicas, config, is_internal=name in INTERNAL_TOPICS)
        topic = Topic(name, topic_id, own, config, replicas, directory_ids=directory_ids)
        states = self.placement.states(topic_id, replicas, 0, STATES_A_COMMIT)
        yield from self._store.commit(self._store.creation(topic, states))
        yield from self._followed(name)
        return self._topics.require(name)

    def _directories(
        self, replicas: Sequence[Sequence[int]], config: TopicConfig, *, is_internal: bool
    ) -> list[str]:
        """Choose the log directory of each new partition, as far as it has a replica on this broker."""
        return self._replicas.store.dirs.place_replicas(
            [self._broker_id in each for each in replicas],
            is_internal=is_internal,
            storage=config.headrace_storage,
        )

    def _followed(self, name: str) -> Work[None]:
        """Wait until this broker has what the image has for a topic."""
        self._topics.follow_image()
        yield from self._topics.changing.wait(name)

    # Growth

    def added(
        self,
        topic: Topic,
        partitions_count: int,
        assignments: Sequence[Sequence[int]] | None = None,
    ) -> NewPartitions:
        """Return the partitions that a topic lacks. They get as many replicas as the first partition has.

        Args:
            topic: The topic.
            partitions_count: The number of partitions that the topic is to have.
            assignments: The brokers of each new partition; None if the broker chooses.

        Raises:
            ApiError: The topic could not grow: INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR,
                INVALID_REPLICA_ASSIGNMENT or POLICY_VIOLATION.
        """
        present, factor = topic.partitions_count, len(topic.replicas[0])
        count = partitions_count - present
        if count <= 0:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {topic.name!r} has {present} partitions; {partitions_count} is not an increase",
            )
        assigned = [tuple(brokers) for brokers in assignments or ()]
        self._check_count(partitions_count, NewPartitions(count, factor, assigned))
        if assignments is None:
            return self.placement.wanted(count, factor)
        if len(assignments) != count:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The request adds {count} partitions, and assigns {len(assignments)}.",
            )
        return self.placement.assigned(assigned, factor)

    def grow_in_steps(self, topic: Topic, new: NewPartitions) -> Work[None]:
        """Add partitions to a topic, in steps if there are many.

        Raises:
            ApiError: The topic could not grow.
        """
        present, directory_ids = list(topic.replicas), list(topic.directory_ids)
        added = yield from self._placed(topic.topic_id, new, present)
        directory_ids += self._directories(added, topic.config, is_internal=topic.is_internal)
        replicas = [*present, *added]
        states = self.placement.states(topic.topic_id, replicas, len(present), STATES_A_COMMIT)
        yield from self._store.commit(self._store.growth(topic, replicas, directory_ids, states))
        yield from self._followed(topic.name)

    # Configuration

    def configure(self, topic: Topic, merge: MergeSettings) -> Work[None]:
        """Change the settings of a topic. The change is in force when the work is done.

        Args:
            topic: The topic.
            merge: Returns the new settings for the stored ones. It is called again if another request was faster.

        Raises:
            ApiError: A setting is invalid, or the settings could not be stored.
        """

        def checked(present: Mapping[str, str]) -> Mapping[str, str]:
            settings = merge(present)
            if settings != present:
                self.check_change(topic, settings)
            return settings

        yield from self._store.configure(topic, checked)
        self._topics.follow_image()

    def check_change(self, topic: Topic, settings: Mapping[str, str]) -> TopicConfig:
        """Return the configuration that a topic would have with other settings.

        Raises:
            ApiError: A setting is invalid, or cannot be changed after the creation of a topic.
        """
        config = acceptable_config(settings, self._settings.config, self._check)
        _check_acks(config, min(map(len, topic.replicas)))
        if settings.get(_STORAGE, "") != topic.settings.get(_STORAGE, ""):
            raise InvalidConfigError(
                f"{_STORAGE} is chosen when a topic is created; {topic.name!r} cannot get another one"
            )
        return config

    # Deletion

    def delete_in_steps(self, topic: Topic) -> Work[Reply[Any]]:
        """Delete a topic, and the offsets that groups have committed for it, in steps if it has many partitions.

        Returns:
            A reply that is ready when the deletion of the offsets is durable.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR. The next start completes the deletion.
        """
        yield from self._store.commit(self._store.deletion(topic))
        yield from self._followed(topic.name)
        return (yield from self._deleted(topic))

    def _deleted(self, topic: Topic) -> Work[Reply[Any]]:
        deletion = topic.deletion
        assert deletion is not None
        if deletion.error is not None:
            yield from value_of(deletion.forgotten)
            raise deletion.error
        return deletion.forgotten


def _check_acks(config: TopicConfig, replication_factor: int) -> None:
    if config.headrace_acks > replication_factor:
        raise InvalidConfigError(
            f"headrace.acks: {config.headrace_acks} replicas are more than the topic has: {replication_factor}"
        )
