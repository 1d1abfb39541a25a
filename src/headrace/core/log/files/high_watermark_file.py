"""The file `replication-offset-checkpoint` of a log directory: the high watermark of each partition, in Kafka's format.

The first line is the version, the second line the number of entries. Each further line is an entry: topic, partition
and high watermark. The format has no checksum: a file that was cut short has too few entries, or no last line break.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.types import TopicPartition

HIGH_WATERMARK_FILE: Final = "replication-offset-checkpoint"
_VERSION: Final = "0"


def entry_of(partition: TopicPartition, high_watermark: int) -> str:
    """Return the line of a partition."""
    return f"{partition.topic} {partition.partition} {high_watermark}"


def encode_high_watermarks(entries: Iterable[str]) -> bytes:
    """Return the content of the file."""
    lines = list(entries)
    return "\n".join((_VERSION, str(len(lines)), *lines, "")).encode()


def decode_high_watermarks(content: bytes | None) -> dict[TopicPartition, int]:
    """Return the high watermarks by partition; none when the file is absent or damaged."""
    if content is None:
        return {}
    lines = content.decode("utf-8", "replace").split("\n")
    try:
        version, count, *entries, end = lines
        if version != _VERSION or int(count) != len(entries) or end:
            return {}
        return dict(map(_entry, entries))
    except ValueError:
        return {}


def _entry(line: str) -> tuple[TopicPartition, int]:
    topic, partition, high_watermark = line.split(" ")
    if not high_watermark.isdecimal():
        raise ValueError(line)
    return TopicPartition(topic, int(partition)), int(high_watermark)
