"""The offsets of streams as Spark's checkpoints store them, the ranges of a batch, and lost data.

All functions are pure. `source_client` describes the requests to the brokers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.options.positions import Positions
from headrace.spark.source.division import TaskDivision
from headrace.types import TopicPartition

EXTRA: Final = "$headrace"
"""The only key of the JSON that is not a topic. `$` is not allowed in topic names."""
VERSION: Final = 2
"""The version of the value of that key. Version 1 had no `version`, `epochs` and `tasks`. All versions can be read."""


class DataLossError(HeadraceError):
    """Records are gone before the query has read them. With `failOnDataLoss=false` the query continues without them."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Set the option failOnDataLoss to false to continue with the remaining records."
        )
        self.what = what

    def __reduce__(self) -> tuple[object, ...]:
        return (DataLossError, (self.what,))


@dataclass(frozen=True)
class TopicDescription:
    """A topic's id, "" if the broker does not report ids, and its partition numbers."""

    topic_id: str
    partitions: tuple[int, ...]


Topology = Mapping[str, TopicDescription]


@dataclass(frozen=True)
class LogEnd:
    """A partition's end offset and leader epoch. The epoch is -1 if the broker does not report it."""

    offset: int
    leader_epoch: int = -1


@dataclass(frozen=True)
class OffsetRange:
    """Records of one partition from `start` to below `end`."""

    topic_partition: TopicPartition
    start: int
    end: int
    topic_id: str = field(default="", compare=False)
    """The topic's id when the range was planned; "" if the broker does not report ids."""

    @property
    def size(self) -> int:
        """The number of offsets in the range, gaps included."""
        return self.end - self.start


@dataclass(frozen=True)
class StreamOffsets:
    """Offsets of a stream: the next offset of each partition.

    `first_start` is set only in the end offsets of a query's first batch. It has the start of that batch. Spark writes
    the end offsets of a batch to its log before it runs the batch. If it repeats the first batch, it requests the
    initial offsets again. `latest` is then a later offset, and the records before it would be lost.
    """

    positions: Positions
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    first_start: Positions | None = None
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The leader epochs when the offsets were read. They show later whether a log was truncated below its position."""
    division: TaskDivision | None = None
    """The division into tasks of the batch with these end offsets; None in checkpoints of version 1."""

    def to_json(self) -> dict[str, Any]:
        """Encode the offsets for a checkpoint. Equal offsets have equal encodings."""
        extra: dict[str, Any] = {"version": VERSION}
        if self.first_start is not None:
            extra["start"] = positions_to_json(self.first_start)
        ids = {
            name: self.topic_ids[name] for name in sorted(self.topic_ids) if self.topic_ids[name]
        }
        if ids:
            extra["topicIds"] = ids
        if self.epochs:
            extra["epochs"] = _epochs_to_json(self.epochs, self.positions)
        if self.division is not None:
            extra["tasks"] = self.division.to_json()
        return {**positions_to_json(self.positions), EXTRA: extra}

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> StreamOffsets:
        """Read what `to_json` returned, now or in an earlier version, or what Spark's Kafka connector wrote.

        Raises:
            ConfigError: The checkpoint is not from this source, or from a later version of it.
        """
        topics = {name: part for name, part in encoded.items() if name != EXTRA}
        extra = encoded.get(EXTRA, {})
        try:
            version = int(extra.get("version", 1))
            if version > VERSION:
                raise ConfigError(
                    f"the checkpoint was written by a later version of Headrace (its form is {version}, and this "
                    f"version reads forms up to {VERSION}): upgrade Headrace"
                )
            start, division = extra.get("start"), extra.get("tasks")
            positions = _positions_from_json(topics)
            return cls(
                positions,
                dict(extra.get("topicIds", {})),
                None if start is None else _positions_from_json(start),
                _epochs_from_json(extra.get("epochs", {}), positions),
                None if division is None else TaskDivision.from_json(division),
            )
        except (AttributeError, TypeError, ValueError):
            raise ConfigError(f"the checkpoint has no offsets of topics: {encoded!r}") from None


def positions_to_json(positions: Positions) -> dict[str, dict[str, int]]:
    """Encode offsets as `{"topic": {"0": 23}}`, sorted by topic and partition."""
    encoded: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(positions):
        encoded.setdefault(topic, {})[str(partition)] = positions[TopicPartition(topic, partition)]
    return encoded


def _positions_from_json(encoded: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, part in encoded.items()
        for partition, offset in part.items()
    }


def _epochs_to_json(epochs: Mapping[TopicPartition, int], positions: Positions) -> dict[str, Any]:
    """Encode the epochs by partition, or by topic if all partitions of the topic have the same epoch."""
    partitions = positions_to_json(positions)
    encoded: dict[str, Any] = {}
    for topic, part in positions_to_json(epochs).items():
        alike = len(set(part.values())) == 1 and part.keys() == partitions.get(topic, {}).keys()
        encoded[topic] = next(iter(part.values())) if alike else part
    return encoded


def _epochs_from_json(
    encoded: Mapping[str, Any], positions: Positions
) -> dict[TopicPartition, int]:
    by_topic = {topic: part for topic, part in encoded.items() if isinstance(part, int)}
    by_partition = {topic: part for topic, part in encoded.items() if topic not in by_topic}
    alike = {each: by_topic[each.topic] for each in positions if each.topic in by_topic}
    return {**alike, **_positions_from_json(by_partition)}


def removed(
    known: StreamOffsets, current: Topology, selected: Collection[TopicPartition]
) -> list[str]:
    """Describe the topics and partitions of the stream that do not exist any more, or that were created again."""
    found: list[str] = []
    for name in sorted({topic for topic, _ in known.positions}):
        if name not in current:
            found.append(
                f"topic {name} does not exist any more, or the options do not name it any more"
            )
        elif changed_id(known.topic_ids.get(name, ""), current[name].topic_id):
            found.append(f"topic {name} was deleted and created again")
    for each in sorted(known.positions):
        if each.topic not in current:
            continue
        if each.partition not in current[each.topic].partitions:
            found.append(f"partition {each} does not exist any more")
        elif each not in selected:
            found.append(f"the options do not name partition {each} any more")
    return found


def changed_id(before: str, now: str) -> bool:
    """Return whether two topic ids are both known and differ."""
    return bool(before) and bool(now) and before != now


def carry_over(known: StreamOffsets, current: Topology) -> StreamOffsets:
    """Remove topics and partitions that are gone from the offsets, also topics that were created again."""
    kept = {
        each: offset
        for each, offset in known.positions.items()
        if each.topic in current
        and each.partition in current[each.topic].partitions
        and not changed_id(known.topic_ids.get(each.topic, ""), current[each.topic].topic_id)
    }
    return replace(known, positions=kept)


def plan(start: StreamOffsets, end: StreamOffsets) -> tuple[list[OffsetRange], list[str]]:
    """Return the ranges from `start` to `end`, and descriptions of lost data.

    A partition without an offset in `start` is new, or its topic was created again. It is read from offset 0. If
    records were removed at its beginning, the reader of the range finds out.
    """
    begin = start.positions if end.first_start is None else end.first_start
    ranges: list[OffsetRange] = []
    lost: list[str] = []
    for each, stop in sorted(end.positions.items()):
        first = begin.get(each, 0)
        if changed_id(start.topic_ids.get(each.topic, ""), end.topic_ids.get(each.topic, "")):
            first = 0
        if stop > first:
            ranges.append(OffsetRange(each, first, stop, end.topic_ids.get(each.topic, "")))
        elif stop < first:
            lost.append(f"the end of {each} moved back from offset {first} to {stop}")
    return ranges, lost
