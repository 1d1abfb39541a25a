"""Deletes what no broker needs any more: old entries of the change log, and marks of deleted keys.

A mark is deleted when three conditions are true: every session has read past the deletion, or has begun later and has
read a snapshot since; an hour has passed; and the mark is unchanged. Each session stores the position that it has read
in its znode. The hour is for commits that are still on the way over a broken connection of a live session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kazoo.exceptions import KazooException
from kazoo.protocol.states import ZnodeStat

from headrace.metadata_stores.change_log import BYTES_LIMIT, ENTRIES_LIMIT
from headrace.metadata_stores.zookeeper import layout
from headrace.metadata_stores.zookeeper.layout import Change, LoggedDelete, UnreadableZnodeError
from headrace.metadata_stores.zookeeper.link import Link
from headrace.metadata_stores.zookeeper.reader import Reader
from headrace.metadata_stores.zookeeper.tree import Tree, znode_of

MARKS_KEPT_MS: Final = 3_600_000
"""The time in milliseconds for which a mark is kept at least."""
GENERATION_LIMIT: Final = 2_000_000_000
"""The number of entries after which another generation of the change log begins. ZooKeeper counts to 2^31."""
_TOGETHER: Final = 50
"""The greatest number of znodes that one transaction deletes."""


async def prune_log(link: Link, reader: Reader, generation_limit: int = GENERATION_LIMIT) -> None:
    """Delete all entries of the change log except for the newest, and begin another generation in time."""
    names = await link.children(layout.CHANGES) or []
    current = layout.generation_path(reader.generation).rpartition("/")[2]
    for name in names:
        if name < current:
            await _delete_generation(link, f"{layout.CHANGES}/{name}")
    directory = f"{layout.CHANGES}/{current}"
    entries = [f"{directory}/{name}" for name in await link.children(directory) or []]
    kept = await _kept(link, entries)
    await _delete(link, entries[: len(entries) - kept])
    if entries and int(entries[-1].rpartition("-")[2]) >= generation_limit:
        following = reader.generation + 1
        await link.multi(
            [
                link.writing(layout.CHANGES, layout.log_data(following), reader.log_version),
                link.creation(layout.generation_path(following), b""),
            ]
        )


async def _kept(link: Link, entries: Sequence[str]) -> int:
    """Return how many of the newest entries the limits allow; at least one."""
    size, kept = 0, 0
    for stat in reversed(await link.stats(entries[-ENTRIES_LIMIT:])):
        size += 0 if stat is None else stat.dataLength
        if kept and size > BYTES_LIMIT:
            break
        kept += 1
    return kept


async def _delete_generation(link: Link, path: str) -> None:
    names = await link.children(path) or []
    await _delete(link, [f"{path}/{name}" for name in names])
    await link.multi([link.deletion(path)])


async def _delete(link: Link, paths: Sequence[str]) -> None:
    # If another broker prunes as well, a transaction is refused, and the rest is deleted the next time.
    for start in range(0, len(paths), _TOGETHER):
        await link.multi([link.deletion(path) for path in paths[start : start + _TOGETHER]])


async def prune_marks(link: Link, tree: Tree, reader: Reader, kept_ms: int = MARKS_KEPT_MS) -> None:
    """Delete the marks that no session needs."""
    position = await _least_position(link)
    keys = [key for key, node in tree.nodes().items() if not node.entry and node.version < position]
    if not keys:
        return
    own = await link.one_write(layout.session_path(link.client.number), b"%d" % reader.position)
    paths = [layout.path_of(key) for key in keys]
    found = await link.get_many(paths)
    old = [
        (key, each[1].version)
        for key, each in zip(keys, found, strict=True)
        if each is not None and _is_old_mark(key, each, position, own.mtime - kept_ms)
    ]
    for start in range(0, len(old), _TOGETHER):
        await _delete_marks(link, reader, old[start : start + _TOGETHER])


def _is_old_mark(key: str, found: tuple[bytes, ZnodeStat], position: int, until_ms: int) -> bool:
    try:
        node = znode_of(key, found)
    except UnreadableZnodeError:
        return False
    if node is None or node.entry is not None:
        return False
    return node.version < position and found[1].mtime <= until_ms


async def _delete_marks(link: Link, reader: Reader, marks: Iterable[tuple[str, int]]) -> None:
    """Delete marks in one transaction with an entry of the change log, by which all brokers forget them."""
    marks = list(marks)
    deletes = [LoggedDelete(key, -1) for key, _ in marks]
    change = Change(layout.FORMAT, link.client.number, [], deletes)
    path = f"{layout.generation_path(reader.generation)}/c-"
    await link.multi(
        [
            link.checking(layout.CHANGES, reader.log_version),
            *(link.deletion(layout.path_of(key), version) for key, version in marks),
            link.creation(path, layout.change_data(change), sequence=True),
        ]
    )


async def _least_position(link: Link) -> int:
    """Return the position that every session has read; 0 if one has read nothing, or if it is unknown."""
    names = await link.children(layout.SESSIONS) or []
    found = await link.get_many([f"{layout.SESSIONS}/{name}" for name in names])
    positions = [each[0] for each in found if each is not None]
    if not positions or not all(data.isdigit() for data in positions):
        return 0
    return min(map(int, positions))


async def prune(link: Link, tree: Tree, reader: Reader, marks_kept_ms: int) -> str | None:
    """Delete old entries of the change log and old marks; return what went wrong, if anything did."""
    try:
        await prune_log(link, reader)
        await prune_marks(link, tree, reader, marks_kept_ms)
    except KazooException as error:
        return str(error) or type(error).__name__
    return None
