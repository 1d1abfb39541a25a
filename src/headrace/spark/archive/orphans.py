"""Files that no table has: what tasks leave behind that were killed, and what compaction replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from headrace.spark.archive.files import DATA
from headrace.spark.archive.table_location import PARTIAL_PREFIX, TableLocation

LEAST_AGE_MS: Final = 3_600_000
"""Younger files may belong to a commit that is under way, whatever age is asked for: the table would lose them."""


def delete_partial(root: TableLocation, age_ms: int, *, dry_run: bool) -> list[str]:
    """Delete what tasks did not finish writing, and have not touched for so long."""
    return _delete(
        root,
        DATA,
        lambda path: path.rpartition("/")[2].startswith(PARTIAL_PREFIX),
        age_ms,
        dry_run=dry_run,
    )


def delete_unknown(
    root: TableLocation,
    folder: str,
    suffix: str,
    known: Collection[str],
    age_ms: int,
    *,
    dry_run: bool,
) -> list[str]:
    """Delete old files of a folder, with names that end so, that are not among the known ones."""
    return _delete(
        root,
        folder,
        lambda path: path.endswith(suffix) and path not in known,
        age_ms,
        dry_run=dry_run,
    )


def _delete(
    root: TableLocation, folder: str, wanted: Callable[[str], bool], age_ms: int, *, dry_run: bool
) -> list[str]:
    before_ms = (time.time() * 1000) - max(age_ms, LEAST_AGE_MS)
    paths = [
        file.path
        for file in root.walk(folder)
        if file.modified_ms <= before_ms and wanted(file.path)
    ]
    for path in paths:
        if not dry_run:
            root.delete(path)
    return paths
