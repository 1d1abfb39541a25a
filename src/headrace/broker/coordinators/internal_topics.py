"""Creates the internal topics `__consumer_offsets` and `__transaction_state`, when the first request needs them.

Two brokers may create a topic at the same time: (1) Both find that their image has no topic. (2) Both send a commit,
which checks that the topic is absent. (3) The store applies one commit and refuses the other one. (4) The broker whose
commit was refused waits until its image has the topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.broker.configs.broker_settings import BrokerSettings
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partitions.replica_placement import NewPartitions, ReplicaPlacement
from headrace.broker.partitions.topic import Topic
from headrace.broker.partitions.topic_admin import TopicAdmin
from headrace.broker.partitions.topics import Topics
from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.broker.waiting.steps import Steps, Work
from headrace.config.broker import BrokerConfig
from headrace.deferred import Deferred
from headrace.errors import TopicAlreadyExistsError


class InternalTopics:
    """Creates the internal topics. The coordinators begin when the topic has partitions that this broker leads."""

    __slots__ = ("_admin", "_creating", "_metadata", "_settings", "_steps", "_topics")

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: MetadataWriter,
        topics: Topics,
        admin: TopicAdmin,
        steps: Steps,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._topics = topics
        self._admin = admin
        self._steps = steps
        self._creating: dict[str, Deferred[Any]] = {}
        """The creations that wait for the metadata store or for a step, by name."""

    def ensure(self, name: str) -> Work[Topic]:
        """Return an internal topic. The first request creates the topic, and others wait for the same creation.

        The creation is completed even if all of these requests are cancelled.

        Raises:
            ApiError: The topic cannot be created.
        """
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        creation = self._creating.get(name)
        if creation is None:
            reply = self._steps.run(self._create(name))
            if not isinstance(reply, Deferred):
                return reply
            creation = self._creating[name] = reply
            creation.on_done(lambda _: self._creating.pop(name))
        # Unlike the creation, this deferred may be cancelled.
        created: Deferred[Topic | Exception] = Deferred()
        creation.on_done(created.resolve)
        outcome = created.value if created.done else (yield created)
        if isinstance(outcome, Exception):
            raise outcome
        return self._topics.require(name)

    def _create(self, name: str) -> Work[Topic]:
        new, settings = _spec(name, self._settings.config, self._admin.placement)
        try:
            return (yield from self._admin.create_in_steps(name, new, settings))
        except TopicAlreadyExistsError:
            yield from self._metadata.committing([], [])  # the image then has all earlier commits
            self._topics.follow_image()
            yield from self._topics.changing.wait(name)
            return self._topics.require(name)


class _Spec(NamedTuple):
    """The partitions and settings with which the broker creates an internal topic."""

    partitions: NewPartitions
    settings: Mapping[str, str]


def _spec(name: str, config: BrokerConfig, placement: ReplicaPlacement) -> _Spec:
    """Return the specification of an internal topic. It has fewer replicas if there are fewer live brokers."""
    if name == OFFSETS_TOPIC:
        new = placement.reduced(
            config.offsets_topic_num_partitions, config.offsets_topic_replication_factor
        )
        segment_bytes = config.offsets_topic_segment_bytes
        own = {}
    else:
        new = placement.reduced(
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
        )
        segment_bytes = config.transaction_state_log_segment_bytes
        min_isr = min(config.transaction_state_log_min_isr, new.replication_factor)
        own = {"min.insync.replicas": str(min_isr)}
    settings = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(segment_bytes),
        "headrace.durability": "fsync",
    }
    return _Spec(new, settings | own)
