"""The subscription of a consumer: topics, a pattern, the attachments of its group, or partitions chosen by hand."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from headrace.errors import ConfigError, ConflictingSubscriptionError, InvalidTopicError
from headrace.types import TopicPartition

LEGAL_NAME: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
"""The topic names that brokers allow; brokers use them as names of directories."""

Kind = Literal["none", "topics", "pattern", "group", "partitions"]

_DESCRIPTIONS: dict[Kind, str] = {
    "none": "nothing",
    "topics": "topics",
    "pattern": "a pattern",
    "group": "what its group is attached to",
    "partitions": "partitions chosen by hand",
}


@dataclass(slots=True)
class ConsumerSubscription:
    """A subscription, and the topics that match it now."""

    kind: Kind = "none"
    topics: frozenset[str] = frozenset()
    """The topics that are named or that match. They need not exist."""
    pattern: re.Pattern[str] | None = None
    """The pattern of topic names; None if topics are named."""
    exclude: re.Pattern[str] | frozenset[str] = field(default_factory=frozenset)

    @property
    def by_group(self) -> bool:
        """Whether the group decides which partitions the consumer gets."""
        return self.kind in {"topics", "pattern", "group"}

    @property
    def needs_all_topics(self) -> bool:
        """Whether the names of all topics are needed to apply the subscription."""
        return self.pattern is not None

    def check_change(self, kind: Kind) -> None:
        """Raise ConflictingSubscriptionError unless a subscription of this kind may replace this one."""
        if self.kind not in {"none", kind}:
            raise ConflictingSubscriptionError(
                f"the consumer reads {_DESCRIPTIONS[self.kind]}: call unsubscribe() before it reads "
                f"{_DESCRIPTIONS[kind]}"
            )

    def match(self, names: Iterable[str]) -> None:
        """Set `topics` to the names that match the pattern."""
        if self.pattern is not None:
            self.topics = frozenset(name for name in names if self._matches(name))

    def _matches(self, name: str) -> bool:
        assert self.pattern is not None, "checked by match"
        if self.pattern.fullmatch(name) is None:
            return False
        if isinstance(self.exclude, frozenset):
            return name not in self.exclude
        return self.exclude.fullmatch(name) is None


def topics_of(names: object) -> frozenset[str]:
    """Return topic names, checked to be text.

    Raises:
        ConfigError: It is no collection of names, for example a single name.
    """
    if isinstance(names, str) or not isinstance(names, Collection):
        raise ConfigError(f"topics are a list of names, not {names!r}; for one topic: [{names!r}]")
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a topic's name is text, not {name!r}")
    return frozenset(names)


def wanted_topics(names: object) -> frozenset[str]:
    """Return the topics to subscribe to. They need not exist, but their names must be valid.

    Raises:
        ConfigError: It is no collection of names.
        InvalidTopicError: A name is not a valid topic name.
    """
    topics = topics_of(names)
    for name in sorted(topics):
        if LEGAL_NAME.fullmatch(name) is None:
            raise InvalidTopicError(
                f"{name!r} is not a valid topic name: use up to 249 of a-z, A-Z, 0-9, '.', '_' and '-'; to "
                "subscribe to all that match something, use pattern="
            )
    return topics


def check_listener(listener: object | None) -> None:
    """Check that a listener has a method that can be called.

    Raises:
        ConfigError: It has none of the methods.
    """
    hooks = ("on_revoked", "on_assigned", "on_lost")
    if listener is not None and not any(callable(getattr(listener, hook, None)) for hook in hooks):
        raise ConfigError(
            f"a listener is an object with any of {', '.join(hooks)}; {listener!r} has none"
        )


def partition_of(given: object) -> TopicPartition:
    """Return a partition that the program has given.

    Raises:
        ConfigError: It is not a partition, for example the name of a topic.
    """
    match given:
        case (str(topic), int(partition)):
            return TopicPartition(topic, partition)
        case _:
            raise ConfigError(
                f"a partition is a TopicPartition(topic, number), not {given!r}; several are a list of them"
            )


def pattern_of(text: str | re.Pattern[str]) -> re.Pattern[str]:
    """Return a compiled pattern.

    Raises:
        ConfigError: It is no regular expression.
    """
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise ConfigError(f"{text!r} is no regular expression: {error}") from None


def exclusion_of(
    exclude: str | re.Pattern[str] | Collection[str],
) -> re.Pattern[str] | frozenset[str]:
    """Return the exclusion: a pattern, or names."""
    if isinstance(exclude, str | re.Pattern):
        return pattern_of(exclude)
    return topics_of(exclude)


def wanted_subscription(
    topics: object,
    pattern: str | re.Pattern[str] | None,
    exclude: str | re.Pattern[str] | Collection[str],
) -> ConsumerSubscription:
    """Return the subscription that the arguments of `subscribe` describe.

    Raises:
        ConfigError: There are topics and a pattern, or an argument is of the wrong form.
        InvalidTopicError: A name is not a valid topic name.
    """
    if topics is not None and pattern is not None:
        raise ConfigError("subscribe takes topics or a pattern, not both")
    excluded = exclusion_of(exclude)
    if topics is not None:
        return ConsumerSubscription("topics", wanted_topics(topics))
    if pattern is not None:
        return ConsumerSubscription("pattern", pattern=pattern_of(pattern), exclude=excluded)
    return ConsumerSubscription("group", exclude=excluded)


_COMMON: Final = re.compile(
    r"""(?: [\w\ !"\#%&',/:;<=>@`~-] | \. | \^ | \$ | \|   # what stands for itself, anything, the ends, or
      | \\[dDsSwW] | \\[^\w\s]                          # classes of characters, escaped signs
      | \(\?: | \(\?P<[A-Za-z_]\w*> | \((?!\?) | \)      # groups
      | [*+?]\?? | \{\d{1,3}(?:,\d{0,3})?\}\??            # repetitions
      | \[\^?(?:[^\[\]\\] | \\[dDsSwW] | \\[^\w\s])+\]    # sets
    )+""",
    re.VERBOSE | re.ASCII,
)
"""Regular expressions that mean the same in Python and in RE2, which brokers use, for names in ASCII."""


def regex_for_broker(pattern: re.Pattern[str]) -> str | None:
    """Return the expression with which a broker finds the same topics; None if RE2 may read the pattern differently."""
    text, flags = pattern.pattern, pattern.flags & ~(re.UNICODE | re.ASCII)
    if flags & ~re.IGNORECASE or _COMMON.fullmatch(text) is None:
        return None
    return f"(?i){text}" if flags & re.IGNORECASE else text
