"""The foreground's part in a rebalance: partitions are given up and taken where the program calls in, listener and all.

(1) The coordinator announces a rebalance on a heartbeat; (2) the program's next poll commits what it finished and tells
the listener what it has to give up: everything (eager), or what is not subscribed to any more (cooperative); (3) the
join runs in the background, and polls go on, with what was kept; (4) the assignment arrives; (5) the next poll takes it
over: a cooperative member commits and gives up what it did not get again, and joins once more to say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.background import Background
from headrace.clients.consumer.commits import Commits
from headrace.clients.consumer.member import Arrival, Member
from headrace.clients.engine import Engine
from headrace.clients.flows.effects import Flow, Invoke
from headrace.errors import HeadraceError
from headrace.types import TopicPartition

COMMIT_TIMEOUT_MS: Final = 5_000
"""How long giving partitions up waits for the last commit of what was finished there."""


class RebalanceListener(Protocol):
    """What is told of partitions that come and go; every method may be left out, and may be a coroutine function.

    Methods are called from the program's own calls (poll, close ...), and may commit, seek, pause.
    """

    def on_revoked(self, partitions: list[TopicPartition]) -> Any:
        """These are given up: finish, and commit, for they go to others as soon as this returns."""

    def on_assigned(self, partitions: list[TopicPartition]) -> Any:
        """These came in addition; a seek decides where reading begins."""

    def on_lost(self, partitions: list[TopicPartition]) -> Any:
        """These are already others', for the group went on without this member; commits would be refused."""


class Rebalancing:
    """Keeps what is read in step with what the group says."""

    def __init__(
        self,
        engine: Engine,
        member: Member,
        commits: Commits,
        assigned: dict[TopicPartition, AssignedPartition],
        *,
        wanted: Callable[[], frozenset[str] | None],
        took: Callable[[Arrival], object],
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
        self._told: frozenset[TopicPartition] = frozenset()
        """Partitions that go, while the listener is told so: it may unsubscribe, and is not told again of them."""
        self.untold: list[TopicPartition] | None = None
        """Partitions that came, while the listener has not been told to the end: it decides where reading begins."""

    def keep(self) -> Flow[None]:
        """Do what the group waits for."""
        member = self._member
        while True:
            if member.lost is not None:
                yield from self._give_up_lost()
            elif self.untold is not None:
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
        """Tell the listener before the consumer leaves."""
        names = sorted(name for name in self._assigned if name not in self._told)
        if not names:
            return
        hook = "on_revoked" if self._member.lost is None else "on_lost"
        error = yield from self._tell(hook, names)
        self._drop(names)
        if error is not None:
            raise error

    def commit_finished(self, names: Iterable[TopicPartition]) -> Flow[None]:
        """Commit what is finished in some partitions, as far as that goes in a few seconds."""
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
        error = (yield from self._tell("on_lost", names)) if names else None
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
            return  # found out by the commit
        error = yield from self._tell("on_revoked", names)
        self._drop(names)
        if error is not None:
            raise error

    def _take(self, arrival: Arrival) -> Flow[None]:
        given = set(arrival.partitions)
        revoked = sorted(name for name in self._assigned if name not in given)
        added = sorted(name for name in given if name not in self._assigned)
        error = None
        if revoked:
            yield from self.commit_finished(revoked)
            if self._member.arrived is not arrival:
                return  # lost meanwhile
            error = yield from self._tell("on_revoked", revoked)
            self._drop(revoked)
        if self._member.arrived is not arrival:
            return
        # A partition that this member had before an eager rebalance begins at its committed offset all the same:
        # (1) this member was late, (2) in the generation between the other read and committed, (3) it came back.
        self._assigned.update((name, AssignedPartition(name)) for name in added)
        self._member.took(arrival, gave_up=bool(revoked))
        self._took(arrival)
        self.untold = added
        later = yield from self._announce()
        error = error or later
        if error is not None:
            raise error

    def _announce(self) -> Flow[Exception | None]:
        # (1) The listener looks up an offset kept outside, (2) the poll is cancelled: the next one tells it again.
        names = [name for name in self.untold or () if name in self._assigned]
        error = yield from self._tell("on_assigned", names)
        self.untold = None
        return error

    def _drop(self, names: Iterable[TopicPartition]) -> None:
        for name in names:
            self._assigned.pop(name, None)

    def _tell(self, hook: str, names: list[TopicPartition]) -> Flow[Exception | None]:
        """Call the listener; its exception is the program's, and is raised when the rebalance has gone its step."""
        method = getattr(self.listener, hook, None)
        if method is None:
            return None
        before = self._told
        if hook != "on_assigned":
            self._told = before.union(names)
        try:
            yield Invoke(method, (names,))
        except Exception as error:  # noqa: BLE001 - raised by the caller
            return error
        finally:
            self._told = before
        return None
