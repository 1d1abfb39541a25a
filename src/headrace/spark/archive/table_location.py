"""The interface of locations of tables: a directory (`directory.py`), or a prefix in a bucket (`stores.py`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import IO, Any, Final, NamedTuple, Protocol

PARTIAL_PREFIX: Final = ".partial-"
"""The prefix of files that are being written. Readers of directories ignore names that begin with a dot."""


class FoundFile(NamedTuple):
    """A file or directory of a table."""

    path: str
    """The path relative to the table."""
    size: int
    """The size in bytes."""
    modified_ms: int
    """The time of the last change in milliseconds since 1970; 0 if the store does not report it."""


class NewFile(Protocol):
    """A file that is being written. Readers do not see it before `publish`."""

    sink: IO[bytes]

    def publish(self, path: str) -> None:
        """Make the complete file durable under this path. The method raises an error if that fails."""

    def abandon(self) -> None:
        """Delete the incomplete file."""


class TableLocation(Protocol):
    """The location of one table's files. Paths are relative to the location, with slashes."""

    @property
    def local(self) -> bool:
        """Whether the location is a directory of this machine's file system."""

    @property
    def name(self) -> str:
        """The last part of the address, which names the table."""

    @property
    def uri(self) -> str:
        """The address for the libraries of table formats."""

    @property
    def delta_options(self) -> Mapping[str, str] | None:
        """The settings with which `deltalake` reaches the location; None if it needs none."""

    @property
    def iceberg_options(self) -> Mapping[str, str]:
        """The settings with which `pyiceberg` reaches the location."""

    def __str__(self) -> str:
        """Return the address from which another process opens the same location."""

    def __truediv__(self, path: str) -> Any:
        """Return the path or address of a file for other programs."""

    def find(self, path: str) -> FoundFile | None:
        """Look up a file or directory; None if it does not exist."""

    def walk(self, folder: str) -> Iterator[FoundFile]:
        """Yield all files in a folder and its subfolders. The folder may be missing."""

    def occupied(self) -> bool:
        """Return whether the location has any file or directory."""

    def open(self, path: str) -> Any:
        """Open a file for pyarrow.

        Raises:
            FileNotFoundError: The file does not exist.
        """

    def begin(self, folder: str) -> NewFile:
        """Start a new file that will be in this folder."""

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""

    def sync(self, paths: Collection[str]) -> None:
        """Make files durable that a library of a table format has written."""
