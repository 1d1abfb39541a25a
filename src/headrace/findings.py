"""The results of the checks of `headrace doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    state: Literal["ok", "fault", "absent"]
    """`absent` is a part that is missing and that not every user needs."""
    found: str
    remedy: str | None = None
