"""kafkajs through the life of `tests.conformance.clients.scenario`."""

from __future__ import annotations

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
from tests.fixtures.javascript import NodeUnavailableError, node_program
from tests.fixtures.targets import Target


@pytest.fixture(scope="module")
def client(target: Target, scratch: Path) -> Iterator[Client]:
    try:
        command = node_program("client.js")
    except NodeUnavailableError as error:
        pytest.skip(str(error))
    client = ProgramClient("kafkajs", command, target.bootstrap, scratch, target.client_properties)
    yield client
    client.close()


@pytest.mark.parametrize("mode", ["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_codec(client: Client, target: Target, observer: Observer, codec: str, mode: str) -> None:
    check_codec(client, target, observer, codec, idempotent=mode == "idempotent")


@pytest.mark.parametrize("stored", STORED)
def test_codec_of_a_topic(client: Client, target: Target, observer: Observer, stored: str) -> None:
    check_stored_codec(client, target, observer, stored)


@pytest.mark.slow
def test_group_lives_through_members_and_brokers_coming_and_going(
    client: Client, target: Target, observer: Observer
) -> None:
    GroupLife(client, target, observer).run()
