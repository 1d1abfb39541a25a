"""The ensembles of ZooKeeper that these tests share, and stores with a chroot of their own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.metadata_stores.zookeeper import ZooKeeperSettings, open_zookeeper_store, takeover
from headrace.metadata_stores.zookeeper.store import ZooKeeperMetadataStore
from headrace.ports import MetadataStore
from tests.fixtures.logs import RecordingJournal
from tests.fixtures.zookeeper import ZooKeeper
from tools.fetch_java import JavaUnavailableError, zookeeper_class_path

_numbers = itertools.count()
Open = Callable[..., ZooKeeperMetadataStore]


@pytest.fixture(scope="session", autouse=True)
def _class_path() -> None:
    """Skip the tests without Java or without the artifacts, with the reason."""
    try:
        zookeeper_class_path()
    except JavaUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """An ensemble of one server, which no test ends."""
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as ensemble:
        yield ensemble


@pytest.fixture(scope="session")
def triple(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """An ensemble of three servers, which no test ends."""
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper"), nodes=3) as ensemble:
        yield ensemble


@pytest.fixture
def journal() -> RecordingJournal:
    """The log events of all stores of a test."""
    return RecordingJournal()


@pytest.fixture
def chroot() -> str:
    """A chroot that no other test has."""
    return f"/tests-{next(_numbers)}"


@pytest.fixture
def opened(journal: RecordingJournal, chroot: str) -> Iterator[Open]:
    """Open a session with an ensemble, and close it after the test."""
    stores: list[ZooKeeperMetadataStore] = []

    def open_it(ensemble: ZooKeeper | str, **settings: Any) -> ZooKeeperMetadataStore:
        settings.setdefault("session_timeout_ms", 20_000)  # the machine may be busy
        address = ensemble if isinstance(ensemble, str) else ensemble.address + chroot
        store = open_zookeeper_store(
            ZooKeeperSettings(connect=address, **settings),
            clock=lambda: time.monotonic_ns() // 1_000_000,
            journal=journal,
        )
        stores.append(store)
        return store

    yield open_it
    for store in stores:
        store.close()


@pytest.fixture(params=["single", "triple"])
def store(request: pytest.FixtureRequest, opened: Open) -> MetadataStore:
    """A store with one server, and one with three."""
    return opened(request.getfixturevalue(request.param))


def end_session(store: ZooKeeperMetadataStore) -> None:
    """End the session of a store on the server, as its expiry does. Does nothing if there is none."""
    patient = replace(store._settings, session_timeout_ms=60_000)
    if store.session_key is not None:
        assert takeover.end_session(patient, store.session_key)
