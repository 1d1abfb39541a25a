"""kcat through the life of `tests.conformance.clients.scenario`.

Debian's kcat carries librdkafka 2.0, which compresses only if the advertised versions of Produce begin at 0. Its
`api.version.request=false` is not tried: it then speaks versions that Kafka 4 has dropped, and so has Headrace.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.clients.kcat import Kcat, find_kcat, without_scram
from tests.conformance.clients.observer import Observer
from tests.conformance.clients.scenario import (
    CODECS,
    STORED,
    GroupLife,
    check_codec,
    check_stored_codec,
)
from tests.fixtures.targets import Target


@pytest.fixture(scope="module")
def client(target: Target, scratch: Path) -> Kcat:
    command = find_kcat()
    if command is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    return Kcat(command, target.bootstrap, scratch, without_scram(target.client_properties))


@pytest.mark.parametrize("mode", ["plain", "idempotent"])
@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_stored_and_read_back(
    client: Kcat, target: Target, observer: Observer, codec: str, mode: str
) -> None:
    check_codec(client, target, observer, codec, idempotent=mode == "idempotent")


@pytest.mark.parametrize("stored", STORED)
def test_codec_of_a_topic(client: Kcat, target: Target, observer: Observer, stored: str) -> None:
    check_stored_codec(client, target, observer, stored)


def test_producing_creates_the_topic(client: Kcat, observer: Observer) -> None:
    client.run("-P", "-t", "fresh", text="first\nsecond\n")

    assert observer.partitions("fresh") == 6
    assert sorted(each.value or b"" for each in observer.read("fresh")) == [b"first", b"second"]


def test_offsets_by_time(client: Kcat) -> None:
    client.create_topic("timed", 1)
    for n in range(3):
        client.run("-P", "-t", "timed", "-p", "0", text=f"{n}\n")
    stamps = client.run("-C", "-t", "timed", "-p", "0", "-e", "-q", "-f", "%T\n").stdout.split()

    assert client.run("-Q", "-t", f"timed:0:{stamps[0]}").stdout.strip() == "timed [0] offset 0"
    assert client.run("-Q", "-t", f"timed:0:{int(stamps[2]) + 1}").stdout.strip() in {
        "timed [0] offset 3",
        "timed [0] offset -1",
    }


@pytest.mark.slow
def test_group_lives_through_members_and_brokers_coming_and_going(
    client: Kcat, target: Target, observer: Observer
) -> None:
    GroupLife(client, target, observer).run()
