"""Reading ahead: one fetch per broker is under way while the program works on what came before.

A partition is fetched again only when its records have been handed out, so memory holds at most one answer per broker
and some decoded records per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.cursor import Cursor
from headrace.clients.consumer.records import FetchedBatches
from headrace.clients.engine import Engine
from headrace.clients.flows import metadata
from headrace.clients.flows.cluster import NO_LEADER
from headrace.clients.flows.effects import Call
from headrace.clients.flows.fetch import (
    FetchedPartition,
    FetchLimits,
    FetchPosition,
    fetch_request,
    read_fetch,
)
from headrace.clients.flows.list_offsets import READ_COMMITTED, READ_UNCOMMITTED
from headrace.clients.flows.routing import by_leader, partition_error
from headrace.errors import CorruptRecordError, ErrorCode, HeadraceError, InternalError
from headrace.protocol.codec import Message
from headrace.records.batch import HEADER_SIZE, MAGIC, MIN_BATCH_LENGTH, BatchHeader
from headrace.types import Buffer, TopicPartition

ASK_AGAIN_MS: Final = 20
"""How long a partition that had nothing new is left out while there are records of others to hand out."""
STALLED_ANSWERS: Final = 3
"""So many answers in a row that lead no further are an error, which the next poll raises."""
FETCH_CHANNEL: Final = "fetch"
"""A connection of its own, so that metadata and offsets do not wait behind a long poll."""


class Fetcher:
    """Fetches for the partitions of one consumer."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        cursors: Mapping[TopicPartition, Cursor],
        on_failure: Callable[[HeadraceError], object],
    ) -> None:
        self._engine = engine
        self._config = config
        self._cursors = cursors
        self._on_failure = on_failure
        self._busy_nodes: set[int] = set()
        self._turn = 0
        """How many fetches were sent: each begins with another partition."""
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

    def send(self, usable: Callable[[Cursor], bool]) -> None:
        """Ask each broker that is not busy for the partitions that have nothing left here.

        Args:
            usable: Whether a partition's position may be believed.
        """
        state = self._engine.state
        now_ms = self._engine.now_ms
        # While there is something to hand out, no broker may wait for more: (1) one partition has nothing new, so its
        # fetch waits, (2) the program works through what is here of the others, (3) their next fetch would have to
        # wait for the first one's end.
        at_hand = any(not (cursor.empty or cursor.paused) for cursor in self._cursors.values())
        wanted = {
            name: FetchPosition(
                cursor.offset,
                state.metadata.leader_epoch(name),
                self._config.max_partition_fetch_bytes,
            )
            for name, cursor in self._cursors.items()
            if cursor.offset is not None
            and not (cursor.fetching or cursor.paused or cursor.out_of_range)
            and cursor.empty
            and now_ms >= cursor.muted_until_ms
            and (not at_hand or now_ms >= cursor.quiet_until_ms)
            and name.topic not in state.stale_topics
            and usable(cursor)
        }
        for name in list(wanted):
            self._cursors[name].belongs_to(state.metadata.topic_id(name.topic))
            if self._cursors[name].offset is None:
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
        # A broker gathers in this order until it has enough, or has looked into enough for tags.
        self._turn += 1
        names = list(positions)
        first = self._turn % len(names)
        positions = {name: positions[name] for name in (*names[first:], *names[:first])}
        cursors = {name: self._cursors[name] for name in positions}
        for cursor in cursors.values():
            cursor.fetching = True

        def answered(outcome: Message | HeadraceError | None) -> None:
            assert outcome is not None, "a fetch always has an answer"
            self._busy_nodes.discard(node)
            for cursor in cursors.values():
                cursor.fetching = False
            try:
                for name, data in read_fetch(self._engine.state, positions, outcome):
                    self._take_answer(cursors[name], positions[name].offset, data, node)
            except Exception as error:  # noqa: BLE001 - the next poll raises it
                self._mute(cursors.values())
                self._on_failure(InternalError.of(error, "an answer cannot be taken in"))
            self._engine.notify()

        call = Call(
            request=fetch_request(positions, limits),
            node=node,
            channel=FETCH_CHANNEL,
            timeout_ms=self._config.request_timeout_ms + self._config.fetch_max_wait_ms,
        )
        self._engine.submit(call, answered)

    def _take_answer(self, cursor: Cursor, offset: int, data: FetchedPartition, node: int) -> None:
        # (1) A fetch is sent, (2) the partition is given away and comes back, or the program seeks, (3) the answer
        # arrives: it belongs to a cursor that is gone, or to another place.
        if self._cursors.get(cursor.name) is not cursor or cursor.offset != offset:
            return
        if data.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            cursor.out_of_range = True
            self._engine.state.stale_topics.add(cursor.name.topic)  # it may have been created again
            if cursor.failures:  # the offset that the broker gave instead is out of range, too
                self._mute([cursor])
            else:
                cursor.failures = 1
        elif data.error in metadata.STALE_LEADER_ERRORS or data.error.retriable:
            error = partition_error(cursor.name, data.error, data.reason)
            self._engine.trouble.note(error, self._engine.now_ms)
            self._mute([cursor])
        elif data.error:
            self._mute([cursor])
            self._on_failure(partition_error(cursor.name, data.error))
        elif (fault := _no_progress(data.records, offset)) is not None:
            self._stalled(cursor, f"broker {node} answers a fetch from offset {offset} {fault}")
        else:
            cursor.failures = 0
            cursor.high_watermark = data.high_watermark
            if len(data.records):
                checked = self._config.check_crcs
                cursor.fetched = FetchedBatches(
                    cursor.name, data, check_crcs=checked, tags=self._config.tags
                )
            else:
                cursor.quiet_until_ms = self._engine.now_ms + ASK_AGAIN_MS

    def _stalled(self, cursor: Cursor, text: str) -> None:
        """Ask again after a pause; the program is told when that has not helped."""
        error = CorruptRecordError(f"{cursor.name}: {text}")
        self._engine.trouble.note(error, self._engine.now_ms)
        self._mute([cursor])
        if cursor.failures >= STALLED_ANSWERS:
            self._on_failure(error)

    def _mute(self, cursors: Collection[Cursor]) -> None:
        """Leave partitions alone for a while, longer each time; questions for their leaders follow at that pace."""
        for cursor in cursors:
            pause_ms = min(
                self._config.retry_backoff_ms << min(cursor.failures, 16),
                self._config.retry_backoff_max_ms,
            )
            cursor.failures += 1
            cursor.muted_until_ms = self._engine.now_ms + pause_ms
        for until_ms in {cursor.muted_until_ms for cursor in cursors}:
            self._engine.at(until_ms, self._engine.notify)


def _no_progress(records: Buffer, offset: int) -> str | None:
    """Return what is wrong with the beginning of an answer that leads no further; None where nothing is."""
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
