"""Replacing segments by the compacted segment that was made from them, so that no crash leaves the log half replaced.

Neighbouring sealed segments with offsets B to E become one segment. Its last batch always ends at E, if only as a
header, so the file itself says which segments it replaces.

    1. `<B>.log.<T>.cleaned` is written and synced                                     in a thread
    2. it is renamed to `<B>.log.<T>.swap`, durably: from here on it is valid          in a thread
    3. the old segments and their sidecars are removed (`install`)                     on the loop
    4. the removals are made durable                                                   in a thread
    5. `<B>.log.<T>.swap` is renamed to `<B>.log`, durably                             in a thread

T is the id of the topic. It protects a new topic with the same name: (1) A thread runs a step. (2) The topic is
deleted, and another one created under its name. (3) The thread writes into the directory of the new topic. The file has
the wrong id, so it is never valid, and is removed. Step 5 does nothing there, as it finds no file with its id.

Between 2 and 3 the log still consists of the old segments. A round that ends there removes the `.swap` file. Between 3
and 5 the new segment is open, and stays open until its file has its final name (`Segments.settle`).

After a crash the next start does this (`finish_replacements`):

    | crash in | files found                          | action                                          |
    |----------|--------------------------------------|-------------------------------------------------|
    | 1        | .cleaned, whole or not; all old ones | .cleaned is removed: as before the round        |
    | 2        | .cleaned or .swap; all old ones      | as in the row above, or steps 3 to 5            |
    | 3, 4     | .swap; any of the old ones           | steps 3 to 5                                    |
    | 5        | .swap or .log; no old ones           | step 5, or nothing                              |

Each action can be interrupted and repeated. Step 4 comes before step 5: if a removed segment came back beside a merged
`<B>.log`, the two would overlap without an explanation. Compacted segments lie wholly below the recovery point, so
recovery never finds a torn tail in them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.core.log.files.paths import segment_path
from headrace.core.log.index.aborted_transactions import AbortedTransactions
from headrace.core.log.index.expiry_index import ExpiryIndex
from headrace.core.log.index.sidecars import SEGMENT_FILE
from headrace.core.log.index.sparse_index import SparseIndex
from headrace.core.log.segments.segment import Segment
from headrace.core.log.segments.segments import Segments
from headrace.errors import StorageError
from headrace.ports import File, FileSystem
from headrace.records.batch import HEADER_SIZE, BatchHeader

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

_REPLACEMENT_FILE: Final = re.compile(r"(\d{20})\.log(?:\.([0-9a-f]{32}))?\.(cleaned|swap)")


@dataclass(frozen=True, slots=True)
class Replacement:
    """A compacted segment in a synced file of its own, and the segments that it replaces."""

    sources: Sequence[Segment]
    file: File
    index: SparseIndex
    first_timestamp: int
    aborted: AbortedTransactions = field(default_factory=AbortedTransactions)
    """The aborted transactions whose markers stay in the segment. Readers no longer learn of others that ended in it.
    """
    expiries: ExpiryIndex | None = None
    """The expiry times of the records of the segment; None if they do not expire."""
    owner: str = ""
    """The id of the log's topic in hexadecimal, "" if the log does not know it."""

    @property
    def first(self) -> Segment:
        """The first of the old segments. The new segment has its base offset."""
        return self.sources[0]

    def make_count(self, files: FileSystem) -> None:
        """Rename the file to `.swap` (step 2). A start after a crash goes on from here."""
        files.rename(cleaned_path(self.first, self.owner), swap_path(self.first, self.owner))

    def name(self, files: FileSystem) -> None:
        """Rename the installed file to its final name (steps 4 and 5).

        Raises:
            OSError: The file does not have the name yet. Unless the disk has failed, the call can be repeated.
        """
        files.sync_directory(self.first.directory)
        files.rename(swap_path(self.first, self.owner), self.first.path)


def cleaned_path(first: Segment, owner: str) -> str:
    """Return the path of a replacement while it is written."""
    return _replacement_path(first.path, owner, CLEANED_SUFFIX)


def swap_path(first: Segment, owner: str) -> str:
    """Return the path of a replacement that is complete."""
    return _replacement_path(first.path, owner, SWAP_SUFFIX)


def _replacement_path(path: str, owner: str, suffix: str) -> str:
    return f"{path}.{owner}{suffix}" if owner else path + suffix


def discard_replacements(files: FileSystem, directory: str, owner: str) -> None:
    """Remove the files that a round has written for a topic and not installed.

    Raises:
        OSError: Files may be left; the next start removes them.
    """
    found = [
        name
        for name in files.list(directory)
        if (match := _REPLACEMENT_FILE.fullmatch(name)) and (match[2] or "") == owner
    ]
    for name in found:
        files.remove(f"{directory}/{name}")
    if found:
        files.sync_directory(directory)


def install(
    files: FileSystem, segments: Segments, replacement: Replacement, *, interval: int
) -> None:
    """Replace the old segments (step 3) without waiting for a sync. Ranges that readers hold stay readable.

    Raises:
        OSError: The replacement is incomplete. After a restart the log can be used again.
    """
    sources, first = replacement.sources, replacement.first
    assert segments.holds(sources), "the segments are gone, but their round continues"
    segment = Segment(
        files,
        first.directory,
        first.base_offset,
        interval=interval,
        created_ms=sources[-1].created_ms,
    )
    end_offset, file = sources[-1].end_offset, replacement.file
    for source in reversed(sources):
        source.remove_names()
    segment.adopt(file, replacement.index, file.size, end_offset, replacement.first_timestamp)
    segment.expiries.adopt(replacement.expiries)
    segment.looked_through_ms = sources[-1].looked_through_ms
    segments.replace(sources, segment)


def finish_replacements(files: FileSystem, directory: str, owner: str = "") -> list[str]:
    """Finish or discard replacements that a crash interrupted, and return the names in the directory afterwards.

    Args:
        files: The file system of the log.
        directory: The log's directory.
        owner: The id of the log's topic in hexadecimal. Replacements for another topic are removed. Files without an id
            belong to the log: earlier versions wrote them.

    Raises:
        StorageError: A `.swap` file is damaged.
    """
    names = files.list(directory)
    if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        return names
    for name in names:
        path = f"{directory}/{name}"
        match = _REPLACEMENT_FILE.fullmatch(name)
        if match is None:
            continue
        if match[3] == "swap" and match[2] in {None, owner}:
            _finish(files, directory, int(match[1]), path, names)
        else:
            files.remove(path)
    return files.list(directory)


def _finish(
    files: FileSystem, directory: str, base_offset: int, swap: str, names: Sequence[str]
) -> None:
    target = segment_path(directory, base_offset)
    end_offset = _end_offset(files.open(swap), swap)
    for name in reversed(names):
        match = SEGMENT_FILE.fullmatch(name)
        if name.endswith(".snapshot") and int(name[:20]) < end_offset:
            files.remove(f"{directory}/{name}")  # the markers of its open transactions may be gone
        if match and base_offset <= int(match[1]) < end_offset:
            files.remove(f"{directory}/{name}")
    files.sync_directory(directory)
    files.rename(swap, target)


def _end_offset(file: File, path: str) -> int:
    """Return the end offset of a file of whole batches. The file was synced before it got its name."""
    position, end_offset = 0, -1
    while position < file.size:
        chunk = file.read(position, HEADER_SIZE)
        header = BatchHeader.parse(chunk) if len(chunk) == HEADER_SIZE else None
        if header is None or position + header.size > file.size or header.size < HEADER_SIZE:
            raise StorageError(
                f"{path} is damaged at byte {position}. Restore the partition from a backup."
            )
        position += header.size
        end_offset = header.next_offset
    if end_offset < 0:
        raise StorageError(f"{path} is empty. Restore the partition from a backup.")
    return end_offset
