"""The znodes of all keys as a broker knows them: their values, and the versions that its commits have to check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kazoo.protocol.states import ZnodeStat

from headrace.metadata_stores.zookeeper.layout import (
    Change,
    LoggedPut,
    UnreadableZnodeError,
    value_of,
)
from headrace.ports import MetadataBatch, MetadataEntry


@dataclass(frozen=True, slots=True)
class Znode:
    """The znode of a key.

    Attributes:
        version: The version of the key: the id of the ZooKeeper transaction that wrote the znode.
        znode_version: The version of the znode, which a transaction checks.
        session: The session that an ephemeral key belongs to; 0 for other keys.
        entry: The entry; None if the key was deleted and the znode is its mark.
    """

    version: int
    znode_version: int
    session: int
    entry: MetadataEntry | None


def znode_of(key: str, found: tuple[bytes, ZnodeStat] | None) -> Znode | None:
    """Return the znode of a key from what ZooKeeper has; None if it does not exist.

    Raises:
        UnreadableZnodeError: The data are in another format.
    """
    if found is None:
        return None
    data, stat = found
    value = value_of(data)
    entry = None if value is None else MetadataEntry(key, value, stat.mzxid)
    return Znode(stat.mzxid, stat.version, stat.ephemeralOwner, entry)


class MissingValueError(Exception):
    """An entry of the change log does not repeat the values: the reader needs a snapshot."""


class Tree:
    """The znodes of all keys, at one position of the change log."""

    __slots__ = ("_ahead", "_nodes", "directories", "ephemeral")

    def __init__(self) -> None:
        """Begin without any znode."""
        self._nodes: dict[str, Znode] = {}
        self._ahead: dict[str, Znode] = {}
        """Znodes that this session has written, and that the reader has not seen yet."""
        self.ephemeral: set[str] = set()
        """The ephemeral keys that exist."""
        self.directories: set[str] = set()
        """The paths of the parents that are known to exist."""

    def get(self, key: str) -> Znode | None:
        """Return the newest znode of a key that this session knows; None for none."""
        node, ahead = self._nodes.get(key), self._ahead.get(key)
        if ahead is None or (node is not None and node.version >= ahead.version):
            return node
        return ahead

    def read(self, key: str) -> Znode | None:
        """Return the znode of a key at the position of the reader."""
        return self._nodes.get(key)

    def nodes(self) -> dict[str, Znode]:
        """Return the znodes of all keys at the position of the reader."""
        return self._nodes

    def wrote(self, key: str, node: Znode) -> None:
        """Note a znode that this session has written."""
        self._ahead[key] = node

    def replace(self, nodes: dict[str, Znode]) -> MetadataBatch:
        """Replace all znodes, and return the snapshot."""
        self._nodes = nodes
        self._ahead.clear()
        self.ephemeral = {key for key, node in nodes.items() if node.session and node.entry}
        entries = [node.entry for _, node in sorted(nodes.items()) if node.entry is not None]
        return MetadataBatch(snapshot=True, puts=entries)

    def apply(self, change: Change, version: int) -> MetadataBatch:
        """Apply an entry of the change log, and return what it has changed.

        Args:
            change: The entry.
            version: The id of the transaction that wrote it.

        Raises:
            MissingValueError: The entry does not have the values. Nothing was changed.
        """
        if any(put.value is None and self._is_older(put.key, version) for put in change.puts):
            raise MissingValueError
        puts = [self._put(put, version, change.session) for put in change.puts]
        deletes = [
            delete.key
            for delete in change.deletes
            if self._is_older(delete.key, version)
            and self.forget(delete.key, version, delete.znode_version)
        ]
        written = sorted((e for e in puts if e is not None), key=lambda entry: entry.key)
        return MetadataBatch(snapshot=False, puts=written, deletes=sorted(deletes))

    def _is_older(self, key: str, version: int) -> bool:
        known = self._nodes.get(key)
        return known is None or known.version < version

    def _put(self, put: LoggedPut, version: int, session: int) -> MetadataEntry | None:
        if not self._is_older(put.key, version) or put.value is None:
            return None
        entry = MetadataEntry(put.key, put.value, version)
        owner = session if put.ephemeral else 0
        self._set(put.key, Znode(version, put.znode_version, owner, entry))
        return entry

    def _set(self, key: str, node: Znode) -> None:
        self._nodes[key] = node
        if node.session and node.entry is not None:
            self.ephemeral.add(key)
        else:
            self.ephemeral.discard(key)
        ahead = self._ahead.get(key)
        if ahead is not None and ahead.version <= node.version:
            del self._ahead[key]

    def forget(self, key: str, version: int, znode_version: int = -1) -> bool:
        """Note that a key was deleted; return whether it existed.

        Args:
            key: The key.
            version: The version of the deletion.
            znode_version: The version of the mark; -1 if no mark is left.
        """
        known = self._nodes.get(key)
        if znode_version >= 0:
            self._set(key, Znode(version, znode_version, 0, None))
        else:
            self._nodes.pop(key, None)
            self.ephemeral.discard(key)
            ahead = self._ahead.get(key)
            if ahead is not None and ahead.version <= version:
                del self._ahead[key]
        return known is not None and known.entry is not None


def readable(
    keys: Iterable[str], found: Iterable[tuple[bytes, ZnodeStat] | None], tree: Tree
) -> tuple[dict[str, Znode], dict[str, UnreadableZnodeError]]:
    """Return the znodes of keys, and the keys whose znodes cannot be read. These keep the last value that was read."""
    nodes: dict[str, Znode] = {}
    refused: dict[str, UnreadableZnodeError] = {}
    for key, each in zip(keys, found, strict=True):
        try:
            node = znode_of(key, each)
        except UnreadableZnodeError as error:
            refused[key] = error
            node = tree.read(key)
        if node is not None:
            nodes[key] = node
    return nodes, refused
