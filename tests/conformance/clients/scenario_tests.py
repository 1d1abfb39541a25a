"""The tests of the scenario for one client. A test module imports them, and has a fixture `client`."""

from __future__ import annotations

import pytest

from tests.conformance.clients.observer import Observer
from tests.conformance.clients.scenario import (
    CODECS,
    STORED,
    Client,
    GroupLife,
    check_codec,
    check_stored_codec,
)
from tests.fixtures.targets import Target


@pytest.mark.parametrize("mode", ["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_stored_and_read_back(
    client: Client, target: Target, observer: Observer, codec: str, mode: str
) -> None:
    check_codec(client, target, observer, codec, idempotent=mode == "idempotent")


@pytest.mark.parametrize("stored", STORED)
def test_codec_of_a_topic(client: Client, target: Target, observer: Observer, stored: str) -> None:
    check_stored_codec(client, target, observer, stored)


@pytest.mark.slow
def test_group_lives_through_members_and_brokers_coming_and_going(
    client: Client, target: Target, observer: Observer
) -> None:
    # After a crash Kafka raises the leader epoch, and kafka-python 3.0.12 waits for ever when the old one is fenced.
    stuck = (client.name, target.name) == ("kafka-python", "kafka")
    GroupLife(client, target, observer, crash_under_load=not stuck).run()
