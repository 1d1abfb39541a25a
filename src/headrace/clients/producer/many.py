"""Many records of one topic, which a producer adds to its buffer in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from headrace.clients.partitioners import partition_for_key
from headrace.clients.producer.batches import PartitionQueue
from headrace.clients.producer.delivery import Delivery, check_callback
from headrace.clients.producer.record_checks import serialized
from headrace.clients.producer.topic import ProducerTopic
from headrace.errors import ConfigError
from headrace.records.accel import RowColumns
from headrace.records.builder import Headers

D = TypeVar("D", bound=Delivery)


class Many(Generic[D]):
    """The records of one `send_many`, and how many of them were added: the call may have to wait for space."""

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
        """Store the parts of the records.

        Raises:
            ConfigError: The numbers of keys and values differ, or one of the two is not a list.
        """
        for name, given in (("values", values), ("keys", keys)):
            if given is None and name == "keys":
                continue
            if isinstance(given, str | bytes | bytearray | memoryview) or not isinstance(
                given, Iterable
            ):
                raise ConfigError(f"{name} are a list, one for each record, not {given!r}")
        check_callback(on_delivery)
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
        """The futures of the records that were added to the buffer so far."""

    def serialize(self, topic: ProducerTopic) -> None:
        """Turn keys and values into bytes: once, and all of them before the first record is added."""
        if self.serialized:
            return
        keys, values = self.keys, self.values
        if keys is not None:
            key = topic.serialize_key
            self.keys = [
                each if each is None else serialized(key, each, topic.name, "key") for each in keys
            ]
        as_they_are = topic.bytes_as_they_are
        self.values = [
            each
            if each is None or (as_they_are and type(each) is bytes)
            else serialized(topic.serialize_value, each, topic.name, "value")
            for each in values
        ]
        self.serialized = True


Row = tuple[bytes | None, bytes | None, Headers, int, int | None]
"""Key, value, headers, timestamp in milliseconds, and the partition unless the partitioner chooses it."""


class Rows:
    """Records as bytes, each with its own headers and timestamp. Adding a record removes it from here."""

    def __init__(self, topic: str, records: Iterable[Row], partitions: Iterable[int] = ()) -> None:
        """Store the records.

        Args:
            topic: The topic of all records.
            records: The records.
            partitions: The partitions that records name.
        """
        self.topic = topic
        self.records: Iterator[Row] = iter(records)
        self.partitions = frozenset(partitions)

    def fill(
        self,
        queues: dict[int, PartitionQueue],
        count: int,  # noqa: ARG002 - the accelerator needs it
        hashed: int,
        sticky: int,  # noqa: ARG002 - here the partitioner chooses for each row
        /,
    ) -> Row | None:
        """Add records to open batches until a record needs a new batch; return this record, or None at the end.

        Args:
            queues: The queues of the topic, by partition.
            count: The number of partitions of the topic.
            hashed: The number of partitions among which the hash of a key chooses; 0 if keys do not choose.
            sticky: The partition for all other records; -1 if the partitioner chooses it.
        """
        for key, value, headers, timestamp_ms, partition in self.records:
            if partition is None and key is not None and hashed:
                partition = partition_for_key(key, hashed)  # noqa: PLW2901 - it is determined here
            queue = None if partition is None else queues.get(partition)
            batch = None if queue is None else queue.open
            if batch is None or not batch.append(key, value, headers, timestamp_ms):
                return key, value, headers, timestamp_ms, partition
        return None


class ColumnRows(Rows):
    """Records that the accelerator reads from columns."""

    def __init__(self, topic: str, columns: RowColumns, partitions: Iterable[int] = ()) -> None:
        """Store the columns. The other arguments are those of `Rows`."""
        super().__init__(topic, (), partitions)
        self.fill = columns.fill  # type: ignore[method-assign]  # it runs for each batch
