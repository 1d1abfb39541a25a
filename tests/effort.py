"""The number of examples that Hypothesis tries: a third of them in `make check`, all of them in `make test`."""

from __future__ import annotations

import pytest

_FEWEST = 10
_markers = [""]


def configure(config: pytest.Config) -> None:
    """Note which tests this run selects."""
    _markers[0] = config.getoption("markexpr")


def examples(count: int) -> int:
    """Return `count`, or a third of it if the run leaves slow tests out."""
    return max(_FEWEST, count // 3) if _markers[0] == "not slow" else count
