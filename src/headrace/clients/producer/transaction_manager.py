"""A producer's transactions: the allowed calls in each state, and the consequences of errors.

There are three kinds of errors. Retriable errors are retried. After an abortable error (`doom`) the program aborts the
transaction and continues with the next one. After a fatal error (`die`) the producer can only be closed. The error
code decides the kind. A Produce response with an old epoch may only mean that the coordinator has aborted the
transaction; the abort that follows finds out.

After a lost response the request may still be in flight, and may arrive during the next transaction. In the older
protocol the broker cannot distinguish it from a request of that transaction. So after a lost response, and after a
batch that may or may not be written, the next transaction uses a new epoch (KIP-360), and the broker refuses late
requests. In the newer protocol (KIP-890) every transaction has an epoch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from headrace.clients.config import ProducerConfig
from headrace.clients.engine import Engine, Task
from headrace.clients.flows import transactions as flows
from headrace.clients.flows.effects import Flow, Wait
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.flows.transactions import GroupMember, TransactionalProducer
from headrace.clients.producer.batches import PartitionQueue
from headrace.clients.producer.sender import Sender
from headrace.clients.producer.transaction_errors import (
    FATAL,
    FATAL_TO_PRODUCE,
    FORGOTTEN,
    fatal_error,
    may_be_retried,
    without_stop,
)
from headrace.clients.producer.transaction_states import WRITING, State
from headrace.errors import (
    AbortableTransactionError,
    ApiError,
    CommitInDoubtError,
    FatalTransactionError,
    HeadraceError,
    TransactionError,
    TransactionStateError,
    TransportError,
)
from headrace.types import TopicPartition


class TransactionManager:
    """The transactions of one producer, one after another."""

    def __init__(
        self,
        engine: Engine,
        config: ProducerConfig,
        transactional_id: str,
        sender: Sender,
        on_change: Callable[[bool], object],
    ) -> None:
        """Prepare the first transaction. Its begin sends the first request.

        Args:
            engine: The client's engine.
            config: The producer's configuration.
            transactional_id: The producer's name for transactions.
            sender: The sender of the producer's batches.
            on_change: Called with whether records may be sent.
        """
        self.state = State.NONE
        self._engine = engine
        self._config = config
        self._sender = sender
        self._on_change = on_change
        self._who = TransactionalProducer(transactional_id, config.transaction_timeout_ms)
        self._ready = False
        """Whether this producer has taken over the transactional id."""
        self._call: str | None = None
        """The description of the running call that excludes others, for errors; None if there is none."""
        self._begun = False
        """Whether the coordinator may know the current transaction."""
        self._begun_ms = 0
        """The time at which the program began the transaction."""
        self._partitions: set[TopicPartition] = set()
        """The partitions that the coordinator has added to the transaction."""
        self._adding: frozenset[TopicPartition] = frozenset()
        self._groups: set[str] = set()
        self._sending_offsets = 0
        """The number of calls that are sending offsets."""
        self._needs_epoch = False
        """Whether the next transaction needs a new epoch."""
        self._error: TransactionError | None = None
        """The error in the states DOOMED and DEAD; None in other states."""
        sender.transactions = self

    @property
    def under_way(self) -> bool:
        """Whether a transaction has begun and has not ended; the transaction of a fenced producer never ends."""
        return self.state is not State.NONE

    # Calls of the program

    def check_sending(self) -> None:
        """Raise an error unless records may be sent."""
        if self.state is State.OPEN:
            return
        self._raise_if(State.DEAD, State.DOOMED)
        raise TransactionStateError(
            "a producer with a transactional id sends inside of transactions: use "
            "`with producer.transaction():`, or call begin_transaction() first"
        )

    def initialize(self) -> Flow[None]:
        """Take over the transactional id, or the next epoch if the present one must not be used again.

        Raises:
            FatalTransactionError: The id is another's, or must not be used.
            TransportError: No coordinator answered in time.
        """
        self._raise_if(State.DEAD)
        if self._ready and not self._needs_epoch:
            return
        with self._alone("takes over the transactional id"):
            try:
                if not self._ready:
                    yield from flows.learn_protocol(self._engine.state, self._who)
                yield from flows.init_producer_id(self._engine.state, self._who)
            except ApiError as error:
                if error.retriable:
                    raise TransportError(
                        f"the transactional id {self._who.transactional_id!r} cannot be used yet: {error}"
                    ) from error
                raise self.die(error) from error
        self._ready = True
        self._needs_epoch = False
        self._sender.take_identity(self._who.identity)

    def begin(self) -> Flow[None]:
        """Begin a transaction; first take over the transactional id if needed."""
        self._raise_if(State.DEAD)
        if self.state is State.ABORTING:
            yield from self.abort(self._config.max_block_ms)  # one that was interrupted
        if self.state is not State.NONE:
            raise TransactionStateError(
                "there is a transaction already: commit_transaction() or abort_transaction() ends it"
            )
        yield from self.initialize()
        self._begun = False
        self._begun_ms = self._engine.now_ms
        self._partitions.clear()
        self._groups.clear()
        self._error = None
        self._change(State.OPEN)

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member: GroupMember,
        check: Callable[[], object],
    ) -> Flow[None]:
        """Commit offsets of a consumer group with the transaction.

        Args:
            offsets: The offsets by partition.
            member: The group and the identity of the consumer in it.
            check: Called when the coordinator has stored the offsets; raises HeadraceError to refuse the commit.
        """
        self._raise_if(State.DEAD, State.DOOMED)
        if self.state is not State.OPEN:
            raise TransactionStateError("no transaction is open: begin_transaction() comes first")
        if not offsets:
            return
        self._begun = True
        self._sending_offsets += 1
        try:
            yield from flows.send_offsets(
                self._engine.state,
                self._who,
                member,
                offsets,
                group_is_known=member.group_id in self._groups,
            )
            check()
        except HeadraceError as error:
            raise self.failed(error) from error
        finally:
            self._sending_offsets -= 1
            self._engine.notify()
        self._groups.add(member.group_id)

    def commit(self, timeout_ms: int) -> Flow[None]:
        """Deliver what was sent, and commit.

        Raises:
            AbortableTransactionError: A record was not delivered, or the coordinator will not commit.
            CommitInDoubtError: The coordinator has not answered in time.
            FatalTransactionError: The producer cannot be used any more.
        """
        self._raise_if(State.DEAD, State.DOOMED)
        with self._alone("commits the transaction"):
            if self.state not in {State.OPEN, State.COMMITTING}:
                raise TransactionStateError("there is no transaction to commit")
            yield from self._commit(timeout_ms)

    def _commit(self, timeout_ms: int) -> Flow[None]:
        if self.state is State.OPEN:
            yield from self._deliver(self._engine.now_ms + timeout_ms)
            self._change(State.COMMITTING)
        if self._begun:
            try:
                yield from flows.end_transaction(self._engine.state, self._who, committed=True)
            except HeadraceError as error:
                if isinstance(error, TransportError) or may_be_retried(error):
                    raise CommitInDoubtError(
                        f"the commit is not confirmed, and may have happened or not: {without_stop(error)}. Call "
                        "commit_transaction() again, or close the producer and go on from the committed offsets"
                    ) from error
                raise self.failed(error) from error
            self._needs_epoch = self._needs_epoch and not self._who.per_transaction
        self._finish()

    def _deliver(self, until_ms: int) -> Flow[None]:
        """Wait until every record of the transaction is delivered; accept no more records meanwhile."""
        began_ms = self._engine.now_ms
        self._change(State.DELIVERING)
        try:
            for queue in list(self._sender.active):
                self._sender.close_open(queue)
            self._sender.work()
            while self.state is State.DELIVERING and (self._sender.active or self._sending_offsets):
                if self._engine.now_ms >= until_ms:
                    text = (
                        "the records of the transaction are not delivered yet: call commit_transaction() again, or "
                        "abort_transaction()"
                    )
                    raise TransportError(self._engine.trouble.explain(text, began_ms))
                yield Wait(until_ms)
            self._raise_if(State.DEAD, State.DOOMED)
        finally:
            if self.state is State.DELIVERING:
                self._change(State.OPEN)

    def hand_over(self, timeout_ms: int) -> Flow[TransactionalProducer]:
        """Deliver the records, and return the identity with which another process ends the transaction.

        This producer cannot be used afterwards. A new producer with the transactional id aborts the transaction, as
        always.

        Raises:
            AbortableTransactionError: A record was not delivered.
            FatalTransactionError: The producer cannot be used any more.
            TransportError: Records are not delivered in time.
        """
        self._raise_if(State.DEAD, State.DOOMED)
        with self._alone("hands the transaction over"):
            if self.state is not State.OPEN:
                raise TransactionStateError("there is no transaction to hand over")
            yield from self._deliver(self._engine.now_ms + timeout_ms)
            self._error = FatalTransactionError(
                "the transaction was handed over: use a new producer"
            )
            self._change(State.DEAD)
            return self._who

    def abort(self, timeout_ms: int) -> Flow[None]:
        """Fail the pending records, and abort the transaction.

        Raises:
            FatalTransactionError: The producer cannot be used any more.
            TransportError: The coordinator has not answered in time. It aborts the transaction by itself after
                `transaction.timeout.ms`.
        """
        self._raise_if(State.DEAD)
        with self._alone("aborts the transaction"):
            yield from self._abort(timeout_ms)

    def _abort(self, timeout_ms: int) -> Flow[None]:
        if self.state in {State.NONE, State.COMMITTING}:
            raise TransactionStateError(
                "there is no transaction to abort"
                if self.state is State.NONE
                else "the commit has been asked for and cannot be taken back: call commit_transaction() again"
            )
        self._change(State.ABORTING)
        self._sender.drop_unsent(TransactionStateError("the transaction was aborted"))
        began_ms = self._engine.now_ms
        until_ms = began_ms + timeout_ms
        # Batches in flight would otherwise be written after the abort marker.
        while self._adding or self._sender.active or self._sending_offsets:
            if self._engine.now_ms >= until_ms:
                text = "the transaction is not aborted yet: call abort_transaction() again"
                raise TransportError(self._engine.trouble.explain(text, began_ms))
            yield Wait(until_ms)
        self._raise_if(State.DEAD)
        if self._begun:
            try:
                yield from flows.end_transaction(self._engine.state, self._who, committed=False)
            except ApiError as error:
                if error.code not in FORGOTTEN:
                    if may_be_retried(error):
                        raise TransportError(
                            f"the transaction is not aborted yet: {error}"
                        ) from error
                    raise self.die(error) from error
                self._needs_epoch = True
            else:
                self._needs_epoch = self._needs_epoch and not self._who.per_transaction
        self._finish()

    def _finish(self) -> None:
        lost, self._who.unanswered = self._who.unanswered, 0
        self._needs_epoch = self._needs_epoch or (lost > 0 and not self._who.per_transaction)
        self._sender.take_identity(self._who.identity)
        self._sender.failures.clear()
        self._change(State.NONE)

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Refuse other calls that begin or end a transaction until this one is finished.

        (1) Two tasks end a transaction, or begin one. (2) The second task sends its request before the response to the
        first. (3) The second request applies to the next transaction, or both tasks use the same one.
        """
        if self._call is not None:
            raise TransactionStateError(
                f"another call {self._call}, and a producer has one transaction at a time: wait for that call, or use "
                "a producer for each task"
            )
        self._call = what
        try:
            yield
        finally:
            self._call = None
            self._engine.notify()

    def close(self, timeout_ms: int) -> Flow[None]:
        """Wait for another call that ends the transaction; then complete a commit, or abort an open transaction."""
        until_ms = self._engine.now_ms + timeout_ms
        while self._call is not None and self._engine.now_ms < until_ms:
            yield Wait(until_ms)
        if self.state is State.COMMITTING:
            try:
                yield from self.commit(timeout_ms)
            except CommitInDoubtError as error:
                raise CommitInDoubtError(
                    f"the producer is closed, and its last commit may have happened or not: "
                    f"{without_stop(error.__cause__)}. A new producer's init_transactions(), with the same "
                    f"transactional id {self._who.transactional_id!r}, ends it; then the "
                    "committed offsets show whether it happened"
                ) from error.__cause__
        elif self.state not in {State.NONE, State.DEAD}:
            yield from self.abort(timeout_ms)

    # Calls of the sender

    @property
    def transactional_id(self) -> str:
        """The producer's name for transactions."""
        return self._who.transactional_id

    @property
    def max_produce_version(self) -> int | None:
        """The newest version of Produce that may be used; None is the newest of the client."""
        return None if self._who.per_transaction else flows.OLDER_PRODUCE

    def admitted(self, queues: list[PartitionQueue]) -> list[PartitionQueue]:
        """Return the queues whose partition is in the transaction; add the other partitions in the background."""
        if self.state not in WRITING:
            return []
        if self._who.per_transaction:
            self._begun = True
            return queues
        new = {queue.topic_partition for queue in queues} - self._partitions
        if new and not self._adding:
            self._add(frozenset(new))
        return [queue for queue in queues if queue.topic_partition in self._partitions]

    def _add(self, partitions: Collection[TopicPartition]) -> None:
        self._adding = frozenset(partitions)
        self._begun = True

        def done(task: Task[None]) -> None:
            added, self._adding = self._adding, frozenset()
            if isinstance(task.outcome, HeadraceError):
                self.failed(task.outcome)
            else:
                self._partitions |= added
            self._sender.work()
            self._engine.notify()

        flow = flows.add_partitions(self._engine.state, self._who, partitions)
        self._engine.spawn(flow, timeout_ms=self._config.max_block_ms, on_done=done)

    @property
    def goes_on(self) -> bool:
        """Whether a batch that failed may be sent again."""
        return self.state in WRITING

    def batch_failed(self, error: HeadraceError, *, sent: bool) -> None:
        """Handle a batch that was given up. If it was sent, it may be written, or there is a gap after it."""
        self._needs_epoch = self._needs_epoch or sent
        if isinstance(error, ApiError) and error.code in FATAL_TO_PRODUCE:
            self.die(error)
        else:
            self.doom(error)

    # Consequences of errors

    def failed(self, error: HeadraceError) -> TransactionError:
        """Change the state as the error requires, and return the error for the program."""
        code = error.code if isinstance(error, ApiError) else None
        if code in FATAL:
            return self.die(error)
        self._needs_epoch = self._needs_epoch or code in FORGOTTEN
        return self.doom(error)

    def doom(self, error: HeadraceError) -> TransactionError:
        """Make the transaction abortable only: it cannot be committed any more."""
        if self.state in {*WRITING, State.COMMITTING}:
            self._error = AbortableTransactionError(
                f"the transaction has failed: {without_stop(error)}. Abort it, go back to the last committed "
                "offsets, and do it again"
            )
            self._error.__cause__ = error
            self._change(State.DOOMED)
            self._sender.drop_unsent(self._error)
            self._engine.notify()
        return self._error or AbortableTransactionError(str(error))

    def die(self, error: HeadraceError) -> TransactionError:
        """Make the producer unusable."""
        if self.state is not State.DEAD:
            open_ms = 0 if self.state is State.NONE else self._engine.now_ms - self._begun_ms
            self._error = fatal_error(
                error,
                self._who.transactional_id,
                open_ms=open_ms,
                limit_ms=self._config.transaction_timeout_ms,
            )
            self._error.__cause__ = error
            self._change(State.DEAD)
            self._sender.give_up(self._error)
            self._engine.notify()
        assert self._error is not None, "a dead producer has an error"
        return self._error

    def _raise_if(self, *states: State) -> None:
        if self.state in states:
            assert self._error is not None, "these states have a reason"
            raise self._error

    def _change(self, state: State) -> None:
        self.state = state
        self._on_change(state is State.OPEN)
