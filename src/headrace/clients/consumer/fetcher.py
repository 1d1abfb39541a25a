"""Fetching ahead: while the program processes records, one fetch for each broker is in flight.

A partition is fetched again only when polls have returned its records. So memory holds at most one response for each
broker and some decoded records for each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.records import FetchedBatches
from headrace.clients.engine import Engine
from headrace.clients.flows import metadata
from headrace.clients.flows.cluster import NO_LEADER
from headrace.clients.flows.fetch import (
    FetchedPartition,
    FetchLimits,
    FetchPosition,
    fetch_call,
    read_fetch,
)
from headrace.clients.flows.list_offsets import READ_COMMITTED, READ_UNCOMMITTED
from headrace.clients.flows.routing import by_leader, partition_error
from headrace.errors import CorruptRecordError, ErrorCode, HeadraceError, InternalError
from headrace.protocol.codec import Message
from headrace.records.batch import HEADER_SIZE, MAGIC, MIN_BATCH_LENGTH, BatchHeader
from headrace.types import Buffer, TopicPartition

ASK_AGAIN_MS: Final = 20
"""Milliseconds for which a partition without new records is not fetched while others have records to return."""
STALLED_ANSWERS: Final = 3
"""The number of useless responses in a row after which the next poll raises an error."""
FETCH_CHANNEL: Final = "fetch"
"""The channel of fetches: a separate connection, so that metadata and offsets do not wait behind a long poll."""


class Fetcher:
    """Sends the fetches of one consumer."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        assigned: Mapping[TopicPartition, AssignedPartition],
        on_failure: Callable[[HeadraceError], object],
    ) -> None:
        self._engine = engine
        self._config = config
        self._assigned = assigned
        self._on_failure = on_failure
        self._busy_nodes: set[int] = set()
        self._turn = 0
        """The number of fetches that were sent; each begins with another partition."""
        committed = config.isolation_level == "read_committed"
        self.isolation_level = READ_COMMITTED if committed else READ_UNCOMMITTED
        self._limits = FetchLimits(
            config.fetch_max_wait_ms,
            config.fetch_min_bytes,
            config.fetch_max_bytes,
            self.isolation_level,
            None if config.tags is None else config.tags.encode(),
        )
        self._limits_at_hand = replace(self._limits, max_wait_ms=0)

    def send(self, usable: Callable[[AssignedPartition], bool]) -> None:
        """Send a fetch to each broker without one in flight, for partitions without fetched records.

        Args:
            usable: Returns whether the position of a partition may be used.
        """
        state = self._engine.state
        now_ms = self._engine.now_ms
        # While there are records to return, brokers must not wait for more. (1) A partition has no new records, so its
        # fetch waits. (2) The program processes the records of other partitions. (3) Their next fetch to the same
        # broker would wait for the first one.
        at_hand = any(
            not (partition.empty or partition.paused) for partition in self._assigned.values()
        )
        wanted = {
            name: FetchPosition(
                partition.offset,
                state.metadata.leader_epoch(name),
                self._config.max_partition_fetch_bytes,
            )
            for name, partition in self._assigned.items()
            if partition.offset is not None
            and not (partition.fetching or partition.paused or partition.out_of_range)
            and partition.empty
            and now_ms >= partition.muted_until_ms
            and (not at_hand or now_ms >= partition.quiet_until_ms)
            and name.topic not in state.stale_topics
            and usable(partition)
        }
        for name in list(wanted):
            self._assigned[name].belongs_to(state.metadata.topic_id(name.topic))
            if self._assigned[name].offset is None:
                del wanted[name]
        for node, positions in by_leader(state, wanted).items():
            if node == NO_LEADER:
                state.stale_topics.update(topic for topic, _ in positions)
            elif node not in self._busy_nodes:
                self._send(node, positions, self._limits_at_hand if at_hand else self._limits)

    def _send(
        self, node: int, positions: dict[TopicPartition, FetchPosition], limits: FetchLimits
    ) -> None:
        self._busy_nodes.add(node)
        # A broker collects records in this order until it has enough, or has searched enough for tags.
        self._turn += 1
        names = list(positions)
        first = self._turn % len(names)
        positions = {name: positions[name] for name in (*names[first:], *names[:first])}
        assigned = {name: self._assigned[name] for name in positions}
        for partition in assigned.values():
            partition.fetching = True

        def answered(outcome: Message | HeadraceError | None) -> None:
            assert outcome is not None, "a fetch always has an answer"
            self._busy_nodes.discard(node)
            for partition in assigned.values():
                partition.fetching = False
            try:
                for name, data in read_fetch(self._engine.state, positions, outcome, node):
                    self._take_answer(assigned[name], positions[name].offset, data, node)
            except Exception as error:  # noqa: BLE001 - the next poll raises it
                self._mute(assigned.values())
                self._on_failure(InternalError.of(error, "an answer cannot be taken in"))
            self._engine.notify()

        call = fetch_call(
            self._engine.state.metadata,
            node,
            positions,
            limits,
            channel=FETCH_CHANNEL,
            timeout_ms=self._config.request_timeout_ms + self._config.fetch_max_wait_ms,
        )
        self._engine.submit(call, answered)

    def _take_answer(
        self, partition: AssignedPartition, offset: int, data: FetchedPartition, node: int
    ) -> None:
        # (1) A fetch is sent. (2) The partition is revoked and assigned again, or the program seeks. (3) The response
        # belongs to the previous assignment or position.
        if self._assigned.get(partition.name) is not partition or partition.offset != offset:
            return
        if data.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            partition.out_of_range = True
            self._engine.state.stale_topics.add(
                partition.name.topic
            )  # it may have been created again
            if partition.failures:  # the offset that the broker gave instead is out of range, too
                self._mute([partition])
            else:
                partition.failures = 1
        elif data.error in metadata.STALE_LEADER_ERRORS or data.error.retriable:
            self._retry(partition, data)
        elif data.error:
            self._mute([partition])
            self._on_failure(partition_error(partition.name, data.error))
        elif (fault := _no_progress(data.records, offset)) is not None:
            self._stalled(partition, f"broker {node} answers a fetch from offset {offset} {fault}")
        else:
            partition.failures = 0
            partition.high_watermark = data.high_watermark
            if len(data.records):
                checked = self._config.check_crcs
                partition.fetched = FetchedBatches(
                    partition.name, data, check_crcs=checked, tags=self._config.tags
                )
            else:
                partition.quiet_until_ms = self._engine.now_ms + ASK_AGAIN_MS

    def _retry(self, partition: AssignedPartition, data: FetchedPartition) -> None:
        """Fetch again after a backoff; at once if the response has named the new leader."""
        error = partition_error(partition.name, data.error, data.reason)
        self._engine.trouble.note(error, self._engine.now_ms)
        if not data.names_leader:
            self._mute([partition])

    def _stalled(self, partition: AssignedPartition, text: str) -> None:
        """Fetch again after a backoff; report an error when that has not helped."""
        error = CorruptRecordError(f"{partition.name}: {text}")
        self._engine.trouble.note(error, self._engine.now_ms)
        self._mute([partition])
        if partition.failures >= STALLED_ANSWERS:
            self._on_failure(error)

    def _mute(self, assigned: Collection[AssignedPartition]) -> None:
        """Fetch the partitions again only after a backoff, which grows with each failure."""
        for partition in assigned:
            pause_ms = min(
                self._config.retry_backoff_ms << min(partition.failures, 16),
                self._config.retry_backoff_max_ms,
            )
            partition.failures += 1
            partition.muted_until_ms = self._engine.now_ms + pause_ms
        for until_ms in {partition.muted_until_ms for partition in assigned}:
            self._engine.at(until_ms, self._engine.notify)


def _no_progress(records: Buffer, offset: int) -> str | None:
    """Return why a response is useless, by its beginning; None if it is not."""
    size = len(records)
    if not size:
        return None
    if size < HEADER_SIZE:
        return f"with {size} bytes, which are no batch"
    header = BatchHeader.parse(records)
    if header.batch_length >= MIN_BATCH_LENGTH and header.size > size:
        return f"with {size} bytes of a batch of {header.size}"
    if header.magic == MAGIC and header.last_offset < offset:
        return f"with records that end at offset {header.last_offset}"
    return None
