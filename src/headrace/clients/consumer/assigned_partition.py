"""One partition that a consumer reads: its position, and the records that were fetched ahead."""

from __future__ import annotations

from typing import Final

from headrace.clients.consumer.records import ConsumerRecord, FetchedBatches
from headrace.clients.flows.cluster import NO_TOPIC_ID
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.errors import CorruptRecordError
from headrace.types import TopicPartition

STEP_COST: Final = 16_384
"""The cost of a search for the next record after which the consumer does other work first, in units of `Slice.cost`."""
RELEASE_BYTES: Final = 1 << 20
"""The largest decompressed batch in bytes that a paused partition keeps."""


class AssignedPartition:
    """The position of a consumer in one partition, and the records that it has fetched ahead."""

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
        """The id of the topic that the position belongs to. A new topic may have the same name."""
        self.offset = offset
        """The offset of the next record to return; None until it is known."""
        self.epoch = -1
        """The epoch of the leader that wrote the record returned last; -1 if unknown."""
        self.finished: OffsetAndMetadata | None = None
        """The position after the finished records, which are those of earlier polls. None if there are none since the
        position was last set."""
        self.committed: int | None = None
        """The offset that was last committed; None if it is not known."""
        self.out_of_range = False
        """Whether the leader has no record at `offset`, so that a new position must be found."""
        self.checked_epoch = -1
        """The leader epoch for which `offset` was checked against the leader's log; -1 if it was not."""
        self.high_watermark = -1
        """The high watermark in the last response; -1 before the first."""
        self.fetching = False
        """Whether a fetch is in flight."""
        self.paused = False
        """Whether the program has paused the partition."""
        self.failures = 0
        """The number of fetches that failed in a row."""
        self.muted_until_ms = 0
        """The end of the backoff after a failure; the partition is not fetched earlier."""
        self.quiet_until_ms = 0
        """The time until which the partition is not fetched while others have records, because it had no new ones."""
        self.fetched: FetchedBatches | None = None
        """The batches of the last response that are not decoded yet; None if there are none."""
        self.records: list[ConsumerRecord] = []
        """Decoded records of one batch, with keys and values as bytes; those before `next_record` were returned."""
        self.next_record = 0
        """The index of the next record in `records`."""
        self.slice_end = 0
        """The position after the last of `records`."""
        self.slice_epoch = -1
        """The epoch of the leader that wrote `records`."""

    @property
    def pending(self) -> int:
        """The number of decoded records that no poll has returned."""
        return len(self.records) - self.next_record

    @property
    def empty(self) -> bool:
        """Whether no fetched records are left."""
        return self.fetched is None and not self.pending

    def position(self) -> OffsetAndMetadata | None:
        """Return the position in the form in which it is committed; None if it is not known."""
        if self.offset is None:
            return None
        return OffsetAndMetadata(self.offset, leader_epoch=self.epoch)

    def move(self, offset: int, epoch: int = -1) -> None:
        """Set the position, and drop the records that were fetched ahead."""
        self.offset = offset
        self.epoch = epoch
        self.out_of_range = False
        self.checked_epoch = -1
        self.drop_read_ahead()

    def forget(self) -> None:
        """Forget the position, so that it is found again by the committed offset or by `auto.offset.reset`."""
        self.move(-1)
        self.offset = None
        self.finished = None
        self.committed = None

    def belongs_to(self, topic_id: bytes) -> None:
        """Store the topic's id; if the topic was deleted and created again, forget position and records."""
        if topic_id in {NO_TOPIC_ID, self.topic_id}:
            return
        known, self.topic_id = self.topic_id, topic_id
        if known != NO_TOPIC_ID:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self.forget()
        self.out_of_range = True  # auto.offset.reset decides

    def drop_read_ahead(self) -> None:
        """Drop the records that were fetched ahead."""
        self.fetched = None
        self.records = []
        self.next_record = 0

    @property
    def held(self) -> int:
        """The bytes of decompressed records in memory."""
        return 0 if self.fetched is None else self.fetched.held

    def release(self) -> None:
        """Free a large decompressed batch while the partition is paused; the next slice decompresses it again."""
        if self.fetched is not None and self.held > RELEASE_BYTES:
            self.fetched.release()

    def decode(self) -> bool:
        """Decode records until one is pending. Batches without records for the consumer move the position.

        The search ends when its cost reaches `STEP_COST`.

        Returns:
            Whether a record is pending. If not, and the partition is not `empty`, the search must continue later.

        Raises:
            CorruptRecordError: The next batch is damaged. The position stays before it.
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
        """Move the position past the next `count` decoded records; after the last record, past the end of the batch."""
        self.next_record += count
        self.epoch = self.slice_epoch
        if self.next_record < len(self.records):
            # Whatever offsets the batch contains: the position never moves back, nor past the batch.
            behind = self.records[self.next_record - 1].offset + 1
            self.offset = min(max(self.offset or 0, behind), self.slice_end)
        else:
            self.offset = self.slice_end
            self.records = []
            self.next_record = 0
            self._end_if_exhausted()

    def _end_if_exhausted(self) -> None:
        if self.fetched is not None and self.fetched.exhausted:
            self.fetched = (
                None  # so that the next records are fetched while the program works on these
            )
