"""A cluster in memory for the tests of planning and reading."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from headrace.clients.blocking import FetchedPartition, FetchPosition, OffsetAndMetadata
from headrace.errors import ApiError, ErrorCode
from headrace.records.builder import build_batch
from headrace.spark.options.positions import EARLIEST
from headrace.spark.source.offsets import LogEnd, TopicDescription
from headrace.types import TopicPartition


class FakeCluster:
    """A cluster of partitions, each (log start offset, log end offset). Values are `topic-partition-offset`."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, tuple[int, int]] = {}
        self.ids: dict[str, str] = {}
        self.stale: list[dict[str, TopicDescription]] = []
        """The topology that a stale broker returns for the first request."""
        self.batch_records = 3
        self.errors: list[ErrorCode] = []
        self.fetches: list[tuple[TopicPartition, int]] = []
        self.rounds: list[Mapping[TopicPartition, FetchPosition]] = []
        self.epochs: dict[TopicPartition, list[int]] = {}  # where each epoch of a log begins
        self.asked_epochs: list[Mapping[TopicPartition, int]] = []
        self.sizes: dict[TopicPartition, float] = {}
        self.committed: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self.commits = 0
        self.commit_error: ApiError | None = None

    def grow(self, topic: str, partition: int, count: int) -> None:
        first, end = self.logs.get(TopicPartition(topic, partition), (0, 0))
        self.ids.setdefault(topic, f"id-{topic}")
        self.logs[TopicPartition(topic, partition)] = (first, end + count)

    def remove(self, topic: str) -> None:
        self.logs = {each: log for each, log in self.logs.items() if each.topic != topic}
        self.ids.pop(topic, None)

    def topology(self, names: Sequence[str] | None) -> dict[str, TopicDescription]:
        if self.stale:
            return self.stale.pop(0)
        found: dict[str, list[int]] = {}
        for topic, partition in sorted(self.logs):
            if names is None or topic in names:
                found.setdefault(topic, []).append(partition)
        return {name: TopicDescription(self.ids[name], tuple(each)) for name, each in found.items()}

    def offsets(
        self, partitions: Collection[TopicPartition], position: int
    ) -> dict[TopicPartition, int]:
        return {each: self.logs[each][0 if position == EARLIEST else 1] for each in partitions}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        return {
            each: LogEnd(self.logs[each][1], len(self.epochs.get(each, [0])) - 1)
            for each in partitions
        }

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Find offsets by time: a record's time is its offset times ten."""
        found = {each: max(self.logs[each][0], -(-time // 10)) for each, time in times.items()}
        return {each: at if at < self.logs[each][1] else -1 for each, at in found.items()}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if epochs:
            self.asked_epochs.append(epochs)
        return {
            each: [*self.epochs.get(each, [0]), self.logs[each][1]][epoch + 1]
            for each, epoch in epochs.items()
        }

    def bytes_per_offset(
        self, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, float]:
        return {each: self.sizes.get(each, 100.0) for each in positions}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.commits += 1
        if self.commit_error is not None:
            raise self.commit_error
        self.committed[group] = dict(offsets)

    def fetch(
        self, positions: Mapping[TopicPartition, FetchPosition]
    ) -> dict[TopicPartition, FetchedPartition]:
        self.rounds.append(positions)
        return {each: self._fetch(each, position.offset) for each, position in positions.items()}

    def _fetch(self, topic_partition: TopicPartition, offset: int) -> FetchedPartition:
        self.fetches.append((topic_partition, offset))
        if self.errors:
            return FetchedPartition(error=self.errors.pop(0))
        first, end = self.logs.get(topic_partition, (0, 0))
        if not first <= offset <= end:
            return FetchedPartition(error=ErrorCode.OFFSET_OUT_OF_RANGE)
        count = min(self.batch_records, end - offset)
        if count == 0:
            return FetchedPartition(high_watermark=end)
        records = [
            (None, b"%s-%d" % (str(topic_partition).encode(), offset + n), (), 0)
            for n in range(count)
        ]
        return FetchedPartition(build_batch(records, base_offset=offset), end, first, end)
