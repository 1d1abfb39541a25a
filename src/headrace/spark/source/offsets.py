"""Which records a batch of a stream covers: offsets as Spark's checkpoints hold them, ranges, lost data.

All functions here are pure; `headrace.spark.cluster` answers the questions to the brokers.
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
"""The one key of the JSON that is no topic: no topic can have such a name."""
VERSION: Final = 2
"""Of what lies under that key. Form 1 had no `version`, `epochs` and `tasks`; all earlier forms stay readable."""


class DataLossError(HeadraceError):
    """Records that a query has yet to read are gone. `failOnDataLoss=false` goes on without them."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Set the option failOnDataLoss to false to go on with what is there."
        )
        self.what = what

    def __reduce__(self) -> tuple[object, ...]:
        return (DataLossError, (self.what,))


@dataclass(frozen=True)
class TopicDescription:
    """A topic as it stands: its id ("" where brokers do not tell) and partition numbers."""

    topic_id: str
    partitions: tuple[int, ...]


Topology = Mapping[str, TopicDescription]


@dataclass(frozen=True)
class LogEnd:
    """Where a partition ends, and the epoch of its leader (-1 where brokers do not tell)."""

    offset: int
    leader_epoch: int = -1


@dataclass(frozen=True)
class OffsetRange:
    """Records of one partition from `start` to below `end`."""

    topic_partition: TopicPartition
    start: int
    end: int
    topic_id: str = field(default="", compare=False)
    """Of the topic as it was planned; "" where brokers do not tell."""

    @property
    def size(self) -> int:
        """How many offsets it spans; holes count."""
        return self.end - self.start


@dataclass(frozen=True)
class StreamOffsets:
    """A place in the stream: the next offset of each partition.

    `first_start` is set in the end offsets of a query's first batch only, and holds where that batch begins. Spark
    writes the end offsets of a batch to its log before it runs the batch, but asks for the initial offsets again when
    the first batch has to be run again; by then "latest" is another place, and the records between would be lost.
    """

    positions: Positions
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    first_start: Positions | None = None
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The leader epochs at the time, to find out later whether a log was truncated below its position."""
    division: TaskDivision | None = None
    """How the batch that ends here is divided into tasks."""

    def to_json(self) -> dict[str, Any]:
        """Return the form that checkpoints hold; equal offsets give equal text."""
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
            raise ConfigError(f"the checkpoint holds no offsets of topics: {encoded!r}") from None


def positions_to_json(positions: Positions) -> dict[str, dict[str, int]]:
    """Return `{"topic": {"0": 23}}`, sorted."""
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
    """Return the epochs by partition or, where all partitions of a topic have the same, by topic."""
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
    """Say what of the stream so far is not there any more: topics, partitions, or a topic under its old name."""
    found: list[str] = []
    for name in sorted({topic for topic, _ in known.positions}):
        if name not in current:
            found.append(f"topic {name} does not exist any more, or the options name it no more")
        elif changed_id(known.topic_ids.get(name, ""), current[name].topic_id):
            found.append(f"topic {name} was deleted and created again")
    for each in sorted(known.positions):
        if each.topic not in current:
            continue
        if each.partition not in current[each.topic].partitions:
            found.append(f"partition {each} does not exist any more")
        elif each not in selected:
            found.append(f"partition {each} is not among those that the options name any more")
    return found


def changed_id(before: str, now: str) -> bool:
    """Whether two topic ids are known and differ."""
    return bool(before) and bool(now) and before != now


def carry_over(known: StreamOffsets, current: Topology) -> StreamOffsets:
    """Drop what is gone from the offsets; a topic that was created again begins anew."""
    kept = {
        each: offset
        for each, offset in known.positions.items()
        if each.topic in current
        and each.partition in current[each.topic].partitions
        and not changed_id(known.topic_ids.get(each.topic, ""), current[each.topic].topic_id)
    }
    return replace(known, positions=kept)


def plan(start: StreamOffsets, end: StreamOffsets) -> tuple[list[OffsetRange], list[str]]:
    """Return the ranges between two places of a stream, and what was found to be lost.

    A partition that `start` does not know is new, or belongs to a topic that was created again: it is read from
    offset 0, which its log has unless something was removed already (the reader of the range will find out).
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
