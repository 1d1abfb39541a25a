"""Random numbers of the operating system."""

from __future__ import annotations

import os
import uuid


class OsEntropy:
    """The `Entropy` port, with the operating system's random number generator."""

    __slots__ = ()

    def uuid(self) -> bytes:
        """Return 16 bytes of a random UUID (version 4)."""
        return uuid.UUID(bytes=os.urandom(16), version=4).bytes
