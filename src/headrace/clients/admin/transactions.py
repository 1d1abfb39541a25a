"""What the blocking admin client asks about transactions."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.clients.admin.core import AdminCore
from headrace.clients.arguments import Count, OffsetNumber, checks_arguments
from headrace.clients.drivers import Driver
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

    _driver: Driver
    _core: AdminCore

    def transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids that this client may describe, sorted.

        Args:
            states: Only ids in one of these states, by Kafka's names ("Ongoing", "CompleteAbort"); all by default.
            producer_ids: Only the ids of these producers; all by default.
            longer_than_ms: Only transactions that are open for more than so many milliseconds; None is no such bound.
                Brokers before Kafka 3.8 do not know this and return all.

        Raises:
            ApiError: INVALID_REQUEST: no state has such a name.
        """
        return self._driver.run(self._core.transactions(states, producer_ids, longer_than_ms))

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Return the state of a transactional id, and what its open transaction has written to.

        Raises:
            ApiError: TRANSACTIONAL_ID_NOT_FOUND.
        """
        return self._driver.run(self._core.describe_transaction(transactional_id))

    def fence_producer(self, transactional_id: str) -> None:
        """Abort what a transactional id has open, and shut its producer out; a new producer may take the id.

        Raises:
            ApiError: TRANSACTIONAL_ID_NOT_FOUND.
        """
        self._driver.run(self._core.fence_producer(transactional_id))

    def producers(self, topic_partition: TopicPartition) -> list[ProducerState]:
        """Return the idempotent and transactional producers that a partition remembers.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        return self._driver.run(self._core.producers(topic_partition))

    def hanging_transactions(
        self, topics: str | Iterable[str] | None = None, *, idle_ms: Count = 900_000
    ) -> list[HangingTransaction]:
        """Find transactions that are open in a partition, and that no coordinator will end.

        Readers with `read_committed` cannot pass them. `abort_hanging_transaction` ends one.

        Args:
            topics: Where to look; None is everywhere.
            idle_ms: Only those whose last record is at least so many milliseconds old: longer than any transaction of
                the cluster may last.
        """
        idle_since_ms = SteadyClock().now_ms() - idle_ms
        return self._driver.run(self._core.hanging_transactions(topics, idle_since_ms))

    def abort_hanging_transaction(
        self, topic_partition: TopicPartition, start_offset: OffsetNumber
    ) -> ProducerState:
        """Write an abort marker for a transaction that hangs in a partition.

        For one that a coordinator still knows, `fence_producer` is right.

        Args:
            topic_partition: The partition.
            start_offset: Where the transaction begins, as `hanging_transactions` says.

        Returns:
            The producer whose transaction it was.

        Raises:
            ApiError: INVALID_TXN_STATE: no open transaction begins there.
        """
        return self._driver.run(self._core.abort_hanging(topic_partition, start_offset))
