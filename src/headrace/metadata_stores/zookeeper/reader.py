"""Follows the change log of a cluster: a snapshot of all keys first, then one commit after the other.

ZooKeeper numbers the entries of the log without a gap. The reader asks for the next number, and waits until ZooKeeper
has it. If the next entry is missing although later entries exist, it was pruned, and the reader takes a snapshot again.

The end of a session deletes its ephemeral keys without an entry in the log. So the reader watches these znodes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from kazoo.exceptions import ConnectionLoss, KazooException
from kazoo.protocol.states import ZnodeStat

from headrace.metadata_stores.zookeeper import layout
from headrace.metadata_stores.zookeeper.layout import UnreadableZnodeError
from headrace.metadata_stores.zookeeper.link import Link
from headrace.metadata_stores.zookeeper.tree import MissingValueError, Tree, readable
from headrace.ports import Journal, MetadataBatch

LOOK_INTERVAL_S: Final = 30.0
"""The time after which the reader looks for entries even without a notification."""
RETRY_INTERVAL_S: Final = 1.0
_FIRST_READ: Final = 2
_READ: Final = 64


class Reader:
    """Keeps a tree at the end of the change log. One session after the other runs it."""

    def __init__(
        self, tree: Tree, journal: Journal, deliver: Callable[[MetadataBatch, int], object]
    ) -> None:
        """Begin without a position.

        Args:
            tree: What the broker knows of the znodes.
            journal: Receives the log events.
            deliver: Receives each change with its size in bytes, in order.
        """
        self.tree = tree
        self._journal = journal
        self._deliver = deliver
        self.generation = 0
        """The generation of the change log; 0 before the first snapshot."""
        self.log_version = -1
        """The version of the znode that names the generation."""
        self.position = 0
        """The version of the last commit that was read; 0 if none was."""
        self._next: int | None = None
        """The number of the next entry; None if a snapshot is needed."""
        self._size = _FIRST_READ
        """The number of entries to ask for together."""
        self._changed = asyncio.Event()
        self._unwatched: set[str] = set()
        """The ephemeral keys to look at."""
        self._is_log_watched = False
        self._suspects: dict[str, tuple[int, int]] = {}
        """Keys whose znode was changed without an entry in the log, as it seems: see `suspect`."""
        self._waiting: list[asyncio.Future[None]] = []

    # Requests of others

    def look(self) -> None:
        """Look for entries soon."""
        self._changed.set()

    def look_at_all(self) -> None:
        """Look at everything soon, because notifications may be missing."""
        self._is_log_watched = False
        self._unwatched |= self.tree.ephemeral
        self._changed.set()

    def suspect(self, key: str, version: int) -> None:
        """Note that a znode has another version than the tree. If no entry of the log explains it, it was edited.

        Args:
            key: The key.
            version: The version of the znode; 0 if it does not exist.
        """
        self._suspects[key] = version, self.position
        if key in self.tree.ephemeral:
            self._unwatched.add(key)
        self._changed.set()

    def reload(self) -> None:
        """Take a snapshot soon."""
        self._next = None
        self._changed.set()

    def caught_up(self) -> asyncio.Future[None]:
        """Return a future that is done when everything was read that the server has now."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.look_at_all()
        return future

    # The loop

    async def run(self, link: Link) -> None:
        """Follow the log in a session, until the session is lost."""
        self.look_at_all()
        while not link.is_lost():
            try:
                await link.connected.wait()
                await self._follow(link)
            except ConnectionLoss:
                self.look_at_all()
                if (
                    link.state == "connected"
                ):  # the call was too slow: the connection is about to break
                    await asyncio.sleep(RETRY_INTERVAL_S / 10)
            except (KazooException, UnreadableZnodeError) as error:
                if link.is_lost():
                    return
                await self._failed(error)
            except Exception as error:  # noqa: BLE001 - without a reader the broker would know nothing any more
                await self._failed(error)

    async def _failed(self, error: Exception) -> None:
        self._journal.error("metadata_log_not_read", error=str(error) or repr(error))
        self._next = None
        await asyncio.sleep(RETRY_INTERVAL_S)

    async def _follow(self, link: Link) -> None:
        while not link.is_lost():
            await self._catch_up(link)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK_INTERVAL_S)

    async def _catch_up(self, link: Link) -> None:
        """Read everything that there is."""
        while True:
            self._changed.clear()
            waiting = len(self._waiting)
            suspects = dict(self._suspects)
            if not self._is_log_watched:
                await self._watch_log(link)
            if self._next is None:
                await self._take_snapshot(link)
            await self._look_at_ephemeral_keys(link)
            if await self._read(link):
                continue
            if await self._is_at_end(link) and not self._unwatched:
                self._judge(suspects)
                if self._next is not None:
                    self._release(waiting)
                    return

    def _release(self, count: int) -> None:
        """Resolve the first futures of those that wait for the end of the log."""
        released, self._waiting = self._waiting[:count], self._waiting[count:]
        for future in released:
            if not future.done():
                future.set_result(None)

    async def _read(self, link: Link) -> bool:
        """Read the next entries; return whether there were any."""
        if self._next is None:
            return False
        paths = [layout.change_path(self.generation, self._next + i) for i in range(self._size)]
        found = await link.get_many(paths)
        read = [each for each in found if each is not None]
        for path, each in zip(paths, found, strict=True):
            if each is None or self._next is None:
                break
            self._apply(path, *each)
        self._size = _READ if len(read) == len(found) else _FIRST_READ
        return found[0] is not None

    def _apply(self, path: str, data: bytes, stat: ZnodeStat) -> None:
        try:
            change = layout.change_of(data)
            batch = self.tree.apply(change, stat.czxid)
        except UnreadableZnodeError as error:
            self._journal.error("metadata_znode_unreadable", znode=path, error=str(error))
            self._next = None
            return
        except MissingValueError:
            self._next = None
            return
        assert self._next is not None, "only a reader with a position applies entries"
        self._next += 1
        self.position = max(self.position, stat.czxid)
        self._unwatched.update(put.key for put in change.puts if put.ephemeral)
        if batch.puts or batch.deletes:
            self._deliver(batch, len(data))

    async def _is_at_end(self, link: Link) -> bool:
        """Watch for the next entry; return False if there is one already."""
        if self._next is None:
            return False
        path = layout.change_path(self.generation, self._next)
        if await link.exists(path, self._changed.set) is not None:
            return False
        created = await self._created(link)
        if created < self._next or (created > self._next and await link.exists(path) is None):
            self._next = None  # the entry was pruned, or the log was deleted
        return created == self._next

    async def _watch_log(self, link: Link) -> None:
        """Find the generation of the log, and watch for another one."""
        found = await link.get(layout.CHANGES, self._unwatch_log)
        if found is None:
            raise UnreadableZnodeError(f"{layout.CHANGES} is missing")
        generation = layout.generation_of(found[0])
        if generation != self.generation:
            self._next = None
        self.generation, self.log_version = generation, found[1].version
        self._is_log_watched = True

    def _unwatch_log(self) -> None:
        self._is_log_watched = False
        self._changed.set()

    async def _created(self, link: Link) -> int:
        """Return the number of entries that were ever created in the present generation."""
        stat = await link.exists(layout.generation_path(self.generation))
        if stat is None:
            raise UnreadableZnodeError(f"{layout.generation_path(self.generation)} is missing")
        return int(stat.cversion + stat.numChildren) // 2

    def _judge(self, suspects: dict[str, tuple[int, int]]) -> None:
        """Look for znodes that were changed without an entry in the log, which was read to its end meanwhile."""
        for key, (version, position) in suspects.items():
            if self._suspects.get(key) == (version, position):
                del self._suspects[key]
            known = self.tree.read(key)
            seen = 0 if known is None else known.version
            if seen < version or (not version and 0 < seen <= position):
                self._journal.error("metadata_znode_edited", znode=layout.path_of(key))
                self._next = None

    # Ephemeral keys

    async def _look_at_ephemeral_keys(self, link: Link) -> None:
        """Watch ephemeral znodes, and delete the keys whose znode no longer exists."""
        keys = sorted(self._unwatched & self.tree.ephemeral)
        self._unwatched.clear()
        gone = []
        try:
            for key in keys:
                stat = await link.exists(layout.path_of(key), self._look_again(key))
                if stat is None:
                    gone.append(key)
        except BaseException:
            self._unwatched.update(keys)
            raise
        deleted = [key for key in gone if self.tree.forget(key, self.position)]
        if deleted:
            self._deliver(MetadataBatch(snapshot=False, puts=[], deletes=deleted), 0)

    def _look_again(self, key: str) -> Callable[[], object]:
        def look() -> None:
            self._unwatched.add(key)
            self._changed.set()

        return look

    # Snapshots

    async def _take_snapshot(self, link: Link) -> None:
        """Read all keys, and then the commits that others have made meanwhile.

        The position stays unknown if one of these commits is not in the log, so that another snapshot follows.
        """
        following = await self._created(link)
        keys = await self._keys(link)
        values = await link.get_many([layout.path_of(key) for key in keys])
        nodes, refused = readable(keys, values, self.tree)
        for key, error in refused.items():
            self._journal.error(
                "metadata_znode_unreadable", znode=layout.path_of(key), error=str(error)
            )
        self._suspects.clear()
        later = Tree()
        later.replace(nodes)
        until = await self._created(link)
        self.position = max([self.position, *(node.version for node in nodes.values())])
        paths = [layout.change_path(self.generation, i) for i in range(following, until)]
        for path, each in zip(paths, await link.get_many(paths), strict=True):
            if each is None:
                return
            try:
                later.apply(layout.change_of(each[0]), each[1].czxid)
            except MissingValueError:
                return
            except UnreadableZnodeError as error:
                self._journal.error("metadata_znode_unreadable", znode=path, error=str(error))
                return
            self.position = max(self.position, each[1].czxid)
        batch = self.tree.replace(later.nodes())
        self._next = until
        self._unwatched |= self.tree.ephemeral
        self._deliver(batch, 0)

    async def _keys(self, link: Link) -> Sequence[str]:
        directories = await link.children(layout.ENTRIES)
        if directories is None:
            raise UnreadableZnodeError(f"{layout.ENTRIES} is missing")
        paths = [f"{layout.ENTRIES}/{directory}" for directory in directories]
        self.tree.directories = set(paths)
        names = await link.children_of_many(paths)
        return [
            layout.key_of(directory, name)
            for directory, found in zip(directories, names, strict=True)
            for name in found
        ]
