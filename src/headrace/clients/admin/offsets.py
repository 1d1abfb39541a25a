"""The committed offsets of groups: the decisions of `Admin.reset_offsets` and `Admin.lag`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headrace.clients.flows import list_offsets, metadata, offsets
from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.flows.fetch import FetchLimits, FetchPosition, fetch
from headrace.clients.flows.list_offsets import EARLIEST, LATEST
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.flows.routing import check_partitions_exist
from headrace.errors import ApiError, ConfigError, ErrorCode
from headrace.records.reader import read_records
from headrace.types import TopicPartition

_ONE_BATCH: Final = 1
"""The size of a fetch in bytes. Brokers return one whole batch nevertheless."""

ResetTarget = Literal["earliest", "latest"] | int
"""The target of a reset: the begin or the end of the log, or the first record that is not older than a timestamp."""


@dataclass(frozen=True, slots=True)
class Reset:
    """The arguments of `Admin.reset_offsets`."""

    offsets: Mapping[TopicPartition, int] | None = None
    topics: Iterable[str] | None = None
    partitions: Iterable[TopicPartition] | None = None
    to: ResetTarget | None = None
    offset: int | None = None
    shift: int | None = None

    def check(self) -> None:
        """Check that the arguments do not contradict each other.

        Raises:
            ConfigError: They do.
        """
        given = [self.offsets, self.to, self.offset, self.shift]
        if sum(each is not None for each in given) != 1:
            raise ConfigError(
                "name the new offsets by exactly one of offsets, to, offset and shift"
            )
        if self.offsets is not None and (self.topics is not None or self.partitions is not None):
            raise ConfigError(
                "offsets contains the partitions: pass neither topics nor partitions with it"
            )
        if self.topics is not None and self.partitions is not None:
            raise ConfigError("pass topics or partitions, not both")
        if isinstance(self.to, str) and self.to not in {"earliest", "latest"}:
            raise ConfigError(f"{self.to!r} is not earliest, latest or a timestamp in milliseconds")


def reset_offsets(
    state: ClientState, group: str, reset: Reset, *, dry_run: bool
) -> Flow[dict[TopicPartition, int]]:
    """Commit other offsets for a group without members, and return them.

    Raises:
        ConfigError: There are no partitions, or the arguments contradict each other.
        ApiError: UNKNOWN_MEMBER_ID: the group has members.
    """
    reset.check()
    if reset.offsets is not None:
        wanted = {TopicPartition(*name): offset for name, offset in reset.offsets.items()}
    else:
        wanted = yield from _new_offsets(state, group, reset)
    if not dry_run and wanted:
        at = {name: OffsetAndMetadata(offset) for name, offset in wanted.items()}
        try:
            yield from offsets.commit_offsets(state, group, at)
        except ApiError as error:
            if error.code not in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}:
                raise
            raise ApiError.for_code(
                error.code,
                f"group {group!r} has members, whose commits would replace the new offsets: stop the members first",
            ) from error
    return {name: wanted[name] for name in sorted(wanted)}


def _new_offsets(state: ClientState, group: str, reset: Reset) -> Flow[dict[TopicPartition, int]]:
    committed = yield from offsets.committed_offsets(state, group, None)
    partitions = yield from _partitions(state, group, reset, committed)
    if reset.to is not None:
        return (yield from _offsets_at(state, partitions, reset.to))
    if reset.offset is not None:
        targets = dict.fromkeys(partitions, reset.offset)
    else:
        assert reset.shift is not None, "checked by Reset.check"
        without = [name for name in partitions if name not in committed]
        if without:
            raise ConfigError(
                f"group {group!r} has no committed offset for {without[0]} that could be shifted"
            )
        targets = {name: committed[name].offset + reset.shift for name in partitions}
    # The targets are limited to the log, as in Kafka's own tool.
    starts = yield from list_offsets.list_offsets(state, dict.fromkeys(partitions, EARLIEST))
    ends = yield from list_offsets.list_offsets(state, dict.fromkeys(partitions, LATEST))
    return {
        name: min(max(target, starts[name].offset), ends[name].offset)
        for name, target in targets.items()
    }


def _partitions(
    state: ClientState, group: str, reset: Reset, committed: Collection[TopicPartition]
) -> Flow[list[TopicPartition]]:
    if reset.topics is not None:
        return (yield from topic_partitions(state, reset.topics))
    if reset.partitions is None and not committed:
        raise ConfigError(f"group {group!r} has no committed offsets: name topics or partitions")
    given = committed if reset.partitions is None else reset.partitions
    names = sorted({TopicPartition(*name) for name in given})
    if reset.partitions is None:
        return (yield from _existing(state, names))
    yield from metadata.ensure(state, {name.topic for name in names})
    check_partitions_exist(state, names)
    return names


def _offsets_at(
    state: ClientState, partitions: list[TopicPartition], to: ResetTarget
) -> Flow[dict[TopicPartition, int]]:
    target = {"earliest": EARLIEST, "latest": LATEST}.get(str(to))
    asked = dict.fromkeys(partitions, int(to) if target is None else target)
    found = yield from list_offsets.list_offsets(state, asked)
    ends = {name: LATEST for name, listed in found.items() if listed.offset < 0}
    if ends:  # all records are older than the timestamp, so the group continues at the end
        found |= yield from list_offsets.list_offsets(state, ends)
    return {name: listed.offset for name, listed in found.items()}


def positions(state: ClientState, group: str) -> Flow[dict[TopicPartition, tuple[int, int]]]:
    """Return the committed offset and the end offset of each partition for which a group has a committed offset."""
    committed = yield from offsets.committed_offsets(state, group, None)
    names = yield from _existing(state, sorted(committed))
    ends = yield from list_offsets.list_offsets(state, dict.fromkeys(names, LATEST))
    return {name: (committed[name].offset, ends[name].offset) for name in names}


def lag(state: ClientState, group: str) -> Flow[dict[TopicPartition, int]]:
    """Return the number of offsets between the committed offset and the end of each partition that has one."""
    found = yield from positions(state, group)
    return {name: max(0, end - committed) for name, (committed, end) in found.items()}


def waiting_since(
    state: ClientState, found: Mapping[TopicPartition, tuple[int, int]]
) -> Flow[dict[TopicPartition, int]]:
    """Return the timestamp of the first record after the committed offset, in milliseconds since 1970.

    Args:
        state: The client's state.
        found: The result of `positions`. Partitions that have no such record, or cannot be read, are left out.
    """
    since: dict[TopicPartition, int] = {}
    limits = FetchLimits(0, 1, _ONE_BATCH)
    for name, (committed, end) in found.items():
        if committed >= end:
            continue
        answers = yield from fetch(state, {name: FetchPosition(committed, -1, _ONE_BATCH)}, limits)
        records = read_records(answers[name].records, tolerate_truncated=True)
        first = next((record for record in records if record.offset >= committed), None)
        if first is not None:
            since[name] = first.timestamp
    return since


def _existing(state: ClientState, names: Collection[TopicPartition]) -> Flow[list[TopicPartition]]:
    """Return the partitions that still exist. A topic with committed offsets may have been deleted."""
    known = yield from metadata.refresh(state, sorted({name.topic for name in names}))
    return [
        name
        for name in names
        if name.topic in known.topics and name.partition in known.topics[name.topic].partitions
    ]


def topic_partitions(state: ClientState, topics: Iterable[str]) -> Flow[list[TopicPartition]]:
    """Request and return all partitions of topics.

    Raises:
        ApiError: UNKNOWN_TOPIC_OR_PARTITION, if a topic does not exist.
    """
    names = list(topics)
    state.stale_topics.update(names)
    yield from metadata.ensure(state, names)
    known = state.metadata.topics
    return [TopicPartition(name, number) for name in names for number in known[name].partitions]
