"""A consumer's place in one partition."""

from __future__ import annotations

from typing import Final

from headrace.clients.consumer.records import ConsumerRecord, FetchedBatches
from headrace.clients.flows.cluster import NO_TOPIC_ID
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.errors import CorruptRecordError
from headrace.types import TopicPartition

STEP_COST: Final = 16_384
"""The cost of a search for the next record after which the consumer does other work first; the unit of `Slice.cost`."""
RELEASE_BYTES: Final = 1 << 20
"""A paused partition keeps a decompressed batch of at most so many bytes."""


class AssignedPartition:
    """Where the consumer is in a partition, and what it has read ahead there."""

    __slots__ = (
        "checked_epoch",
        "committed",
        "epoch",
        "failures",
        "fetched",
        "fetching",
        "finished",
        "high_watermark",
        "muted_until_ms",
        "name",
        "next_record",
        "offset",
        "out_of_range",
        "paused",
        "quiet_until_ms",
        "records",
        "slice_end",
        "slice_epoch",
        "topic_id",
    )

    def __init__(self, name: TopicPartition, offset: int | None = None) -> None:
        self.name = name
        self.topic_id = NO_TOPIC_ID
        """The topic that the position belongs to; another may get its name."""
        self.offset = offset
        """The next offset to hand out; None until it is known."""
        self.epoch = -1
        """Epoch of the leader that wrote what was handed out last; -1 if unknown."""
        self.finished: OffsetAndMetadata | None = None
        """Up to where the program has worked: what came before the records of its last poll. None: nothing new."""
        self.committed: int | None = None
        """The offset last known to be committed."""
        self.out_of_range = False
        """The offset does not exist at the leader; where to go on has to be found out."""
        self.checked_epoch = -1
        """The leader epoch under which `offset` was found to be on the leader's log."""
        self.high_watermark = -1
        self.fetching = False
        self.paused = False
        self.failures = 0
        """How many fetches in a row have failed."""
        self.muted_until_ms = 0
        self.quiet_until_ms = 0
        """Until then nothing new is expected: it had nothing when it was asked last."""
        self.fetched: FetchedBatches | None = None
        self.records: list[ConsumerRecord] = []
        """Some records of one batch, keys and values still as bytes; those before `next_record` are handed out."""
        self.next_record = 0
        self.slice_end = 0
        """The position after the last of them."""
        self.slice_epoch = -1
        """Epoch of the leader that wrote them."""

    @property
    def pending(self) -> int:
        """How many decoded records wait to be handed out."""
        return len(self.records) - self.next_record

    @property
    def empty(self) -> bool:
        """Whether nothing was read ahead."""
        return self.fetched is None and not self.pending

    def position(self) -> OffsetAndMetadata | None:
        """Return where the consumer is, as it would be committed."""
        if self.offset is None:
            return None
        return OffsetAndMetadata(self.offset, leader_epoch=self.epoch)

    def move(self, offset: int, epoch: int = -1) -> None:
        """Go to another offset and forget what was read ahead."""
        self.offset = offset
        self.epoch = epoch
        self.out_of_range = False
        self.checked_epoch = -1
        self.drop_read_ahead()

    def forget(self) -> None:
        """Have the position found out anew: from what is committed, or else by `auto.offset.reset`."""
        self.move(-1)
        self.offset = None
        self.finished = None
        self.committed = None

    def belongs_to(self, topic_id: bytes) -> None:
        """Take note of the topic's id; if it was deleted and created again, nothing of the old one holds any more."""
        if topic_id in {NO_TOPIC_ID, self.topic_id}:
            return
        known, self.topic_id = self.topic_id, topic_id
        if known != NO_TOPIC_ID:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self.forget()
        self.out_of_range = True  # the policy decides

    def drop_read_ahead(self) -> None:
        """Forget what was read ahead."""
        self.fetched = None
        self.records = []
        self.next_record = 0

    @property
    def held(self) -> int:
        """Bytes that the decompressed records of the batch under way take."""
        return 0 if self.fetched is None else self.fetched.held

    def release(self) -> None:
        """Free a large decompressed batch while the partition is paused; the next slice decompresses it again."""
        if self.fetched is not None and self.held > RELEASE_BYTES:
            self.fetched.release()

    def decode(self) -> bool:
        """Make sure that a record waits to be handed out, if one was fetched; batches without any move the position.

        The search ends when its cost reaches `STEP_COST`.

        Returns:
            False when there is no record, or when the search has to go on: the partition is not `empty` then.

        Raises:
            CorruptRecordError: The next batch is damaged; the position stays before it.
        """
        cost = 0
        while not self.pending:
            if self.fetched is None or self.offset is None or cost >= STEP_COST:
                return False
            try:
                found = self.fetched.next_slice()
            except CorruptRecordError as error:
                text = f"{self.name} at offset {self.offset}: {error}"
                if (behind := self.fetched.batch_end) > self.offset:
                    text += f"; seek to {behind} to skip the batch"
                raise CorruptRecordError(text) from error
            if found is None:
                self.fetched = None
                return False
            records, end_offset, self.slice_epoch, more = found
            cost += more
            first = self.offset
            self.slice_end = max(first, end_offset)
            # The first batch may begin before the offset that was asked for.
            if records and records[0].offset < first:
                records = [record for record in records if record.offset >= first]
            self.records = records
            self.next_record = 0
            if not records:
                self.offset, self.epoch = self.slice_end, self.slice_epoch
                self._end_if_exhausted()
        return True

    def advance(self, count: int) -> None:
        """Move behind the next `count` decoded records; behind the last of a batch is behind the batch."""
        self.next_record += count
        self.epoch = self.slice_epoch
        if self.next_record < len(self.records):
            # Whatever a producer has written: a position does not go back, nor beyond the batch.
            behind = self.records[self.next_record - 1].offset + 1
            self.offset = min(max(self.offset or 0, behind), self.slice_end)
        else:
            self.offset = self.slice_end
            self.records = []
            self.next_record = 0
            self._end_if_exhausted()

    def _end_if_exhausted(self) -> None:
        if self.fetched is not None and self.fetched.exhausted:
            self.fetched = None  # so that what comes next is fetched while this is worked on
