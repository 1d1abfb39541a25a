"""The conformance suite of metadata stores on ZooKeeper: all its tests that any store can run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from tests.unit.metadata_stores import (
    test_commits,
    test_lost_outcomes,
    test_sessions,
    test_watches,
)

pytestmark = pytest.mark.java


def _of_any_store(module: ModuleType) -> Iterator[tuple[str, Callable[..., object]]]:
    """Return the tests of a module that do not choose their stores."""
    for name, test in vars(module).items():
        if name.startswith("test_") and "store" in inspect.signature(test).parameters:
            marks = getattr(test, "pytestmark", [])
            if not any("store" in mark.args[:1] for mark in marks):
                yield name, test


for _module in (test_commits, test_lost_outcomes, test_sessions, test_watches):
    globals().update(_of_any_store(_module))
