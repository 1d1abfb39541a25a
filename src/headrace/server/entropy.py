"""Randomness of a real process."""

from __future__ import annotations

import os
import uuid


class OsEntropy:
    """The `Entropy` port on the operating system's generator."""

    __slots__ = ()

    def uuid(self) -> bytes:
        """Return 16 bytes of a random UUID (version 4)."""
        return uuid.UUID(bytes=os.urandom(16), version=4).bytes
