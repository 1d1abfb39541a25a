"""The limit on open files of a broker's process, and its division between segments and connections."""

from __future__ import annotations

import contextlib
import sys
from typing import Final

_UNLIMITED: Final = 1 << 20
_MOST_RESERVED: Final = 512
_MOST_SEGMENTS: Final = 8192


def descriptor_limit(*, raise_it: bool) -> int:
    """Return the greatest number of files that this process can have open.

    Args:
        raise_it: Whether to raise the soft limit to the hard limit first. An embedded broker leaves the limit to its
            program.
    """
    if sys.platform == "win32":
        return 8192
    import resource  # noqa: PLC0415 - not on every platform

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = _UNLIMITED if soft == resource.RLIM_INFINITY else soft
    if raise_it:
        wanted = max(soft, _UNLIMITED if hard == resource.RLIM_INFINITY else hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft


def segment_files(descriptors: int) -> int:
    """Return how many segment files can be open at a time: three eighths of the limit at most."""
    return min(_MOST_SEGMENTS, descriptors * 3 // 8)


def connections(descriptors: int) -> int:
    """Return how many connections can be open.

    Each connection needs two descriptors of those that segments and other files leave.
    """
    reserved = min(_MOST_RESERVED, descriptors // 8)
    left = descriptors - segment_files(descriptors) - reserved
    return max(16, min(descriptors * 3 // 8, left // 2))
