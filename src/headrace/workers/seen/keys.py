"""The keys of records that were handled: the interface of `seen=`, and how a worker uses it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from headrace.dead_letters.error_text import repr_of
from headrace.types import TopicPartition
from headrace.workers.outbox import HandledKey, Publisher

MAX_KEY_BYTES: Final = 200
"""A key whose text is longer is kept as a digest of it."""
DEFAULT_RETENTION_S: Final = 86_400.0


class SeenKeys(Protocol):
    """A `seen=` of the program's own."""

    def __contains__(self, key: Hashable, /) -> bool:
        """Whether a key was handled."""

    def add(self, key: Hashable, /) -> object:
        """Keep a key; called before the record's offset is committed."""


class KeyStore(Protocol):
    """Keeps the keys of one worker; to be used on one event loop."""

    async def prepare(self) -> None:
        """Make sure that keys can be kept.

        Raises:
            HeadraceError: They cannot.
        """

    async def known(
        self, partition: TopicPartition, keys: Collection[Hashable]
    ) -> Collection[Hashable]:
        """Return which keys of records of a partition were handled before."""

    async def keep(self, marks: Sequence[HandledKey]) -> None:
        """Keep the keys of handled records, and return when they are safe; all are of one partition."""

    async def write(self, out: Publisher, marks: Sequence[HandledKey]) -> None:
        """Put keys into the transaction of their records' positions, where that is possible; `note` follows it."""

    def note(self, marks: Sequence[HandledKey]) -> bool:
        """Take note that a transaction is committed; return False where its keys are to be kept by `keep` now."""

    async def restore(self, topic: str) -> None:
        """Create the topic of the store again, if it is this one and was deleted."""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Take note that partitions are other members' now."""

    async def close(self) -> None:
        """Close what is open."""


def key_text(key: Hashable) -> bytes:
    """Return a key as JSON, or a digest of that where it is long.

    Raises:
        TypeError: It has no form in JSON, so other processes could not recognise it.
    """
    try:
        text = msgspec.json.encode(key, order="deterministic")
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"dedupe= returned a {type(key).__name__}, which seen= cannot keep outside of this process: give text, a "
            f"number, bytes, a UUID, a date, or a tuple of these ({repr_of(error)})"
        ) from error
    if len(text) <= MAX_KEY_BYTES:
        return text
    return msgspec.json.encode({"blake2b": hashlib.blake2b(text, digest_size=32).hexdigest()})


def decoded(text: bytes) -> Any:
    """Return what JSON says; None where it is none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
