"""Which topics a subscription means, and whether that has changed since the group was told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.subscription import Subscription, pattern_of, regex_for_broker
from headrace.clients.engine import Engine
from headrace.clients.flows import metadata
from headrace.clients.flows.attachments import group_attachments
from headrace.clients.flows.consumer_group import Wanted
from headrace.clients.flows.effects import Flow
from headrace.errors import ApiError, ErrorCode
from headrace.types import TopicPartition

ANY_TIME: Final = ("range", "roundrobin", "sticky", "equal")
"""Assignors that a group may go over to while its members run: the members that follow it join with all of these."""
ATTACHMENTS_CHECK_MS: Final = 3_000
"""How often members look what their group is attached to, at least: an administrator waits for it."""

PATTERN_CHECK_MS: Final = 5_000
"""How often a consumer looks for topics that match its pattern, where the coordinator does not do it. The coordinator
sees new partitions of a classic group's topics, but not the pattern."""
PATTERN_CHECK_MS_PER_TOPIC: Final = 5
"""A broker with many topics is asked less often: an answer costs time in proportion to them."""

TOPICS_NAMED: Final = 1_000
"""Most topics that a question about the members' topics names: a request with more may be larger than brokers take."""


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
        self._subscription = Subscription()
        self.assignor: str | None = None
        """The assignor that an administrator chose for the group."""
        self._told: tuple[frozenset[str], str | None] | None = None
        """The topics and the assignor that the group was told; None while there is nothing to compare with."""
        self._divided: Mapping[str, int] | None = None
        """The numbers of partitions that this member, as leader, divided among the group."""
        self._group_topics: frozenset[str] = frozenset()
        self.server_side = False
        """Whether the coordinator divides the partitions: then it can apply patterns, too."""
        self._refused: str | None = None
        """The expression that the coordinator did not take."""

    def follow(self, subscription: Subscription) -> None:
        """Look after another subscription."""
        self._subscription = subscription
        self._told = None
        self._divided = None
        self._group_topics = frozenset()

    @property
    def regex(self) -> str | None:
        """The expression that the coordinator applies in place of this client; None where topics are named."""
        subscription = self._subscription
        if not self.server_side or subscription.kind != "pattern" or subscription.exclude:
            return None
        assert subscription.pattern is not None, "so it is of this kind"
        regex = regex_for_broker(subscription.pattern)
        return None if regex == self._refused else regex

    @property
    def known(self) -> frozenset[str] | None:
        """The topics that are subscribed to; None where only the coordinator knows them."""
        return self._subscription.topics if self.regex is None else None

    @property
    def local_pattern(self) -> str | None:
        """The pattern that this client applies; None where topics are named, or the coordinator applies it."""
        pattern = self._subscription.pattern
        return pattern.pattern if self._match_all and pattern is not None else None

    @property
    def _match_all(self) -> bool:
        return self._subscription.needs_all_topics and self.regex is None

    @property
    def age_ms(self) -> int:
        """How long what is known of topics holds."""
        longest_ms = self._config.metadata_max_age_ms
        if self._subscription.kind == "group":
            return min(ATTACHMENTS_CHECK_MS, longest_ms)
        if self._match_all:
            known = len(self._engine.state.metadata.topics)
            return min(max(PATTERN_CHECK_MS, known * PATTERN_CHECK_MS_PER_TOPIC), longest_ms)
        return longest_ms

    def relevant(self) -> frozenset[str]:
        """Return the topics whose leaders matter."""
        return self._subscription.topics.union(name.topic for name in self._assigned)

    def refused(self) -> ApiError | None:
        """Return why one of the topics cannot be read: whoever waits for what it may not see would wait for ever."""
        for name in sorted(self.relevant()):
            topic = self._engine.state.metadata.topics.get(name)
            if topic is not None and topic.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                return ApiError.for_code(topic.error, f"topic {name!r}: {topic.error.description}")
        return None

    def question(self) -> Flow[frozenset[str] | None]:
        """Find which topics have to be asked about now and then; None is all of them."""
        yield from self._look_at_attachments()
        if self._match_all:
            return None
        return self._named(self.relevant() | self._group_topics)

    def attachments(self) -> Flow[str]:
        """Ask what the group is attached to; return the names of the assignors to join it with, best first.

        Raises:
            ConfigError: The broker does not keep such a thing.
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

    # What the member asks

    def subscribed(self) -> Flow[frozenset[str]]:
        """Look up which topics the member wants; they are what the group is told."""
        yield from self._look_at_attachments()
        if self._match_all:
            yield from metadata.refresh(self._engine.state, None)
            self._match()
        self._told = self._subscription.topics, self.assignor
        return self._subscription.topics

    def wanted(self) -> Flow[Wanted]:
        """Look up what the coordinator is told, where it divides the partitions."""
        regex = self.regex
        if regex is not None:
            self._told = None
            return Wanted(frozenset(), regex)
        topics = yield from self.subscribed()
        return Wanted(topics)

    def match_here(self) -> None:
        """The coordinator does not take the pattern: from now on it is matched here."""
        self._refused = self.regex

    def count_partitions(self, topics: frozenset[str]) -> Flow[Mapping[str, int]]:
        """Look up how many partitions the topics of the group have; those that do not exist are left out.

        Only this member's own are created (`allow.auto.create.topics`): what others name is not to become a topic by
        this client's rights.
        """
        self._group_topics = topics
        yield from self.create_own()
        yield from metadata.refresh(self._engine.state, self._named(topics))
        return self._count(topics)

    def create_own(self) -> Flow[None]:
        """Have the broker create the topics that are subscribed to and missing, if this client is to do that."""
        own = self._subscription.topics
        if self._config.allow_auto_create_topics and own:
            yield from metadata.refresh(self._engine.state, own, auto_create=True)

    def _named(self, topics: frozenset[str]) -> frozenset[str] | None:
        """Return the topics to ask about; None is all that there are, where members want many that may not exist."""
        every = self._subscription.needs_all_topics or len(topics) > TOPICS_NAMED
        return None if every else topics

    def took(self, divided: Mapping[str, int] | None) -> None:
        """An assignment is taken over; the leader watches whether what it divided still holds."""
        self._divided = divided
        if divided is None:
            self._group_topics = frozenset()

    # News

    def changed(self) -> str | None:
        """Return why the group has to rebalance, now that metadata are fresh; None if it has not."""
        if self._match_all:
            self._match()
        if self._told not in {None, (self._subscription.topics, self.assignor)}:
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
