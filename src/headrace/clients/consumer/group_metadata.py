"""The identity of a group member, which a program hands to a producer that commits its offsets in a transaction."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer's place in its group, as a transaction needs it to commit offsets."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    joined: int = 0
    """How often the consumer has joined its group, under the protocol `consumer`: an epoch may come back."""

    def __await__(self) -> Generator[Any, Any, GroupMetadata]:
        """Return itself: in `headrace.aio` every method may be awaited."""
        yield from ()
        return self
