"""A blocking consumer: partitions assigned by hand or by a group, records by `poll`.

Nothing runs in the background. Heartbeats go out from `poll`, so a member of a group has to poll more often than its
session timeout; while it waits for a rebalance, `poll` does not return. One consumer belongs to one thread.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from headrace.clients.blocking import client_state
from headrace.clients.config import ConsumerConfig, parse_config
from headrace.clients.drivers.polling import PollingDriver
from headrace.clients.fetcher import ConsumedRecord, Fetcher
from headrace.clients.flows import membership, metadata, offsets
from headrace.clients.flows.assignors import assign_range
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.list_offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    list_offsets,
)
from headrace.clients.flows.membership import GroupSettings, Membership
from headrace.clients.flows.offsets import Committer, OffsetAndMetadata
from headrace.clients.flows.routing import check_partitions_exist, partition_error
from headrace.errors import ApiError, ConfigError, ErrorCode, TransportError
from headrace.types import TopicPartition

__all__ = ["BlockingConsumer", "ConsumedRecord"]

LOST_MEMBERSHIP: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
LEAVE_TIMEOUT_MS: Final = 3_000
QUIET_COMMIT_TIMEOUT_MS: Final = 5_000
"""An automatic commit must not keep the program from its records for long: the next one comes soon."""


class BlockingConsumer:
    """Reads records; a context manager that commits (with `enable.auto.commit`), leaves its group and closes."""

    def __init__(
        self,
        bootstrap: str,
        *,
        group: str | None = None,
        auto_offset_reset: str | None = None,
        enable_auto_commit: bool | None = None,
        client_id: str = "headrace",
        **properties: Any,
    ) -> None:
        """Prepare a consumer; nothing is connected before the first call.

        Args:
            bootstrap: Comma-separated HOST:PORT.
            group: The group, for `subscribe` and commits.
            auto_offset_reset: Where to begin without a committed offset: earliest, latest (default), none.
            enable_auto_commit: Whether positions are committed from `poll` and `close`; needs a group.
            client_id: The name by which brokers know the consumer.
            properties: More properties, `max_poll_records=100` or `**{"max.poll.records": 100}`.

        Raises:
            ConfigError: A property is unknown or malformed.
        """
        named = {"auto_offset_reset": auto_offset_reset, "enable_auto_commit": enable_auto_commit}
        given = {name: value for name, value in named.items() if value is not None}
        self.config = parse_config(
            ConsumerConfig,
            given | properties,
            bootstrap_servers=bootstrap,
            client_id=client_id,
            group_id=group,
        )
        self._state = client_state(self.config)
        self._driver = PollingDriver(self._state, self.config)
        self._fetcher = Fetcher(self._state, self._driver, self.config)
        self._topics: frozenset[str] = frozenset()
        self._member: Membership | None = None
        self._member_id = ""
        self._rejoin = False
        self._next_topics_check = time.monotonic() + self.config.metadata_max_age_ms / 1000
        self._next_heartbeat = 0.0
        self._next_commit = 0.0
        self._finished: dict[TopicPartition, int] = {}
        """Positions up to which the program has worked: those before the records of the last `poll`."""
        self._committed: dict[TopicPartition, int] = {}
        self._isolation_level = (
            READ_COMMITTED if self.config.isolation_level == "read_committed" else READ_UNCOMMITTED
        )
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(commit=kind is None)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read at the moment."""
        return sorted(self._fetcher.cursors)

    @property
    def joined(self) -> bool:
        """Whether the consumer has its place in its group, with or without partitions."""
        return self._member is not None and not self._rejoin

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION when there is no such topic.
        """
        auto_create = self.config.allow_auto_create_topics
        self._driver.run(metadata.ensure(self._state, [topic], auto_create=auto_create))
        return self._state.metadata.partitions(topic)

    def assign(
        self, positions: Mapping[TopicPartition, int | None] | Iterable[TopicPartition]
    ) -> None:
        """Read these partitions, without a group deciding.

        Args:
            positions: Offsets by partition, EARLIEST and LATEST included; None, or a plain collection of partitions,
                is the group's committed offset, or else `auto.offset.reset`.
        """
        offsets_ = positions if isinstance(positions, Mapping) else dict.fromkeys(positions)
        self._topics = frozenset()
        self._driver.run(metadata.ensure(self._state, {name.topic for name in offsets_}))
        check_partitions_exist(self._state, offsets_)
        wanted = {name: at for name, at in offsets_.items() if at is not None and at < 0}
        found = self._list(wanted)
        self._set_positions({name: found.get(name, at) for name, at in offsets_.items()})

    def subscribe(self, topics: Collection[str]) -> None:
        """Join the group for these topics; partitions are assigned by the next `poll`."""
        if self.config.group_id is None:
            raise ConfigError("subscribing needs a group: set group.id")
        self._topics = frozenset(topics)
        self._rejoin = True
        self._set_positions({})

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Go on from another offset of an assigned partition."""
        self._fetcher.cursors[topic_partition].move(offset)
        self._fetcher.out_of_range.discard(topic_partition)

    def position(self, topic_partition: TopicPartition) -> int | None:
        """Return the offset of the next record that `poll` will return; None until it is known."""
        return self._fetcher.cursors[topic_partition].offset

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`."""
        for name in partitions:
            self._fetcher.cursors[name].paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again."""
        for name in partitions:
            self._fetcher.cursors[name].paused = False

    def poll(self, timeout_ms: int = 1000, max_records: int | None = None) -> list[ConsumedRecord]:
        """Return records, waiting up to the timeout for the first of them.

        Everything that earlier polls returned counts as worked on; automatic commits go up to there.

        Args:
            timeout_ms: How long to wait when there is nothing; a rebalance may take longer.
            max_records: At most so many; None is `max.poll.records`.

        Raises:
            ApiError: A partition cannot be read, or the group does not take this consumer.
            CorruptRecordError: A batch is damaged; the position stays before it.
        """
        self._check_open()
        self._finished = dict(self._fetcher.positions())
        limit = max_records or self.config.max_poll_records
        until = time.monotonic() + timeout_ms / 1000
        while True:
            self._keep_membership()
            self._find_positions()
            records = self._fetcher.take(limit)
            self._fetcher.send_fetches()
            now = time.monotonic()
            if records or now >= until:
                return records
            if not self._fetcher.has_records:
                self._driver.poll(self._wait_seconds(now, until))

    def commit(
        self,
        positions: Mapping[TopicPartition, int] | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit positions: those given, or all, everything returned by `poll` included.

        Args:
            positions: One past the last finished record of each partition; None is all that `poll` returned.
            timeout_ms: How long to try; None is `request.timeout.ms`.

        Raises:
            ApiError: The group has moved on without this member (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION), or is
                rebalancing (REBALANCE_IN_PROGRESS).
        """
        if self.config.group_id is None:
            raise ConfigError("committing needs a group: set group.id")
        wanted = dict(self._fetcher.positions()) if positions is None else dict(positions)
        changed = {name: at for name, at in wanted.items() if self._committed.get(name) != at}
        if not changed:
            return
        flow = offsets.commit_offsets(
            self._state,
            self.config.group_id,
            {
                name: OffsetAndMetadata(at, leader_epoch=self._state.metadata.leader_epoch(name))
                for name, at in changed.items()
            },
            self._committer(),
        )
        self._driver.run(flow, timeout_ms)
        self._committed |= changed

    def commit_finished(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit positions like `commit`, but leave a rebalance or a lost membership to the next `poll`."""
        self._commit_quietly(positions)

    def close(self, *, commit: bool = True) -> None:
        """Leave the group and close the connections.

        Args:
            commit: Whether to commit first, if `enable.auto.commit` is on.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if commit and self._auto_commit:
                self._commit_quietly(dict(self._fetcher.positions()))
            if self._member is not None and self.config.group_instance_id is None:
                flow = membership.leave(self._state, self._settings(), self._member)
                self._driver.run(flow, LEAVE_TIMEOUT_MS)
        except (ApiError, TransportError):
            pass  # the session timeout removes the member as well
        finally:
            self._driver.close()

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("the consumer is closed")

    def _wait_seconds(self, now: float, until: float) -> float:
        """Return how long to wait: for an answer, a muted partition, or the next heartbeat."""
        moments = [until]
        if self._member is not None:
            moments.append(self._next_heartbeat)
        if not self._fetcher.waiting:
            moments.append(now + self.config.retry_backoff_ms / 1000)
        return max(0.0, min(moments) - now)

    @property
    def _auto_commit(self) -> bool:
        return self.config.enable_auto_commit and self.config.group_id is not None

    def _settings(self) -> GroupSettings:
        assert self.config.group_id is not None, "checked by subscribe"
        return GroupSettings(
            group_id=self.config.group_id,
            session_timeout_ms=self.config.session_timeout_ms,
            rebalance_timeout_ms=self.config.max_poll_interval_ms,
            group_instance_id=self.config.group_instance_id,
        )

    def _committer(self) -> Committer:
        if self._member is None:
            return Committer()
        return Committer(
            self._member.generation_id, self._member.member_id, self.config.group_instance_id
        )

    def _keep_membership(self) -> None:
        """Commit and beat when it is time; join when the group asks for it."""
        now = time.monotonic()
        if self._auto_commit and now >= self._next_commit:
            self._commit_quietly(self._finished)
            self._next_commit = now + self.config.auto_commit_interval_ms / 1000
        if self._member is not None and now >= self._next_heartbeat:
            self._heartbeat()
        if self._member is not None and now >= self._next_topics_check:
            self._check_topics(now)
        if self._topics and self._rejoin:
            self._join()

    def _check_topics(self, now: float) -> None:
        """Join again when a topic has got partitions, so that they are given out."""
        self._next_topics_check = now + self.config.metadata_max_age_ms / 1000
        known = self._state.metadata
        before = {topic: len(known.partitions(topic)) for topic in self._topics}
        try:
            self._driver.run(metadata.refresh(self._state, self._topics))
        except TransportError:
            return
        self._rejoin |= any(len(known.partitions(topic)) > before[topic] for topic in self._topics)

    def _heartbeat(self) -> None:
        assert self._member is not None, "only members beat"
        self._next_heartbeat = time.monotonic() + self.config.heartbeat_interval_ms / 1000
        flow = membership.heartbeat(self._state, self._settings(), self._member)
        try:
            code = self._driver.run(flow, self.config.heartbeat_interval_ms)
        except (ApiError, TransportError):
            return  # the coordinator moves or is away: reading goes on, the next beat looks for it again
        if code in LOST_MEMBERSHIP:
            self._lose_membership()
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin = True
        elif code:
            raise ApiError.for_code(code)

    def _lose_membership(self) -> None:
        """The group went on without this member: what it read and did not commit is another's."""
        self._member = None
        self._member_id = ""
        self._rejoin = True
        self._set_positions({})

    def _join(self) -> None:
        if self._auto_commit and self._member is not None:
            self._commit_quietly(self._finished)
        flow = membership.join(
            self._state,
            self._settings(),
            self._member_id,
            self._topics,
            partition_counts=self._partition_counts,
            assignor=assign_range,
        )
        limit_ms = self.config.max_poll_interval_ms + self.config.request_timeout_ms
        self._member = self._driver.run(flow, limit_ms)
        self._member_id = self._member.member_id
        self._rejoin = False
        self._next_heartbeat = time.monotonic() + self.config.heartbeat_interval_ms / 1000
        # Also a partition that this member had before begins at its committed offset: between the two generations
        # there may have been one in which it was another's (1: this member was late, 2: the other read and committed,
        # 3: the partition came back).
        self._set_positions(dict.fromkeys(self._member.assignment))

    def _partition_counts(self, topics: frozenset[str]) -> Flow[Mapping[str, int]]:
        yield from metadata.refresh(
            self._state, topics, auto_create=self.config.allow_auto_create_topics
        )
        known = self._state.metadata
        return {topic: len(known.partitions(topic)) for topic in topics if known.partitions(topic)}

    def _set_positions(self, positions: Mapping[TopicPartition, int | None]) -> None:
        self._fetcher.assign(dict(positions))
        self._finished = {name: at for name, at in positions.items() if at is not None}
        self._committed = {name: at for name, at in self._committed.items() if name in positions}

    def _find_positions(self) -> None:
        """Find where to begin in new partitions, and where to go on in those whose offset is gone."""
        cursors = self._fetcher.cursors
        unknown = [name for name, cursor in cursors.items() if cursor.offset is None]
        if unknown and self.config.group_id is not None:
            flow = offsets.committed_offsets(self._state, self.config.group_id, unknown)
            for name, committed in self._driver.run(flow).items():
                cursors[name].move(committed.offset)
                self._committed[name] = committed.offset
        unknown = [name for name, cursor in cursors.items() if cursor.offset is None]
        unknown += self._fetcher.out_of_range
        if not unknown:
            return
        if self.config.auto_offset_reset == "none":
            raise partition_error(
                unknown[0],
                ErrorCode.OFFSET_OUT_OF_RANGE,
                "there is no offset to begin at, and auto.offset.reset is none",
            )
        spec = EARLIEST if self.config.auto_offset_reset == "earliest" else LATEST
        for name, offset in self._list(dict.fromkeys(unknown, spec)).items():
            self.seek(name, offset)
            self._finished[name] = offset

    def offsets_for(self, targets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Find an offset in each partition: EARLIEST, LATEST, or the first record not older than a timestamp.

        Where no record is that late, the offset is -1.
        """
        return self._list(targets)

    def _list(self, targets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if not targets:
            return {}
        found = self._driver.run(list_offsets(self._state, targets, self._isolation_level))
        return {name: listed.offset for name, listed in found.items()}

    def _commit_quietly(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit on the consumer's own account: a failure shows in the next heartbeat, or passes."""
        try:
            owned = {name: at for name, at in positions.items() if name in self._fetcher.cursors}
            self.commit(owned, QUIET_COMMIT_TIMEOUT_MS)
        except ApiError as error:
            if error.code in LOST_MEMBERSHIP:
                self._lose_membership()
            elif error.code == ErrorCode.REBALANCE_IN_PROGRESS:
                self._rejoin = True
        except TransportError:
            pass  # tried again with the next interval
