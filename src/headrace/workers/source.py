"""The interfaces between a worker and what it reads: topics, or anything with ordered records in partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters.letter_headers import Headers
from headrace.types import PartitionStatus, TopicPartition


class RevocationListener(Protocol):
    """Receives revocations. The member releases the partitions when the method returns."""

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """Finish what runs in partitions, and commit it: others are about to have them."""

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        """End what runs in partitions, and commit nothing: others may have them already."""


class RecordSource(Protocol):
    """A member of a group that reads partitions.

    The listener may be called while `poll` runs, and for several partitions at once. Between taking records and
    returning them `poll` does not wait, so a call that is cancelled takes none.
    """

    @property
    def begins_late(self) -> bool:
        """Whether reading begins at the end where nothing is committed: then where it began is committed at once."""

    @property
    def commit_timeout_s(self) -> float:
        """For how long a last commit is tried again."""

    @property
    def stopped(self) -> bool:
        """Whether an administrator has stopped this member: it has given everything up and has left its group."""

    @property
    def commits_at_rest(self) -> bool:
        """Whether a commit costs no request of its own: then it is made whenever all of a partition is finished."""

    async def prepare(self) -> None:
        """Look whether what is read is there and may be read; nothing is taken from the group's members for it."""

    async def begin(self, listener: RevocationListener) -> None:
        """Join the group; partitions come from the next poll on."""

    async def poll(
        self, timeout_s: float = 1.0, max_records: int | None = None
    ) -> Sequence[ConsumerRecord]:
        """Return records, waiting for the first of them; in the order of each partition."""

    def pause(self, partitions: Iterable[TopicPartition]) -> object:
        """Return no records of these partitions until `resume`; they stay this member's."""

    def resume(self, partitions: Iterable[TopicPartition]) -> object:
        """Return records of these partitions again."""

    def seek(self, topic_partition: TopicPartition, offset: int) -> object:
        """Return records of a partition again, from an offset that was returned and is not committed."""

    def positions(self) -> Mapping[TopicPartition, int | None]:
        """Return, for each partition that is this member's, one past the last record that was returned."""

    def valid(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition is this member's at this moment, so that a record of it may be handled."""

    def epoch(self, topic_partition: TopicPartition) -> int:
        """Return a number that grows whenever a partition changes hands."""

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit how far partitions are finished: one past the last record that is, with all before it."""

    def statuses(self, unfinished: Mapping[TopicPartition, int]) -> list[PartitionStatus]:
        """Return how this member is getting on with each of its partitions; nothing is asked for.

        Args:
            unfinished: By partition the first offset that was returned and is not finished, where there is one.
        """

    def trouble(self) -> str | None:
        """Return why this member cannot read what it should at present; None where nothing is known to be wrong."""

    async def caught_up(self) -> bool:
        """Whether every record that is there now was returned; for tests."""

    async def leave(self, timeout_s: float) -> None:
        """Release all partitions through the listener, leave the group, and close."""


class DeadLetterStream(Protocol):
    """Where dead letters go that do not go to a topic."""

    async def prepare(self) -> None:
        """Look whether they can be written there.

        Raises:
            HeadraceError: They cannot.
        """

    async def write(self, record: ConsumerRecord, headers: Headers) -> None:
        """Write a record with what is said of it, and wait until it is safe."""

    async def close(self) -> None:
        """Close the writer's connections."""


@runtime_checkable
class StreamSelection(Protocol):
    """An argument of `@app.worker` in place of topics. It names streams and opens them."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the streams, in place of the topics' names."""

    def check(self, *, delivery: str, dead_letter: bool | str) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: It cannot be read with this kind of delivery, or there is no such place for dead letters.
        """

    def open_source(
        self, group: str, *, delivery: str, drain_timeout_s: float, client_id: str
    ) -> RecordSource:
        """Return a new member of a group; called on the event loop that it is used on.

        Args:
            group: The group.
            delivery: "at_least_once" or "at_most_once".
            drain_timeout_s: How long handlers may take to finish when their partition goes.
            client_id: The name of the program.
        """

    def open_letters(self, place: str) -> DeadLetterStream:
        """Return what writes dead letters to a place that is no topic."""
