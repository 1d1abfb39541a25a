"""The tables of API versions of Kafka releases."""

from __future__ import annotations

from importlib import import_module

import pytest

from headrace.broker.dispatch import APIS
from headrace.errors import ConfigError
from headrace.protocol.api_keys import ApiKey
from headrace.testing.releases import NEWEST, RELEASES, apis_of


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the client, when it is imported
@pytest.mark.parametrize("release", RELEASES)
def test_the_tables_are_those_of_another_client(release) -> None:
    theirs = import_module("kafka.protocol.broker_version_data").BROKER_API_VERSIONS[
        tuple(map(int, release.split(".")))
    ]
    column = RELEASES.index(release)
    for api in APIS:
        newest = NEWEST.get(api.key, (None,) * len(RELEASES))[column]
        assert newest == (theirs[api.key][1] if api.key in theirs else None), ApiKey(api.key).name


def test_an_older_release_has_fewer_apis_and_older_versions() -> None:
    kept = {api.key: api for api in apis_of("2.8", APIS)}
    ours = {api.key: api for api in APIS}
    assert ApiKey.DESCRIBE_TOPIC_PARTITIONS not in kept
    assert kept[ApiKey.METADATA].served.max == 11 < ours[ApiKey.METADATA].served.max
    assert kept[ApiKey.HEARTBEAT] == ours[ApiKey.HEARTBEAT]
    assert all(api.advertised.min <= api.advertised.max for api in kept.values())


def test_a_release_without_a_table_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(ConfigError, match=r"no table for Kafka 1\.0.*2\.8"):
        apis_of("1.0", APIS)
