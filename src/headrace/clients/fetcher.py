"""What a consumer reads: positions, fetches on their way, and batches that wait to be decoded.

One fetch per broker is on its way while the program works on what came before. A partition is fetched again only
when its records have been handed out, so memory holds at most one answer per broker and what it was decoded to.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from headrace.clients.config import ConsumerConfig
from headrace.clients.drivers.polling import PollingDriver, Reply
from headrace.clients.flows import metadata
from headrace.clients.flows.cluster import NO_LEADER
from headrace.clients.flows.effects import Call, ClientState
from headrace.clients.flows.fetch import (
    FetchedPartition,
    FetchLimits,
    FetchPosition,
    fetch_request,
    read_fetch,
)
from headrace.clients.flows.list_offsets import READ_COMMITTED, READ_UNCOMMITTED
from headrace.clients.flows.routing import by_leader, partition_error
from headrace.errors import CorruptRecordError, ErrorCode, HeadraceError
from headrace.records.batch import HEADER_SIZE, BatchHeader, check_batch
from headrace.records.reader import Record, decode_batch
from headrace.types import Buffer, TopicPartition

FETCH_CHANNEL: Final = "fetch"
"""A connection of its own, so that metadata and offsets do not wait behind a long poll."""
ABORT_MARKER: Final = 0


class ConsumedRecord(NamedTuple):
    """A record with its place."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int
    """Epoch of the leader that wrote the record's batch."""


class _Fetched:
    """One partition's part of an answer, decoded batch by batch."""

    __slots__ = ("_aborted", "_active_aborts", "_buffer", "_check_crcs", "_position")

    def __init__(self, data: FetchedPartition, *, check_crcs: bool) -> None:
        self._buffer: Buffer = data.records
        self._position = 0
        self._check_crcs = check_crcs
        self._aborted = deque(sorted(data.aborted_transactions, key=lambda entry: entry[1]))
        self._active_aborts: set[int] = set()

    def next_batch(self) -> tuple[BatchHeader, list[Record]] | None:
        """Return the next whole batch, without records if it is control or aborted; None at the end."""
        remaining = len(self._buffer) - self._position
        if remaining < HEADER_SIZE:
            return None
        header = BatchHeader.parse(self._buffer, self._position)
        if header.size > remaining > 0 and header.batch_length > 0:
            return None  # brokers may cut the last batch off
        if self._check_crcs:
            header = check_batch(self._buffer, self._position)
        start, self._position = self._position, self._position + header.size
        while self._aborted and self._aborted[0][1] <= header.last_offset:
            self._active_aborts.add(self._aborted.popleft()[0])
        if header.is_control:
            self._end_transaction(header, start)
            return header, []
        if header.is_transactional and header.producer_id in self._active_aborts:
            return header, []
        return header, decode_batch(header, self._buffer, start)

    def _end_transaction(self, header: BatchHeader, start: int) -> None:
        for record in decode_batch(header, self._buffer, start):
            if record.key is not None and record.key[2:4] == ABORT_MARKER.to_bytes(2, "big"):
                self._active_aborts.discard(header.producer_id)


class PartitionCursor:
    """A consumer's place in one partition."""

    __slots__ = (
        "fetched",
        "fetching",
        "high_watermark",
        "muted_until",
        "offset",
        "paused",
        "records",
    )

    def __init__(self, offset: int | None) -> None:
        self.offset = offset
        """The next offset to hand out; None until it is known."""
        self.high_watermark = -1
        self.fetched: _Fetched | None = None
        self.records: deque[ConsumedRecord] = deque()
        self.fetching = False
        self.paused = False
        self.muted_until = 0.0

    def move(self, offset: int) -> None:
        """Go to another offset and forget what was read ahead."""
        self.offset = offset
        self.fetched = None
        self.records.clear()


class Fetcher:
    """Reads ahead for the partitions of one consumer."""

    def __init__(self, state: ClientState, driver: PollingDriver, config: ConsumerConfig) -> None:
        self.cursors: dict[TopicPartition, PartitionCursor] = {}
        self.out_of_range: set[TopicPartition] = set()
        """Partitions whose offset no longer exists; the consumer decides where they go on."""
        self._state = state
        self._driver = driver
        self._config = config
        self._busy_nodes: set[int] = set()
        self._failure: HeadraceError | None = None
        committed = config.isolation_level == "read_committed"
        self._limits = FetchLimits(
            config.fetch_max_wait_ms,
            config.fetch_min_bytes,
            config.fetch_max_bytes,
            READ_COMMITTED if committed else READ_UNCOMMITTED,
        )

    def assign(self, offsets: dict[TopicPartition, int | None]) -> None:
        """Read these partitions from now on, from an offset or from one that is found out later."""
        self.cursors = {name: PartitionCursor(offset) for name, offset in offsets.items()}
        self.out_of_range.clear()

    def take(self, max_records: int) -> list[ConsumedRecord]:
        """Hand out records that are here, decoding what is needed, and move the positions past them."""
        self._raise_failure()
        taken: list[ConsumedRecord] = []
        # Start with another partition each time, so that a busy one does not starve the rest.
        for topic_partition, cursor in list(self.cursors.items()):
            if len(taken) >= max_records:
                break
            if cursor.paused or (cursor.fetched is None and not cursor.records):
                continue
            self._take_from(topic_partition, cursor, taken, max_records)
            if taken:
                self.cursors[topic_partition] = self.cursors.pop(topic_partition)
        return taken

    def _take_from(
        self,
        topic_partition: TopicPartition,
        cursor: PartitionCursor,
        taken: list[ConsumedRecord],
        max_records: int,
    ) -> None:
        while len(taken) < max_records:
            if not cursor.records and not self._decode_next(topic_partition, cursor):
                return
            while cursor.records and len(taken) < max_records:
                record = cursor.records.popleft()
                taken.append(record)
                cursor.offset = record.offset + 1
            if not cursor.records and cursor.fetched is not None:
                continue

    def _decode_next(self, topic_partition: TopicPartition, cursor: PartitionCursor) -> bool:
        """Decode one more batch; false when there is none. Empty batches move the position too."""
        topic, partition = topic_partition
        while cursor.fetched is not None and cursor.offset is not None:
            try:
                batch = cursor.fetched.next_batch()
            except CorruptRecordError as error:
                text = f"{topic_partition} at offset {cursor.offset}: {error}"
                raise CorruptRecordError(text) from error
            if batch is None:
                cursor.fetched = None
                return False
            header, records = batch
            first = cursor.offset
            cursor.records.extend(
                ConsumedRecord(
                    topic,
                    partition,
                    record.offset,
                    record.timestamp,
                    record.key,
                    record.value,
                    record.headers,
                    header.partition_leader_epoch,
                )
                for record in records
                if record.offset >= first  # the first batch may begin before the offset asked for
            )
            if cursor.records:
                return True
            cursor.offset = max(first, header.last_offset + 1)
        return False

    def send_fetches(self) -> None:
        """Ask each broker that is not busy for the partitions that have nothing left here."""
        now = time.monotonic()
        wanted = {
            name: FetchPosition(
                cursor.offset,
                self._state.metadata.leader_epoch(name),
                self._config.max_partition_fetch_bytes,
            )
            for name, cursor in self.cursors.items()
            if cursor.offset is not None and self._fetchable(name, cursor, now)
        }
        if not wanted:
            return
        stale = {name.topic for name in wanted} & self._state.stale_topics
        if stale:
            self._driver.run(metadata.refresh(self._state, stale))
        for node, positions in by_leader(self._state, wanted).items():
            if node == NO_LEADER:
                self._state.stale_topics.update(topic for topic, _ in positions)
                self._mute(positions, now)
            elif node not in self._busy_nodes:
                self._send(node, positions)

    def _fetchable(self, name: TopicPartition, cursor: PartitionCursor, now: float) -> bool:
        idle = not cursor.fetching and cursor.fetched is None and not cursor.records
        return (
            idle
            and not cursor.paused
            and now >= cursor.muted_until
            and name not in self.out_of_range
        )

    def _mute(self, names: Iterable[TopicPartition], now: float) -> None:
        for name in names:
            if name in self.cursors:
                self.cursors[name].muted_until = now + self._config.retry_backoff_ms / 1000

    def _send(self, node: int, positions: dict[TopicPartition, FetchPosition]) -> None:
        self._busy_nodes.add(node)
        cursors = {name: self.cursors[name] for name in positions}
        for cursor in cursors.values():
            cursor.fetching = True

        def answered(reply: Reply) -> None:
            self._busy_nodes.discard(node)
            for cursor in cursors.values():
                cursor.fetching = False
            try:
                assert reply.outcome is not None, "a fetch always has an answer"
                for name, data in read_fetch(self._state, positions, reply.outcome):
                    if name in positions:
                        self._take_answer(name, positions[name].offset, data)
            except HeadraceError as error:
                self._failure = error

        call = Call(
            request=fetch_request(positions, self._limits),
            node=node,
            channel=FETCH_CHANNEL,
            timeout_ms=self._config.request_timeout_ms + self._config.fetch_max_wait_ms,
        )
        self._driver.submit(call, on_done=answered)

    def _take_answer(self, name: TopicPartition, offset: int, data: FetchedPartition) -> None:
        cursor = self.cursors.get(name)
        if cursor is None or cursor.offset != offset:
            return  # assigned away, or moved by a seek, while the answer was on its way
        if data.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.out_of_range.add(name)
        elif data.error in metadata.STALE_LEADER_ERRORS or data.error.retriable:
            self._mute([name], time.monotonic())
        elif data.error:
            self._failure = partition_error(name, data.error)
        else:
            cursor.high_watermark = data.high_watermark
            if len(data.records):
                cursor.fetched = _Fetched(data, check_crcs=self._config.check_crcs)

    @property
    def waiting(self) -> bool:
        """Whether an answer is on its way."""
        return bool(self._busy_nodes)

    @property
    def has_records(self) -> bool:
        """Whether something may be handed out without waiting, or a failure has to be told."""
        return self._failure is not None or any(
            cursor.fetched is not None or cursor.records
            for cursor in self.cursors.values()
            if not cursor.paused
        )

    def positions(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yield each partition's next offset, where it is known."""
        for name, cursor in self.cursors.items():
            if cursor.offset is not None:
                yield name, cursor.offset

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
