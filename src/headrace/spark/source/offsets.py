"""Which records a read covers: offsets as Spark's checkpoints hold them, ranges, the limit per trigger, lost data.

All functions here are pure; `headrace.spark.cluster` answers the questions to the brokers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.options.source import EARLIEST, LATEST, Positions, Selection
from headrace.types import TopicPartition

EXTRA: Final = "$headrace"
"""The one key of the JSON that is no topic: no topic can have such a name."""


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
class OffsetRange:
    """Records of one partition from `start` to below `end`."""

    topic_partition: TopicPartition
    start: int
    end: int

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

    def to_json(self) -> dict[str, Any]:
        """Return the form that checkpoints hold; equal offsets give equal text."""
        encoded = positions_to_json(self.positions)
        extra: dict[str, Any] = {}
        if self.first_start is not None:
            extra["start"] = positions_to_json(self.first_start)
        ids = {
            name: self.topic_ids[name] for name in sorted(self.topic_ids) if self.topic_ids[name]
        }
        if ids:
            extra["topicIds"] = ids
        return {**encoded, EXTRA: extra} if extra else encoded

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> StreamOffsets:
        """Read what `to_json` returned.

        Raises:
            ConfigError: The checkpoint is not from this source.
        """
        topics = {name: part for name, part in encoded.items() if name != EXTRA}
        extra = encoded.get(EXTRA, {})
        try:
            start = extra.get("start")
            return cls(
                _positions_from_json(topics),
                dict(extra.get("topicIds", {})),
                None if start is None else _positions_from_json(start),
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


def select(selection: Selection, topology: Topology) -> list[TopicPartition]:
    """Return the partitions that there are of those asked for, sorted."""
    existing = [
        TopicPartition(name, number)
        for name in sorted(topology)
        for number in topology[name].partitions
    ]
    if selection.pattern is not None:
        return [each for each in existing if re.fullmatch(selection.pattern, each.topic)]
    if selection.topics:
        return [each for each in existing if each.topic in selection.topics]
    return [each for each in existing if each in selection.partitions]


def check_exists(
    selection: Selection, topology: Topology, known: Collection[TopicPartition] = ()
) -> None:
    """Check that what was asked for by name is there.

    Args:
        selection: What was asked for.
        topology: What there is.
        known: What the stream has read already: if that is gone, it is not the options' fault.

    Raises:
        ConfigError: A topic or partition does not exist.
    """
    names = {topic for topic, _ in known} | set(topology)
    missing = [name for name in selection.topics if name not in names]
    if missing:
        raise ConfigError(f"there is no topic {', '.join(missing)} (option subscribe)")
    existing = {each for each in selection.partitions if each in known} | set(
        select(selection, topology)
    )
    absent = [each for each in selection.partitions if each not in existing]
    if absent:
        raise ConfigError(f"there is no partition {', '.join(map(str, absent))} (option assign)")


def check_complete(option: str, given: Positions, wanted: Collection[TopicPartition]) -> None:
    """Check that offsets given as JSON name just the partitions that are read.

    Raises:
        ConfigError: Some are missing or too many.
    """
    missing = sorted(set(wanted) - set(given))
    extra = sorted(set(given) - set(wanted))
    if missing:
        raise ConfigError(f"option {option} says nothing of {', '.join(map(str, missing))}")
    if extra:
        raise ConfigError(f"option {option} names {', '.join(map(str, extra))}, which are not read")


def resolve(given: Positions, earliest: Positions, latest: Positions) -> dict[TopicPartition, int]:
    """Put the offsets that -2 and -1 stand for in their places."""
    symbolic = {EARLIEST: earliest, LATEST: latest}
    return {
        each: symbolic[offset][each] if offset in symbolic else offset
        for each, offset in given.items()
    }


def check_bounds(
    positions: Positions, earliest: Positions, latest: Positions
) -> Iterable[tuple[TopicPartition, int, str]]:
    """Yield (partition, nearest offset there is, what is wrong) for positions outside of their logs."""
    for each, offset in sorted(positions.items()):
        if offset < earliest[each]:
            yield (
                each,
                earliest[each],
                f"offsets {offset} to {earliest[each] - 1} of {each} were removed before they were read",
            )
        elif offset > latest[each]:
            yield (
                each,
                latest[each],
                f"{each} ends at offset {latest[each]}, before offset {offset}, where reading should go on",
            )


def limit_total(start: Positions, end: Positions, max_offsets: int) -> dict[TopicPartition, int]:
    """Move `end` back so that at most about `max_offsets` offsets lie between; each partition gets its share.

    As in Spark's Kafka connector the share is proportional to what waits in each partition, and a partition with
    something to read gets at least one offset, so that none starves. That may exceed the limit by less than the
    number of partitions.
    """
    waiting = {each: end[each] - start[each] for each in end if end[each] > start[each]}
    total = sum(waiting.values())
    if total <= max_offsets:
        return dict(end)
    limited = {each: min(end[each], start[each]) for each in end}
    for each, size in waiting.items():
        share = max_offsets * size / total
        limited[each] = start[each] + min(size, max(1, math.floor(share)))
    return limited


def removed(known: StreamOffsets, current: Topology) -> list[str]:
    """Say what of the stream so far is not there any more: topics, partitions, or a topic under its old name."""
    found: list[str] = []
    for name in sorted({topic for topic, _ in known.positions}):
        if name not in current:
            found.append(f"topic {name} does not exist any more")
        elif changed_id(known.topic_ids.get(name, ""), current[name].topic_id):
            found.append(f"topic {name} was deleted and created again")
    for topic, partition in sorted(known.positions):
        if topic in current and partition not in current[topic].partitions:
            found.append(f"partition {topic}-{partition} does not exist any more")
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
            ranges.append(OffsetRange(each, first, stop))
        elif stop < first:
            lost.append(f"the end of {each} moved back from offset {first} to {stop}")
    return ranges, lost
