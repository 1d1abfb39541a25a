"""The commits of a session: each is one ZooKeeper transaction, which ZooKeeper applies as a whole or not at all.

The transaction has these operations:

1. a check of the generation of the change log;
2. a check of the version of every znode whose key the commit checks;
3. the new data of every key, and the mark of every deleted key;
4. an entry of the change log, unless the commit changes nothing;
5. a write of the znode of the session: the position in the change log that the broker has read.

The versions of the znodes come from the tree. If ZooKeeper refuses the transaction, nothing was changed. Then the
znodes are read from the leader of the ensemble: either a check of the commit is false, or the tree was behind.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)

from headrace.metadata_stores.limits import last_by_key
from headrace.metadata_stores.zookeeper import layout
from headrace.metadata_stores.zookeeper.client import NotSent
from headrace.metadata_stores.zookeeper.layout import (
    Change,
    LoggedDelete,
    LoggedPut,
    UnreadableZnodeError,
)
from headrace.metadata_stores.zookeeper.link import Link, Operation
from headrace.metadata_stores.zookeeper.reader import Reader
from headrace.metadata_stores.zookeeper.tree import Tree, Znode, znode_of
from headrace.ports import (
    Check,
    CommitOutcome,
    Conflict,
    Delete,
    MetadataEntry,
    Put,
    SessionLost,
    Unavailable,
    Unknown,
)

ATTEMPTS: Final = 30
"""The number of attempts to commit while other brokers change the same znodes."""
TRANSACTION_BYTES_LIMIT: Final = 1_000_000
"""The greatest size of a transaction in bytes. ZooKeeper breaks the connection at 1 MiB (`jute.maxbuffer`)."""
_ENDED: Final = "the ZooKeeper session has ended"
_DOWN: Final = "ZooKeeper does not respond"
_MISSING: Final = -1
_BACKOFF_S: Final = 0.002

Nodes = Mapping[str, Znode | None]


class _Transaction:
    """The operations of one attempt, and what they will have changed."""

    def __init__(self, link: Link, nodes: Nodes) -> None:
        self._link = link
        self._nodes = nodes
        self._session = link.client.number
        self.operations: list[Operation] = []
        self.directories: set[str] = set()
        """The parents of the znodes that are created."""
        self.puts: dict[str, tuple[Put, int]] = {}
        """The written keys with the versions of their znodes."""
        self.deletes: dict[str, int] = {}
        """The deleted keys with the versions of their marks; -1 for no mark."""

    def check(self, check: Check, *, is_written: bool) -> None:
        """Add the check of a condition, which holds if the znode is unchanged."""
        path, node = layout.path_of(check.key), self._nodes.get(check.key)
        if node is not None:
            self.operations.append(self._link.checking(path, node.znode_version))
        elif not is_written:
            # ZooKeeper cannot check that a znode does not exist. It can create one and delete it.
            self.directories.add(layout.directory_of(check.key))
            self.operations += [self._link.creation(path, b""), self._link.deletion(path)]

    def put(self, put: Put) -> None:
        """Add the write of a key."""
        link, path, node = self._link, layout.path_of(put.key), self._nodes.get(put.key)
        data = layout.value_data(bytes(put.value))
        owner = self._session if put.ephemeral else 0
        if node is not None and node.session == owner:
            self.operations.append(link.writing(path, data, node.znode_version))
            self.puts[put.key] = put, node.znode_version + 1
            return
        if node is not None:
            self.operations.append(link.deletion(path, node.znode_version))
        self.directories.add(layout.directory_of(put.key))
        self.operations.append(link.creation(path, data, ephemeral=put.ephemeral))
        self.puts[put.key] = put, 0

    def delete(self, key: str) -> None:
        """Add the deletion of a key, which leaves a mark unless the key is ephemeral."""
        path, node = layout.path_of(key), self._nodes.get(key)
        if node is None or node.entry is None:
            return
        if node.session:
            self.operations.append(self._link.deletion(path, node.znode_version))
            self.deletes[key] = _MISSING
        else:
            mark = self._link.writing(path, layout.mark_data(), node.znode_version)
            self.operations.append(mark)
            self.deletes[key] = node.znode_version + 1

    def log(self, generation: int) -> None:
        """Add the entry of the change log, unless nothing was changed."""
        if not self.puts and not self.deletes:
            return
        size = sum(len(put.value) for put, _ in self.puts.values())
        repeats = size <= layout.LOGGED_VALUES_LIMIT
        puts = [
            LoggedPut(key, bytes(put.value) if repeats else None, version, put.ephemeral)
            for key, (put, version) in self.puts.items()
        ]
        deletes = [LoggedDelete(key, version) for key, version in self.deletes.items()]
        change = Change(layout.FORMAT, self._session, puts, deletes)
        path = f"{layout.generation_path(generation)}/c-"
        creation = self._link.creation(path, layout.change_data(change), sequence=True)
        self.operations.append(creation)

    def note(self, tree: Tree, version: int) -> dict[str, int]:
        """Note in the tree what was written, and return the versions of the written keys."""
        for key, (put, znode_version) in self.puts.items():
            owner = self._session if put.ephemeral else 0
            entry = MetadataEntry(key, bytes(put.value), version)
            tree.wrote(key, Znode(version, znode_version, owner, entry))
        for key, mark in self.deletes.items():
            if mark != _MISSING:
                tree.wrote(key, Znode(version, mark, 0, None))
        return dict.fromkeys(self.puts, version)


class Committer:
    """The commits of one session after the other."""

    def __init__(self, tree: Tree, reader: Reader, clock: Callable[[], int]) -> None:
        """Begin without a session.

        Args:
            tree: What the broker knows of the znodes.
            reader: Follows the change log.
            clock: Returns the time in milliseconds.
        """
        self._tree = tree
        self._reader = reader
        self._clock = clock
        self.acknowledged_ms = 0
        """The time at which the newest acknowledged write was sent, in milliseconds."""
        self._last: dict[str, asyncio.Future[None]] = {}
        """The last commit that uses each key, among those in flight."""

    async def commit(
        self, link: Link, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> CommitOutcome:
        """Apply all operations if all checks are true, and return the outcome.

        Commits of this session that use the same key are sent one after the other.
        """
        by_key = last_by_key(operations)
        keys = list({check.key: None for check in checks} | dict.fromkeys(key for key, _ in by_key))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        earlier = {self._last[key] for key in keys if key in self._last}
        self._last.update(dict.fromkeys(keys, done))
        try:
            if earlier:
                await asyncio.wait(earlier)
            return await self._commit(link, checks, by_key, keys)
        finally:
            done.set_result(None)
            for key in keys:
                if self._last.get(key) is done:
                    del self._last[key]

    async def _commit(
        self,
        link: Link,
        checks: Sequence[Check],
        by_key: Sequence[tuple[str, Put | Delete]],
        keys: Sequence[str],
    ) -> CommitOutcome:
        try:
            nodes: Nodes = {key: self._tree.get(key) for key in keys}
            if self._false_check(checks, nodes) is not None or any(
                isinstance(operation, Delete) and nodes[key] is None for key, operation in by_key
            ):
                nodes = await self._fresh(link, keys)
            for attempt in range(ATTEMPTS):
                index = self._false_check(checks, nodes)
                if index is not None:
                    return Conflict(index)
                outcome = await self._attempt(link, nodes, checks, by_key)
                if outcome is not None:
                    return outcome
                await asyncio.sleep(random.random() * attempt * _BACKOFF_S)  # noqa: S311 - no secret
                nodes = await self._fresh(link, keys)
        except UnreadableZnodeError as error:
            return Unavailable(str(error))
        except KazooException as error:
            return _unsent(link, error)
        return Unavailable(
            f"{ATTEMPTS} attempts to commit were refused, because the znodes had changed"
        )

    def _false_check(self, checks: Sequence[Check], nodes: Nodes) -> int | None:
        for index, check in enumerate(checks):
            node = nodes[check.key]
            live = node is not None and node.entry is not None
            if not check.holds(node.version if live and node is not None else None):
                return index
        return None

    async def _attempt(
        self,
        link: Link,
        nodes: Nodes,
        checks: Sequence[Check],
        operations: Sequence[tuple[str, Put | Delete]],
    ) -> CommitOutcome | None:
        """Send the transaction, and return the outcome; None if the znodes have other versions."""
        if self._reader.log_version < 0:
            await self._find_log(link)
        made = _Transaction(link, nodes)
        made.operations.append(link.checking(layout.CHANGES, self._reader.log_version))
        created = {key for key, each in operations if isinstance(each, Put)}
        for check in checks:
            made.check(check, is_written=check.key in created)
        for key, operation in operations:
            if isinstance(operation, Put):
                made.put(operation)
            else:
                made.delete(key)
        made.log(self._reader.generation)
        path = layout.session_path(link.client.number)
        made.operations.append(link.writing(path, b"%d" % self._reader.position))
        if sum(len(each.serialize()) for each in made.operations) > TRANSACTION_BYTES_LIMIT:
            limit = f"more than {TRANSACTION_BYTES_LIMIT} bytes, the limit of ZooKeeper"
            return Unavailable(f"the commit has {limit}: its keys are too long")
        await self._make_directories(link, made.directories)
        return await self._send(link, made)

    async def _send(self, link: Link, made: _Transaction) -> CommitOutcome | None:
        sent_ms = self._clock()
        try:
            results = await link.multi(made.operations)
        except NotSent:
            raise
        except (ConnectionLoss, SessionExpiredError) as error:
            return Unknown(f"{_DOWN}: {str(error) or 'the connection broke'}")
        refusal = _refusal(results)
        if refusal is None:
            self.acknowledged_ms = max(self.acknowledged_ms, sent_ms)
            return made.note(self._tree, results[-1].mzxid)
        if not isinstance(refusal, BadVersionError | NoNodeError | NodeExistsError):
            raise refusal
        return None

    async def _fresh(self, link: Link, keys: Sequence[str]) -> Nodes:
        """Return the znodes of keys as the leader of the ensemble knows them."""
        found = await link.fresh_many([layout.path_of(key) for key in keys])
        nodes: dict[str, Znode | None] = {}
        for key, each in zip(keys, found, strict=True):
            known = self._tree.get(key)
            try:
                nodes[key] = node = znode_of(key, each)
            except UnreadableZnodeError:
                # It is an entry that no check of a version can match, and that a write may replace.
                assert each is not None, "only data are unreadable"
                stat = each[1]
                entry = MetadataEntry(key, b"", stat.mzxid)
                nodes[key] = node = Znode(stat.mzxid, stat.version, stat.ephemeralOwner, entry)
            version = 0 if node is None else node.version
            if version != (0 if known is None else known.version):
                self._reader.suspect(key, version)
        await self._repair(link)
        return nodes

    async def _repair(self, link: Link) -> None:
        """Find what else may have refused a transaction: another generation, a znode that was deleted by hand."""
        self._tree.directories.clear()
        await self._find_log(link)
        await begin(link)

    async def _find_log(self, link: Link) -> None:
        found = await link.get(layout.CHANGES)
        if found is None:
            raise UnreadableZnodeError(f"{layout.CHANGES} is missing in ZooKeeper")
        generation = layout.generation_of(found[0])
        if generation != self._reader.generation:
            self._reader.reload()
        self._reader.generation, self._reader.log_version = generation, found[1].version

    async def _make_directories(self, link: Link, directories: set[str]) -> None:
        for path in sorted(directories - self._tree.directories):
            await link.create(path)
            self._tree.directories.add(path)


async def begin(link: Link) -> None:
    """Create the znode of the session, if it does not exist. It holds the position that the session has read."""
    path = layout.session_path(link.client.number)
    if await link.exists(path) is None:
        await link.create(path, b"0", ephemeral=True)


def _refusal(results: Sequence[Any]) -> KazooException | None:
    """Return the error of the operation that ZooKeeper has refused; None if it has applied all."""
    errors = [each for each in results if isinstance(each, KazooException)]
    named = [e for e in errors if not isinstance(e, RolledBackError | RuntimeInconsistency)]
    return (named or errors or [None])[0]


def _unsent(link: Link, error: KazooException) -> Unavailable | SessionLost:
    """Return the outcome of a commit that was not sent, or was refused."""
    if link.state == "lost":
        return SessionLost(_ENDED)
    if isinstance(error, ConnectionLoss):
        return Unavailable(_DOWN)
    if isinstance(error, NoNodeError):
        return Unavailable(f"a znode below {layout.ROOT} is missing in ZooKeeper")
    return Unavailable(f"ZooKeeper refuses the commit: {error or type(error).__name__}")
