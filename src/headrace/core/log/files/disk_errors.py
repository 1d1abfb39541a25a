"""Which errors of the file system say that the disk cannot be trusted, and which only that it refused an operation.

A file system leaves an operation that failed without a trace, and reports a sync that failed as EIO, whatever the
reason was. So an error for want of space, of memory, of descriptors or of a permission means that something was not
done, and everything else is as it was.
"""

from __future__ import annotations

import errno
from typing import Final

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
PROTECTED: Final = frozenset({errno.EACCES, errno.EPERM})
REFUSED: Final = DESCRIPTORS | PROTECTED | {errno.ENOMEM}
"""Too many open files, too little memory, or a file that somebody has protected."""


def could_not_open(error: OSError) -> bool:
    """Tell whether a sync has failed before it began; with any other error its data may be lost."""
    return error.errno in REFUSED


def is_passing(error: OSError) -> bool:
    """Tell whether the operation has failed as a whole, and may succeed later."""
    return error.errno in NO_SPACE or error.errno in REFUSED
