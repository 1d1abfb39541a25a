"""`async with producer.transaction()`: one transaction of an asyncio producer."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from headrace.clients.flows.transactions import GroupMember
from headrace.clients.producer.transaction_offsets import GroupConsumer, Offsets
from headrace.errors import (
    AbortableTransactionError,
    ApiError,
    FatalTransactionError,
    HeadraceError,
)


class ProducerOfTransactions(Protocol):
    """What a transaction calls of its producer."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun and has not ended."""

    async def begin_transaction(self) -> None:
        """Begin a transaction."""

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group: GroupMember | GroupConsumer
    ) -> None:
        """Commit offsets of a group with the transaction."""

    async def commit_transaction(self) -> None:
        """Deliver the records of the transaction and commit it."""

    async def abort_transaction(self) -> None:
        """Abort the transaction."""


class Transaction:
    """One transaction: begins on entering, is committed on leaving, aborted where that is by an exception.

    Whatever the exception is, a cancellation included. One that comes while the commit is being asked for changes
    nothing about it: `commit_transaction` or `close` brings it to its end.
    """

    def __init__(self, producer: ProducerOfTransactions) -> None:
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
