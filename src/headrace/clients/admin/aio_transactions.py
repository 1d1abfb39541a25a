"""The calls of the asyncio admin client about transactions."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.clients.admin.core import AdminCore
from headrace.clients.arguments import Count, OffsetNumber, checks_arguments
from headrace.clients.drivers import AsyncDriver
from headrace.clients.flows.transaction_admin import (
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from headrace.clock import SteadyClock
from headrace.types import TopicPartition


@checks_arguments
class TransactionCalls:
    """The part of `Admin` that lists, describes and ends transactions."""

    _driver: AsyncDriver
    _core: AdminCore

    async def transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids that this client may describe, sorted.

        Args:
            states: Return only ids in these states, by Kafka's names ("Ongoing", "CompleteAbort"). Empty is all states.
            producer_ids: Return only the ids of these producers. Empty is all producers.
            longer_than_ms: Return only transactions that have been open for longer, in milliseconds. None returns all.
                Brokers before Kafka 3.8 ignore this argument.

        Raises:
            ApiError: INVALID_REQUEST: there is no state of that name.
        """
        return await self._driver.run(self._core.transactions(states, producer_ids, longer_than_ms))

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Return the state of a transactional id, and the partitions of its open transaction.

        Raises:
            ApiError: TRANSACTIONAL_ID_NOT_FOUND.
        """
        return await self._driver.run(self._core.describe_transaction(transactional_id))

    async def fence_producer(self, transactional_id: str) -> None:
        """Fence the producer of a transactional id, and abort its open transaction. A new producer may use the id.

        Raises:
            ApiError: TRANSACTIONAL_ID_NOT_FOUND.
        """
        await self._driver.run(self._core.fence_producer(transactional_id))

    async def producers(self, topic_partition: TopicPartition) -> list[ProducerState]:
        """Return the idempotent and transactional producers that a partition remembers.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        return await self._driver.run(self._core.producers(topic_partition))

    async def hanging_transactions(
        self, topics: str | Iterable[str] | None = None, *, idle_ms: Count = 900_000
    ) -> list[HangingTransaction]:
        """Find transactions that are open in a partition, and that no coordinator will end.

        Readers with `read_committed` cannot read past them. `abort_hanging_transaction` ends one.

        Args:
            topics: The topics to search. None is all topics.
            idle_ms: The least age of a transaction's last record in milliseconds. It must be longer than any
                transaction of the cluster may be open.
        """
        idle_since_ms = SteadyClock().now_ms() - idle_ms
        return await self._driver.run(self._core.hanging_transactions(topics, idle_since_ms))

    async def abort_hanging_transaction(
        self, topic_partition: TopicPartition, start_offset: OffsetNumber
    ) -> ProducerState:
        """Write an abort marker for a transaction that hangs in a partition.

        If a coordinator still knows the transaction, use `fence_producer`.

        Args:
            topic_partition: The partition.
            start_offset: The first offset of the transaction, from `hanging_transactions`.

        Returns:
            The producer of the transaction.

        Raises:
            ApiError: INVALID_TXN_STATE: no open transaction begins there.
        """
        return await self._driver.run(self._core.abort_hanging(topic_partition, start_offset))
