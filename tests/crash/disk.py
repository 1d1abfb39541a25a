"""A model of a disk that replays a recording, and returns possible states of the disk after a power cut.

Two things are durable: the content of a file, and the names of a directory, up to the beginning of their last completed
sync. Every later change may be there or not, in any combination: writes are torn at 512 bytes, a file has the size that
some of its writes made, and names are old or new. The mode `JOURNAL` models ext4: names change in order, and any sync
makes all earlier changes of names durable.
"""

from __future__ import annotations

import os
import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar, NamedTuple

from tests.crash.recording import Event, Kind

SECTOR = 512
KEEP_SIZE = 1


class Names(Enum):
    """The rules by which names survive a power cut."""

    POSIX = "each directory by its own sync"
    JOURNAL = "all in order, by any sync"


class Operation(NamedTuple):
    """A change of a file: data at a byte position, or a new size (without data)."""

    position: int
    data: bytes | None


def apply(content: bytearray, operation: Operation) -> None:
    position, data = operation
    if data is None:
        del content[position:]
        content.extend(bytes(position - len(content)))
        return
    content.extend(bytes(max(0, position - len(content))))
    content[position : position + len(data)] = data


@dataclass(eq=False)
class File:
    durable: bytearray = field(default_factory=bytearray)
    content: bytearray = field(default_factory=bytearray)
    pending: list[Operation] = field(default_factory=list)
    synced: int = 0
    """The number of durable operations. The operations in `pending` follow them."""

    def change(self, operation: Operation) -> None:
        apply(self.content, operation)
        self.pending.append(operation)

    @property
    def mark(self) -> int:
        return self.synced + len(self.pending)

    def sync(self, mark: int) -> None:
        count = max(0, mark - self.synced)
        for operation in self.pending[:count]:
            apply(self.durable, operation)
        del self.pending[:count]
        self.synced += count

    def after_power_cut(self, chance: random.Random) -> bytes:
        """Return one of the possible contents of the file."""
        content = bytearray(self.durable)
        fate = chance.choice(["none", "all", "torn", "torn", "holes", "some"])
        if fate == "none" or not self.pending:
            return bytes(content)
        whole = (
            len(self.pending)
            if fate in {"all", "holes"}
            else chance.randrange(len(self.pending) + 1)
        )
        for number, operation in enumerate(self.pending):
            if number < whole and fate != "holes":
                apply(content, operation)
            elif fate == "torn" and number == whole:
                tear(content, operation, chance)
            elif fate in {"holes", "some"} and chance.random() < 0.7:
                scatter(content, operation, chance)
        return bytes(content)


def sectors(operation: Operation) -> list[Operation]:
    """Split a write at the positions where a disk may tear it."""
    position, data = operation
    if data is None:
        return [operation]
    found, start = [], 0
    while start < len(data):
        end = min(len(data), start + SECTOR - (position + start) % SECTOR)
        found.append(Operation(position + start, data[start:end]))
        start = end
    return found


def tear(content: bytearray, operation: Operation, chance: random.Random) -> None:
    """Apply the beginning of a write."""
    parts = sectors(operation)
    for part in parts[: chance.randrange(len(parts) + 1)]:
        apply(content, part)


def scatter(content: bytearray, operation: Operation, chance: random.Random) -> None:
    """Apply some sectors of a write. The file may have the new size although sectors are missing."""
    position, data = operation
    if data is not None and chance.random() < 0.5:
        content.extend(bytes(max(0, position + len(data) - len(content))))
    for part in sectors(operation):
        if chance.random() < 0.6:
            apply(content, part)


@dataclass(eq=False)
class Directory:
    durable: dict[str, Node] = field(default_factory=dict)
    entries: dict[str, Node] = field(default_factory=dict)
    pending: list[tuple[int, dict[str, Node | None]]] = field(default_factory=list)
    """Changes of names that are not durable, with numbers that count over all directories."""

    def sync(self, before: int) -> None:
        for number, names in self.pending:
            if number < before:
                rename(self.durable, names)
        self.pending = [change for change in self.pending if change[0] >= before]

    def after_power_cut(self, chance: random.Random, journalled: int | None) -> dict[str, Node]:
        """Return possible names after a power cut. With a journal these are the changes below `journalled`."""
        found = dict(self.durable)
        fate = chance.choice(["none", "all", "prefix", "some"])
        count = {"none": 0, "all": len(self.pending)}.get(fate)
        if count is None:
            count = chance.randrange(len(self.pending) + 1)
        for index, (number, names) in enumerate(self.pending):
            if journalled is not None:
                kept = number < journalled
            else:
                kept = chance.random() < 0.5 if fate == "some" else index < count
            if kept:
                rename(found, names)
        return found


Node = File | Directory


def rename(entries: dict[str, Node], names: dict[str, Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


Image = dict[str, bytes | None]
"""The content of files by relative path; None for directories."""


class Disk:
    """The state of a directory while a recording is replayed, event by event.

    Syncs of paths that match `ignored` do nothing, to test whether they are needed. Paths are relative to the
    directory. Paths of directories end with a slash.
    """

    def __init__(self, root: Path, image: Image, *, ignored: str = "$^") -> None:
        self._root = str(root)
        self._ignored = re.compile(ignored)
        self._top = Directory()
        self._descriptors: dict[int, Node] = {}
        self._paths: dict[int, str] = {}
        self._syncs: dict[int, tuple[Node, int, int]] = {}
        self._changes = 0
        """The number of changes of names until now."""
        self._journalled = 0
        """The number of changes that are durable with a journal."""
        for path, content in sorted(image.items()):
            parent, name = self._parent(f"{self._root}/{path}")
            node: Node = (
                Directory() if content is None else File(bytearray(content), bytearray(content))
            )
            parent.entries[name] = parent.durable[name] = node

    # Replaying

    def apply(self, event: Event) -> None:
        """Apply one event of a server."""
        self._APPLY[event.kind](self, event)

    def _close(self, event: Event) -> None:
        self._descriptors.pop(event.number, None)

    def _write(self, event: Event) -> None:
        self._file(event).change(Operation(event.position, event.data))

    def _truncate(self, event: Event) -> None:
        self._file(event).change(Operation(event.position, None))

    def _begin_sync(self, event: Event) -> None:
        node, path = self._descriptors[event.detail], self._paths[event.detail]
        mark = node.mark if isinstance(node, File) else 0
        if not self._ignored.search(path if isinstance(node, File) else f"{path}/"):
            self._syncs[event.number] = (node, mark, self._changes)

    def _unlink(self, event: Event) -> None:
        parent, name = self._parent(event.path)
        assert name in parent.entries, f"{event.path} is not known"
        self._change(parent, {name: None})

    def _make_directory(self, event: Event) -> None:
        parent, name = self._parent(event.path)
        self._change(parent, {name: Directory()})

    def _unexpected(self, event: Event) -> None:
        raise AssertionError(f"the recorder does not understand this: {event.path}")

    def _open(self, event: Event) -> None:
        path, flags = event.path.rstrip("/"), event.detail
        self._paths[event.number] = path[len(self._root) + 1 :]
        if path == self._root:
            self._descriptors[event.number] = self._top
            return
        parent, name = self._parent(path)
        node = parent.entries.get(name)
        if node is None:
            assert flags & os.O_CREAT, f"{path} is not known"
            node = File()
            self._change(parent, {name: node})
        elif isinstance(node, File) and flags & os.O_TRUNC and node.content:
            node.change(Operation(0, None))
        self._descriptors[event.number] = node

    def _file(self, event: Event) -> File:
        node = self._descriptors[event.number]
        assert isinstance(node, File)
        return node

    def _allocate(self, event: Event) -> None:
        file = self._file(event)
        (size,) = struct.unpack("<q", event.data)
        assert event.detail in {0, KEEP_SIZE}, f"fallocate with mode {event.detail}"
        if event.detail != KEEP_SIZE and event.position + size > len(file.content):
            file.change(Operation(event.position + size, None))

    def _sync(self, event: Event) -> None:
        if event.number not in self._syncs:
            return  # ignored
        node, mark, changes = self._syncs.pop(event.number)
        if event.detail:
            return  # failed
        node.sync(mark if isinstance(node, File) else changes)
        self._journalled = max(self._journalled, changes)

    def _rename(self, event: Event) -> None:
        old, new = event.paths
        old_parent, old_name = self._parent(old)
        new_parent, new_name = self._parent(new)
        node = old_parent.entries[old_name]
        if old_parent is new_parent:
            self._change(old_parent, {old_name: None, new_name: node})
        else:
            self._change(new_parent, {new_name: node})
            self._change(old_parent, {old_name: None})

    def _change(self, directory: Directory, names: dict[str, Node | None]) -> None:
        rename(directory.entries, names)
        directory.pending.append((self._changes, names))
        self._changes += 1

    def _parent(self, path: str) -> tuple[Directory, str]:
        assert path.startswith(f"{self._root}/"), f"{path} lies elsewhere"
        *above, name = path[len(self._root) + 1 :].rstrip("/").split("/")
        directory = self._top
        for part in above:
            below = directory.entries[part]
            assert isinstance(below, Directory)
            directory = below
        return directory, name

    _APPLY: ClassVar[dict[Kind, Callable[[Disk, Event], None]]] = {
        Kind.OPEN: _open,
        Kind.CLOSE: _close,
        Kind.WRITE: _write,
        Kind.TRUNCATE: _truncate,
        Kind.ALLOCATE: _allocate,
        Kind.SYNC_BEGIN: _begin_sync,
        Kind.SYNC_END: _sync,
        Kind.RENAME: _rename,
        Kind.UNLINK: _unlink,
        Kind.RMDIR: _unlink,
        Kind.MKDIR: _make_directory,
        Kind.UNEXPECTED: _unexpected,
    }

    # Images

    def image(self) -> Image:
        """Return the content that a reader sees now, which is also the content after a kill."""
        return dict(_walk(self._top, lambda d: d.entries, lambda f: bytes(f.content)))

    def image_after_power_cut(self, seed: int, names: Names) -> Image:
        """Return one of the possible states of the disk after a power cut."""
        chance = random.Random(seed)
        journalled: int | None = None
        if names is Names.JOURNAL:
            journalled = chance.choice(
                [self._journalled, self._changes, chance.randint(self._journalled, self._changes)]
            )
        contents: dict[File, bytes] = {}

        def content(file: File) -> bytes:
            if file not in contents:
                contents[file] = file.after_power_cut(chance)
            return contents[file]

        return dict(_walk(self._top, lambda d: d.after_power_cut(chance, journalled), content))


def _walk(directory, entries, content, prefix: str = "") -> Iterator[tuple[str, bytes | None]]:
    for name, node in sorted(entries(directory).items()):
        path = f"{prefix}{name}"
        if isinstance(node, Directory):
            yield path, None
            yield from _walk(node, entries, content, f"{path}/")
        else:
            yield path, content(node)


def write_image(image: Image, directory: Path) -> None:
    """Write an image into an empty directory."""
    directory.mkdir(parents=True)
    for path, content in image.items():
        if content is None:
            (directory / path).mkdir()
        else:
            (directory / path).write_bytes(content)


def read_image(directory: Path) -> Image:
    """Read a directory as an image."""
    return {
        path.relative_to(directory).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in directory.rglob("*")
    }
