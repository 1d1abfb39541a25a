"""How many examples Hypothesis tries: all of them in `make test`, a third of them in `make check`."""

from __future__ import annotations

import pytest

_quick = False


def configure(config: pytest.Config) -> None:
    """Try fewer examples if slow tests are deselected."""
    global _quick  # noqa: PLW0603
    _quick = config.getoption("markexpr") == "not slow"


def examples(count: int) -> int:
    """How many of `count` examples this run tries, at least 10."""
    return max(10, count // 3) if _quick else count
