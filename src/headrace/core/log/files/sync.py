"""The work of a group commit for one log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.ports import File, FileSystem


class SyncTask:
    """Files of one log that have to be made durable. `run` may be called in another thread."""

    __slots__ = (
        "_files",
        "abandoned",
        "directory",
        "end_offset",
        "file_list",
        "is_new",
        "metadata_path",
    )

    def __init__(
        self,
        files: FileSystem,
        file_list: Sequence[File],
        directory: str | None,
        end_offset: int,
        *,
        new_directory: bool = False,
        metadata_path: str | None = None,
    ) -> None:
        """Collect what `run` needs.

        Args:
            files: The file system of the log.
            file_list: Segment files with unsynced data.
            directory: The log's directory if names in it are not synced; None otherwise.
            end_offset: The end of what is durable once `run` has returned.
            new_directory: Whether the name of the directory itself is not synced in its parent directory.
            metadata_path: The path of `partition.metadata` if that file is not synced; None otherwise.
        """
        self._files = files
        self.file_list = file_list
        self.directory = directory
        self.is_new = new_directory
        self.metadata_path = metadata_path
        self.abandoned = False
        self.end_offset = end_offset

    def run(self) -> None:
        """Sync the files and directories.

        Raises:
            OSError: Not everything is on stable storage. Unless the error is a passing one, the log must take no more
                appends.
        """
        try:
            for file in self.file_list:
                file.sync()
            if self.metadata_path is not None:
                self._files.open(self.metadata_path).sync()
            if self.directory is not None:
                self._files.sync_directory(self.directory)
                if self.is_new:
                    self._files.sync_directory(self.directory.rpartition("/")[0])
        except OSError:
            # (1) The task is handed to a thread. (2) The topic is deleted: its directory gets another name. (3) The
            # thread does not find the directory. No request waits for these records any more.
            if not self.abandoned:
                raise


RunTasks = Callable[[Sequence[SyncTask]], object]
"""Runs tasks in any order, also in parallel, and returns when all have ended. Raises the error of one of them."""


def run_in_turn(tasks: Sequence[SyncTask]) -> None:
    """Run tasks one after the other, where there are no threads."""
    for task in tasks:
        task.run()
