"""The owner: the name of a process in the leases and in `headrace kinesis describe`."""

from __future__ import annotations

import os
import socket
from typing import Final

from headrace.errors import ConfigError

OWNER_BYTES_LIMIT: Final = 128


def process_owner(program: str) -> str:
    """Return the owner of a process without a name of its own: program, host and process id."""
    return f"{program}@{socket.gethostname()}:{os.getpid()}"


def check_owner(owner: str) -> None:
    """Check that leases and tables can show a name.

    Raises:
        ConfigError: The name is empty, too long, or not printable.
    """
    if not 0 < len(owner.encode(errors="surrogatepass")) <= OWNER_BYTES_LIMIT or (
        not owner.isprintable()
    ):
        raise ConfigError(
            f"owner={owner!r} is not allowed: use printable text of 1 to {OWNER_BYTES_LIMIT} bytes, or None"
        )
