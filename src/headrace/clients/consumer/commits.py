"""Commits of a consumer: on request of the program, and automatic ones of finished records."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.background import Background
from headrace.clients.engine import Engine, Task, TaskCancelled, Timer
from headrace.clients.flows import offsets
from headrace.clients.flows.coordinator import find_coordinator
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.offsets import CommitIdentity, OffsetAndMetadata
from headrace.errors import ApiError, ErrorCode, HeadraceError, RebalanceInProgressError
from headrace.types import TopicPartition

Offsets = dict[TopicPartition, OffsetAndMetadata]
Callback = Callable[[Offsets, HeadraceError | None], Any]


class Commits:
    """The commits of one consumer."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        assigned: Mapping[TopicPartition, AssignedPartition],
        identity: Callable[[], CommitIdentity | None],
        answered: Callable[[ErrorCode, int], object],
    ) -> None:
        """Prepare the commits of a consumer.

        Args:
            engine: The consumer's engine.
            config: The consumer's configuration.
            assigned: The partitions that the consumer reads.
            identity: Returns the identity of the member; None while the consumer is no member and must not commit.
            answered: Called with the error code and the generation after each response to a commit.
        """
        self._engine = engine
        self._config = config
        self._assigned = assigned
        self._identity = identity
        self._answered = answered
        self._auto = Background(engine)
        self._begun = 0
        self._sent: dict[TopicPartition, int] = {}
        """The number of the last commit that was sent for each partition."""
        self._timer: Timer | None = None
        self.outcomes: deque[tuple[Callback, Offsets, HeadraceError | None]] = deque()
        """Callbacks of asynchronous commits that are due in the program's next call."""

    @property
    def automatic(self) -> bool:
        """Whether automatic commits are enabled."""
        return self._config.enable_auto_commit and self._config.group_id is not None

    def handed_out(self) -> Offsets:
        """Return the offsets after all records that polls returned, where they are not committed."""
        positions = {name: partition.position() for name, partition in self._assigned.items()}
        return self._news({name: at for name, at in positions.items() if at is not None})

    def finished(self, names: Iterable[TopicPartition] | None = None) -> Offsets:
        """Return the offsets after all finished records, where they are not committed."""
        wanted = self._assigned if names is None else names
        finished = {name: self._assigned[name].finished for name in wanted}
        return self._news({name: at for name, at in finished.items() if at is not None})

    def _news(self, wanted: Offsets) -> Offsets:
        return {
            name: at for name, at in wanted.items() if self._assigned[name].committed != at.offset
        }

    def commit(self, wanted: Offsets, *, attempts: int | None = None) -> Flow[None]:
        """Commit offsets.

        Raises:
            ApiError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION: the consumer is no member any more.
                REBALANCE_IN_PROGRESS: the group rebalances; commit again after the next poll.
        """
        if wanted:
            # (1) An automatic commit fails and waits for its retry. (2) This commit succeeds with higher offsets.
            # (3) The retry would set the group back. So would the next automatic commit, unless these records count as
            # finished.
            self._auto.stop()
        for name, at in wanted.items():
            if name in self._assigned:
                self._assigned[name].finished = at
        yield from self._commit(wanted, attempts)

    def _commit(self, wanted: Offsets, attempts: int | None = None) -> Flow[None]:
        group = self._config.group_id
        assert group is not None, "checked by the caller"
        if not wanted:
            return
        self._begun += 1
        number = self._begun
        backoff = self._engine.state.backoff()
        began_as = self._identity()
        held = {name: self._assigned.get(name) for name in wanted}
        while wanted:
            who = self._identity()
            if who is None or began_as is None:
                raise ApiError.for_code(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"the group {group!r} went on without this consumer: its partitions are read by others, and what "
                    "it did not commit before is read again",
                )
            wanted = yield from self._not_overtaken(group, wanted, number)
            stale = yield from self._send(group, wanted, who, attempts)
            if stale is None:
                return
            yield backoff.after(stale)
            # (1) The coordinator refuses a commit of epoch 5. (2) Another member gets the partition and commits. (3) A
            # retry in the newer epoch would set the group back.
            now = self._identity()
            kept = all(partition is self._assigned.get(name) for name, partition in held.items())
            if now is not None and not (kept and now.joined == who.joined):
                raise RebalanceInProgressError(
                    "partitions went to other members while the commit was in flight: commit again after the next poll"
                ) from stale

    def _send(
        self, group: str, wanted: Offsets, who: CommitIdentity, attempts: int | None
    ) -> Flow[ApiError | None]:
        """Send a commit; return the error of a commit that must be retried with the member's newer epoch.

        (1) The coordinator moves the member to epoch 6. (2) A commit of epoch 5 is still in flight.
        """
        if not wanted:
            return None
        try:
            flow = offsets.commit_offsets(self._engine.state, group, wanted, who, attempts=attempts)
            yield from flow
        except ApiError as error:
            now = self._identity()
            self._answered(error.code, who.generation_id)
            if error.code == ErrorCode.STALE_MEMBER_EPOCH:
                return error
            if error.code == ErrorCode.ILLEGAL_GENERATION and now is not None and now != who:
                raise RebalanceInProgressError(
                    "the group got a new generation while the commit was in flight: commit again after the next poll"
                ) from error
            raise
        for name, at in wanted.items():
            if name in self._assigned:
                self._assigned[name].committed = at.offset
        return None

    def committed(
        self, names: Iterable[TopicPartition]
    ) -> Flow[dict[TopicPartition, OffsetAndMetadata]]:
        """Return the committed offsets of the group; the request names the member."""
        group = self._config.group_id
        assert group is not None, "checked by the caller"
        asked = list(names)
        backoff = self._engine.state.backoff()
        while True:
            who = self._identity()
            try:
                return (yield from offsets.committed_offsets(self._engine.state, group, asked, who))
            except ApiError as error:
                if who is not None:
                    self._answered(error.code, who.generation_id)
                if error.code != ErrorCode.STALE_MEMBER_EPOCH:
                    raise
                yield backoff.after(error)

    def _not_overtaken(self, group: str, wanted: Offsets, number: int) -> Flow[Offsets]:
        """Wait until a commit can be sent; return the offsets for which no later commit has been sent meanwhile.

        (1) A commit looks for the coordinator. (2) A later commit finds the coordinator and is sent. (3) The first
        commit would set the group back.
        """
        yield from find_coordinator(self._engine.state, group)
        wanted = {name: at for name, at in wanted.items() if self._sent.get(name, 0) <= number}
        self._sent = {name: at for name, at in self._sent.items() if name in self._assigned}
        self._sent.update(dict.fromkeys(wanted, number))
        return wanted

    def commit_async(self, wanted: Offsets, callback: Callback | None) -> None:
        """Commit without waiting and without retries; a later poll, commit or close runs the callback."""

        def ended(task: Task[None]) -> None:
            outcome: object = task.outcome
            if callback is not None and not isinstance(outcome, TaskCancelled):
                error = outcome if isinstance(outcome, HeadraceError) else None
                self.outcomes.append((callback, wanted, error))
                self._engine.notify()

        self._engine.spawn(
            self.commit(wanted, attempts=1),
            timeout_ms=self._config.request_timeout_ms,
            on_done=ended,
        )

    # Automatic commits

    def start_auto(self) -> None:
        """Commit finished records every `auto.commit.interval.ms`."""
        if self.automatic and (self._timer is None or not self._timer.pending):
            due_ms = self._engine.now_ms + self._config.auto_commit_interval_ms
            self._timer = self._engine.at(due_ms, self._commit_finished)

    def stop(self) -> None:
        """Stop the automatic commits."""
        self._auto.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _commit_finished(self) -> None:
        wanted = self.finished()
        if wanted and self._identity() is not None and not self._auto.running:
            # A failure is ignored: the next heartbeat reports it too, or the next commit succeeds.
            limit_ms = self._config.auto_commit_interval_ms
            self._auto.start(self._commit(wanted), lambda _: None, limit_ms)
        self.start_auto()
