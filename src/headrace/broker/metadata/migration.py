"""Carries over the metadata of a data directory from before the formats of this version.

The metadata had three differences:

* Topics were written in format 1, or in format 2 with the log directory of each partition. Format 3 has the replicas
  only. The directories are below `brokers/placement/`.
* `brokers/epoch/<id>` had the leader epoch of all partitions. `brokers/registration/<id>` continues to count from that
  number, so that no leader epoch falls below an epoch that the logs contain.
* A partition had no state. It has none afterwards either: it is in its initial state.

The last commit deletes the entries below `brokers/epoch/`. The migration runs at every start that finds such an entry,
so a start after a crash runs it again. It changes only topics of formats 1 and 2, and each topic in one commit. So it
continues after the last commit that was stored. The broker serves nothing before the last commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final

import msgspec

from headrace.broker.metadata.commit_lane import Change
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.core.cluster.records import (
    PLACEMENTS,
    REGISTRATIONS,
    TOPIC_FORMAT,
    TOPICS,
    PlacementRecord,
    Record,
    RegistrationRecord,
    TopicRecord,
    decode,
    encode,
    format_of,
)
from headrace.errors import StorageError
from headrace.ports import (
    Check,
    Conflict,
    Delete,
    Journal,
    MetadataEntry,
    Put,
    check_of,
)

BROKER_EPOCHS: Final = "brokers/epoch/"
ITEMS_LIMIT: Final = 90
"""The greatest number of checks and operations in one commit. The store allows 100."""
BYTES_LIMIT: Final = 256 * 1024
"""The size of the values in a commit of several changes. The store allows 512 KB."""


class LeaderEpochRecord(Record, frozen=True):
    """The leader epoch of a broker's partitions, before leader epochs were derived for each partition."""

    leader_epoch: int
    format: int = 1


class UnplacedTopicRecord(Record, frozen=True):
    """A topic in format 1 or 2: the replicas of each partition, and its log directory on each of them."""

    FORMATS: ClassVar[range] = range(1, TOPIC_FORMAT)

    topic_id: str
    partitions: list[tuple[int, ...]]
    format: int = 1
    directories: list[str] | msgspec.UnsetType = msgspec.UNSET


def carry_over(metadata: MetadataWriter, journal: Journal) -> None:
    """Bring the metadata of an earlier version into the formats of this version.

    Raises:
        StorageError: An entry cannot be read, or the store does not respond. The next start continues the migration.
    """
    epochs = metadata.image.list(BROKER_EPOCHS)
    if not epochs:
        return
    topics = [entry for entry in metadata.image.list(TOPICS) if format_of(entry) < TOPIC_FORMAT]
    for checks, operations in _commits(_topic(entry) for entry in topics):
        _commit(metadata, checks, operations)
    _commit(metadata, *_registrations(metadata, epochs))
    journal.info("metadata_carried_over", topics=len(topics))


def _topic(entry: MetadataEntry) -> Change:
    old = decode(entry, UnplacedTopicRecord)
    operations: list[Put | Delete] = [
        Put(entry.key, encode(TopicRecord(old.topic_id, old.partitions)))
    ]
    if old.directories is not msgspec.UNSET:
        if len(old.directories) != len(old.partitions):
            raise StorageError(f"{entry.key}: {len(old.directories)} directories of its partitions")
        for broker_id in sorted({broker_id for each in old.partitions for broker_id in each}):
            here = [
                directory_id if broker_id in replicas else ""
                for replicas, directory_id in zip(old.partitions, old.directories, strict=True)
            ]
            key = f"{PLACEMENTS}{broker_id}/{old.topic_id}"
            operations.append(Put(key, encode(PlacementRecord.of(here))))
    return [check_of(entry.key, entry)], operations


def _registrations(metadata: MetadataWriter, epochs: Sequence[MetadataEntry]) -> Change:
    checks: list[Check] = []
    operations: list[Put | Delete] = []
    for entry in epochs:
        key = REGISTRATIONS + entry.key.removeprefix(BROKER_EPOCHS)
        broker_epoch = decode(entry, LeaderEpochRecord).leader_epoch
        present = metadata.image.get(key)
        if present is not None:
            broker_epoch = max(broker_epoch, decode(present, RegistrationRecord).broker_epoch)
        checks += [check_of(entry.key, entry), check_of(key, present)]
        operations += [Put(key, encode(RegistrationRecord(broker_epoch))), Delete(entry.key)]
    return checks, operations


def _commits(changes: Iterable[Change]) -> Iterator[Change]:
    """Join changes into as few commits as possible."""
    checks: list[Check] = []
    operations: list[Put | Delete] = []
    size = 0
    for more_checks, more_operations in changes:
        more = sum(len(each.value) for each in more_operations if isinstance(each, Put))
        items = len(checks) + len(operations) + len(more_checks) + len(more_operations)
        if operations and (items > ITEMS_LIMIT or size + more > BYTES_LIMIT):
            yield checks, operations
            checks, operations, size = [], [], 0
        checks, operations = [*checks, *more_checks], [*operations, *more_operations]
        size += more
    if operations:
        yield checks, operations


def _commit(
    metadata: MetadataWriter, checks: Sequence[Check], operations: Sequence[Put | Delete]
) -> None:
    try:
        metadata.commit_and_wait(checks, operations)
    except Conflict as conflict:
        key = checks[conflict.index].key
        raise StorageError(
            f"{key}: another process changed the metadata meanwhile; start the broker again"
        ) from conflict
