"""Resolve the options for start and end of a read to offsets of a cluster's partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from headrace.errors import ConfigError
from headrace.spark.client.contact import repeat_until
from headrace.spark.options.positions import (
    EARLIEST,
    LATEST,
    AtTimestamp,
    Ending,
    Positions,
    Starting,
)
from headrace.spark.options.selection import TopicSelection
from headrace.spark.options.source import SourceOptions
from headrace.spark.source.offsets import StreamOffsets, Topology, removed
from headrace.spark.source.source_client import SourceClient
from headrace.types import TopicPartition


def select(selection: TopicSelection, topology: Topology) -> list[TopicPartition]:
    """Return the selected partitions that exist, sorted."""
    existing = [
        TopicPartition(name, number)
        for name in sorted(topology)
        for number in topology[name].partitions
    ]
    if selection.partitions:
        assigned = set(selection.partitions)
        return [each for each in existing if each in assigned]
    covered = {name for name in topology if selection.covers(name)}
    return [each for each in existing if each.topic in covered]


def check_exists(
    selection: TopicSelection, topology: Topology, known: Collection[TopicPartition] = ()
) -> None:
    """Check that the topics and partitions that options name exist.

    Args:
        selection: The selection of the options.
        topology: The existing topics.
        known: Partitions that the stream has already read. If one is gone, that is lost data and no wrong option.

    Raises:
        ConfigError: A topic or partition does not exist.
    """
    what = _absent(selection, topology, known)
    if what is not None:
        raise ConfigError(what)


def _absent(
    selection: TopicSelection, topology: Topology, known: Collection[TopicPartition]
) -> str | None:
    names = {topic for topic, _ in known} | set(topology)
    missing = [name for name in selection.topics if name not in names]
    if missing:
        return f"there is no topic {', '.join(missing)} (option subscribe)"
    existing = {each for each in selection.partitions if each in known} | set(
        select(selection, topology)
    )
    absent = [each for each in selection.partitions if each not in existing]
    if absent:
        return f"there is no partition {', '.join(map(str, absent))} (option assign)"
    return None


def current_topology(
    client: SourceClient, selection: TopicSelection, known: StreamOffsets | None = None
) -> Topology:
    """Return the existing topics of a selection. If one seems to be missing, the request is repeated.

    A broker that has just started, or that is cut off from the others, does not know all topics.

    Args:
        client: The cluster.
        selection: The selection of the options.
        known: The offsets that the stream has already read.
    """

    def whole(topology: Topology) -> bool:
        before = known or StreamOffsets({})
        gone = removed(before, topology, set(select(selection, topology)))
        return not gone and _absent(selection, topology, before.positions) is None

    return repeat_until(lambda: client.topology(selection.names), whole)


def start_positions(
    client: SourceClient,
    options: SourceOptions,
    wanted: Sequence[TopicPartition],
    lost: Callable[[str], None],
    beyond: Callable[[str], None],
) -> dict[TopicPartition, int]:
    """Return the start offset of each partition.

    Args:
        client: The cluster.
        options: The options of the read.
        wanted: The partitions.
        lost: Called with a description if records of the read are gone. It raises, or the read continues.
        beyond: Called with a description if a start is after the partition's end. It raises, or the read continues.

    Raises:
        ConfigError: The options do not fit the partitions.
    """
    positions = _positions(client, "startingOffsets", options.starting, wanted)
    if isinstance(options.starting, str):
        return positions
    earliest, latest = client.offsets(wanted, EARLIEST), client.offsets(wanted, LATEST)
    for each, offset in sorted(positions.items()):
        first, after = earliest[each], latest[each]
        if offset < first:
            lost(f"offsets {offset} to {first - 1} of {each} were removed before they were read")
        elif offset > after:
            beyond(f"{each} ends at offset {after}, before startingOffsets {offset}")
        positions[each] = min(max(offset, first), after)
    return positions


def end_positions(
    client: SourceClient,
    options: SourceOptions,
    wanted: Sequence[TopicPartition],
    lost: Callable[[str], None],
) -> dict[TopicPartition, int]:
    """Return the end offset of each partition. `start_positions` describes the arguments.

    Raises:
        ConfigError: The options do not fit the partitions.
    """
    positions = _positions(client, "endingOffsets", options.ending, wanted)
    if not isinstance(options.ending, str):
        latest = client.offsets(wanted, LATEST)
        for each, offset in sorted(positions.items()):
            if offset > latest[each]:
                lost(f"{each} ends at offset {latest[each]}, before endingOffsets {offset}")
                positions[each] = latest[each]
    return positions


def _positions(
    client: SourceClient,
    option: str,
    given: Starting | Ending,
    wanted: Sequence[TopicPartition],
) -> dict[TopicPartition, int]:
    if isinstance(given, str):
        return client.offsets(wanted, EARLIEST if given == "earliest" else LATEST)
    if isinstance(given, AtTimestamp):
        return _at_timestamp(client, given, wanted)
    check_complete(option, given, wanted)
    return {**given, **_symbolic(client, given)}


def _symbolic(client: SourceClient, given: Positions) -> dict[TopicPartition, int]:
    """Return the offsets of the partitions for which EARLIEST or LATEST is given."""
    found: dict[TopicPartition, int] = {}
    for symbol in (EARLIEST, LATEST):
        partitions = [each for each, offset in given.items() if offset == symbol]
        found.update(client.offsets(partitions, symbol))
    return found


def _at_timestamp(
    client: SourceClient, given: AtTimestamp, wanted: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    times = given.timestamps
    if isinstance(times, int):
        times = dict.fromkeys(wanted, times)
    else:
        check_complete(given.option, times, wanted)
    found = client.offsets_at({each: time for each, time in times.items() if time >= 0})
    missing = sorted(each for each, offset in found.items() if offset < 0)
    if missing and not given.else_latest:
        first = missing[0]
        raise ConfigError(
            f"option {given.option}: {first} has no record of {times[first]} or later "
            f"({len(missing)} of {len(found)} partitions). With startingOffsetsByTimestampStrategy=latest "
            "such partitions are read from their end."
        )
    return {**found, **client.offsets(missing, LATEST), **_symbolic(client, times)}


def check_complete(option: str, given: Positions, wanted: Collection[TopicPartition]) -> None:
    """Check that offsets or times in JSON name exactly the partitions of the read.

    Raises:
        ConfigError: A partition is missing, or is not read.
    """
    missing = sorted(set(wanted) - set(given))
    extra = sorted(set(given) - set(wanted))
    if missing:
        raise ConfigError(
            f"option {option} does not name {', '.join(map(str, missing))}: name every partition"
        )
    if extra:
        raise ConfigError(
            f"option {option} names {', '.join(map(str, extra))}, which the query does not read"
        )
