"""The end of a subscription: the last commit, the last call of the listener, and leaving the group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from headrace.clients.consumer.background import Background
from headrace.clients.consumer.commits import Commits
from headrace.clients.consumer.group_membership import GroupMembership
from headrace.clients.consumer.member import LEAVE_TIMEOUT_MS
from headrace.clients.consumer.rebalancing import COMMIT_TIMEOUT_MS
from headrace.clients.consumer.reports import Reports
from headrace.clients.engine import Engine
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.errors import HeadraceError
from headrace.types import TopicPartition

AtClose = Literal["handed out", "finished", "nothing"]
"""The records that `close` commits: all that polls returned, the finished ones, or none."""


class Departure:
    """Ends the subscription of a consumer."""

    def __init__(
        self,
        engine: Engine,
        commits: Commits,
        group: GroupMembership,
        reports: Reports,
        *,
        stop_reading: Callable[[], object],
        call_back: Callable[[], Flow[None]],
    ) -> None:
        """Prepare the end of a subscription.

        Args:
            engine: The consumer's engine.
            commits: The consumer's commits.
            group: The consumer's membership in its group.
            reports: Logs warnings.
            stop_reading: Forgets the partitions and the subscription.
            call_back: Returns a flow that runs the callbacks of asynchronous commits.
        """
        self._engine = engine
        self._commits = commits
        self._group = group
        self._stop_reading = stop_reading
        self._call_back = call_back
        self._reports = reports
        self._leaving = Background(engine)

    def depart(self, at_close: AtClose, until_ms: int) -> Flow[None]:
        """Commit, call the listener, stop reading, and leave the group in the background."""
        failure: Exception | None = None
        try:
            wanted = self._last_commit(at_close)
            if wanted:
                flow = self._commits.commit(wanted)
                limit_ms = min(COMMIT_TIMEOUT_MS, until_ms - self._engine.now_ms)
                yield from self._leaving.finish(flow, self._not_committed, limit_ms)
            yield from self._group.give_up_all()
        except Exception as error:  # noqa: BLE001 - raised after the consumer has left the group
            failure = error
        finally:
            self._stop_reading()
            self._leave(until_ms)
        yield from self._leaving.wait()
        yield from self._call_back()
        if failure is not None:
            raise failure

    def _leave(self, until_ms: int) -> None:
        """End the membership; the request that informs the coordinator runs also if no call waits for it."""
        self._leaving.stop()
        farewell = self._group.end()
        if farewell is not None:
            limit_ms = min(LEAVE_TIMEOUT_MS, until_ms - self._engine.now_ms)
            self._leaving.start(farewell, lambda _: None, max(1, limit_ms))

    def _last_commit(self, at_close: AtClose) -> dict[TopicPartition, OffsetAndMetadata]:
        if not self._commits.automatic or at_close == "nothing" or self._group.identity() is None:
            return {}
        if at_close == "handed out":
            return self._commits.handed_out()
        return self._commits.finished()

    def _not_committed(self, outcome: object) -> None:
        if isinstance(outcome, HeadraceError):
            self._reports.warn(f"the last positions could not be committed: {outcome}")
