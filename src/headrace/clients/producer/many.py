"""Many records of one topic on their way into a producer's buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from headrace.clients.producer.delivery import Delivery
from headrace.errors import ConfigError
from headrace.records.builder import Headers

D = TypeVar("D", bound=Delivery)


class Many(Generic[D]):
    """What was given to `send_many`, and how far it has come: the buffer may have to be waited for in between."""

    def __init__(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None,
        *,
        headers: Headers,
        timestamp_ms: int | None,
        partition: int | None,
        on_delivery: Callable[[D], object] | None,
    ) -> None:
        """Keep what the records consist of.

        Raises:
            ConfigError: There are not as many keys as values, or one of them is no list of things.
        """
        for name, given in (("values", values), ("keys", keys)):
            if isinstance(given, str | bytes | bytearray | memoryview) or not (
                given is None or isinstance(given, Iterable)
            ):
                raise ConfigError(f"{name} are a list, one for each record, not {given!r}")
        self.topic = topic
        self.values = list(values)
        self.keys = None if keys is None else list(keys)
        if self.keys is not None and len(self.keys) != len(self.values):
            text = (
                f"{len(self.keys)} keys for {len(self.values)} values; each record has one, or None"
            )
            raise ConfigError(text)
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self.partition = partition
        self.on_delivery = on_delivery
        self.serialized = False
        """Whether keys and values are bytes already."""
        self.deliveries: list[D] = []
        """Of the records that are in the buffer."""


Row = tuple[bytes | None, bytes | None, Headers, int, int | None]
"""Key, value, headers, timestamp in milliseconds, and the partition unless the partitioner chooses it."""


class Rows:
    """Records as bytes, each with all that it has of its own; who adds them takes them off `records`."""

    def __init__(self, topic: str, records: Iterable[Row], partitions: Iterable[int] = ()) -> None:
        """Keep what the records consist of.

        Args:
            topic: Where to.
            records: The records.
            partitions: Every partition that one of them names.
        """
        self.topic = topic
        self.records: Iterator[Row] = iter(records)
        self.partitions = frozenset(partitions)
