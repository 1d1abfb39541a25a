"""One server for each module; Headrace, or Apache Kafka with `--target kafka`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.clients.observer import Observer
from tests.fixtures.targets import Target, make_target, running_target

QUICK_GROUPS = {
    "group.consumer.min.session.timeout.ms": "2000",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.heartbeat.interval.ms": "300",
}
"""Settings of classic members in these tests."""


@pytest.fixture(scope="session")
def target_name(request: pytest.FixtureRequest) -> str:
    # The option is unknown when these tests are collected from a directory above.
    default = os.environ.get("CONFORMANCE_TARGET", "headrace")
    name: str = request.config.getoption("--target", default=default)
    return name


@pytest.fixture(scope="module")
def target(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory = tmp_path_factory.mktemp("target") / target_name
    server = make_target(target_name, directory, further=QUICK_GROUPS)
    with running_target(server):
        yield server


@pytest.fixture(scope="module")
def observer(target: Target) -> Observer:
    return Observer(target.bootstrap, target.admin_properties)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("peers")
