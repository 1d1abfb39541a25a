"""The options that select the partitions of a read: `subscribe`, `assign` or `subscribePattern`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from headrace.errors import ConfigError
from headrace.spark.options.declared import Option, option_names
from headrace.spark.options.reader import OptionReader
from headrace.types import TopicPartition

SELECTION_OPTIONS: Final = (
    Option("subscribe", "Topics, comma-separated."),
    Option("assign", 'Partitions by topic: `{"topic": [0, 2]}`.'),
    Option(
        "subscribePattern",
        "A regular expression of Python that matches whole topic names. A stream also reads matching topics that are "
        "created later. Exactly one of `subscribe`, `assign` and `subscribePattern` is required.",
    ),
)
_NAMES: Final = option_names(SELECTION_OPTIONS)


@dataclass(frozen=True)
class TopicSelection:
    """The selected partitions. Exactly one of the three fields is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the selected topics; None if a pattern selects them, so that all topics must be listed."""
        if self.pattern is not None:
            return None
        return self.topics or tuple(sorted({topic for topic, _ in self.partitions}))

    def covers(self, topic: str) -> bool:
        """Return whether the read covers a topic of this name."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in (self.names or ())


def selection(reader: OptionReader) -> TopicSelection:
    """Parse the selection.

    Raises:
        ConfigError: None or several of the three options are given, or the value selects nothing.
    """
    given = [name for name in _NAMES if reader.text(name) is not None]
    if len(given) != 1:
        raise ConfigError(
            f"exactly one of {', '.join(_NAMES)} is needed, got {' and '.join(given) or 'none'}"
        )
    text = reader.text(given[0]) or ""
    if given[0] == "subscribe":
        topics = reader.names("subscribe")
        if not topics:
            raise ConfigError("option subscribe names no topic")
        return TopicSelection(topics=topics)
    if given[0] == "subscribePattern":
        return TopicSelection(pattern=_pattern(text))
    return TopicSelection(partitions=_assigned(text))


def _pattern(text: str) -> str:
    if not text:
        raise ConfigError("option subscribePattern is empty: give a regular expression")
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"option subscribePattern is not a regular expression: {error}") from None
    return text


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    example = """option assign must be like {"topic": [0, 1]}"""
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{example}: {error}") from None
    partitions: list[TopicPartition] = []
    for topic, numbers in parsed.items() if isinstance(parsed, dict) else ():
        if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
            raise ConfigError(f"{example}, not {text!r}")
        partitions += (TopicPartition(topic, number) for number in numbers)
    if not partitions:
        raise ConfigError(f"{example}, not {text!r}")
    return tuple(sorted(set(partitions)))
