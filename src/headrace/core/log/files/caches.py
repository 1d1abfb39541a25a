"""Files that can be rebuilt from the segments. They are never synced, and a log works without them."""

from __future__ import annotations

from headrace.ports import FileSystem


def write_cache(files: FileSystem, path: str, content: bytes) -> bool:
    """Write a file that can be rebuilt, without syncing it. A full disk is not an error.

    Returns:
        Whether the file has the content. If not, the file does not exist.
    """
    try:
        file = files.open(path, create=True)
        file.truncate(0)
        file.append([content])
        file.close()
    except OSError:
        files.remove(path)
        return False
    return True
