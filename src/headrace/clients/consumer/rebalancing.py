"""The part of a rebalance inside the program's calls: partitions are revoked and assigned, and the listener is called.

(1) The response to a heartbeat announces a rebalance. (2) The next poll of the program commits finished records and
calls the listener for the partitions that it must revoke: all of them (eager), or those of topics without a
subscription (cooperative). (3) The join runs beside the program's calls, and polls return records of the partitions
that were kept. (4) The assignment arrives. (5) The next poll takes it over. A cooperative member commits and revokes
the partitions that it did not get again, and joins once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.background import Background
from headrace.clients.consumer.commits import Commits
from headrace.clients.consumer.member import ConsumerMember, NewAssignment
from headrace.clients.engine import Engine
from headrace.clients.flows.effects import Flow, Invoke
from headrace.errors import HeadraceError
from headrace.types import TopicPartition

COMMIT_TIMEOUT_MS: Final = 5_000
"""Milliseconds for which revoking partitions waits for the commit of their finished records."""


class RebalanceListener(Protocol):
    """A listener for assignments. Every method is optional, and may be a coroutine function with asyncio.

    The methods are called from within calls of the program (poll, close, ...), and may commit, seek and pause.
    """

    def on_revoked(self, partitions: list[TopicPartition]) -> Any:
        """Finish and commit records of these partitions: other members get them when this method has returned."""

    def on_assigned(self, partitions: list[TopicPartition]) -> Any:
        """Prepare for partitions that were assigned in addition; a seek decides where reading begins."""

    def on_lost(self, partitions: list[TopicPartition]) -> Any:
        """Stop processing these partitions: other members may own them already, and commits would be refused."""


class Rebalancing:
    """Applies the assignments of the group to one consumer."""

    def __init__(
        self,
        engine: Engine,
        member: ConsumerMember,
        commits: Commits,
        assigned: dict[TopicPartition, AssignedPartition],
        *,
        wanted: Callable[[], frozenset[str] | None],
        took: Callable[[NewAssignment], object],
        warn: Callable[[str], object],
        listener: object | None,
    ) -> None:
        self._engine = engine
        self._member = member
        self._commits = commits
        self._assigned = assigned
        self._wanted = wanted
        self._took = took
        self._warn = warn
        self._last_commit = Background(engine)
        self.listener = listener
        self._notified: frozenset[TopicPartition] = frozenset()
        """The partitions with which the listener is being called; an `unsubscribe` inside it does not repeat them."""
        self.unreported: list[TopicPartition] | None = None
        """Assigned partitions for which `on_assigned` has not returned yet; None if there are none."""

    def keep(self) -> Flow[None]:
        """Take all steps of a rebalance that are due."""
        member = self._member
        while True:
            if member.lost is not None:
                yield from self._give_up_lost()
            elif self.unreported is not None:
                error = yield from self._announce()
                if error is not None:
                    raise error
            elif member.arrived is not None:
                yield from self._take(member.arrived)
            elif member.rejoin and not member.joining:
                yield from self._prepare()
                self._join_if_ready()
            else:
                return

    def _join_if_ready(self) -> None:
        member = self._member
        if member.lost is None and member.rejoin and not member.joining:
            member.join()

    def give_up_all(self) -> Flow[None]:
        """Call the listener for all partitions before the consumer leaves."""
        names = sorted(name for name in self._assigned if name not in self._notified)
        if not names:
            return
        hook = "on_revoked" if self._member.lost is None else "on_lost"
        error = yield from self._call_listener(hook, names)
        self._drop(names)
        if error is not None:
            raise error

    def commit_finished(self, names: Iterable[TopicPartition]) -> Flow[None]:
        """Commit finished records of some partitions, within a few seconds."""
        if not self._commits.automatic:
            return
        wanted = self._commits.finished(names)
        if wanted:
            flow = self._commits.commit(wanted)
            yield from self._last_commit.finish(flow, self._not_committed, COMMIT_TIMEOUT_MS)

    def _not_committed(self, outcome: object) -> None:
        if isinstance(outcome, HeadraceError):
            self._warn(
                f"what was finished in partitions that go could not be committed, and is read again: {outcome}"
            )

    def _give_up_lost(self) -> Flow[None]:
        names = sorted(self._assigned)
        error = (yield from self._call_listener("on_lost", names)) if names else None
        self._drop(names)
        self._member.lost = None
        if error is not None:
            raise error

    def _prepare(self) -> Flow[None]:
        topics = self._wanted()
        kept = self._member.cooperative
        names = sorted(self._assigned)
        if kept:
            names = [name for name in names if topics is not None and name.topic not in topics]
        if not names:
            return
        yield from self.commit_finished(names)
        if self._member.lost is not None:
            return  # the commit found out that the partitions are lost
        error = yield from self._call_listener("on_revoked", names)
        self._drop(names)
        if error is not None:
            raise error

    def _take(self, arrival: NewAssignment) -> Flow[None]:
        given = set(arrival.partitions)
        revoked = sorted(name for name in self._assigned if name not in given)
        added = sorted(name for name in given if name not in self._assigned)
        error = None
        if revoked:
            yield from self.commit_finished(revoked)
            if self._member.arrived is not arrival:
                return  # lost meanwhile
            error = yield from self._call_listener("on_revoked", revoked)
            self._drop(revoked)
        if self._member.arrived is not arrival:
            return
        # A partition that this member owned before an eager rebalance also begins at its committed offset.
        # (1) This member joined late. (2) In the generation between, another member read and committed. (3) The
        # partition is assigned to this member again.
        self._assigned.update((name, AssignedPartition(name)) for name in added)
        self._member.took(arrival, gave_up=bool(revoked))
        self._took(arrival)
        self.unreported = added
        later = yield from self._announce()
        error = error or later
        if error is not None:
            raise error

    def _announce(self) -> Flow[Exception | None]:
        # (1) The listener looks up an offset elsewhere. (2) The poll is cancelled. The next poll calls it again.
        names = [name for name in self.unreported or () if name in self._assigned]
        error = yield from self._call_listener("on_assigned", names)
        self.unreported = None
        return error

    def _drop(self, names: Iterable[TopicPartition]) -> None:
        for name in names:
            self._assigned.pop(name, None)

    def _call_listener(self, hook: str, names: list[TopicPartition]) -> Flow[Exception | None]:
        """Call the listener, and return its exception, which is raised after this step of the rebalance."""
        method = getattr(self.listener, hook, None)
        if method is None:
            return None
        before = self._notified
        if hook != "on_assigned":
            self._notified = before.union(names)
        try:
            yield Invoke(method, (names,))
        except Exception as error:  # noqa: BLE001 - raised by the caller
            return error
        finally:
            self._notified = before
        return None
