"""What leases and `headrace kinesis describe` call a process that reads shards."""

from __future__ import annotations

import os
import socket
from typing import Final

from headrace.errors import ConfigError

OWNER_BYTES_LIMIT: Final = 128


def process_owner(program: str) -> str:
    """Return the owner of a process whose program names none: the program, the host and the process id."""
    return f"{program}@{socket.gethostname()}:{os.getpid()}"


def check_owner(owner: str) -> None:
    """Refuse a name that leases and tables of them cannot show.

    Raises:
        ConfigError: It says why.
    """
    if not 0 < len(owner.encode(errors="surrogatepass")) <= OWNER_BYTES_LIMIT or (
        not owner.isprintable()
    ):
        raise ConfigError(
            f"owner={owner!r}: it is printable text of 1 to {OWNER_BYTES_LIMIT} bytes, or None"
        )
