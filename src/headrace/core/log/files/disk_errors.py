"""Two kinds of errors of the file system: the disk cannot be trusted any more, or it only refused an operation.

A `FileSystem` leaves no trace of an operation that failed, and reports every failed sync as EIO. So an error about
space, memory, descriptors or permissions means that the operation was not done and everything else is unchanged.
"""

from __future__ import annotations

import errno
from typing import Final

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
PROTECTED: Final = frozenset({errno.EACCES, errno.EPERM})
REFUSED: Final = DESCRIPTORS | PROTECTED | {errno.ENOMEM}
"""Too many open files, too little memory, or a file without permission."""


def could_not_open(error: OSError) -> bool:
    """Return whether a sync has failed before it began. With any other error its data may be lost."""
    return error.errno in REFUSED


def is_passing(error: OSError) -> bool:
    """Return whether the operation was refused as a whole, so that it may succeed later."""
    return error.errno in NO_SPACE or error.errno in REFUSED
