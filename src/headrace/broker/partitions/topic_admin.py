"""The requests that create, grow, configure and delete topics: checks, then commits to the metadata store.

A change takes effect when the image has it, see `Topics`. A request waits for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.broker.configs.broker_settings import BrokerSettings
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partitions.topic import CheckConfig, Topic, acceptable_config, new_topic_id
from headrace.broker.partitions.topic_store import TopicStore
from headrace.broker.partitions.topics import Topics
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic_names import INTERNAL_TOPICS, check_topic_name
from headrace.broker.waiting.steps import Work, finished, value_of
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
    """Creates, grows, configures and deletes topics. A change is durable when it returns."""

    __slots__ = (
        "_broker_id",
        "_check",
        "_entropy",
        "_replicas",
        "_settings",
        "_store",
        "_topics",
        "creations",
    )

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: MetadataWriter,
        topics: Topics,
        replicas: Replicas,
        *,
        entropy: Entropy,
        check: CheckConfig,
    ) -> None:
        """Change the topics of one broker.

        Args:
            settings: The configuration of the broker.
            metadata: The metadata store.
            topics: The topics.
            replicas: The replicas of this broker.
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
        self.creations = 0
        """The number of topics that `create_in_steps` has begun to create."""

    # Creation

    def validate_new(
        self, name: str, partitions_count: int, settings: Mapping[str, str | None]
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
        self._check_count(partitions_count, added=partitions_count)
        config = acceptable_config(settings, self._settings.config, self._check)
        self._replicas.store.dirs.storage(config.headrace_storage)
        return config

    def _check_count(self, partitions_count: int, *, added: int) -> None:
        config = self._settings.config
        if not 1 <= partitions_count <= config.max_partitions_per_topic:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"{partitions_count} partitions; a topic has 1 to {config.max_partitions_per_topic}",
            )
        held = self._replicas.partitions_count + self._topics.opening.pending
        if held + added > config.max_partitions:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"the broker holds at most {config.max_partitions} partitions (max.partitions)",
            )

    def create(
        self,
        name: str,
        partitions_count: int | None = None,
        settings: Mapping[str, str | None] | None = None,
    ) -> Topic:
        """Create a topic at once. Its directories are created with their first batches.

        Args:
            name: The name.
            partitions_count: The number of partitions; None for the default of the broker.
            settings: The settings of the topic as text, by Kafka's names. The value None stands for the default.

        Raises:
            ApiError: The topic could not be created.
        """
        topic = self._new_topic(name, partitions_count, settings or {})
        self._store.commit_and_wait(self._store.creation(topic))
        self._topics.follow_image(at_once=True)
        return self._topics.require(name)

    def create_in_steps(
        self,
        name: str,
        partitions_count: int | None = None,
        settings: Mapping[str, str | None] | None = None,
    ) -> Work[Topic]:
        """Create a topic like `create`, in steps if there are many partitions."""
        topic = self._new_topic(name, partitions_count, settings or {})
        self.creations += 1
        yield from self._store.commit(self._store.creation(topic))
        yield from self._followed(name)
        return self._topics.require(name)

    def _new_topic(
        self, name: str, partitions_count: int | None, settings: Mapping[str, str | None]
    ) -> Topic:
        broker_config = self._settings.config
        count = broker_config.num_partitions if partitions_count is None else partitions_count
        config = self.validate_new(name, count, settings)
        own = {key: text for key, text in settings.items() if text is not None}
        dirs = self._replicas.store.dirs
        directory_ids = dirs.place(
            count,
            is_internal=name in INTERNAL_TOPICS,
            storage_id=dirs.storage(config.headrace_storage),
        )
        topic_id = new_topic_id(self._entropy, self._topics.ids)
        replicas: list[tuple[int, ...]] = [(self._broker_id,)] * count
        return Topic(name, topic_id, own, config, replicas, directory_ids=directory_ids)

    def _followed(self, name: str) -> Work[None]:
        """Wait until this broker has what the image has for a topic."""
        self._topics.follow_image()
        yield from self._topics.changing.wait(name)

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

    def grow_in_steps(self, topic: Topic, partitions_count: int) -> Work[None]:
        """Add partitions to a topic until it has `partitions_count`, in steps if there are many new partitions.

        Raises:
            ApiError: The topic could not grow.
        """
        self.validate_growth(topic, partitions_count)
        present = topic.directory_ids
        added = self._replicas.store.dirs.place(
            partitions_count - len(present), is_internal=topic.is_internal, storage_id=present[0]
        )
        replicas = [*topic.replicas, *[(self._broker_id,)] * len(added)]
        yield from self._store.commit(self._store.growth(topic, replicas, [*present, *added]))
        yield from self._followed(topic.name)

    # Configuration

    def configure(self, topic: Topic, settings: Mapping[str, str]) -> Work[None]:
        """Replace the settings of a topic. They are in force when the work is done.

        Raises:
            ApiError: A setting is invalid, or the settings could not be stored.
        """
        self.check_change(topic, settings)
        yield from self._store.commit(self._store.configuration(topic, settings))
        self._topics.follow_image()

    def check_change(self, topic: Topic, settings: Mapping[str, str]) -> TopicConfig:
        """Return the configuration that a topic would have with other settings.

        Raises:
            ApiError: A setting is invalid, or cannot be changed after the creation of a topic.
        """
        config = acceptable_config(settings, self._settings.config, self._check)
        if settings.get(_STORAGE, "") != topic.settings.get(_STORAGE, ""):
            raise InvalidConfigError(
                f"{_STORAGE} is chosen when a topic is created; {topic.name!r} cannot get another one"
            )
        return config

    # Deletion

    def delete(self, topic: Topic) -> Reply[Any]:
        """Delete a topic at once, and the offsets that groups have committed for it.

        Returns:
            A reply that is ready when the deletion of the offsets is durable.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR. The next start completes the deletion.
        """
        self._store.commit_and_wait(self._store.deletion(topic))
        self._topics.follow_image(at_once=True)
        return finished(self._deleted(topic))

    def delete_in_steps(self, topic: Topic) -> Work[Reply[Any]]:
        """Delete a topic like `delete`, in steps if it has many partitions. Clients see the topic no longer."""
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
