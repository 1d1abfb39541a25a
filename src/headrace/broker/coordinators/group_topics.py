"""What the coordinator of consumer groups is shown: the topics, and the assignors that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final

from headrace.broker.access.authorizer import Authorizer
from headrace.broker.topics import Topics
from headrace.core.coordinator.consumer.assignors import OWN_ASSIGNORS, Assignor
from headrace.core.coordinator.consumer.topics import TopicInfo
from headrace.errors import ApiError, ConfigError, ErrorCode
from headrace.ports import Journal

try:
    import re2
except ImportError:
    re2 = None

INSTALL_RE2: Final = "pip install 'headrace[server]', or google-re2 alone,"
PATTERN_CHARACTERS_LIMIT: Final = 1000
_PATTERN_MEMORY_BYTES: Final = 1 << 18
_PROGRAM_LIMIT: Final = 1000
"""Of instructions that an expression is compiled to: each may be a step for each character of each topic's name."""
_STEPS_LIMIT: Final = 100_000_000
"""How many of those an expression may need for all topics: a second, if it is made to be slow."""
_REMEMBERED_LIMIT: Final = 1000
ASSIGNORS_ENTRY_POINTS: Final = "headrace.group_assignors"


class GroupTopics:
    """Implements `headrace.core.coordinator.consumer.topics.TopicsView` over the broker's topics.

    Regular expressions are RE2's: it takes time in proportion to the text whatever the expression. Python's `re` does
    not, so a client could stop the broker with a few characters; without `google-re2` expressions are refused. So are
    those that are long or compiled to much, for the time is in proportion to that too. What an expression matches is
    remembered until topics change, for all groups and members that have it.
    """

    __slots__ = ("_authorizer", "_journal", "_matches", "_matches_at", "_topics", "_warned")

    def __init__(self, topics: Topics, authorizer: Authorizer, journal: Journal) -> None:
        self._topics = topics
        self._authorizer = authorizer
        self._journal = journal
        self._warned = False
        """Whether the log says that expressions cannot be evaluated here."""
        self._matches: dict[str, tuple[str, ...]] = {}
        self._matches_at = -1

    @property
    def changes(self) -> int:
        """A number that rises whenever a topic is created, grows or is deleted, or who may see it changes."""
        return self._topics.changes + self._authorizer.changes

    def get(self, name: str) -> TopicInfo | None:
        """Return a topic, or None."""
        topic = self._topics.get(name)
        return None if topic is None else TopicInfo(topic.topic_id, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id, or None."""
        topic = self._topics.by_id(topic_id)
        return None if topic is None else topic.name

    def matching(self, regex: str) -> tuple[str, ...]:
        """Return the names of all topics that a regular expression matches as a whole.

        Raises:
            ApiError: INVALID_REGULAR_EXPRESSION, with the reason.
        """
        if self._matches_at != self.changes or len(self._matches) >= _REMEMBERED_LIMIT:
            self._matches, self._matches_at = {}, self.changes
        if re2 is None and not self._warned:
            self._warned = True
            self._journal.warning("regular_expressions_not_evaluated", install=INSTALL_RE2)
        known = self._matches.get(regex)
        if known is None:
            names = [topic.name for topic in self._topics]
            matches = _compiled(regex, sum(map(len, names))).fullmatch
            known = self._matches[regex] = tuple(name for name in names if matches(name))
        return known


def _compiled(regex: str, characters: int) -> Any:
    if re2 is None:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"this broker cannot evaluate regular expressions: {INSTALL_RE2} where it runs, or subscribe to topics by "
            "name",
        )
    if len(regex) > PATTERN_CHARACTERS_LIMIT:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex is longer than {PATTERN_CHARACTERS_LIMIT} characters",
        )
    options = re2.Options()
    options.max_mem = _PATTERN_MEMORY_BYTES
    options.log_errors = False
    try:
        compiled = re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex[:300]}` is not a valid regular expression: {text}.",
        ) from error
    size = compiled.programsize
    if size > _PROGRAM_LIMIT or size * characters > _STEPS_LIMIT:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex[:300]}` takes too long to match: use fewer repetitions with counts",
        )
    return compiled


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
