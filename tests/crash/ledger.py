"""Everything that a broker has acknowledged, and a check that a broker on a crash image still has all of it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import ErrorCode
from headrace.metadata_stores.sqlite import SqliteMetadataStore
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.records.batch import check_batch, iterate_headers
from headrace.records.reader import Record, read_records
from headrace.storage.os_files import OsFileSystem
from tests.crash.recording import SECOND, Event, Kind
from tests.crash.workload import GROUPS, KEYED, LEDGER, SETTINGS, batch_for, is_whole
from tests.fixtures.broker_harness import BrokerHarness, fetch_request, produce_request

NOW_MS = int(time.time() * 1000)


class LostError(AssertionError):
    """Acknowledged data is missing."""


@dataclass
class Topic:
    topic_id: str
    doomed: bool = False
    """Whether the deletion of the topic was requested."""
    produced: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    seen: dict[int, dict[str, str]] = field(default_factory=dict)
    """The values that consumers have read, by partition and offset."""
    trimming: dict[int, int] = field(default_factory=dict)
    """The offset up to which a deletion of records was requested, by partition."""
    trimmed: dict[int, int] = field(default_factory=dict)
    """The offset up to which a deletion of records was acknowledged, by partition."""


class Ledger:
    """The acknowledgements, in the order of the recording."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.creating: set[str] = set()
        self.deleted_ids: set[str] = set()
        self.committing: dict[str, int] = {}
        self.committed: dict[str, int] = {}
        self.acknowledgements = 0

    def apply(self, event: Event) -> None:
        if event.kind is not Kind.MARK:
            return
        note = json.loads(event.data)
        getattr(self, f"_{note['what']}")(note)

    def _creating(self, note: dict[str, Any]) -> None:
        self.creating.add(note["topic"])

    def _created(self, note: dict[str, Any]) -> None:
        self.creating.discard(note["topic"])
        topic = self.topics.get(note["topic"])
        if topic is None or topic.topic_id != note["id"]:
            if topic is not None and not topic.doomed:
                raise LostError(f"topic {note['topic']} has got another id")
            self.topics[note["topic"]] = Topic(note["id"])
        elif topic.doomed:
            topic.doomed = False  # the server was killed before the deletion
        self.acknowledgements += 1

    def _deleting(self, note: dict[str, Any]) -> None:
        self.topics[note["topic"]].doomed = True

    def _deleted(self, note: dict[str, Any]) -> None:
        self.deleted_ids.add(self.topics.pop(note["topic"]).topic_id)
        self.acknowledgements += 1

    def _produced(self, note: dict[str, Any]) -> None:
        topic = self.topics[note["topic"]]
        topic.produced.setdefault(note["partition"], []).append(note)
        self.acknowledgements += 1

    def _seen(self, note: dict[str, Any]) -> None:
        self.topics[note["topic"]].seen[note["partition"]] = note["values"]

    def _trimming(self, note: dict[str, Any]) -> None:
        trimming = self.topics[note["topic"]].trimming
        trimming[note["partition"]] = max(note["offset"], trimming.get(note["partition"], 0))

    def _trimmed(self, note: dict[str, Any]) -> None:
        trimmed = self.topics[note["topic"]].trimmed
        trimmed[note["partition"]] = max(note["offset"], trimmed.get(note["partition"], 0))
        self.acknowledgements += 1

    def _committing(self, note: dict[str, Any]) -> None:
        self.committing[note["group"]] = note["offset"]

    def _committed(self, note: dict[str, Any]) -> None:
        self.committed[note["group"]] = note["offset"]
        self.acknowledgements += 1

    # Checking

    def check(self, found: State) -> None:
        """Compare the acknowledgements with the data that a broker serves.

        Raises:
            LostError: Acknowledged data is missing.
        """
        self._check_topics(found)
        for name, topic in self.topics.items():
            if found.topics.get(name) == topic.topic_id:
                for partition, notes in topic.produced.items():
                    self._check_partition(name, topic, partition, notes, found)
        for group, offset in self.committed.items():
            there = found.committed[group]
            if not offset <= there <= self.committing[group]:
                raise LostError(f"group {group} committed {offset}, and {there} is found")

    def _check_topics(self, found: State) -> None:
        for name, topic in self.topics.items():
            if not topic.doomed and found.topics.get(name) != topic.topic_id:
                raise LostError(f"topic {name} is {found.topics.get(name)}, not {topic.topic_id}")
        for name, topic_id in found.topics.items():
            if topic_id in self.deleted_ids:
                raise LostError(f"topic {name} was deleted and is back")
            if name not in self.topics and name not in self.creating:
                raise LostError(f"topic {name} was never created")

    def _check_partition(
        self, name: str, topic: Topic, partition: int, notes: list[dict[str, Any]], found: State
    ) -> None:
        log = found.logs[name, partition]
        if log.start < topic.trimmed.get(partition, 0):
            raise LostError(f"{name}-{partition}: deleted records are back, from {log.start} on")
        gone = topic.trimming.get(partition, 0)
        if log.start > gone:
            raise LostError(f"{name}-{partition} begins at {log.start}, deleted was up to {gone}")
        if name == KEYED:
            self._check_keys(notes, log)
            return
        for note in notes:
            for index, record in enumerate(read_records(batch_for(note))):
                offset = note["base"] + index
                if offset >= max(gone, log.start) and log.values.get(offset) != record.value:
                    raise LostError(
                        f"{name}-{partition} acknowledged {record.value!r:.40} at {offset}, and "
                        f"{log.values.get(offset)!r:.40} is found; the end is {log.end}"
                    )
        for seen, value in topic.seen.get(partition, {}).items():
            if int(seen) >= max(gone, log.start) and log.values.get(int(seen)) != value.encode():
                raise LostError(
                    f"{name}-{partition}: a consumer has seen {seen}, and it is not there"
                )

    def _check_keys(self, notes: list[dict[str, Any]], log: Log) -> None:
        """Check that each key has the newest acknowledged value, or a newer value."""
        latest: dict[bytes, int] = {}
        for note in notes:
            for index, record in enumerate(read_records(batch_for(note))):
                assert record.key is not None
                latest[bytes(record.key)] = note["base"] + index
        for key, offset in latest.items():
            if log.latest.get(key, -1) < offset:
                raise LostError(
                    f"key {key!r} was written at {offset}, and {log.latest.get(key)} is found"
                )


class Log(NamedTuple):
    start: int
    end: int
    values: dict[int, bytes]
    latest: dict[bytes, int]
    """The largest offset of each key."""
    batches: bytes


class State(NamedTuple):
    """The data that a broker serves: topics, records, committed offsets."""

    topics: dict[str, str]
    logs: dict[tuple[str, int], Log]
    committed: dict[str, int]


@contextlib.contextmanager
def broker_on(directory: Path) -> Iterator[BrokerHarness]:
    """Start a broker on a directory, and end it without a clean shutdown."""
    files, second = OsFileSystem(directory), directory / SECOND
    metadata = SqliteMetadataStore(directory / "metadata.sqlite")
    options = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
    try:
        yield BrokerHarness(
            files=files,
            further=[OsFileSystem(second)] if second.exists() else [],
            metadata=metadata,
            now_ms=NOW_MS,
            **{name: int(value) for name, value in options.items()},
        )
    finally:
        metadata.close()


def state_of(harness: BrokerHarness) -> State:
    """Read everything by requests, and check the invariants that need no ledger."""
    topics, logs = {}, {}
    for topic in list(harness.broker.services.topics):
        if topic.is_internal:
            continue
        topics[topic.name] = topic.topic_id.hex()
        for partition in range(topic.partitions_count):
            logs[topic.name, partition] = read_log(harness, topic.name, partition)
    return State(topics, logs, {group: committed_by(harness, group) for group in GROUPS})


def read_log(harness: BrokerHarness, topic: str, partition: int) -> Log:
    start = fetch(harness, topic, partition, 0)
    offset = start.log_start_offset
    values: dict[int, bytes] = {}
    latest: dict[bytes, int] = {}
    pieces: list[bytes] = []
    while True:
        part = fetch(harness, topic, partition, offset)
        data = bytes(part.records or b"")
        if not data:
            break
        for record in sound_records(data):
            if record.offset < offset:
                continue
            value = bytes(record.value or b"")
            if not is_whole(value):
                raise LostError(f"{topic}-{partition} has {value!r:.60} at {record.offset}")
            values[record.offset] = value
            if record.key is not None:
                latest[bytes(record.key)] = record.offset
        offset = next_offset(data)
        pieces.append(data)
    if offset != part.high_watermark:
        raise LostError(
            f"{topic}-{partition} ends at {part.high_watermark}, readers get to {offset}"
        )
    if topic != KEYED and list(values) != list(range(start.log_start_offset, offset)):
        raise LostError(f"{topic}-{partition} has holes")
    if len(set(values.values())) != len(values):
        raise LostError(f"{topic}-{partition} has a value twice")
    return Log(start.log_start_offset, offset, values, latest, b"".join(pieces))


def sound_records(data: bytes) -> Iterator[Record]:
    """Yield the records of fetched batches, and check their CRCs."""
    position = 0
    while position < len(data):
        header = check_batch(data, position)
        yield from read_records(data[position : position + header.size])
        position += header.size


def next_offset(data: bytes) -> int:
    return max(header.next_offset for _, header in iterate_headers(data))


def fetch(harness: BrokerHarness, topic: str, partition: int, offset: int) -> Any:
    request = fetch_request((topic, partition, offset), max_wait_ms=0)
    part = harness.call(request).responses[0].partitions[0]
    out_of_range = offset == 0 and part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    if part.error_code and not out_of_range:
        raise LostError(f"{topic}-{partition} is not served: error {part.error_code}")
    return part


def committed_by(harness: BrokerHarness, group: str) -> int:
    """Return a group's committed offset, -1 if there is none."""
    wanted = OffsetFetchRequestGroup(group_id=group, topics=None)
    (answer,) = harness.call(OffsetFetchRequest(groups=[wanted])).groups
    if answer.error_code == ErrorCode.NOT_COORDINATOR:
        return -1  # the group never existed
    if answer.error_code:
        raise LostError(f"group {group} is not served: error {answer.error_code}")
    for topic in answer.topics:
        if topic.name == LEDGER:
            return int(topic.partitions[0].committed_offset)
    return -1


def check_retries(harness: BrokerHarness, ledger: Ledger) -> int:
    """Send the last acknowledged batch of each idempotent producer again, and check that the broker finds the retry."""
    last: dict[tuple[str, int, int], dict[str, Any]] = {}
    for topic in ledger.topics.values():
        for partition, notes in topic.produced.items():
            for note in notes:
                # The state of a producer may be dropped with its deleted records.
                kept = note["base"] >= topic.trimming.get(partition, 0)
                if note["producer"] is not None and kept:
                    last[note["topic"], note["partition"], note["producer"][0]] = note
    for (topic_name, partition, _), note in last.items():
        request = produce_request(topic_name, partition, batch_for(note))
        part = harness.call(request).responses[0].partition_responses[0]
        answer = (part.error_code, part.base_offset)
        # Later batches that were not acknowledged may be there. The batch is one of the last five even then.
        if answer != (0, note["base"]):
            raise LostError(
                f"{topic_name}-{partition}: the retry of {note['sequence']} at {note['base']} "
                f"got error {part.error_code}, offset {part.base_offset}"
            )
    return len(last)


def check_image(ledger: Ledger, directory: Path) -> None:
    """Start a broker on an image and check all data, then start another broker and check again.

    Raises:
        LostError: Acknowledged data is missing, or the second start has changed something.
    """
    with broker_on(directory) as harness:
        first = state_of(harness)
        ledger.check(first)
    with broker_on(directory) as harness:
        if state_of(harness) != first:
            raise LostError("a second recovery changed something")
        check_retries(harness, ledger)
