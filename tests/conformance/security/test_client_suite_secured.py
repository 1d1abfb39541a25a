"""A part of the client suite with SASL_SSL and an authorizer; `make conformance TARGET=headrace-secured` runs it all.

The user of the clients has the permissions of a producer and a consumer. The broker is restarted and killed while the
groups run: users, permissions and certificates survive, and the clients reconnect.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.clients.kcat import without_scram
from tests.conformance.clients.observer import Observer
from tests.conformance.clients.scenario import GroupLife, check_codec
from tests.conformance.security.every_client import CLIENTS
from tests.fixtures.client_security import Properties
from tests.fixtures.targets import Target, make_target

pytestmark = pytest.mark.java  # one of the clients


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    server = make_target("headrace-secured", tmp_path_factory.mktemp("secured") / "node")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def observer(target: Target) -> Observer:
    return Observer(target.bootstrap, target.admin_properties)


def properties_of(name: str, target: Target) -> Properties:
    properties = target.client_properties
    return without_scram(properties) if name == "kcat" else properties


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_writes_and_reads_back_compressed_records(
    target: Target, observer: Observer, tmp_path: Path, name: str
) -> None:
    client = CLIENTS[name](target.bootstrap, tmp_path, properties_of(name, target))
    try:
        check_codec(client, target, observer, "lz4", idempotent=True)
    finally:
        client.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["confluent-kafka", "headrace"])
def test_group_lives_through_members_and_brokers_coming_and_going(
    target: Target, observer: Observer, tmp_path: Path, name: str
) -> None:
    client = CLIENTS[name](target.bootstrap, tmp_path, properties_of(name, target))
    try:
        GroupLife(client, target, observer).run()
    finally:
        client.close()
