"""The limits of all metadata stores. They are equal, so that a value that one store accepts fits into every store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.ports import Check, Delete, Put

KEY_CHARACTERS_LIMIT: Final = 1024
OPERATIONS_LIMIT: Final = 100
COMMIT_BYTES_LIMIT: Final = 512 * 1024


def check_commit(checks: Sequence[Check], operations: Sequence[Put | Delete]) -> None:
    """Refuse a commit that exceeds the limits.

    Raises:
        ValueError: A key is empty or malformed, or the commit is too large.
    """
    if len(checks) + len(operations) > OPERATIONS_LIMIT:
        count = len(checks) + len(operations)
        raise ValueError(
            f"a commit has {count} checks and operations, at most {OPERATIONS_LIMIT} are allowed"
        )
    for item in (*checks, *operations):
        if not item.key or len(item.key) > KEY_CHARACTERS_LIMIT or not item.key.isprintable():
            raise ValueError(
                f"{item.key[:80]!r} is not a key: a key has 1 to {KEY_CHARACTERS_LIMIT} printable characters"
            )
    size = sum(len(o.value) for o in operations if isinstance(o, Put))
    if size > COMMIT_BYTES_LIMIT:
        raise ValueError(
            f"a commit has {size} bytes of values, at most {COMMIT_BYTES_LIMIT} are allowed"
        )


def last_by_key(operations: Sequence[Put | Delete]) -> Sequence[tuple[str, Put | Delete]]:
    """Return the last operation of each key, which determines the result, sorted by key."""
    return sorted({operation.key: operation for operation in operations}.items())
