"""Settings for every test: Hypothesis' profiles, the collector's, assertions that explain themselves elsewhere, too."""

from __future__ import annotations

import gc

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.conformance.clients", "tests.fixtures")

settings.register_profile(
    "deterministic",
    derandomize=True,
    max_examples=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("deterministic")


def pytest_collection() -> None:
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spare the collector half a million objects: what was collected stays to the end, what tests leave is little."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 100)
    gc.enable()
