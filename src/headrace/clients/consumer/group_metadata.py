"""The identity of a group member, which a program passes to a producer that commits its offsets in a transaction."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The identity of a consumer in its group, which a transaction needs to commit offsets."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    joined: int = 0
    """The number of times that the consumer has joined its group, in the protocol `consumer`. Epochs may recur."""

    def __await__(self) -> Generator[Any, Any, GroupMetadata]:
        """Return this object: in `headrace.aio` the result of every method may be awaited."""
        yield from ()
        return self
