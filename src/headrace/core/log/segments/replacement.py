"""Putting a compacted segment in the place of those that it was made from, in a way that no crash can leave half done.

Neighbouring sealed segments with offsets B to E become one segment. Its last batch always ends at E, if only as a
header, so the file itself says which segments it replaces.

    1. `<B>.log.<T>.cleaned` is written and synced                                in a thread
    2. it is renamed to `<B>.log.<T>.swap`, durably: from here on it counts       in a thread
    3. the old segments and their indexes are removed (`install`)                 on the loop
    4. the removals are made durable                                              in a thread
    5. `<B>.log.<T>.swap` is renamed to `<B>.log`, durably                        in a thread

T is the id of the topic. While a step runs in its thread, the topic may be deleted, and another one created under its
name: then the step writes into the directory of the other topic. What it leaves there has the wrong id: it never
counts, and is removed. Step 5 does nothing there, as it finds no file with its id.

Between 2 and 3 the log still consists of the old segments; a round that ends there removes the `.swap`. Between 3 and 5
the new segment is open, and stays so until its file has its name (`Segments.settle`).

What the next start finds, and what it does (`finish_replacements`):

    | crash in | found                                | done                                            |
    |----------|--------------------------------------|-------------------------------------------------|
    | 1        | .cleaned, whole or not; all old ones | .cleaned is removed: as before the round        |
    | 2        | .cleaned or .swap; all old ones      | as above, or steps 3 to 5                       |
    | 3, 4     | .swap; any of the old ones           | steps 3 to 5                                    |
    | 5        | .swap or .log; no old ones           | step 5, or nothing                              |

Every row can be interrupted and done again. Step 4 comes before step 5: a merged `<B>.log` beside a removed segment
that has come back would be an overlap that nothing explains. What is compacted is wholly below the recovery point, so
recovery never finds a torn tail in it.
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
    """A compacted segment in a file of its own, synced, and the segments that it replaces."""

    sources: Sequence[Segment]
    file: File
    index: SparseIndex
    first_timestamp: int
    aborted: AbortedTransactions = field(default_factory=AbortedTransactions)
    """The aborted transactions whose markers stay in it. Readers are no longer told of others that ended in it."""
    expiries: ExpiryIndex | None = None
    """When the records expire, where they do."""
    owner: str = ""
    """The id of the log's topic in hexadecimal, "" if the log does not know it."""

    @property
    def first(self) -> Segment:
        """The first of the old segments, which gives the new one its name."""
        return self.sources[0]

    def make_count(self, files: FileSystem) -> None:
        """Give the file its second name, step 2: a start after a crash will go on from here."""
        files.rename(cleaned_path(self.first, self.owner), swap_path(self.first, self.owner))

    def name(self, files: FileSystem) -> None:
        """Give the installed file its last name, steps 4 and 5.

        Raises:
            OSError: It does not have it yet. Unless the disk has failed, the call can be repeated.
        """
        files.sync_directory(self.first.directory)
        files.rename(swap_path(self.first, self.owner), self.first.path)


def cleaned_path(first: Segment, owner: str) -> str:
    """Return the path of what is to replace a segment, while it is written."""
    return _replacement_path(first.path, owner, CLEANED_SUFFIX)


def swap_path(first: Segment, owner: str) -> str:
    """Return the path of what replaces a segment, once it is complete."""
    return _replacement_path(first.path, owner, SWAP_SUFFIX)


def _replacement_path(path: str, owner: str, suffix: str) -> str:
    return f"{path}.{owner}{suffix}" if owner else path + suffix


def discard_replacements(files: FileSystem, directory: str, owner: str) -> None:
    """Remove what a round of an owner has written and not installed.

    Raises:
        OSError: Something may still be there; the next start removes it.
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
    """Replace the old segments, step 3; ranges that readers hold stay readable. It waits for no sync.

    Raises:
        OSError: It is half done; the log can be used again after a restart.
    """
    sources, first = replacement.sources, replacement.first
    assert segments.holds(sources), "they were taken away, and the round goes on"
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
    """Finish or discard what a crash has cut short; return the names in the directory afterwards.

    Args:
        files: The file system of the log.
        directory: The log's directory.
        owner: The id of the log's topic in hexadecimal. What was written for another topic is removed. Files without
            an id are the log's own: earlier versions wrote them.

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
            files.remove(f"{directory}/{name}")  # its open transactions may have lost their markers
        if match and base_offset <= int(match[1]) < end_offset:
            files.remove(f"{directory}/{name}")
    files.sync_directory(directory)
    files.rename(swap, target)


def _end_offset(file: File, path: str) -> int:
    """Return the end offset of a file of whole batches; it was synced before it got its name."""
    position, end_offset = 0, -1
    while position < file.size:
        chunk = file.read(position, HEADER_SIZE)
        header = BatchHeader.parse(chunk) if len(chunk) == HEADER_SIZE else None
        if header is None or position + header.size > file.size or header.size < HEADER_SIZE:
            raise StorageError(f"{path} is damaged at byte {position}; restore the partition")
        position += header.size
        end_offset = header.next_offset
    if end_offset < 0:
        raise StorageError(f"{path} is empty; restore the partition from a backup")
    return end_offset
