"""A producer's transactions: what may happen in which state, and what an error makes of them.

Three kinds of errors. What passes is tried again. What spoils the transaction (`doom`) leaves the producer as good as
new once it is aborted. What says that this producer is none any more (`die`) is the end of it. Which is which follows
from the code, and from Produce, where an old epoch may only mean that the coordinator has aborted meanwhile: the abort
that follows finds out.

An answer that was lost may be that of a request which is still on its way, and arrives in the next transaction. By the
older protocol nothing tells it from one that belongs there. So after a lost answer, and after a batch whose fate is not
known, the next transaction has a new epoch (KIP-360), and what comes late is refused. By the newer one every
transaction has.
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
        """Prepare the first transaction; nobody is asked before it begins.

        Args:
            engine: The client's engine.
            config: The producer's configuration.
            transactional_id: The producer's name for transactions.
            sender: What sends its batches.
            on_change: Told whether records may be sent.
        """
        self.state = State.NONE
        self._engine = engine
        self._config = config
        self._sender = sender
        self._on_change = on_change
        self._who = TransactionalProducer(transactional_id, config.transaction_timeout_ms)
        self._ready = False
        """Whether the transactional id is this producer's."""
        self._call: str | None = None
        """What a call does at the moment that only one may do at a time."""
        self._begun = False
        """Whether anybody may have heard of the present transaction."""
        self._begun_ms = 0
        self._partitions: set[TopicPartition] = set()
        """Those that the coordinator knows to be in it."""
        self._adding: frozenset[TopicPartition] = frozenset()
        self._groups: set[str] = set()
        self._sending_offsets = 0
        """Calls that are sending offsets."""
        self._needs_epoch = False
        """Whether the next transaction must not have the epoch of this one."""
        self._error: TransactionError | None = None
        """Why it is doomed, or the producer dead."""
        sender.transactions = self

    @property
    def under_way(self) -> bool:
        """Whether a transaction has begun that has not ended; that of a dead producer never does."""
        return self.state is not State.NONE

    # What the program does

    def check_sending(self) -> None:
        """Raise why no record may be sent, if so."""
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
        """Begin a transaction."""
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
        """Have a group's offsets committed with the transaction.

        Args:
            offsets: The offsets.
            member: The group, and the consumer's place in it.
            check: Called when the group has taken the offsets; raises HeadraceError if they must not be committed.
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
            FatalTransactionError: The producer is none any more.
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
        """Wait until every record of the transaction is delivered; meanwhile no more are taken."""
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
        """Deliver what was sent, and leave it to whoever gets what this returns to end the transaction.

        This producer is of no more use then; one that takes over the transactional id aborts the transaction as ever.

        Raises:
            AbortableTransactionError: A record was not delivered.
            FatalTransactionError: The producer is none any more.
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
        """Give up what was sent, and have it taken for never written.

        Raises:
            FatalTransactionError: The producer is none any more.
            TransportError: The coordinator has not answered in time; it aborts by itself when the transaction's time
                is over.
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
        # What is on its way would otherwise be written behind the mark that ends the transaction.
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
        """Refuse other calls of this kind meanwhile.

        (1) Two tasks end a transaction, or begin one, (2) the second asks while the first is being answered, (3) what
        it asks for meets the next transaction, or they share one, or both believe to have ended it, each in its way.
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
        """Let another call bring the transaction to its end; then complete a commit, or abort what is open."""
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
                    f"transactional id {self._who.transactional_id!r}, ends it; then the committed offsets tell"
                ) from error.__cause__
        elif self.state not in {State.NONE, State.DEAD}:
            yield from self.abort(timeout_ms)

    # What the sender asks and tells

    @property
    def transactional_id(self) -> str:
        """The producer's name for transactions."""
        return self._who.transactional_id

    @property
    def max_produce_version(self) -> int | None:
        """The newest version of Produce that means what is meant."""
        return None if self._who.per_transaction else flows.OLDER_PRODUCE

    def admitted(self, queues: list[PartitionQueue]) -> list[PartitionQueue]:
        """Return the queues whose partition is in the transaction; see to it that those of the others will be."""
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
        """Whether a batch that failed is worth another attempt."""
        return self.state in WRITING

    def batch_failed(self, error: HeadraceError, *, sent: bool) -> None:
        """A batch is given up; one that was sent may be written, and leaves a gap before what comes after it."""
        self._needs_epoch = self._needs_epoch or sent
        if isinstance(error, ApiError) and error.code in FATAL_TO_PRODUCE:
            self.die(error)
        else:
            self.doom(error)

    # What errors make of it

    def failed(self, error: HeadraceError) -> TransactionError:
        """Have an error its consequences, and return what the program is to be told."""
        code = error.code if isinstance(error, ApiError) else None
        if code in FATAL:
            return self.die(error)
        self._needs_epoch = self._needs_epoch or code in FORGOTTEN
        return self.doom(error)

    def doom(self, error: HeadraceError) -> TransactionError:
        """The transaction cannot be committed any more."""
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
        """The producer is none any more."""
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
        assert self._error is not None, "whoever is dead knows why"
        return self._error

    def _raise_if(self, *states: State) -> None:
        if self.state in states:
            assert self._error is not None, "these states have a reason"
            raise self._error

    def _change(self, state: State) -> None:
        self.state = state
        self._on_change(state is State.OPEN)
