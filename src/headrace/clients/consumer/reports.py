"""What a member of a group asks of its consumer, and tells it."""

from __future__ import annotations

from typing import Protocol

from headrace.errors import HeadraceError
from headrace.types import TopicPartition


class Reports(Protocol):
    """What the member asks of its consumer, and tells it."""

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that are read."""

    def failed(self, error: HeadraceError) -> object:
        """An error that does not pass; the program has to be told."""

    def warn(self, text: str) -> object:
        """Something that the program's operator should know."""
