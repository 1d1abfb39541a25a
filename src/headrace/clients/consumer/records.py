"""What a consumer hands out."""

from __future__ import annotations

from typing import Any, NamedTuple


class ConsumerRecord(NamedTuple):
    """A record with its place; key and value as the consumer's serdes made them, or bytes."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """Milliseconds since 1970: of creation, or of storage where the topic says so."""
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int
    """Epoch of the leader that wrote the record's batch, or -1."""
