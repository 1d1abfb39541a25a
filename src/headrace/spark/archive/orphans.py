"""Delete files that belong to no table: files of killed tasks, and files that a compaction replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from headrace.spark.archive.files import DATA
from headrace.spark.archive.table_location import PARTIAL_PREFIX, TableLocation

LEAST_AGE_MS: Final = 3_600_000
"""The least age in milliseconds. A younger file may belong to a pending commit, and must not be deleted."""


def delete_partial(root: TableLocation, age_ms: int, *, dry_run: bool) -> list[str]:
    """Delete incomplete files of tasks that were not modified for `age_ms`. Return their paths."""
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
    """Delete old files of a folder whose names end with `suffix` and that are not known. Return their paths."""
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
