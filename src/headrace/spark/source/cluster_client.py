"""The `SourceClient` over a cluster, on Headrace's blocking client, and the clients that this process shares."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from headrace.clients.blocking import (
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BlockingClient,
    FetchedPartition,
    FetchPosition,
    OffsetAndMetadata,
)
from headrace.clients.flows.leader_epochs import epoch_ends
from headrace.errors import ApiError, ErrorCode
from headrace.records.batch import HEADER_SIZE, BatchHeader
from headrace.spark.client.cache import ClientCache
from headrace.spark.client.contact import reach
from headrace.spark.client.settings import common_properties, consumer_config
from headrace.spark.options.reader import ClientOptions
from headrace.spark.source.offsets import LogEnd, TopicDescription
from headrace.types import Buffer, TopicPartition

SAMPLE_BYTES: Final = 64 << 10
"""The bytes that are fetched of a partition to estimate the size of its records."""
UNKNOWN_BYTES: Final = 1024
"""The assumed bytes per offset if no partition had a batch to measure."""
_ABSENT: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
_NOT_READY: Final = frozenset({ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE})


class ClusterClient:
    """A `SourceClient` that sends requests to the brokers."""

    def __init__(self, options: ClientOptions) -> None:
        """Prepare a client. It connects at its first request.

        Raises:
            ConfigError: A `kafka.*` option is unknown or malformed.
        """
        self._config = consumer_config(options)
        self._isolation = (
            READ_COMMITTED if self._config.isolation_level == "read_committed" else READ_UNCOMMITTED
        )
        self._sizes: dict[TopicPartition, float] = {}
        self._client = BlockingClient(options.bootstrap, **common_properties(self._config))
        self._is_reached = False

    def reach(self) -> None:
        """Check at the first call that a broker answers within seconds.

        Raises:
            TransportError: No broker answers.
        """
        if not self._is_reached:
            reach(self._client)
            self._is_reached = True

    def topology(self, names: Sequence[str] | None) -> dict[str, TopicDescription]:
        """Describe topics with a Metadata request."""
        found: dict[str, TopicDescription] = {}
        for name, topic in self._client.metadata(names).topics.items():
            if topic.error in _ABSENT or (names is None and topic.is_internal):
                continue
            if topic.error not in _NOT_READY:
                raise ApiError.for_code(topic.error, f"topic {name}")
            found[name] = TopicDescription(_id_text(topic.topic_id), tuple(topic.partitions))
        return found

    def offsets(
        self, partitions: Collection[TopicPartition], position: int
    ) -> dict[TopicPartition, int]:
        """Return first or end offsets with a ListOffsets request."""
        if not partitions:
            return {}
        listed = self._client.list_offsets(dict.fromkeys(partitions, position), self._isolation)
        return {each: found.offset for each, found in listed.items()}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """Return end offsets and leader epochs with a ListOffsets request."""
        if not partitions:
            return {}
        listed = self._client.list_offsets(dict.fromkeys(partitions, LATEST), self._isolation)
        return {each: LogEnd(found.offset, found.leader_epoch) for each, found in listed.items()}

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Find offsets by time; see `SourceClient`."""
        if not times:
            return {}
        from headrace.spark.source.times import first_records

        listed = self._client.list_offsets(times, self._isolation)
        answered = {each: found.offset for each, found in listed.items()}
        timeout_s = self._config.request_timeout_ms / 1000
        return first_records(self, times, answered, timeout_s)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the ends of leader epochs with an OffsetsForLeaderEpoch request."""
        if not epochs:
            return {}
        ends = self._client.run(epoch_ends(self._client.state, epochs))
        return {each: end.offset for each, end in ends.items()}

    def bytes_per_offset(
        self, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, float]:
        """Estimate the stored bytes per offset from samples; see `SourceClient`."""
        self._sizes.update(self._measured(positions))
        # A response contains a batch larger than a sample only if the batch is the first of the response.
        for each, offset in positions.items():
            if each not in self._sizes:
                self._sizes.update(self._measured({each: offset}))
        known = [self._sizes[each] for each in positions if each in self._sizes]
        unknown = sum(known) / len(known) if known else UNKNOWN_BYTES
        return {each: self._sizes.get(each, unknown) for each in positions}

    def _measured(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Return the bytes per offset of the partitions of which the response has a batch."""
        fetched = self._client.fetch(
            {
                each: FetchPosition(offset, max_bytes=SAMPLE_BYTES)
                for each, offset in positions.items()
            },
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=SAMPLE_BYTES * max(len(positions), 1),
            isolation_level=self._isolation,
        )
        means = {each: mean_bytes(fetched[each].records) for each in positions}
        return {each: mean for each, mean in means.items() if mean is not None}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets for a group without members."""
        self._client.commit_offsets(group, offsets)

    def fetch(
        self, positions: Mapping[TopicPartition, FetchPosition]
    ) -> Mapping[TopicPartition, FetchedPartition]:
        """Fetch encoded batches; see `SourceClient`."""
        most = self._config.max_partition_fetch_bytes
        return self._client.fetch(
            {
                each: replace(position, max_bytes=min(position.max_bytes, most))
                for each, position in positions.items()
            },
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=self._config.fetch_max_bytes,
            isolation_level=self._isolation,
        )

    def close(self) -> None:
        """Close all connections of the client."""
        self._client.close()


def _id_text(topic_id: bytes) -> str:
    return str(UUID(bytes=topic_id)) if any(topic_id) else ""


def mean_bytes(records: Buffer) -> float | None:
    """Return the bytes per offset of batches. The last batch may be cut off. None if there is no complete header."""
    size, first, after, position = 0, None, 0, 0
    while position + HEADER_SIZE <= len(records):
        header = BatchHeader.parse(records, position)
        first = header.base_offset if first is None else first
        after = header.next_offset
        size += header.size
        position += header.size
    return None if first is None else size / (after - first)


clients: Final = ClientCache(ClusterClient)
"""The clients of reads, one for each set of options."""


def shared_client(options: ClientOptions) -> ClusterClient:
    """Return this process's client for these options."""
    return clients.get(options)
