"""The topics of a subscription, and whether they have changed since they were sent to the group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.subscription import (
    ConsumerSubscription,
    pattern_of,
    regex_for_broker,
)
from headrace.clients.engine import Engine
from headrace.clients.flows import metadata
from headrace.clients.flows.attachments import group_attachments
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.kip848 import MemberTopics
from headrace.errors import ApiError, ErrorCode
from headrace.types import TopicPartition

ANY_TIME: Final = ("range", "roundrobin", "sticky", "equal")
"""The assignors between which an administrator may change at any time: members of attached groups support all."""
ATTACHMENTS_CHECK_MS: Final = 3_000
"""The longest interval in milliseconds in which members look up the attachments of their group."""

PATTERN_CHECK_MS: Final = 5_000
"""The interval in milliseconds in which a consumer looks for topics that match its pattern, if the coordinator does
not. The coordinator of a classic group knows its topics, but not the pattern."""
PATTERN_CHECK_MS_PER_TOPIC: Final = 5
"""Milliseconds that each topic of the cluster adds to the interval, because a large response costs more."""

TOPICS_NAMED: Final = 1_000
"""The largest number of topics that a metadata request names; a longer request may be refused for its size."""


class SubscribedTopics:
    """The topics of one consumer."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        assigned: Mapping[TopicPartition, AssignedPartition],
    ) -> None:
        self._engine = engine
        self._config = config
        self._assigned = assigned
        self._subscription = ConsumerSubscription()
        self.assignor: str | None = None
        """The assignor that an administrator has chosen for the group; None if there is none."""
        self._sent: tuple[frozenset[str], str | None] | None = None
        """The topics and the assignor that were sent to the group; None before that."""
        self._divided: Mapping[str, int] | None = None
        """The number of partitions of each topic when this member last assigned them; None if it is not the leader."""
        self._group_topics: frozenset[str] = frozenset()
        self.coordinator_assigns = False
        """Whether the coordinator assigns the partitions. Then it can apply patterns, too."""
        self._refused: str | None = None
        """The regular expression that the coordinator has refused; None if it has refused none."""

    def follow(self, subscription: ConsumerSubscription) -> None:
        """Follow another subscription from now on."""
        self._subscription = subscription
        self._sent = None
        self._divided = None
        self._group_topics = frozenset()

    @property
    def regex(self) -> str | None:
        """The regular expression that the coordinator applies; None if it applies none."""
        subscription = self._subscription
        if not self.coordinator_assigns or subscription.kind != "pattern" or subscription.exclude:
            return None
        assert subscription.pattern is not None, "so it is of this kind"
        regex = regex_for_broker(subscription.pattern)
        return None if regex == self._refused else regex

    @property
    def known(self) -> frozenset[str] | None:
        """The topics of the subscription; None if only the coordinator knows them."""
        return self._subscription.topics if self.regex is None else None

    @property
    def local_pattern(self) -> str | None:
        """The pattern that this client applies; None if there is none, or the coordinator applies it."""
        pattern = self._subscription.pattern
        return pattern.pattern if self._match_all and pattern is not None else None

    @property
    def _match_all(self) -> bool:
        return self._subscription.needs_all_topics and self.regex is None

    @property
    def age_ms(self) -> int:
        """Milliseconds for which metadata of the topics is valid."""
        longest_ms = self._config.metadata_max_age_ms
        if self._subscription.kind == "group":
            return min(ATTACHMENTS_CHECK_MS, longest_ms)
        if self._match_all:
            known = len(self._engine.state.metadata.topics)
            return min(max(PATTERN_CHECK_MS, known * PATTERN_CHECK_MS_PER_TOPIC), longest_ms)
        return longest_ms

    def relevant(self) -> frozenset[str]:
        """Return the topics of the subscription and of assigned partitions."""
        return self._subscription.topics.union(name.topic for name in self._assigned)

    def refused(self) -> ApiError | None:
        """Return the error of a topic that the client may not read; None if there is none. Waiting would not help."""
        for name in sorted(self.relevant()):
            topic = self._engine.state.metadata.topics.get(name)
            if topic is not None and topic.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                return ApiError.for_code(topic.error, f"topic {name!r}: {topic.error.description}")
        return None

    def question(self) -> Flow[frozenset[str] | None]:
        """Return the topics whose metadata is needed regularly; None is all topics."""
        yield from self._look_at_attachments()
        if self._match_all:
            return None
        return self._named(self.relevant() | self._group_topics)

    def attachments(self) -> Flow[str]:
        """Look up the attachments of the group; return the names of the assignors for joining it, preferred first.

        Raises:
            ConfigError: The broker does not store attachments.
        """
        assert self._config.group_id is not None, "checked by subscribe"
        found = yield from group_attachments(self._engine.state, self._config.group_id)
        if found.assignor is None or found.assignor in ANY_TIME:
            return ",".join(dict.fromkeys([found.assignor or ANY_TIME[0], *ANY_TIME]))
        return found.assignor

    def _look_at_attachments(self) -> Flow[None]:
        subscription = self._subscription
        if subscription.kind != "group":
            return
        assert self._config.group_id is not None, "checked by subscribe"
        found = yield from group_attachments(self._engine.state, self._config.group_id)
        self.assignor = found.assignor
        subscription.pattern = None if found.pattern is None else pattern_of(found.pattern)
        if subscription.pattern is None:
            subscription.topics = found.topics

    # Look-ups for the member

    def subscribed(self) -> Flow[frozenset[str]]:
        """Look up the topics of the subscription, which are then sent to the group."""
        yield from self._look_at_attachments()
        if self._match_all:
            yield from metadata.refresh(self._engine.state, None)
            self._match()
        self._sent = self._subscription.topics, self.assignor
        return self._subscription.topics

    def wanted(self) -> Flow[MemberTopics]:
        """Look up the subscription for a coordinator that assigns the partitions."""
        regex = self.regex
        if regex is not None:
            self._sent = None
            return MemberTopics(frozenset(), regex)
        topics = yield from self.subscribed()
        return MemberTopics(topics)

    def match_here(self) -> None:
        """Apply the pattern here from now on, because the coordinator has refused it."""
        self._refused = self.regex

    def count_partitions(self, topics: frozenset[str]) -> Flow[Mapping[str, int]]:
        """Look up the number of partitions of the group's topics; topics that do not exist are left out.

        The broker may create only topics of this member's own subscription (`allow.auto.create.topics`), and not topics
        that other members name.
        """
        self._group_topics = topics
        yield from self.create_own()
        yield from metadata.refresh(self._engine.state, self._named(topics))
        return self._count(topics)

    def create_own(self) -> Flow[None]:
        """Make the broker create missing topics of the subscription, if `allow.auto.create.topics` is set."""
        own = self._subscription.topics
        if self._config.allow_auto_create_topics and own:
            yield from metadata.refresh(self._engine.state, own, auto_create=True)

    def _named(self, topics: frozenset[str]) -> frozenset[str] | None:
        """Return the topics for a metadata request; None is all topics, if a pattern needs them or there are many."""
        every = self._subscription.needs_all_topics or len(topics) > TOPICS_NAMED
        return None if every else topics

    def took(self, divided: Mapping[str, int] | None) -> None:
        """Note that an assignment was taken over; a leader compares its numbers of partitions with later metadata."""
        self._divided = divided
        if divided is None:
            self._group_topics = frozenset()

    # Changes

    def changed(self) -> str | None:
        """Return the reason for which fresh metadata requires a rebalance; None if it does not."""
        if self._match_all:
            self._match()
        if self._sent not in {None, (self._subscription.topics, self.assignor)}:
            return "the topics subscribed to changed, or the assignor of the group"
        if self._divided is not None and self._count(self._group_topics) != self._divided:
            return "the topics of the group have other partitions"
        return None

    def _match(self) -> None:
        self._subscription.match(
            name
            for name, topic in self._engine.state.metadata.topics.items()
            if not topic.is_internal and not topic.error
        )

    def _count(self, topics: frozenset[str]) -> dict[str, int]:
        known = self._engine.state.metadata
        counts = {topic: len(known.partitions(topic)) for topic in topics}
        return {topic: count for topic, count in counts.items() if count}
