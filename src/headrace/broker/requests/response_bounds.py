"""How large one answer may be.

What a request names is bounded, and named once; what is stored under a name is not small. An answer holds at least one
part (a group, a transactional id, a partition), whatever its size. When the parts that it holds are larger than
`ANSWER_BYTES` together, each further part is an error that clients repeat: they come again for those parts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

ANSWER_BYTES: Final = 16 * 1024 * 1024
"""When an answer is as large as this, nothing further is put into it."""
ANSWER_ENTRIES: Final = 100_000
"""When an answer has as many entries (offsets, producers), nothing further is put into it."""


def within_bounds(
    parts: Iterable[T], size_of: Callable[[T], int], refused: Callable[[T], T]
) -> Iterator[T]:
    """Yield the parts of an answer as long as it has room, then each one refused.

    Args:
        parts: The parts.
        size_of: Returns about how many bytes a part takes.
        refused: Returns what is told in place of a part.
    """
    size = 0
    for part in parts:
        if size >= ANSWER_BYTES:
            yield refused(part)
        else:
            size += size_of(part)
            yield part
