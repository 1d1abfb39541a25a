"""The topics, as the coordinator of consumer groups needs them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol


class TopicInfo(NamedTuple):
    """A topic as an assignor sees it."""

    topic_id: bytes
    partitions_count: int


class Matches(NamedTuple):
    """The topics that a regular expression matches."""

    names: tuple[str, ...] | None
    """The names of the topics; None while the expression is evaluated for the first time."""
    is_current: bool
    """Whether `names` includes the latest change of topics. If false, it will soon; ask again."""


class TopicsView(Protocol):
    """The topics; the broker implements it."""

    @property
    def changes(self) -> int:
        """A counter that increases when a topic is created, deleted or extended, or when permissions change."""

    def get(self, name: str) -> TopicInfo | None:
        """Return a topic, or None."""

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id, or None."""

    def matching(self, regex: str) -> Matches:
        """Return the topics that a regular expression matches as a whole, as far as that is known in bounded time.

        Raises:
            ApiError: INVALID_REGULAR_EXPRESSION, with the reason, or COORDINATOR_LOAD_IN_PROGRESS: too
                many expressions are being evaluated.
        """


class NoTopics:
    """A view of no topics."""

    changes = 0

    def get(self, name: str) -> TopicInfo | None:  # noqa: ARG002 - there are none of any name
        """Return None for every name."""
        return None

    def name_of(self, topic_id: bytes) -> str | None:  # noqa: ARG002 - there are none of any id
        """Return None for every id."""
        return None

    def matching(self, regex: str) -> Matches:  # noqa: ARG002 - nothing matches
        """Return an empty match."""
        return Matches((), is_current=True)


def known_topics(view: TopicsView, names: Iterable[str]) -> dict[str, TopicInfo]:
    """Return those of the named topics that exist."""
    return {name: info for name in names if (info := view.get(name)) is not None}


def metadata_hash(topics: Mapping[str, TopicInfo]) -> int:
    """Return a number that differs when topics differ in name, topic id or number of partitions; 0 for no topics."""
    if not topics:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(topics):
        topic_id, count = topics[name]
        digest.update(b"%s\0%s%d\n" % (name.encode(), topic_id, count))
    return int.from_bytes(digest.digest(), "big", signed=True)
