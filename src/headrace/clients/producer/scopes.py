"""`with producer.transaction()` and `async with producer.transaction()`, and what both are told of offsets."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.flows.transactions import GroupMember
from headrace.errors import (
    AbortableTransactionError,
    ApiError,
    ConfigError,
    ErrorCode,
    FatalTransactionError,
    HeadraceError,
)
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.clients.producer import aio, blocking

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata | None]


@runtime_checkable
class GroupConsumer(Protocol):
    """A consumer of this package, blocking or not."""

    config: Any

    def group_metadata(self) -> GroupMember:
        """Return its place in its group."""

    def subscription(self) -> frozenset[str]:
        """Return the topics that it shares with its group."""


class Transaction:
    """One transaction: begins on entering, is committed on leaving, aborted where that is by an exception.

    Whatever the exception is, KeyboardInterrupt included. One that comes while the commit is being asked for changes
    nothing about it: `commit_transaction` or `close` brings it to its end.
    """

    def __init__(self, producer: blocking.Producer) -> None:
        self._producer = producer

    def __enter__(self) -> Self:
        self._producer.begin_transaction()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._producer.in_transaction:
            return  # the program has ended it
        if error is not None:
            self._abort(error)
            return
        try:
            self._producer.commit_transaction()
        except BaseException as failure:
            self._abort(failure)
            raise

    def _abort(self, cause: BaseException) -> None:
        try:
            self._producer.abort_transaction()
        except HeadraceError as failure:
            if _is_worse(failure, cause):
                raise

    def send_offsets(self, offsets: Offsets, group: GroupMember | GroupConsumer) -> None:
        """Have offsets of a group committed with the transaction.

        Args:
            offsets: One past the last finished record of each partition: `consumer.positions()`, say.
            group: The consumer that has read up to there, or what its `group_metadata()` returns. With the consumer, a
                transaction also fails if the consumer loses its place and joins again while the offsets are sent.

        Raises:
            AbortableTransactionError: The group went on without the consumer, or they cannot be committed.
            FatalTransactionError: The producer is of no more use.
        """
        self._producer.send_offsets_to_transaction(offsets, group)


class AsyncTransaction:
    """One transaction: begins on entering, is committed on leaving, aborted where that is by an exception.

    Whatever the exception is, a cancellation included. One that comes while the commit is being asked for changes
    nothing about it: `commit_transaction` or `close` brings it to its end.
    """

    def __init__(self, producer: aio.Producer) -> None:
        self._producer = producer

    async def __aenter__(self) -> Self:
        await self._producer.begin_transaction()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._producer.in_transaction:
            return  # the program has ended it
        if error is not None:
            await self._abort(error)
            return
        try:
            await self._producer.commit_transaction()
        except BaseException as failure:
            await self._abort(failure)
            raise

    async def _abort(self, cause: BaseException) -> None:
        try:
            await self._producer.abort_transaction()
        except HeadraceError as failure:
            if _is_worse(failure, cause):
                raise

    async def send_offsets(self, offsets: Offsets, group: GroupMember | GroupConsumer) -> None:
        """Have offsets of a group committed with the transaction.

        Args:
            offsets: One past the last finished record of each partition: `consumer.positions()`, say.
            group: The consumer that has read up to there, or what its `group_metadata()` returns. With the consumer, a
                transaction also fails if the consumer loses its place and joins again while the offsets are sent.

        Raises:
            AbortableTransactionError: The group went on without the consumer, or they cannot be committed.
            FatalTransactionError: The producer is of no more use.
        """
        await self._producer.send_offsets_to_transaction(offsets, group)


def _is_worse(error: HeadraceError, cause: BaseException) -> bool:
    """Whether the program has to be told why the abort failed, and not only why there was one.

    A leader that refuses a record for its old epoch, as `.result()` tells it, cannot know whether the producer was shut
    out. The coordinator does.
    """
    refused = isinstance(cause, AbortableTransactionError | ApiError)
    return isinstance(error, FatalTransactionError) and refused


def member_of(group: GroupMember | GroupConsumer) -> GroupMember:
    """Return a consumer's place in its group.

    Raises:
        AbortableTransactionError: It has none any more; others may have its partitions.
        ConfigError: It commits by itself, also what is never finished.
    """
    if not isinstance(group, GroupConsumer):
        return group
    if group.config.enable_auto_commit:
        raise ConfigError(
            "a consumer whose offsets a transaction commits must not commit by itself: "
            "Consumer(..., enable_auto_commit=False)"
        )
    member = group.group_metadata()
    if member.generation_id < 0 and group.subscription():
        raise AbortableTransactionError(
            f"the consumer has no place in the group {member.group_id!r} any more, and its partitions may be others': "
            "abort the transaction, poll again, and go on with what comes"
        ) from ApiError.for_code(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def check_place(group: GroupMember | GroupConsumer, before: GroupMember) -> None:
    """Check that a consumer has not joined its group again since a transaction's offsets were on their way.

    The coordinator cannot tell: a member that joins again gets its former epoch if nothing else has changed. But that
    member may have asked where to go on before the offsets arrived, so they must not be committed.

    Raises:
        AbortableTransactionError: The consumer has joined again.
    """
    if isinstance(group, GroupConsumer) and _joined(group.group_metadata()) != _joined(before):
        raise AbortableTransactionError(
            f"the consumer lost its place in the group {before.group_id!r} and joined again while the transaction's "
            "offsets were sent"
        ) from ApiError.for_code(ErrorCode.STALE_MEMBER_EPOCH)


def _joined(member: GroupMember) -> int:
    return getattr(member, "joined", 0)


def checked_offsets(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets as they are committed; those that are None, not known yet, are left out.

    Raises:
        ConfigError: These are no offsets by partition.
    """
    if not isinstance(offsets, Mapping):
        raise ConfigError(
            f"offsets are given by partition, {{TopicPartition(...): 5}}, not {offsets!r}"
        )
    checked: dict[TopicPartition, OffsetAndMetadata] = {}
    for name, at in offsets.items():
        if isinstance(at, bool) or not isinstance(at, int | OffsetAndMetadata | None):
            raise ConfigError(f"{name}: an offset is a number from 0 on, not {at!r}")
        if at is not None:
            checked[TopicPartition(*name)] = OffsetAndMetadata(at) if isinstance(at, int) else at
    negative = [name for name, at in checked.items() if at.offset < 0]
    if negative:
        raise ConfigError(
            f"{negative[0]}: an offset is a number from 0 on, not {checked[negative[0]].offset}"
        )
    return checked
