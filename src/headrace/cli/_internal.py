"""Topics and groups that Headrace's own tools keep their books in; lists show them only with --internal."""

from __future__ import annotations

from typing import Final

_BRIDGES: Final = "__bridge."
_SPARK_TOPICS: Final = frozenset({"headrace-spark-claims", "headrace-spark-markers"})
_REDRIVE: Final = "headrace-redrive"


def is_own_topic(name: str) -> bool:
    """Return whether a topic is a bridge's or, by its default name, a Spark sink's."""
    return name in _SPARK_TOPICS or name.startswith(_BRIDGES)


def is_own_group(name: str) -> bool:
    """Return whether a group is that of `dlq redrive`, or keeps the claims of a Spark sink."""
    return name == _REDRIVE or (name.startswith("headrace-spark-") and name.endswith("-claim"))
