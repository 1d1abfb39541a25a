"""The fixtures of the acceptance tests: in this process, over TCP, on three brokers and, if possible, on Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headrace
from headrace.testing.cluster.cluster import Cluster
from tests.acceptance.place import BROKER_SETTINGS, KAFKA_BOUNDS, Place
from tests.fixtures.cluster_target import BROKERS, REPLICATED
from tests.fixtures.processes import running_server
from tests.fixtures.targets import make_target
from tools.fetch_java import JavaUnavailableError

collect_ignore = ["programs"]
"""Programs and suites of users, which tests run."""
HERE = ["in process", "tcp", "cluster"]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = [f"--config={name}={value}" for name, value in BROKER_SETTINGS.items()]
    with running_server(tmp_path_factory.mktemp("served"), *settings) as running:
        yield running.bootstrap


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Three brokers, each with a replica of every partition."""
    with Cluster(BROKERS, configs={**BROKER_SETTINGS, **REPLICATED}) as running:
        yield running.bootstrap


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {**BROKER_SETTINGS, **KAFKA_BOUNDS}
    server = make_target("kafka", tmp_path_factory.mktemp("kafka"), further=settings)
    try:
        server.start()
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    yield server.bootstrap
    server.stop()


def open_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "in process":
        with headrace.Broker(configs=BROKER_SETTINGS) as broker:
            place = Place("in process", broker)
            yield place
            place.close()
        return
    fixture = "served" if request.param == "tcp" else request.param
    place = Place(request.param, request.getfixturevalue(fixture))
    yield place
    place.close()


@pytest.fixture(params=HERE)
def headrace_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place with the features that only Headrace has."""
    yield from open_place(request)


@pytest.fixture(params=[*HERE, pytest.param("kafka", marks=pytest.mark.java)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place with the features of every Kafka."""
    yield from open_place(request)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for the topic and the group of one test."""
    called: str = request.node.name
    return called.translate(str.maketrans("[] ,", "----")).strip("-")


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest, place: Place) -> str:
    """Have the consumers of a place speak one of the two group protocols."""
    place.protocol = request.param
    return place.protocol
