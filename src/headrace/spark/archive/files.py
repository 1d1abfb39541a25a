"""The files of an archive: what each covers, and the names that say so.

A file holds the records of one partition, by offset, and covers a range of offsets without a gap: what lies in its
range and not in the file was no record (a transaction's marker, an aborted record, a hole left by compaction). Its
path says all of it, so that the table's list of files is enough to know what is archived:

    data/topic-flights/5f0c.../0/00000000000000000000-00000000000000012345-9f3a61c2d4e5f607.parquet
               topic   topic id partition  first offset  offset after the last   attempt

Each attempt of a task has names of its own. A file counts only once it is in the table; others are orphans.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple

from headrace.types import TopicPartition

DATA: Final = "data"
_NO_ID: Final = "none"
_PATH: Final = re.compile(
    rf"{DATA}/topic-(?P<topic>[^/]+)/(?P<topic_id>[^/]+)/(?P<partition>\d+)/"
    r"(?P<start>\d{20})-(?P<end>\d{20})-[0-9a-f]+\.parquet"
)


class ArchivedPartition(NamedTuple):
    """A partition of one life of a topic: one that is created again under its name has another id."""

    topic: str
    topic_id: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition's name."""
        return TopicPartition(self.topic, self.partition)

    @property
    def directory(self) -> str:
        """Where its files lie, below the table."""
        return f"{DATA}/topic-{self.topic}/{self.topic_id or _NO_ID}/{self.partition}"


@dataclass(frozen=True)
class ArchivedFile:
    """A file of the table."""

    source: ArchivedPartition
    start: int
    end: int
    path: str
    size: int
    records: int
    latest_ms: int | None = field(default=None, compare=False)
    """The latest time of its records, if the table knows."""

    @property
    def order(self) -> tuple[ArchivedPartition, int]:
        """What to sort by."""
        return self.source, self.start


@dataclass(frozen=True)
class WrittenFile:
    """A file that a task has written, with what a table's log says of it. It is no part of the table yet."""

    file: ArchivedFile
    first_offset: int | None = None
    last_offset: int | None = None
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None

    def to_json(self) -> str:
        """Return the form that travels from task to driver."""
        return json.dumps(
            asdict(self) | {"file": {**asdict(self.file), "source": self.file.source}}
        )

    @classmethod
    def from_json(cls, text: str) -> WrittenFile:
        """Read what `to_json` returned."""
        fields = json.loads(text)
        file = fields.pop("file")
        return cls(ArchivedFile(**{**file, "source": ArchivedPartition(*file["source"])}), **fields)


def file_path(source: ArchivedPartition, start: int, end: int, attempt: str | None = None) -> str:
    """Return a path below the table for a file that covers a range; no other file ever had it."""
    attempt = attempt or uuid.uuid4().hex[:16]
    return f"{source.directory}/{start:020d}-{end:020d}-{attempt}.parquet"


def parse_path(
    path: str, size: int, records: int, latest_ms: int | None = None
) -> ArchivedFile | None:
    """Return what a path below the table says, or None for a file of another program."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    topic_id = match["topic_id"] if match["topic_id"] != _NO_ID else ""
    source = ArchivedPartition(match["topic"], topic_id, int(match["partition"]))
    start, end = int(match["start"]), int(match["end"])
    return ArchivedFile(source, start, end, path, size, records, latest_ms)


def uncovered(files: Iterable[ArchivedFile], start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of a range that files of one partition do not cover."""
    gaps: list[tuple[int, int]] = []
    position = start
    for file in sorted(files, key=lambda each: each.start):
        if file.start >= end:
            break
        if file.start > position:
            gaps.append((position, file.start))
        position = max(position, file.end)
    if position < end:
        gaps.append((position, end))
    return gaps


def by_source(files: Iterable[ArchivedFile]) -> Mapping[ArchivedPartition, list[ArchivedFile]]:
    """Return the files of each partition, by offset."""
    found: dict[ArchivedPartition, list[ArchivedFile]] = {}
    for file in sorted(files, key=lambda each: each.order):
        found.setdefault(file.source, []).append(file)
    return found
