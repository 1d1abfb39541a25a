"""Internal topics and groups of Headrace's own tools. Lists show them only with --internal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from headrace.cli.output.printing import is_terminal, say

if TYPE_CHECKING:
    from headrace.clients.blocking import TopicMetadata

_BRIDGES: Final = "__bridge."
_SEEN: Final = "headrace-seen."
_SPARK_TOPICS: Final = frozenset({"headrace-spark-claims", "headrace-spark-markers"})
_REDRIVE: Final = "headrace-redrive"


def is_own_topic(name: str) -> bool:
    """Return whether a topic belongs to a bridge or, by its default name, to a Spark sink or to a worker's keys."""
    return name in _SPARK_TOPICS or name.startswith((_BRIDGES, _SEEN))


def is_internal_topic(topic: TopicMetadata) -> bool:
    """Return whether lists show a topic only with --internal."""
    return topic.is_internal or is_own_topic(topic.name)


def is_own_group(name: str) -> bool:
    """Return whether a group belongs to `dlq redrive` or to the claims of a Spark sink."""
    return name == _REDRIVE or (name.startswith("headrace-spark-") and name.endswith("-claim"))


def report_hidden(count: int, what: str) -> None:
    """Print on a terminal how many entries a list hides.

    Args:
        count: The number of hidden entries.
        what: The kind of the entries, "topic" or "group".
    """
    if count and is_terminal(sys.stdout):
        plural = "" if count == 1 else "s"
        say(
            f"{count} internal {what}{plural} hidden; --internal shows {'it' if count == 1 else 'them'}"
        )
