"""The bounds of the size of one response.

The number of names in a request is bounded, but the state stored under a name may be large. A response has at least one
part (a group, a transactional id, a partition), whatever its size. When its parts exceed `ANSWER_BYTES` together, each
further part is an error that clients retry, with a request for these parts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

ANSWER_BYTES: Final = 16 * 1024 * 1024
"""The size of a response, in bytes, from which on further parts are errors."""
ANSWER_ENTRIES: Final = 100_000
"""The number of entries (offsets, producers) of a response from which on further parts are errors."""


def within_bounds(
    parts: Iterable[T], size_of: Callable[[T], int], refused: Callable[[T], T]
) -> Iterator[T]:
    """Yield the parts of a response up to the bound, then an error for each further part.

    Args:
        parts: The parts.
        size_of: Returns the approximate size of a part in bytes.
        refused: Returns the error that replaces a part.
    """
    size = 0
    for part in parts:
        if size >= ANSWER_BYTES:
            yield refused(part)
        else:
            size += size_of(part)
            yield part
