"""The interfaces of stores of keys, for the argument `seen=` and for the worker, and the text form of a key."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from headrace.dead_letters.error_text import repr_of
from headrace.types import TopicPartition
from headrace.workers.output.outbox import HandledKey, Publisher

MAX_KEY_BYTES: Final = 200
"""The longest text of a key in bytes. A digest replaces a longer text."""
DEFAULT_RETENTION_S: Final = 86_400.0
"""The default time in seconds for which a key is kept: a day."""


class SeenKeys(Protocol):
    """An object of the program for `seen=`."""

    def __contains__(self, key: Hashable, /) -> bool:
        """Return whether the record of a key was handled."""

    def add(self, key: Hashable, /) -> object:
        """Keep a key. The worker calls this before it commits the record's offset."""


class KeyStore(Protocol):
    """Keeps the keys of one worker. One event loop uses it."""

    async def prepare(self) -> None:
        """Check that keys can be kept.

        Raises:
            HeadraceError: Keys cannot be kept.
        """

    async def known(
        self, partition: TopicPartition, keys: Collection[Hashable]
    ) -> Collection[Hashable]:
        """Return the keys that were handled before, among keys of records of a partition."""

    async def keep(self, marks: Sequence[HandledKey]) -> None:
        """Keep the keys of handled records, all of one partition, and wait until they are stored."""

    async def write(self, out: Publisher, marks: Sequence[HandledKey]) -> None:
        """Write keys in the transaction that commits their records, if the store can. A call of `note` follows."""

    def note(self, marks: Sequence[HandledKey]) -> bool:
        """Remember the keys of a committed transaction. Return False if the caller must now call `keep` for them."""

    async def restore(self, topic: str) -> None:
        """Create the topic of the store again, if `topic` is that topic and was deleted."""

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the keys of partitions that belong to other members now."""

    async def close(self) -> None:
        """Close connections, files and threads of the store."""


def key_text(key: Hashable) -> bytes:
    """Return a key as JSON, or a digest of long JSON.

    Raises:
        TypeError: The key has no form in JSON, so other processes could not recognise it.
    """
    try:
        text = msgspec.json.encode(key, order="deterministic")
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"dedupe= returned a {type(key).__name__}, which seen= cannot keep outside of this process. Return text, a "
            f"number, bytes, a UUID, a date, or a tuple of these ({repr_of(error)})"
        ) from error
    if len(text) <= MAX_KEY_BYTES:
        return text
    return msgspec.json.encode({"blake2b": hashlib.blake2b(text, digest_size=32).hexdigest()})


def decoded(text: bytes) -> Any:
    """Return the value of a JSON text; None if the text is not JSON."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
