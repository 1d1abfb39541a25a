"""The consumer of a worker that reads topics."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.clients.consumer.aio import Consumer
from headrace.errors import ConfigError
from headrace.types import PartitionStatus, TopicPartition
from headrace.workers.output.outlet import HEADROOM_BYTES, Outlet
from headrace.workers.settings import WorkerSettings
from headrace.workers.source import RecordSource, RevocationListener


def _assignor(settings: WorkerSettings) -> str | None:
    """Return the cooperative assignor, which lets members keep partitions during a rebalance.

    None if the group has an assignor of its own, or if the coordinator assigns partitions.
    """
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
                **settings.mode.consumer_properties,
                "enable_auto_commit": False,
                "serde": "bytes",
                "key_serde": "bytes",
            },
        )
        self._settings = settings
        self._outlet = outlet

    @property
    def begins_late(self) -> bool:
        """Whether a partition without a committed offset is read from its end."""
        return self.config.auto_offset_reset != "earliest"

    @property
    def commits_at_rest(self) -> bool:
        """False: each commit is a request."""
        return False

    @property
    def commit_timeout_s(self) -> float:
        """The longest time in seconds for which a failed commit is repeated before partitions are released."""
        return self.config.request_timeout_ms / 1000

    async def prepare(self) -> None:
        """Check the settings. The topics need not exist yet.

        Raises:
            ConfigError: Reading begins at the end, so records in new retry topics could be missed.
        """
        if self._settings.retry.topics and self.begins_late:
            raise ConfigError("Retry(topics=True) needs auto_offset_reset='earliest'")

    async def begin(self, listener: RevocationListener) -> None:
        """Create missing retry topics, and join the group."""
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
        """Whether a partition belongs to this member, by the last heartbeat that the coordinator has acknowledged."""
        return self.owns(topic_partition)

    def epoch(self, topic_partition: TopicPartition) -> int:  # noqa: ARG002 - all partitions have one generation
        """Return the generation of the group, which grows with each rebalance."""
        return self.group_metadata().generation_id

    def statuses(self, unfinished: Mapping[TopicPartition, int]) -> list[PartitionStatus]:
        """Return the lag of each partition: the number of offsets from the first unfinished one to the end."""
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
        """Return why the member cannot read: no broker answers, a topic is missing, or it is not in the group."""
        return self._driver.trouble or self._core.trouble

    async def caught_up(self) -> bool:
        """Return whether every record that exists now was returned. False before the first assignment."""
        if not self.joined:
            return False
        ends = await self.end_offsets(self.positions())
        positions = self.positions()
        return bool(ends) and all((positions.get(name) or 0) >= end for name, end in ends.items())

    async def leave(self, timeout_s: float) -> None:
        """Release all partitions through the listener, leave the group, and close."""
        await self.close(commit=False, timeout_s=timeout_s)


def open_source(settings: WorkerSettings, outlet: Outlet) -> RecordSource:
    """Return the source of a worker's records: a new member of its group."""
    if settings.streams is not None:
        return settings.streams.open_source(
            settings.group,
            delivery=settings.delivery,
            drain_timeout_s=settings.drain_timeout_s,
            client_id=settings.consumer["client_id"],
        )
    return TopicSource(settings, outlet)
