"""Files that no table has: what tasks leave behind that were killed, and what compaction replaced."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from headrace.spark.archive.files import DATA, PARTIAL_PREFIX

LEAST_AGE_MS: Final = 3_600_000
"""Younger files may belong to a commit that is under way, whatever age is asked for: the table would lose them."""


def delete_partial(root: Path, age_ms: int, *, dry_run: bool) -> list[str]:
    """Delete what tasks did not finish writing, and have not touched for so long."""
    return _delete(
        root,
        [path for path in _old(root / DATA, age_ms) if path.name.startswith(PARTIAL_PREFIX)],
        dry_run=dry_run,
    )


def delete_unknown(
    root: Path, folder: str, pattern: str, known: Collection[str], age_ms: int, *, dry_run: bool
) -> list[str]:
    """Delete old files of a folder, of such names, that are not among the known ones."""
    old = _old(root / folder, age_ms, pattern)
    return _delete(
        root,
        [path for path in old if path.relative_to(root).as_posix() not in known],
        dry_run=dry_run,
    )


def _old(folder: Path, age_ms: int, pattern: str = "*") -> Iterator[Path]:
    before = time.time() - max(age_ms, LEAST_AGE_MS) / 1000
    for path in sorted(folder.rglob(pattern)):
        try:
            if path.is_file() and path.stat().st_mtime <= before:
                yield path
        except FileNotFoundError:  # renamed or deleted since it was listed
            continue


def _delete(root: Path, paths: list[Path], *, dry_run: bool) -> list[str]:
    for path in paths:
        if not dry_run:
            path.unlink(missing_ok=True)
    return [path.relative_to(root).as_posix() for path in paths]
