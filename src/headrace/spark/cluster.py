"""The only place of the Spark source that knows of a client: a few questions to a cluster, and connections kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, Protocol, TypeVar
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
from headrace.clients.config import ClientConfig, ConsumerConfig, parse_config
from headrace.clients.flows.leader_epochs import epoch_ends
from headrace.errors import ApiError, ConfigError, ErrorCode, TransportError
from headrace.records.batch import HEADER_SIZE, BatchHeader
from headrace.spark.client_cache import ClientCache
from headrace.spark.options.reader import ClientOptions
from headrace.spark.source.offsets import LogEnd, TopicDescription
from headrace.types import Buffer, TopicPartition

FETCH_BYTES: Final = 32 << 20
"""Default of `kafka.max.partition.fetch.bytes` here: the most that is ever asked for of one partition."""
SAMPLE_BYTES: Final = 64 << 10
"""What is fetched of a partition to learn how large its records are."""
UNKNOWN_BYTES: Final = 1024
"""Taken for an offset where no partition had anything to measure."""
_ABSENT: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
_NOT_READY: Final = frozenset({ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE})


T = TypeVar("T")

STALE_PAUSES_S: Final = (0.2, 1.0)
"""Within that time brokers learn what the others know."""


def ask_again(ask: Callable[[], T], is_whole: Callable[[T], bool]) -> T:
    """Return an answer, the last of three if none before is whole: each may come from another broker."""
    answer = ask()
    for pause_s in STALE_PAUSES_S:
        if is_whole(answer):
            break
        time.sleep(pause_s)
        answer = ask()
    return answer


FIRST_CONTACT_S: Final = 5.0
"""How long a read or a write tries to reach its first broker: a refused connection is more often a wrong address."""
STREAM_CONTACT_S: Final = 10.0
"""The same for each Python worker that plans the batches of a stream which is written."""
_CONTACT_PAUSE_S: Final = 0.25


def reach(client: BlockingClient, within_s: float = FIRST_CONTACT_S) -> None:
    """Make sure that some broker answers, before a job is planned; later outages are waited for much longer.

    Raises:
        TransportError: No broker does; one that neither answers nor refuses is waited for until `request.timeout.ms`.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            client.connect()
        except TransportError as error:
            if time.monotonic() + _CONTACT_PAUSE_S >= deadline:
                raise TransportError(
                    f"{error}: see whether a broker runs there, and whether kafka.bootstrap.servers is right"
                ) from error
            time.sleep(_CONTACT_PAUSE_S)
        else:
            return


class SourceClient(Protocol):
    """What the source asks of a cluster."""

    def topology(self, names: Sequence[str] | None) -> dict[str, TopicDescription]:
        """Return the topics of those names that exist; None is all but internal ones."""

    def offsets(
        self, partitions: Collection[TopicPartition], position: int
    ) -> dict[TopicPartition, int]:
        """Return the first (EARLIEST) or the next (LATEST) offset of each partition."""

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """Return the next offset of each partition, with the leader's epoch."""

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the first record that is read with a time in milliseconds or a later one; -1 where there is none."""

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return where each leader's log ends an epoch; -1 where it knows of no such epoch."""

    def bytes_per_offset(
        self, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, float]:
        """Return about how many bytes an offset takes, as stored, from each position on."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets for a group without members."""

    def fetch(
        self, positions: Mapping[TopicPartition, FetchPosition]
    ) -> Mapping[TopicPartition, FetchedPartition]:
        """Return raw batches of each partition, or after a short wait none; errors are told, not raised.

        That of the first partition is there whole, however large, and never more than `kafka.max.partition.fetch.bytes`
        of another.
        """


class ClusterClient:
    """A `SourceClient` over Headrace's own blocking client."""

    def __init__(self, options: ClientOptions) -> None:
        """Prepare a client; nothing is connected before the first question.

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
        """Make sure, at the first call, that some broker answers within seconds.

        Raises:
            TransportError: No broker does.
        """
        if not self._is_reached:
            reach(self._client)
            self._is_reached = True

    def topology(self, names: Sequence[str] | None) -> dict[str, TopicDescription]:
        """See `SourceClient`."""
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
        """See `SourceClient`."""
        if not partitions:
            return {}
        listed = self._client.list_offsets(dict.fromkeys(partitions, position), self._isolation)
        return {each: found.offset for each, found in listed.items()}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """See `SourceClient`."""
        if not partitions:
            return {}
        listed = self._client.list_offsets(dict.fromkeys(partitions, LATEST), self._isolation)
        return {each: LogEnd(found.offset, found.leader_epoch) for each, found in listed.items()}

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """See `SourceClient`."""
        if not times:
            return {}
        from headrace.spark.source.times import first_records

        listed = self._client.list_offsets(times, self._isolation)
        answered = {each: found.offset for each, found in listed.items()}
        timeout_s = self._config.request_timeout_ms / 1000
        return first_records(self, times, answered, timeout_s)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """See `SourceClient`."""
        if not epochs:
            return {}
        ends = self._client.run(epoch_ends(self._client.state, epochs))
        return {each: end.offset for each, end in ends.items()}

    def bytes_per_offset(
        self, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, float]:
        """See `SourceClient`."""
        self._sizes.update(self._measured(positions))
        # A batch that is larger than a sample comes only if it is the first of an answer.
        for each, offset in positions.items():
            if each not in self._sizes:
                self._sizes.update(self._measured({each: offset}))
        known = [self._sizes[each] for each in positions if each in self._sizes]
        unknown = sum(known) / len(known) if known else UNKNOWN_BYTES
        return {each: self._sizes.get(each, unknown) for each in positions}

    def _measured(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Return the bytes per offset of those partitions of which an answer holds a batch."""
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
        """See `SourceClient`."""
        self._client.commit_offsets(group, offsets)

    def fetch(
        self, positions: Mapping[TopicPartition, FetchPosition]
    ) -> Mapping[TopicPartition, FetchedPartition]:
        """See `SourceClient`."""
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
        """Close the connections."""
        self._client.close()


def _id_text(topic_id: bytes) -> str:
    return str(UUID(bytes=topic_id)) if any(topic_id) else ""


def mean_bytes(records: Buffer) -> float | None:
    """Return the bytes per offset of batches, the last of which may be cut off; None without a whole header."""
    size, first, after, position = 0, None, 0, 0
    while position + HEADER_SIZE <= len(records):
        header = BatchHeader.parse(records, position)
        first = header.base_offset if first is None else first
        after = header.next_offset
        size += header.size
        position += header.size
    return None if first is None else size / (after - first)


def consumer_config(options: ClientOptions) -> ConsumerConfig:
    """Return the configuration that the `kafka.*` options of a read make.

    Raises:
        ConfigError: One of them is unknown or malformed.
    """
    try:
        return parse_config(
            ConsumerConfig,
            dict(options.properties),
            bootstrap_servers=options.bootstrap,
            client_id="headrace-spark",
            max_partition_fetch_bytes=FETCH_BYTES,
        )
    except ConfigError as error:
        raise ConfigError(f"kafka.* options: {error}") from None


def client_properties(options: ClientOptions) -> dict[str, Any]:
    """Return what of a read's `kafka.*` options any other client of the same cluster needs, too.

    Raises:
        ConfigError: As for `consumer_config`.
    """
    return common_properties(consumer_config(options))


def common_properties(config: ClientConfig) -> dict[str, Any]:
    """Return the settings of a configuration that every kind of client has and that differ from their defaults."""
    given = {field.name: getattr(config, field.name) for field in fields(ClientConfig)}
    defaults = {field.name: field.default for field in fields(ClientConfig)}
    return {
        name: value
        for name, value in given.items()
        if name != "bootstrap_servers" and value != defaults[name]
    }


clients: Final = ClientCache(ClusterClient)
"""The clients that read, one for each set of options."""


def shared_client(options: ClientOptions) -> ClusterClient:
    """Return this process's client for some options."""
    return clients.get(options)
