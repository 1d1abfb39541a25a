"""The names of the files of a segment."""

from __future__ import annotations

from typing import Final

LOG_SUFFIX: Final = ".log"


def segment_path(directory: str, base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    """Return the path of a file of a segment: the base offset in twenty digits, as in Kafka, and a suffix."""
    return f"{directory}/{base_offset:020d}{suffix}"
