"""How many files a broker's process may open, and how segments and connections share them."""

from __future__ import annotations

import contextlib
import sys
from typing import Final

_UNLIMITED: Final = 1 << 20
_MOST_RESERVED: Final = 512
_MOST_SEGMENTS: Final = 8192


def descriptor_limit(*, raise_it: bool) -> int:
    """Return how many files this process may open.

    Args:
        raise_it: Whether to raise the soft limit to the hard one before. The limit of a program that has a broker
            inside is the program's to change.
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
    """Return how many files of segments may be open at once: at most three eighths of what the process may open."""
    return min(_MOST_SEGMENTS, descriptors * 3 // 8)


def connections(descriptors: int) -> int:
    """Return how many connections there may be: each takes two descriptors, of what segments and all else leave."""
    reserved = min(_MOST_RESERVED, descriptors // 8)
    left = descriptors - segment_files(descriptors) - reserved
    return max(16, min(descriptors * 3 // 8, left // 2))
