"""Ranges of versions of an API."""

from __future__ import annotations

from typing import NamedTuple


class VersionRange(NamedTuple):
    """The versions of an API, both ends included."""

    min: int
    max: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.min <= version <= self.max

    def __str__(self) -> str:
        return f"{self.min}-{self.max}"
