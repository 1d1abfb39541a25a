"""A producer of rows, and transactions that a task opens and the driver ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.clients.blocking import BlockingClient
from headrace.clients.engine import Engine, Task
from headrace.clients.flows.effects import Flow, Wait
from headrace.clients.flows.produce import ProducerIdentity
from headrace.clients.flows.transactions import TransactionalProducer, end_transaction
from headrace.clients.producer.blocking import Producer
from headrace.clients.producer.many import Rows
from headrace.errors import HeadraceError


@dataclass(frozen=True)
class TaskTransaction:
    """An open transaction of a task, with everything that the driver needs to end it.

    A later attempt that initializes the same transactional id aborts the transaction.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    per_transaction: bool
    """Whether the transaction uses the newer protocol of KIP-890."""

    def owner(self, timeout_ms: int) -> TransactionalProducer:
        """Return the state of the transaction's producer, to end the transaction without it."""
        identity = ProducerIdentity(self.producer_id, self.producer_epoch)
        return TransactionalProducer(
            self.transactional_id, timeout_ms, identity, self.per_transaction
        )


class RowProducer(Producer):
    """A producer that takes many rows at once, and can hand over its open transaction to another process."""

    def send_rows(self, rows: Rows) -> None:
        """Add records to their partitions' batches. `flush` or the end of the transaction raises delivery errors.

        Raises:
            ApiError: The client is not authorized for the topic, the partition does not exist, or a record exceeds
                `max.request.size`.
            TransportError: No broker answered, or the buffer was full, for `max.block.ms`.
        """
        bounds = (min(rows.partitions), max(rows.partitions)) if rows.partitions else (None, None)
        unusual = bounds[0] if bounds[0] is not None and bounds[0] < 0 else bounds[1]
        while True:
            with self._driver.enter():
                whole = self._core.send_rows(rows)
            if whole:
                return
            self._driver.start_background()
            self._driver.run(self._core.prepare(rows.topic, unusual), self.config.max_block_ms)

    def hand_over(self) -> TaskTransaction:
        """Deliver all records and return the open transaction. The producer cannot be used afterwards."""
        limit_ms = self.config.delivery_timeout_ms
        self._driver.start_background()
        who = self._driver.run(self._core.transaction().hand_over(limit_ms), limit_ms)
        identity = who.identity
        return TaskTransaction(
            who.transactional_id,
            identity.producer_id,
            identity.producer_epoch,
            who.per_transaction,
        )


def end_transactions(
    client: BlockingClient, transactions: Sequence[TaskTransaction], *, committed: bool
) -> dict[TaskTransaction, HeadraceError]:
    """End transactions in parallel. Return the error of each transaction that could not be ended."""
    engine = client.driver.engine
    timeout_ms = client.config.request_timeout_ms
    flow = _end(engine, transactions, timeout_ms, committed=committed)
    outcomes = client.run(flow, 2 * timeout_ms)
    return {
        each: outcome
        for each, outcome in zip(transactions, outcomes, strict=True)
        if isinstance(outcome, HeadraceError)
    }


def _end(
    engine: Engine, transactions: Sequence[TaskTransaction], timeout_ms: int, *, committed: bool
) -> Flow[list[HeadraceError | None]]:
    tasks: list[Task[None]] = [
        engine.spawn(
            end_transaction(engine.state, each.owner(timeout_ms), committed=committed),
            timeout_ms=timeout_ms,
            on_done=lambda _: engine.notify(),
        )
        for each in transactions
    ]
    while not all(task.done for task in tasks):
        yield Wait()
    return [task.outcome if isinstance(task.outcome, HeadraceError) else None for task in tasks]
