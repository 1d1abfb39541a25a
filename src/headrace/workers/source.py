"""The interfaces between a worker and the source of its records: topics, or Kinesis streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters.letter_headers import Headers
from headrace.types import PartitionStatus, TopicPartition


class RevocationListener(Protocol):
    """Receives revocations. The member releases the partitions when the method returns."""

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """Finish running handlers of partitions, and commit. Other members get the partitions afterwards."""

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        """Cancel the handlers of partitions, and commit nothing. Other members may have the partitions already."""


class RecordSource(Protocol):
    """A member of a group that reads partitions.

    The listener may be called while `poll` runs, and for several partitions at once. `poll` does not wait after it has
    taken records. So a cancelled call loses no records.
    """

    @property
    def begins_late(self) -> bool:
        """Whether a partition without a committed offset is read from its end. Then its first position is committed."""

    @property
    def commit_timeout_s(self) -> float:
        """The longest time in seconds for which a failed commit is repeated before partitions are released."""

    @property
    def stopped(self) -> bool:
        """Whether an administrator has stopped this member. It has then released its partitions and left the group."""

    @property
    def commits_at_rest(self) -> bool:
        """Whether a commit costs no request. Then the worker commits when all records of a partition are finished."""

    async def prepare(self) -> None:
        """Check whether the source can be read. The other members of the group keep their partitions."""

    async def begin(self, listener: RevocationListener) -> None:
        """Join the group. The next polls assign partitions."""

    async def poll(
        self, timeout_s: float = 1.0, max_records: int | None = None
    ) -> Sequence[ConsumerRecord]:
        """Return records, and wait for the first one. The records of a partition are in order.

        Args:
            timeout_s: The longest wait in seconds.
            max_records: The most records to return; None is the limit of the source.
        """

    def pause(self, partitions: Iterable[TopicPartition]) -> object:
        """Return no records of some partitions until `resume`. They stay assigned to this member."""

    def resume(self, partitions: Iterable[TopicPartition]) -> object:
        """Return records of some partitions again."""

    def seek(self, topic_partition: TopicPartition, offset: int) -> object:
        """Return records of a partition again, from an offset that is not committed."""

    def positions(self) -> Mapping[TopicPartition, int | None]:
        """Return the position of each assigned partition: one past the last returned record. None if not known yet."""

    def valid(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition belongs to this member at this moment, so that its records may be handled."""

    def epoch(self, topic_partition: TopicPartition) -> int:
        """Return a number that grows whenever the partition gets another owner."""

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets: for each partition, one past the last finished record without an unfinished one before it."""

    def statuses(self, unfinished: Mapping[TopicPartition, int]) -> list[PartitionStatus]:
        """Return the status of each assigned partition, without a request.

        Args:
            unfinished: The first unfinished offset, by partition. Partitions without unfinished records are left out.
        """

    def trouble(self) -> str | None:
        """Return why this member cannot read its partitions at present; None if no problem is known."""

    async def caught_up(self) -> bool:
        """Return whether every record that exists now was returned. `Worker.idle` calls this, for tests."""

    async def leave(self, timeout_s: float) -> None:
        """Release all partitions through the listener, leave the group, and close."""


class DeadLetterDestination(Protocol):
    """A Kinesis stream for dead letters, in place of a topic."""

    async def prepare(self) -> None:
        """Check whether dead letters can be written to the stream.

        Raises:
            HeadraceError: They cannot be written.
        """

    async def write(self, record: ConsumerRecord, headers: Headers) -> None:
        """Write a record with the headers of a dead letter, and wait until it is acknowledged."""

    async def close(self) -> None:
        """Close the connections to the stream."""


@runtime_checkable
class StreamSelection(Protocol):
    """An argument of `@app.worker` in place of topics. It names streams and opens them."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the streams, which take the place of topic names."""

    def check(self, *, delivery: str, dead_letter: bool | str) -> None:
        """Check the arguments of the worker that concern streams.

        Raises:
            ConfigError: Streams do not support this delivery mode, or dead letters cannot go to that destination.
        """

    def open_source(
        self, group: str, *, delivery: str, drain_timeout_s: float, client_id: str
    ) -> RecordSource:
        """Return a new member of a group. Call this on the event loop that uses the member.

        Args:
            group: The group.
            delivery: "at_least_once" or "at_most_once".
            drain_timeout_s: How long, in seconds, handlers may run on when their shard is revoked.
            client_id: The client id of the app.
        """

    def open_letters(self, place: str) -> DeadLetterDestination:
        """Return the stream for dead letters that `place` names: `kinesis://STREAM`."""
