"""Where to read: committed offsets, the policy where there are none, and a check after leaders have changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.background import Background
from headrace.clients.consumer.commits import Commits
from headrace.clients.consumer.cursor import Cursor
from headrace.clients.engine import Engine
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.leader_epochs import EpochEnd, epoch_ends
from headrace.clients.flows.list_offsets import EARLIEST, LATEST, list_offsets
from headrace.errors import (
    ApiError,
    ErrorCode,
    HeadraceError,
    LogTruncatedError,
    NoOffsetError,
    TransportError,
    UnknownMemberIdError,
)
from headrace.types import TopicPartition


class Reports(Protocol):
    """What the locator tells the consumer."""

    def failed(self, error: HeadraceError) -> object:
        """An error that does not pass; the program has to be told."""

    def warn(self, text: str) -> object:
        """Something that the program's operator should know."""

    def unreachable(self, error: TransportError) -> object:
        """Nobody answered in time."""


class Locator:
    """Finds the positions of one consumer, in the background."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        cursors: Mapping[TopicPartition, Cursor],
        isolation_level: int,
        reports: Reports,
        *,
        commits: Commits,
    ) -> None:
        self._engine = engine
        self._config = config
        self._cursors = cursors
        self._commits = commits
        self._isolation_level = isolation_level
        self._reports = reports
        self._finding = Background(engine)
        self._checking = Background(engine)
        self._epochs_known = True
        """False once a broker turned out not to know OffsetForLeaderEpoch."""
        self._again_at_ms = 0
        """After a failure nothing is looked for before this moment."""

    def stop(self) -> None:
        """Find no more."""
        self._finding.stop()
        self._checking.stop()

    def work(self) -> None:
        """Start to find what has to be found."""
        if self._engine.now_ms < self._again_at_ms:
            return
        if not self._finding.running:
            unknown = [c for c in self._cursors.values() if c.offset is None or c.out_of_range]
            if unknown:
                limit_ms = self._config.request_timeout_ms
                self._finding.start(self._find(unknown), self._found, limit_ms)
        if not self._checking.running and self._epochs_known:
            doubtful = [c for c in self._cursors.values() if self._doubtful(c)]
            if doubtful:
                limit_ms = self._config.request_timeout_ms
                self._checking.start(self._check(doubtful), self._found, limit_ms)

    def usable(self, cursor: Cursor) -> bool:
        """Whether a fetch may go on at the cursor's position; if not, it is being found out."""
        return not self._doubtful(cursor)

    def _doubtful(self, cursor: Cursor) -> bool:
        """Whether a new leader's log may lack what was read last (KIP-320)."""
        if cursor.epoch < 0 or cursor.offset is None or not self._epochs_known:
            return False
        leader_epoch = self._engine.state.metadata.leader_epoch(cursor.name)
        return leader_epoch > max(cursor.checked_epoch, cursor.epoch)

    def _found(self, outcome: object) -> None:
        if isinstance(outcome, HeadraceError):
            self._again_at_ms = self._engine.now_ms + self._config.retry_backoff_ms
            self._engine.at(self._again_at_ms, self._engine.notify)
        if isinstance(outcome, TransportError):
            self._reports.unreachable(outcome)
        elif isinstance(outcome, ApiError) and (
            outcome.retriable or outcome.code == ErrorCode.STALE_MEMBER_EPOCH
        ):
            self._reports.warn(f"positions cannot be found yet: {outcome}")
        elif isinstance(outcome, UnknownMemberIdError):
            pass  # what was to be found is lost with the membership
        elif isinstance(outcome, HeadraceError):
            self._reports.failed(outcome)

    def _current(self, cursor: Cursor) -> bool:
        """Whether the consumer still reads by this cursor; the partition may have gone, and come back, meanwhile."""
        return self._cursors.get(cursor.name) is cursor

    # Positions that are not known

    def _find(self, cursors: list[Cursor]) -> Flow[None]:
        lost = {cursor.name: cursor.offset for cursor in cursors if cursor.out_of_range}
        fresh = [cursor for cursor in cursors if cursor.name not in lost]
        if fresh and self._config.group_id is not None:
            yield from self._find_committed(fresh)
        unknown = [cursor for cursor in cursors if self._unknown(cursor, lost)]
        if not unknown:
            return
        if self._config.auto_offset_reset == "none":
            cursor = unknown[0]
            text = f"offset {cursor.offset} of {cursor.name} does not exist (any more)"
            if cursor.offset is None and cursor.out_of_range:
                text = f"the topic of {cursor.name} was deleted and created again"
            elif cursor.offset is None:
                text = f"nothing is committed for {cursor.name}"
            raise NoOffsetError(
                f"{text}, and auto.offset.reset is none: seek, commit an offset, or set earliest or latest"
            )
        spec = EARLIEST if self._config.auto_offset_reset == "earliest" else LATEST
        names = dict.fromkeys((cursor.name for cursor in unknown), spec)
        found = yield from list_offsets(self._engine.state, names, self._isolation_level)
        for cursor in unknown:
            if self._unknown(cursor, lost):
                self._reset(cursor, found[cursor.name].offset)

    def _find_committed(self, cursors: list[Cursor]) -> Flow[None]:
        found = yield from self._commits.committed(cursor.name for cursor in cursors)
        for cursor in cursors:
            committed = found.get(cursor.name)
            if committed is not None and self._unknown(cursor, {}):
                cursor.move(committed.offset, committed.leader_epoch)
                cursor.committed = committed.offset

    def _unknown(self, cursor: Cursor, lost: Mapping[TopicPartition, int | None]) -> bool:
        # (1) A position is asked for, (2) the program seeks, (3) the answer comes: what the program says holds.
        if not self._current(cursor):
            return False
        if cursor.name in lost:
            return cursor.out_of_range and cursor.offset == lost[cursor.name]
        return cursor.offset is None and not cursor.out_of_range

    def _reset(self, cursor: Cursor, offset: int) -> None:
        what = f"offset {cursor.offset} does not exist (any more)"
        if cursor.offset is None:
            what = "the topic was deleted and created again"
        if cursor.out_of_range:
            self._reports.warn(
                f"{cursor.name}: {what}; reading goes on at {offset} "
                f"(auto.offset.reset={self._config.auto_offset_reset})"
            )
        cursor.move(offset)

    # Positions that a new leader may not have

    def _check(self, cursors: list[Cursor]) -> Flow[None]:
        asked = {
            cursor: (cursor.offset, self._engine.state.metadata.leader_epoch(cursor.name))
            for cursor in cursors
        }
        try:
            ends = yield from epoch_ends(
                self._engine.state, {cursor.name: cursor.epoch for cursor in cursors}
            )
        except ApiError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            self._epochs_known = False
            return
        for cursor, (offset, leader_epoch) in asked.items():
            if self._current(cursor) and cursor.offset == offset:
                cursor.checked_epoch = leader_epoch
                self._compare(cursor, ends[cursor.name])

    def _compare(self, cursor: Cursor, end: EpochEnd) -> None:
        assert cursor.offset is not None, "checked by the caller"
        if end.leader_epoch >= 0 and end.offset >= cursor.offset:
            return
        if self._config.auto_offset_reset == "none":
            raise LogTruncatedError(
                f"{cursor.name}: a new leader does not have the records before offset {cursor.offset}, "
                f"its log parts at {max(end.offset, 0)}, and auto.offset.reset is none: seek to go on"
            )
        if end.leader_epoch < 0:
            cursor.out_of_range = True  # nothing of that epoch is left: the policy decides
            return
        self._reports.warn(
            f"{cursor.name}: a new leader does not have the records before offset {cursor.offset}; reading goes on at "
            f"{end.offset}, where its log parts from what was read"
        )
        checked = cursor.checked_epoch
        cursor.move(end.offset, end.leader_epoch)
        cursor.checked_epoch = checked
