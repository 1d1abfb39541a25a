"""Who is at the other end of a connection."""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"


class Principal(NamedTuple):
    """Kafka's principal: `User:alice`."""

    name: str
    kind: str = USER

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("ANONYMOUS")
"""Whoever is on a connection that nobody has authenticated on, as Kafka calls it."""
