"""A table's location in a directory of a file system."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from headrace.spark.archive.table_location import PARTIAL_PREFIX, FoundFile, NewFile


@dataclass(frozen=True)
class Directory:
    """A location in a directory of a file system; see `TableLocation`."""

    path: Path

    @property
    def local(self) -> bool:
        return True

    @property
    def delta_options(self) -> Mapping[str, str] | None:
        return None

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def uri(self) -> str:
        return f"file://{self.path}"

    @property
    def iceberg_options(self) -> Mapping[str, str]:
        return {}

    def __str__(self) -> str:
        """Return the address, which opens the same location in another process."""
        return str(self.path)

    def __truediv__(self, path: str) -> Path:
        """Return the path of a file for other programs."""
        return self.path / path

    def find(self, path: str) -> FoundFile | None:
        """Look up a file or directory; None if it does not exist."""
        try:
            found = (self.path / path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FoundFile(path, found.st_size, int(found.st_mtime * 1000))

    def walk(self, folder: str) -> Iterator[FoundFile]:
        """Yield all files in a folder and its subfolders."""
        for path in sorted((self.path / folder).rglob("*")):
            found = self.find(path.relative_to(self.path).as_posix())
            if (
                found is not None and path.is_file()
            ):  # otherwise the file was renamed or deleted since the listing
                yield found

    def occupied(self) -> bool:
        """Return whether the location has any file or directory."""
        return self.path.is_dir() and any(self.path.iterdir())

    def open(self, path: str) -> Any:
        """Open a file for pyarrow."""
        from pyarrow import OSFile

        return OSFile(str(self.path / path))

    def begin(self, folder: str) -> NewFile:
        """Start a new file in a folder."""
        return _LocalFile(self.path, folder)

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""
        (self.path / path).unlink(missing_ok=True)

    def sync(self, paths: Collection[str]) -> None:
        """See `TableLocation`. The libraries of table formats do not sync their files."""
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
        while True:  # a name is durable when all directories up to the table's directory are synced
            _sync(directory)
            if directory in (self._root, directory.parent):
                return
            directory = directory.parent

    def abandon(self) -> None:
        self.sink.close()
        self._partial.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
