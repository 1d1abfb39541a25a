"""The files of an archive, and their names.

A file has the records of one partition in the order of offsets, and covers a range of offsets. An offset of the range
without a record in the file has none in the topic: it is a transaction marker, an aborted record, or was removed by
compaction. The path describes the range, so that the table's list of files shows what is archived:

    data/topic-flights/5f0c.../0/00000000000000000000-00000000000000012345-9f3a61c2d4e5f607.parquet
               topic   topic id partition  first offset  offset after the last   attempt

Each attempt of a task uses new names. A file counts only if it is in the table. Other files are orphans.
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
    """A partition of a topic with a certain id. A topic that is created again has another id."""

    topic: str
    topic_id: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic and the number of the partition, without the topic's id."""
        return TopicPartition(self.topic, self.partition)

    @property
    def directory(self) -> str:
        """The directory of the partition's files, relative to the table."""
        return f"{DATA}/topic-{self.topic}/{self.topic_id or _NO_ID}/{self.partition}"


@dataclass(frozen=True)
class ArchivedFile:
    """A data file of the table."""

    source: ArchivedPartition
    start: int
    """The first offset that the file covers."""
    end: int
    """The end offset of the file, exclusive."""
    path: str
    """The path relative to the table."""
    size: int
    """The size of the file in bytes."""
    records: int
    """The number of records, 0 for a range without records."""
    latest_ms: int | None = field(default=None, compare=False)
    """The latest time of the file's records in milliseconds since 1970; None if the table does not have it."""

    @property
    def order(self) -> tuple[ArchivedPartition, int]:
        """The sort key: partition and first offset."""
        return self.source, self.start


@dataclass(frozen=True)
class WrittenFile:
    """A file that a task has written, with its statistics for the table's log. It is not part of the table yet."""

    file: ArchivedFile
    first_offset: int | None = None
    """The offset of the first record; None without records."""
    last_offset: int | None = None
    """The offset of the last record; None without records."""
    min_timestamp_ms: int | None = None
    """The earliest time of the records in milliseconds since 1970; None if it is not known."""
    max_timestamp_ms: int | None = None
    """The latest time of the records in milliseconds since 1970; None if it is not known."""

    def to_json(self) -> str:
        """Encode the file for the way from a task to the driver."""
        return json.dumps(
            asdict(self) | {"file": {**asdict(self.file), "source": self.file.source}}
        )

    @classmethod
    def from_json(cls, text: str) -> WrittenFile:
        """Decode a file that `to_json` encoded."""
        fields = json.loads(text)
        file = fields.pop("file")
        return cls(ArchivedFile(**{**file, "source": ArchivedPartition(*file["source"])}), **fields)


def file_path(source: ArchivedPartition, start: int, end: int, attempt: str | None = None) -> str:
    """Return a new path, relative to the table, for a file that covers a range. No other file has this path."""
    attempt = attempt or uuid.uuid4().hex[:16]
    return f"{source.directory}/{start:020d}-{end:020d}-{attempt}.parquet"


def parse_path(
    path: str, size: int, records: int, latest_ms: int | None = None
) -> ArchivedFile | None:
    """Parse a path relative to the table. None if the path is of another program's file."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    topic_id = match["topic_id"] if match["topic_id"] != _NO_ID else ""
    source = ArchivedPartition(match["topic"], topic_id, int(match["partition"]))
    start, end = int(match["start"]), int(match["end"])
    return ArchivedFile(source, start, end, path, size, records, latest_ms)


def uncovered(files: Iterable[ArchivedFile], start: int, end: int) -> list[tuple[int, int]]:
    """Return the subranges of a range that the files of one partition do not cover."""
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
    """Return the files of each partition, in the order of offsets."""
    found: dict[ArchivedPartition, list[ArchivedFile]] = {}
    for file in sorted(files, key=lambda each: each.order):
        found.setdefault(file.source, []).append(file)
    return found
