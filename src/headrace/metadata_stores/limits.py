"""Limits of every metadata store, so that a value that fits into one store fits into all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.ports import Check, Delete, Put

KEY_CHARACTERS_LIMIT: Final = 1024
OPERATIONS_LIMIT: Final = 100
COMMIT_BYTES_LIMIT: Final = 512 * 1024


def check_commit(checks: Sequence[Check], operations: Sequence[Put | Delete]) -> None:
    """Refuse a commit that a store could not carry.

    Raises:
        ValueError: A key is empty or malformed, or the commit is too large.
    """
    if len(checks) + len(operations) > OPERATIONS_LIMIT:
        raise ValueError(f"a commit has at most {OPERATIONS_LIMIT} checks and operations")
    for item in (*checks, *operations):
        if not item.key or len(item.key) > KEY_CHARACTERS_LIMIT or not item.key.isprintable():
            raise ValueError(f"not a key: {item.key[:80]!r}")
    size = sum(len(o.value) for o in operations if isinstance(o, Put))
    if size > COMMIT_BYTES_LIMIT:
        raise ValueError(f"a commit carries at most {COMMIT_BYTES_LIMIT} bytes, got {size}")


def holds(check: Check, version: int | None) -> bool:
    """Tell whether a check holds for a key of this version (None: the key is absent)."""
    if check.version == "absent":
        return version is None
    if check.version == "exists":
        return version is not None
    return version == check.version
