"""aiokafka through the life of `tests.conformance.clients.scenario`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.clients.scenario import Client, ProgramClient
from tests.conformance.clients.scenario_tests import (
    test_codec_of_a_topic,
    test_group_lives_through_members_and_brokers_coming_and_going,
    test_records_of_every_codec_are_stored_and_read_back,
)
from tests.fixtures.targets import Target

__all__ = [
    "test_codec_of_a_topic",
    "test_group_lives_through_members_and_brokers_coming_and_going",
    "test_records_of_every_codec_are_stored_and_read_back",
]


@pytest.fixture(scope="module")
def client(target: Target, scratch: Path) -> Iterator[Client]:
    client = ProgramClient.python(
        "aiokafka", "aio", target.bootstrap, scratch, target.client_properties
    )
    yield client
    client.close()
