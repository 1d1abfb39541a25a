"""What the coordinator of consumer groups is shown: the topics, and the assignors that the configuration names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any, Final

from headrace.broker.topics import Topics
from headrace.core.coordinator.consumer.assignors import OWN_ASSIGNORS, Assignor
from headrace.core.coordinator.consumer.topics import TopicInfo
from headrace.errors import ApiError, ConfigError, ErrorCode

try:
    import re2
except ImportError:
    re2 = None

_PATTERN_MEMORY_BYTES: Final = 1 << 20
ASSIGNORS_ENTRY_POINTS: Final = "headrace.group_assignors"


class GroupTopics:
    """Implements `headrace.core.coordinator.consumer.topics.TopicsView` over the broker's topics.

    Regular expressions are RE2's: it takes time in proportion to the text whatever the expression. Python's `re` does
    not, so a client could stop the broker with a few characters; without `google-re2` expressions are refused.
    """

    __slots__ = ("_topics",)

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def changes(self) -> int:
        """A number that rises whenever a topic is created, grows or is deleted."""
        return self._topics.changes

    def get(self, name: str) -> TopicInfo | None:
        """Return a topic, or None."""
        topic = self._topics.get(name)
        return None if topic is None else TopicInfo(topic.topic_id, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id, or None."""
        topic = self._topics.by_id(topic_id)
        return None if topic is None else topic.name

    def matching(self, regex: str) -> Iterator[str]:
        """Return the names of all topics that a regular expression matches as a whole.

        Raises:
            ApiError: INVALID_REGULAR_EXPRESSION, with the reason.
        """
        matches = _compiled(regex).fullmatch
        return (topic.name for topic in self._topics if matches(topic.name))


def _compiled(regex: str) -> Any:
    if re2 is None:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            "this broker cannot evaluate regular expressions: install headrace[regex] where it runs, or subscribe to "
            "topics by name",
        )
    options = re2.Options()
    options.max_mem = _PATTERN_MEMORY_BYTES
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex[:300]}` is not a valid regular expression: {text}.",
        ) from error


def load_assignors(names: str) -> Mapping[str, Assignor]:
    """Return the assignors of a comma-separated list, the default first.

    Those that are not Headrace's own are classes that an installed package offers under the entry point group
    `headrace.group_assignors`, by that name.

    Raises:
        ConfigError: One of them is not there, or cannot be made.
    """
    assignors: dict[str, Assignor] = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        assignors[name] = OWN_ASSIGNORS.get(name) or _users_assignor(name)
    if not assignors:
        raise ConfigError("group.consumer.assignors: at least one assignor is needed")
    return assignors


def _users_assignor(name: str) -> Assignor:
    found = metadata.entry_points(group=ASSIGNORS_ENTRY_POINTS, name=name)
    if not found:
        raise ConfigError(
            f"group.consumer.assignors: there is no assignor {name!r}; Headrace has {', '.join(OWN_ASSIGNORS)}, and "
            f"installed packages may offer others as entry points of the group {ASSIGNORS_ENTRY_POINTS!r}"
        )
    try:
        assignor: Assignor = next(iter(found)).load()()
    except Exception as error:
        raise ConfigError(
            f"group.consumer.assignors: {name!r} cannot be made: {error!r}"
        ) from error
    assignor.name = name
    return assignor
