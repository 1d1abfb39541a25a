"""What a group commit makes durable of one log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.ports import File, FileSystem


class SyncTask:
    """Files of one log that are to be made durable. `run` does only that, and may run in another thread."""

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
            file_list: Segment files with data that is not synced.
            directory: The log's directory, if it has entries that are not synced.
            end_offset: What is durable once `run` has returned.
            new_directory: Whether the directory itself is not synced in the one above.
            metadata_path: The directory's `partition.metadata`, if that is not synced either.
        """
        self._files = files
        self.file_list = file_list
        self.directory = directory
        self.is_new = new_directory
        self.metadata_path = metadata_path
        self.abandoned = False
        self.end_offset = end_offset

    def run(self) -> None:
        """Sync.

        Raises:
            OSError: Something is not on stable storage. Unless the reason is a passing one it never will be, and the
                log must take no more appends.
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
            # 1. The task is handed to a thread. 2. The topic is deleted: its directory gets another name.
            # 3. The thread does not find the directory. Nobody waits for these records any more.
            if not self.abandoned:
                raise


RunTasks = Callable[[Sequence[SyncTask]], object]
"""Runs tasks, in any order or at the same time, and returns when all have ended; raises what one of them raised."""


def run_in_turn(tasks: Sequence[SyncTask]) -> None:
    """Run tasks one after the other, for whoever has no threads."""
    for task in tasks:
        task.run()
