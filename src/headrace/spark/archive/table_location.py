"""Where a table's files are: a directory, or a prefix of a bucket (`stores.py`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import IO, Any, Final, NamedTuple, Protocol

PARTIAL_PREFIX: Final = ".partial-"
"""Of files that are still being written; readers of directories pass over names with a dot."""


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
