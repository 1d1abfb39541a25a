"""Where a table's files are: a directory, or a prefix of a bucket (`stores.py`)."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Protocol

PARTIAL_PREFIX: Final = ".partial-"
"""Of files that are still being written; readers of directories pass over names with a dot."""
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


class FoundFile(NamedTuple):
    """A file below the table, or its directory."""

    path: str
    size: int
    modified_ms: int


class NewFile(Protocol):
    """A file that is being written and that no reader sees."""

    sink: IO[bytes]

    def publish(self, path: str) -> None:
        """Make it durable, whole and under this path; then it is there, or this raises."""

    def abandon(self) -> None:
        """Leave nothing of it."""


class TableLocation(Protocol):
    """Where the files of one table are. Paths are relative to it, with slashes."""

    @property
    def local(self) -> bool:
        """Whether this is a directory."""

    @property
    def name(self) -> str:
        """The last part of the address."""

    @property
    def uri(self) -> str:
        """For libraries of table formats."""

    @property
    def delta_options(self) -> Mapping[str, str] | None:
        """What `deltalake` needs to reach it."""

    @property
    def iceberg_options(self) -> Mapping[str, str]:
        """What `pyiceberg` needs to reach it."""

    def __str__(self) -> str:
        """Return the address, of which another process makes the same place."""

    def __truediv__(self, path: str) -> Any:
        """Return by what other programs find a file."""

    def find(self, path: str) -> FoundFile | None:
        """Return a file or directory, or None."""

    def walk(self, folder: str) -> Iterator[FoundFile]:
        """Yield all files below a folder, which need not exist."""

    def occupied(self) -> bool:
        """Whether anything is there."""

    def open(self, path: str) -> Any:
        """Open a file for pyarrow.

        Raises:
            FileNotFoundError: It is not there.
        """

    def begin(self, folder: str) -> NewFile:
        """Begin a file that will be in this folder."""

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""

    def sync(self, paths: Collection[str]) -> None:
        """Make durable what a table's library has written."""


@dataclass(frozen=True)
class Directory:
    """A directory of a file system; see `TableLocation`."""

    path: Path

    @property
    def local(self) -> bool:
        """See `TableLocation`."""
        return True

    @property
    def delta_options(self) -> Mapping[str, str] | None:
        """See `TableLocation`."""
        return None

    @property
    def name(self) -> str:
        """See `TableLocation`."""
        return self.path.name

    @property
    def uri(self) -> str:
        """See `TableLocation`."""
        return f"file://{self.path}"

    @property
    def iceberg_options(self) -> Mapping[str, str]:
        """See `TableLocation`."""
        return {}

    def __str__(self) -> str:
        """See `TableLocation`."""
        return str(self.path)

    def __truediv__(self, path: str) -> Path:
        """See `TableLocation`."""
        return self.path / path

    def find(self, path: str) -> FoundFile | None:
        """See `TableLocation`."""
        try:
            found = (self.path / path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FoundFile(path, found.st_size, int(found.st_mtime * 1000))

    def walk(self, folder: str) -> Iterator[FoundFile]:
        """See `TableLocation`."""
        for path in sorted((self.path / folder).rglob("*")):
            found = self.find(path.relative_to(self.path).as_posix())
            if found is not None and path.is_file():  # else renamed or deleted since it was listed
                yield found

    def occupied(self) -> bool:
        """See `TableLocation`."""
        return self.path.is_dir() and any(self.path.iterdir())

    def open(self, path: str) -> Any:
        """See `TableLocation`."""
        from pyarrow import OSFile

        return OSFile(str(self.path / path))

    def begin(self, folder: str) -> NewFile:
        """See `TableLocation`."""
        return _LocalFile(self.path, folder)

    def delete(self, path: str) -> None:
        """See `TableLocation`."""
        (self.path / path).unlink(missing_ok=True)

    def sync(self, paths: Collection[str]) -> None:
        """See `TableLocation`; the libraries do not do that themselves."""
        names = [self.path / path for path in paths]
        for path in [*names, *{path.parent for path in names}]:
            _sync(path)


class _LocalFile:
    def __init__(self, root: Path, folder: str) -> None:
        self._root = root
        self._folder = root / folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._partial = self._folder / f"{PARTIAL_PREFIX}{uuid.uuid4().hex}"
        self.sink: IO[bytes] = self._partial.open("wb")

    def publish(self, path: str) -> None:
        self.sink.flush()
        os.fsync(self.sink.fileno())
        self.sink.close()
        self._partial.rename(self._root / path)
        directory = self._folder
        while True:  # names are durable when all directories up to the table's are
            _sync(directory)
            if directory in (self._root, directory.parent):
                return
            directory = directory.parent

    def abandon(self) -> None:
        self.sink.close()
        self._partial.unlink(missing_ok=True)


def open_location(location: str | Path | TableLocation) -> TableLocation:
    """Return the place of an address: a path, `file://`, or of a store as `s3://BUCKET/TABLE`.

    Raises:
        ConfigError: Nothing is known of such addresses, or the store cannot be reached.
    """
    if not isinstance(location, (str, Path)):
        return location
    text = str(location)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Directory(Path(text).absolute())
    if scheme[1].lower() == "file":
        return Directory(Path(text[scheme.end() :]).absolute())
    from headrace.spark.archive.stores import bucket

    return bucket(text)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
