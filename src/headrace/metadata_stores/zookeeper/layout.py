"""The znodes of the metadata store: paths, names and values. `docs/reference/zookeeper-layout.md` describes them."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

import msgspec

FORMAT: Final = 1
"""The version of the layout. It is in the value of the root, and in front of every other value."""
ROOT: Final = "/headrace"
ENTRIES: Final = f"{ROOT}/entries"
CHANGES: Final = f"{ROOT}/changes"
SESSIONS: Final = f"{ROOT}/sessions"
LOGGED_VALUES_LIMIT: Final = 256 * 1024
"""The greatest size in bytes of the values that an entry of the change log repeats."""
_NO_DIRECTORY: Final = "-"
"""The directory of the keys without a slash."""
_EMPTY: Final = "%"
_SAFE: Final = "-_.~=+,;:@!$&'()* "
_LIVE: Final = b"1="
_MARK: Final = b"1-"


class UnreadableZnodeError(Exception):
    """A value that this version cannot read: written by a newer version, or by hand."""


class Root(msgspec.Struct, frozen=True):
    """The value of the root. Later versions may add fields."""

    format: int = FORMAT


class Log(msgspec.Struct, frozen=True):
    """The value of the parent of the generations: the generation of the change log that is written."""

    generation: int
    format: int = FORMAT


class LoggedPut(msgspec.Struct, frozen=True, array_like=True):
    """A key that a commit has written.

    Attributes:
        key: The key.
        value: The value; None if the entry would be too large.
        znode_version: The version that the znode has got.
        ephemeral: Whether the key belongs to the session of the writer.
    """

    key: str
    value: bytes | None
    znode_version: int
    ephemeral: bool


class LoggedDelete(msgspec.Struct, frozen=True, array_like=True):
    """A key that a commit has deleted.

    Attributes:
        key: The key.
        znode_version: The version of the mark; -1 if no mark is left.
    """

    key: str
    znode_version: int


class Change(msgspec.Struct, frozen=True, array_like=True):
    """An entry of the change log: what one commit has changed.

    Attributes:
        format: The version of the layout.
        session: The ZooKeeper session of the writer, which the ephemeral keys belong to.
        puts: The written keys.
        deletes: The deleted keys.
    """

    format: int
    session: int
    puts: list[LoggedPut]
    deletes: list[LoggedDelete]


_ROOT_DECODER: Final = msgspec.json.Decoder(Root)
_LOG_DECODER: Final = msgspec.json.Decoder(Log)
_CHANGE_DECODER: Final = msgspec.msgpack.Decoder(Change)
_FORMAT_DECODER: Final = msgspec.msgpack.Decoder(list[object])


def _encoded(part: str) -> str:
    if not part:
        return _EMPTY
    if part in {".", ".."}:
        return part.replace(".", "%2E")
    return quote(part, safe=_SAFE)


def directory_of(key: str) -> str:
    """Return the path of the znode that is the parent of a key's znode."""
    first, slash, _ = key.partition("/")
    if not slash:
        return f"{ENTRIES}/{_NO_DIRECTORY}"
    return f"{ENTRIES}/{'%2D' if first == _NO_DIRECTORY else _encoded(first)}"


def path_of(key: str) -> str:
    """Return the path of a key's znode: the first part of the key, and the rest with encoded slashes."""
    first, slash, rest = key.partition("/")
    return f"{directory_of(key)}/{_encoded(rest if slash else first)}"


def key_of(directory: str, name: str) -> str:
    """Return the key of a znode, from the names of its parent and of itself."""
    rest = "" if name == _EMPTY else unquote(name)
    if directory == _NO_DIRECTORY:
        return rest
    return f"{'' if directory == _EMPTY else unquote(directory)}/{rest}"


def value_data(value: bytes) -> bytes:
    """Return the data of the znode of a key with a value."""
    return _LIVE + value


def mark_data() -> bytes:
    """Return the data of the znode of a deleted key."""
    return _MARK


def value_of(data: bytes) -> bytes | None:
    """Return the value that a znode's data contain; None for a deleted key.

    Raises:
        UnreadableZnodeError: The data are in another format.
    """
    if data.startswith(_LIVE):
        return data[len(_LIVE) :]
    if data == _MARK:
        return None
    raise UnreadableZnodeError(f"begins with {data[:8]!r}, not with {_LIVE!r}")


def generation_path(generation: int) -> str:
    """Return the path of the parent of a generation's entries."""
    return f"{CHANGES}/{generation:010d}"


def change_path(generation: int, number: int) -> str:
    """Return the path of an entry of the change log."""
    return f"{generation_path(generation)}/c-{number:010d}"


def session_path(session: int) -> str:
    """Return the path of the znode of a session."""
    return f"{SESSIONS}/{session & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def root_data() -> bytes:
    """Return the data of the root."""
    return msgspec.json.encode(Root())


def root_format(data: bytes) -> int:
    """Return the format that the root names.

    Raises:
        UnreadableZnodeError: The root has other data.
    """
    try:
        return _ROOT_DECODER.decode(data).format
    except msgspec.DecodeError as error:
        raise UnreadableZnodeError(str(error)) from error


def log_data(generation: int) -> bytes:
    """Return the data of the parent of the generations."""
    return msgspec.json.encode(Log(generation))


def generation_of(data: bytes) -> int:
    """Return the generation of the change log that is written.

    Raises:
        UnreadableZnodeError: The data are in another format.
    """
    try:
        log = _LOG_DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise UnreadableZnodeError(str(error)) from error
    if log.format != FORMAT:
        raise UnreadableZnodeError(f"written in format {log.format}, this version reads {FORMAT}")
    return log.generation


def change_data(change: Change) -> bytes:
    """Return the data of an entry of the change log."""
    return msgspec.msgpack.encode(change)


def change_of(data: bytes) -> Change:
    """Return the change that an entry of the change log contains.

    Raises:
        UnreadableZnodeError: The data are in another format.
    """
    try:
        first = _FORMAT_DECODER.decode(data)[:1]
        if first != [FORMAT]:
            raise UnreadableZnodeError(f"written in format {first}, this version reads {FORMAT}")
        return _CHANGE_DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise UnreadableZnodeError(str(error)) from error
