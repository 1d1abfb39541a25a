"""Which errors of the file system say that the disk cannot be trusted, and which only that it is full.

A file system leaves an append that failed without a trace, and reports a sync that failed as EIO, whatever the reason
was. So an error for want of space means that something was not written, and everything else is as it was.
"""

from __future__ import annotations

import errno
from typing import Final

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
TOO_MANY_OPEN_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})


def is_passing(error: OSError) -> bool:
    """Tell whether the operation has failed as a whole, and may succeed later."""
    return error.errno in NO_SPACE or error.errno in TOO_MANY_OPEN_FILES
