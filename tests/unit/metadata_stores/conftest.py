"""The stores that the conformance suite tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.metadata_stores.sessions import SimulatedMetadataStore
from headrace.metadata_stores.sqlite import SqliteMetadataStore
from headrace.ports import MetadataStore
from tests.fixtures.remote_store import ServedStore


def delayed() -> SimulatedMetadataStore:
    """Return a session whose messages take time."""
    chance = random.Random(1)
    return SimulatedMetadataStore(delay_ms=lambda: chance.randint(0, 9))


@pytest.fixture(params=["memory", "sqlite", "simulated", "delayed", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    makers: dict[str, Callable[[], MetadataStore]] = {
        "memory": MemoryMetadataStore,
        "sqlite": lambda: SqliteMetadataStore(tmp_path / "metadata.sqlite"),
        "simulated": SimulatedMetadataStore,
        "delayed": delayed,
    }
    if request.param == "remote":
        served = ServedStore(tmp_path / "metadata.sqlite")
        yield served.connect()
        served.close()
        return
    made = makers[request.param]()
    yield made
    made.close()
