"""Topics as what a worker reads from."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.clients.consumer.aio import Consumer
from headrace.errors import ConfigError
from headrace.types import PartitionStatus, TopicPartition
from headrace.workers.outlet import HEADROOM_BYTES, Outlet
from headrace.workers.settings import WorkerSettings
from headrace.workers.source import RecordSource, RevocationListener


def _assignor(settings: WorkerSettings) -> str | None:
    """Members keep their partitions through a rebalance; None leaves the division to the group, or its coordinator."""
    named = {name.replace("_", "."): value for name, value in settings.consumer.items()}
    by_members = named.get("group.protocol", "classic") == "classic"
    return "cooperative-sticky" if by_members and not settings.attached else None


class TopicSource(Consumer):
    """The consumer of a worker, with the worker's retry topics."""

    def __init__(self, settings: WorkerSettings, outlet: Outlet) -> None:
        super().__init__(
            outlet.target,
            **{
                "group": settings.group,
                "auto_offset_reset": "earliest",
                "assignor": _assignor(settings),
                **settings.consumer,
                **({"isolation_level": "read_committed"} if settings.mode.is_transactional else {}),
                "enable_auto_commit": False,
                "serde": "bytes",
                "key_serde": "bytes",
            },
        )
        self._settings = settings
        self._outlet = outlet

    @property
    def begins_late(self) -> bool:
        """Whether reading begins at the end where nothing is committed."""
        return self.config.auto_offset_reset != "earliest"

    @property
    def commits_at_rest(self) -> bool:
        """Say no: each commit is a request."""
        return False

    @property
    def commit_timeout_s(self) -> float:
        """For how long a last commit is tried again."""
        return self.config.request_timeout_ms / 1000

    async def prepare(self) -> None:
        """Check the settings: a topic may be created later.

        Raises:
            ConfigError: Reading begins at the end, and records that wait in retry topics could be missed.
        """
        if self._settings.retry.topics and self.begins_late:
            raise ConfigError("Retry(topics=True) needs auto_offset_reset='earliest'")

    async def begin(self, listener: RevocationListener) -> None:
        """Join the group, with the retry topics, which are created if need be."""
        settings = self._settings
        waiting = settings.retry_topics()
        if waiting:
            counts = await self._outlet.partition_counts(settings.topics)
            for topic in settings.topics:
                limit = await self._outlet.max_message_bytes(topic) + HEADROOM_BYTES
                wanted = {name: counts[topic] or -1 for name in waiting if waiting[name] == topic}
                await self._outlet.create_topics(wanted, delayed=True, max_message_bytes=limit)
        await self.subscribe(
            [*settings.topics, *waiting] or None,
            pattern=settings.pattern,
            exclude=settings.exclude(),
            listener=listener,
        )

    def valid(self, topic_partition: TopicPartition) -> bool:
        """Whether the group counts on this member for a partition, by its last heartbeat that was acknowledged."""
        return self.owns(topic_partition)

    def epoch(self, topic_partition: TopicPartition) -> int:  # noqa: ARG002 - all partitions have the group's
        """Return the generation of the group."""
        return self.group_metadata().generation_id

    def statuses(self, unfinished: Mapping[TopicPartition, int]) -> list[PartitionStatus]:
        """Return for each partition how many offsets lie before its end that are not finished."""
        ends = self._core.positions.known_ends()
        found = []
        for name, position in self.positions().items():
            at, end = unfinished.get(name, position), ends.get(name)
            lag = None if at is None or end is None else max(0, end - at)
            found.append(
                PartitionStatus(topic=name.topic, partition=name.partition, lag_records=lag)
            )
        return found

    def trouble(self) -> str | None:
        """Return that no broker answers, that a topic is missing, or that there is no place in the group (any more)."""
        return self._driver.trouble or self._core.trouble

    async def caught_up(self) -> bool:
        """Whether every record that is there now was returned; not before there are partitions."""
        if not self.joined:
            return False
        ends = await self.end_offsets(self.positions())
        positions = self.positions()
        return bool(ends) and all((positions.get(name) or 0) >= end for name, end in ends.items())

    async def leave(self, timeout_s: float) -> None:
        """Give up all partitions, which has the worker commit them, leave the group, and close."""
        await self.close(commit=False, timeout_s=timeout_s)


def open_source(settings: WorkerSettings, outlet: Outlet) -> RecordSource:
    """Return what a worker reads from: a new member of its group."""
    if settings.streams is not None:
        return settings.streams.open_source(
            settings.group,
            delivery=settings.delivery,
            drain_timeout_s=settings.drain_timeout_s,
            client_id=settings.consumer["client_id"],
        )
    return TopicSource(settings, outlet)
