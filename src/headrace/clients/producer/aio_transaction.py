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
    """The methods of a producer that a transaction calls."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun and has not ended."""

    async def begin_transaction(self) -> None:
        """Begin a new transaction."""

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group: GroupMember | GroupConsumer
    ) -> None:
        """Commit offsets of a group with the transaction."""

    async def commit_transaction(self) -> None:
        """Deliver the records of the transaction and commit it."""

    async def abort_transaction(self) -> None:
        """Abort the open transaction."""


class Transaction:
    """One transaction: entering begins it, leaving commits it, and an exception aborts it.

    Every exception aborts it, also a cancellation. An exception during the commit itself does not take the commit
    back: `commit_transaction` or `close` completes it.
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
            return  # the program has ended the transaction itself
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
        """Commit offsets of a consumer group with the transaction.

        Args:
            offsets: One past the last finished record of each partition, for example `consumer.positions()`.
            group: The consumer that has read these records, or what its `group_metadata()` returns. With the consumer,
                the transaction also fails if the consumer leaves and rejoins its group while the offsets are sent.

        Raises:
            AbortableTransactionError: The consumer is no member of its group any more, or the offsets are refused.
            FatalTransactionError: The producer cannot be used any more.
        """
        await self._producer.send_offsets_to_transaction(offsets, group)


def _is_worse(error: HeadraceError, cause: BaseException) -> bool:
    """Whether the program gets the error of the abort, in place of the error that caused the abort.

    A leader that refuses a record with an old epoch does not know whether another producer has fenced this one. The
    coordinator knows, so its error is the better one.
    """
    refused = isinstance(cause, AbortableTransactionError | ApiError)
    return isinstance(error, FatalTransactionError) and refused
