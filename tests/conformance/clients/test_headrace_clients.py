"""Headrace's own clients through the life of `tests.conformance.clients.scenario`, on Headrace and on Kafka."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.clients.observer import Observer
from tests.conformance.clients.scenario import (
    CODECS,
    STORED,
    Client,
    GroupLife,
    ProgramClient,
    check_codec,
    check_stored_codec,
)
from tests.fixtures.targets import Target


@pytest.fixture(scope="module", params=["range", "equal", "server-side"])
def client(
    request: pytest.FixtureRequest, target_name: str, target: Target, scratch: Path
) -> Iterator[Client]:
    if request.param == "server-side" and target_name == "kafka-3.9":
        pytest.skip("Kafka 3.9 does not speak the group protocol `consumer` by default")
    module = "tests.conformance.clients.programs.headrace_client"
    command = [sys.executable, "-m", module, request.param]
    client = ProgramClient(
        f"headrace-{request.param}", command, target.bootstrap, scratch, target.client_properties
    )
    yield client
    client.close()


@pytest.mark.parametrize("mode", ["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_stored_and_read_back(
    client: Client, target: Target, observer: Observer, codec: str, mode: str
) -> None:
    if client.name != "headrace-range":
        pytest.skip("assignors have nothing to do with it")
    check_codec(client, target, observer, codec, idempotent=mode == "idempotent")


@pytest.mark.parametrize("stored", STORED)
def test_codec_of_a_topic(client: Client, target: Target, observer: Observer, stored: str) -> None:
    if client.name != "headrace-range":
        pytest.skip("assignors have nothing to do with it")
    check_stored_codec(client, target, observer, stored)


@pytest.mark.slow
def test_group_lives_through_members_and_brokers_coming_and_going(
    client: Client, target: Target, observer: Observer
) -> None:
    GroupLife(client, target, observer).run()
