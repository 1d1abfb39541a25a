"""Nobody waits until brokers in memory agree."""

from __future__ import annotations

import pytest

from headrace.spark import cluster


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "STALE_PAUSES_S", (0.0, 0.0))
