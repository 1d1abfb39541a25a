"""No pauses between requests, because clusters in memory have no stale brokers."""

from __future__ import annotations

import pytest

from headrace.spark.client import contact


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contact, "STALE_PAUSES_S", (0.0, 0.0))
