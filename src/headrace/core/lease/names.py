"""Names of members: what a program calls its process, what makes the name unique, and how many shards it takes.

`billing-7#9f2c4d81a0b3e657/4`: the owner is `billing-7`, and the member takes 4 shards at most. A lease compares whole
names, so two processes that give one owner are two members. All members read the number, to divide the shards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_UNIQUE: Final = "#"
_AT_MOST: Final = "/"


def named(owner: str, unique: str, max_shards: int | None) -> str:
    """Return the name of a member.

    Args:
        owner: What the program calls its process; empty for a member without such a name.
        unique: Text without `#` and `/` that no other member has, nor this one had before it was started again.
        max_shards: How many shards it takes at most; None: as many as there are.
    """
    name = f"{owner}{_UNIQUE}{unique}" if owner else unique
    return name if max_shards is None else f"{name}{_AT_MOST}{max_shards}"


def most_of(member: str) -> int | None:
    """Return how many shards a member takes at most, by its name; None: as many as there are."""
    most = member.rpartition(_AT_MOST)[2]
    return int(most) if _AT_MOST in member and most.isdecimal() else None


def owner_of(member: str) -> str:
    """Return what the program calls a member's process; the whole name of a member without an owner."""
    return member.rpartition(_UNIQUE)[0] or member


def shown(members: Iterable[str]) -> dict[str, str]:
    """Return what people are shown for each member: its owner, or the whole name where several have one owner."""
    found = sorted(set(members))
    owners = [owner_of(member) for member in found]
    return {
        member: owner if owners.count(owner) == 1 else member
        for member, owner in zip(found, owners, strict=True)
    }
