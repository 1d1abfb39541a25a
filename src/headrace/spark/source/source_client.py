"""The interface through which the source reads a cluster. `ClusterClient` and `HistoryClient` implement it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from headrace.clients.blocking import FetchedPartition, FetchPosition, OffsetAndMetadata
from headrace.spark.source.offsets import LogEnd, TopicDescription
from headrace.types import TopicPartition


class SourceClient(Protocol):
    """Requests that the source sends to a cluster."""

    def topology(self, names: Sequence[str] | None) -> dict[str, TopicDescription]:
        """Describe the topics of these names that exist. None selects all topics but the internal ones."""

    def offsets(
        self, partitions: Collection[TopicPartition], position: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset (position EARLIEST) or the end offset (LATEST) of each partition."""

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """Return the end offset of each partition, with the leader epoch."""

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Find the first record that the read returns and whose time is not before the given one.

        Args:
            times: Milliseconds since 1970.

        Returns:
            The record's offset in each partition, -1 where there is no such record.
        """

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the end offset of a leader epoch in each leader's log, -1 where the leader does not know the epoch."""

    def bytes_per_offset(
        self, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, float]:
        """Estimate the stored bytes per offset of each partition, from the given position on."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets for a group without members."""

    def fetch(
        self, positions: Mapping[TopicPartition, FetchPosition]
    ) -> Mapping[TopicPartition, FetchedPartition]:
        """Return encoded batches of each partition, or after a short wait none. Errors are values of the result.

        The first batch of the first partition is always complete, however large. Of each other partition there are at
        most `kafka.max.partition.fetch.bytes`.
        """
