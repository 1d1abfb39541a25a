"""Names of members. A name contains the owner, a unique part, and the most shards that the member reads.

In `billing-7#9f2c4d81a0b3e657/4` the owner is `billing-7`, and the member reads at most 4 shards. Leases compare whole
names, so two processes with the same owner are two members. All members read the limits of the others from their names,
to divide the shards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_UNIQUE: Final = "#"
_AT_MOST: Final = "/"


def named(owner: str, unique: str, max_shards: int | None) -> str:
    """Return the name of a member.

    Args:
        owner: The program's name for its process; empty if it has none.
        unique: Text without `#` and `/` that no other member has, and that this member did not have before a restart.
        max_shards: The most shards that the member reads. None: no limit.
    """
    name = f"{owner}{_UNIQUE}{unique}" if owner else unique
    return name if max_shards is None else f"{name}{_AT_MOST}{max_shards}"


def most_of(member: str) -> int | None:
    """Return the most shards that a member reads, from its name. None: no limit."""
    most = member.rpartition(_AT_MOST)[2]
    return int(most) if _AT_MOST in member and most.isdecimal() else None


def owner_of(member: str) -> str:
    """Return the program's name for a member's process, or the whole name of a member without an owner."""
    return member.rpartition(_UNIQUE)[0] or member


def shown(members: Iterable[str]) -> dict[str, str]:
    """Return the text to display for each member: its owner, or the whole name if several members have this owner."""
    found = sorted(set(members))
    owners = [owner_of(member) for member in found]
    return {
        member: owner if owners.count(owner) == 1 else member
        for member, owner in zip(found, owners, strict=True)
    }
