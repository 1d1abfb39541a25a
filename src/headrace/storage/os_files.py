"""Files on disk, below one root directory.

Appends use `writev` on a descriptor in append mode. An append that fails half way is cut off again, so a full disk
leaves whole batches. After a failed sync a file stays failed: the kernel may have dropped the dirty pages, and would
report success the second time (the "fsyncgate" of PostgreSQL). So nothing more can be promised about the file.

A sync that fails for lack of space is reported as EIO. So ENOSPC always means that something was not written, and that
everything else is unchanged. An operation that could not open a file (EMFILE, ENFILE, ENOMEM, EACCES) has changed
nothing either: it opens all its files first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from headrace.errors import StorageError
from headrace.forking import disown_in_children
from headrace.ports import LogDirectory
from headrace.storage.permissions import PRIVATE, make_private_directory, modes_in
from headrace.types import Buffer

_MAX_BUFFERS: Final = 512
"""The largest number of buffers per `writev`: POSIX lets systems stop at 1024."""
_MAX_READ: Final = 1 << 30
_sync_data: Final = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


class OsFile:
    """An append-only file on disk; see `headrace.ports.File`.

    The object owns the descriptor, which closes when the last reference to the object is gone. References are held by a
    segment, by a `FileRange` that a connection still sends, and by a sync in another thread.
    """

    __slots__ = ("_closed", "_descriptor", "_failure", "_size")

    def __init__(self, path: str | Path, flags: int, mode: int) -> None:
        self._descriptor = -1  # for __del__, if os.open raises
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | flags, mode)
        self._size = os.fstat(self._descriptor).st_size
        self._failure: OSError | None = None
        self._closed = False

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append all buffers, or raise OSError and leave the file unchanged."""
        self._check_usable()
        wanted = sum(map(len, buffers))
        try:
            written = os.writev(self._descriptor, buffers) if len(buffers) <= _MAX_BUFFERS else 0
            if written != wanted:
                self._append_rest(buffers, written, wanted)
        except OSError:
            self._undo_append()
            raise
        self._size += wanted

    def _append_rest(self, buffers: Sequence[Buffer], written: int, wanted: int) -> None:
        # A short write happens shortly before the disk is full, on a signal, or past 2 GiB. The rest is written as one
        # piece.
        rest = memoryview(b"".join(buffers))
        while written < wanted:
            count = os.write(self._descriptor, rest[written:])
            if not count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += count

    def _undo_append(self) -> None:
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError as error:
            self._failure = _lost(error)
            raise self._failure from error

    def buffers(self, position: int, size: int) -> Sequence[Buffer]:
        """Return the bytes from `position` on, as one copy."""
        data = self.read(position, size)
        return [data] if data else []

    def read(self, position: int, size: int) -> bytes:
        """Return a copy of the bytes from `position` on. The copy is shorter at the end of the file."""
        size = min(size, self._size - position)
        if size <= 0:
            return b""
        data = os.pread(self._descriptor, min(size, _MAX_READ), position)
        if len(data) == size or not data:
            return data
        return data + self.read(position + len(data), size - len(data))

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        self._check_usable()
        if size < self._size:
            os.ftruncate(self._descriptor, size)
            self._size = size

    def sync(self) -> None:
        """Return once everything appended before the call is on stable storage.

        Raises:
            OSError: The sync failed, now or in an earlier call. The file takes no more appends.
        """
        if self._failure is not None:
            raise self._failure
        try:
            _sync_data(self._descriptor)
        except OSError as error:
            self._failure = _lost(error)
            raise self._failure from error

    def fileno(self) -> int:
        """Return the descriptor, for sendfile."""
        return self._descriptor

    def close(self) -> None:
        """Refuse appends from now on. The descriptor closes with the last reference."""
        self._closed = True

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed")


class OsFileSystem:
    """One data directory on disk; see `headrace.ports.FileSystem`."""

    __slots__ = ("__weakref__", "_lock", "_modes", "_root", "_root_text")

    def __init__(self, root: str | Path) -> None:
        """Use the directory `root`. It is created durably if it does not exist."""
        self._root = Path(root).absolute()
        self._root_text = str(self._root)
        self._lock = -1
        _make_directories(self._root)
        self._modes = modes_in(self._root)

    @property
    def root(self) -> Path:
        """The path of the data directory."""
        return self._root

    def lock(self) -> None:
        """Lock the directory for this process, until `unlock` or the end of the process.

        Raises:
            StorageError: Another process has the lock.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._root / ".lock", flags, self._modes.file)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise StorageError(
                f"{self._root} is in use by another broker; stop it, or give this one another directory"
            ) from None
        self._lock = descriptor
        disown_in_children(self)

    def disown(self) -> None:
        """Close the copy of the lock in a forked child. Otherwise the lock would outlive the parent."""
        self.unlock()

    def unlock(self) -> None:
        """Release the lock. Does nothing if there is none."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def describe(self) -> LogDirectory:
        """Return the path of the directory and the space of its file system, as far as an ordinary user may use it."""
        try:
            found = os.statvfs(self._root)
        except OSError:
            return LogDirectory(str(self._root))
        unit = found.f_frsize
        return LogDirectory(str(self._root), found.f_blocks * unit, found.f_bavail * unit)

    def open(self, path: str, *, create: bool = False) -> OsFile:
        """Open a file. FileNotFoundError unless it exists or `create` is true."""
        return OsFile(self._locate(path), os.O_CREAT if create else 0, self._modes.file)

    def read_file(self, path: str) -> bytes | None:
        """Return the whole content, or None when there is no such file."""
        try:
            descriptor = os.open(self._locate(path), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - of a descriptor
            return file.readall()

    def write_file(self, path: str, content: bytes) -> None:
        """Replace the content of a file atomically and durably."""
        target = self._resolve(path)
        temporary = target.with_name(f"{target.name}.tmp")
        with _Directory(target.parent) as directory:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, self._modes.file)
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            except OSError:
                temporary.unlink(missing_ok=True)  # the file may hold the last bytes of a full disk
                raise
            finally:
                os.close(descriptor)
            temporary.replace(target)
            directory.sync()

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; [] when it does not exist."""
        try:
            return sorted(os.listdir(self._locate(path)))  # noqa: PTH208 - a start lists thousands
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents."""
        make_private_directory(self._resolve(path), self._modes.directory)

    def remove(self, path: str) -> None:
        """Remove a file. Does nothing if there is none."""
        self._resolve(path).unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        """Remove a directory with everything in it. Does nothing if there is none.

        For a symbolic link to a directory, the content of that directory and the link are removed. The empty directory
        stays.
        """
        directory = self._resolve(path)
        if directory == self._root:
            raise StorageError("the log directory itself is not removed")
        if directory.is_symlink():
            for entry in os.scandir(directory) if directory.is_dir() else ():
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    Path(entry.path).unlink(missing_ok=True)
            directory.unlink(missing_ok=True)
        elif directory.exists():
            shutil.rmtree(directory)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a directory, durably."""
        source, target = self._resolve(old), self._resolve(new)
        with contextlib.ExitStack() as stack:
            parents = dict.fromkeys((target.parent, source.parent))
            opened = [stack.enter_context(_Directory(parent)) for parent in parents]
            source.replace(target)
            for directory in opened:
                directory.sync()

    def sync_directory(self, path: str) -> None:
        """Make the creations, renames and removals in a directory durable."""
        _sync_directory(self._locate(path))

    def _resolve(self, path: str) -> Path:
        return Path(self._locate(path))

    def _locate(self, path: str) -> str:
        # Only the text of the path is checked: no part may lead upwards or elsewhere. Links inside the root are up to
        # the operator. Text, not `Path`: with 2,000 partitions a start opens ten thousand files, and `Path` objects
        # took half of the time.
        if path.startswith("/") or "\0" in path or (".." in path and ".." in path.split("/")):
            raise StorageError(f"path {path!r} leads out of the log directory")
        return f"{self._root_text}/{path}"


def _make_directories(path: Path) -> None:
    missing = [path, *path.parents]
    missing = missing[: next(index for index, parent in enumerate(missing) if parent.is_dir())]
    for directory in reversed(missing):
        directory.mkdir(PRIVATE.directory, exist_ok=True)
        _sync_directory(directory.parent)


def _sync_directory(path: str | Path) -> None:
    with _Directory(path) as directory:
        directory.sync()


class _Directory:
    """A directory that was opened for its sync before it changes, so that nothing changes if it cannot be opened."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: str | Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise _lost(error) from error

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _lost(error: OSError) -> OSError:
    """Return the error for data that may be lost, whatever the cause."""
    return OSError(errno.EIO, f"not on stable storage: {error}")
