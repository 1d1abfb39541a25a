"""The ready line and the exit code: what a server process reports to the process that has started it."""

from __future__ import annotations

import contextlib
import sys
from typing import Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2


def print_ready(line: str) -> None:
    """Print the ready line, unless standard output is closed."""
    with contextlib.suppress(OSError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
