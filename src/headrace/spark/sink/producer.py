"""A producer of rows, and transactions that one process opens and another ends."""

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
class OpenTransaction:
    """All that is needed to end a transaction. Whoever takes over its transactional id has aborted it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    per_transaction: bool
    """Whether it has the newer protocol, of KIP-890."""

    def owner(self, timeout_ms: int) -> TransactionalProducer:
        """Return its producer as the coordinator knows it."""
        identity = ProducerIdentity(self.producer_id, self.producer_epoch)
        return TransactionalProducer(
            self.transactional_id, timeout_ms, identity, self.per_transaction
        )


class RowProducer(Producer):
    """A producer that takes rows by the thousand, and can leave its transaction to somebody else."""

    def send_rows(self, rows: Rows) -> None:
        """Add records to their partitions' batches; whether they arrive `flush` tells, or the transaction's end.

        Raises:
            ApiError: The topic may not be written or has no such partition, or a record exceeds `max.request.size`.
            TransportError: No broker answered, or no room appeared in the buffer, within `max.block.ms`.
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

    def hand_over(self) -> OpenTransaction:
        """Deliver what was sent, and return what ends the transaction; this producer is of no more use."""
        limit_ms = self.config.delivery_timeout_ms
        self._driver.start_background()
        who = self._driver.run(self._core.transaction().hand_over(limit_ms), limit_ms)
        identity = who.identity
        return OpenTransaction(
            who.transactional_id,
            identity.producer_id,
            identity.producer_epoch,
            who.per_transaction,
        )


def end_transactions(
    client: BlockingClient, transactions: Sequence[OpenTransaction], *, committed: bool
) -> dict[OpenTransaction, HeadraceError]:
    """End transactions, all at once; return those that could not be ended, and why."""
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
    engine: Engine, transactions: Sequence[OpenTransaction], timeout_ms: int, *, committed: bool
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
