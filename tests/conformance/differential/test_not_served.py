"""Every API and version that Kafka offers is offered, or stands in the table of what is not served."""

from __future__ import annotations

import pytest

from headrace.broker.dispatch import APIS as OURS
from headrace.protocol.api_keys import ApiKey
from tests.conformance.differential.not_served import APIS, OPTIONAL, VERSIONS
from tests.conformance.differential.pair import Pair
from tests.conformance.differential.peer import advertised

MISSING = {api for missing in APIS for api in missing.apis}


@pytest.mark.java
def test_every_api_of_kafka_is_served_or_has_a_reason(pair: Pair) -> None:
    kafka, headrace = advertised(pair.kafka.address), advertised(pair.headrace.address)
    assert {ApiKey(key) for key in kafka.keys() - headrace.keys()} == MISSING
    assert headrace.keys() <= kafka.keys()
    older = {
        ApiKey(key): kafka[key][1]
        for key in kafka.keys() & headrace.keys()
        if kafka[key][1] > headrace[key][1]
    }
    assert older == {each.api: each.newest for each in VERSIONS}


@pytest.mark.java
def test_the_oldest_versions_are_kafkas_and_none_is_newer(pair: Pair) -> None:
    kafka, headrace = advertised(pair.kafka.address), advertised(pair.headrace.address)
    common = kafka.keys() & headrace.keys()
    assert {key: headrace[key][0] for key in common} == {key: kafka[key][0] for key in common}
    assert [key for key in common if headrace[key][1] > kafka[key][1]] == []


def test_an_api_that_is_not_served_is_in_no_registry() -> None:
    optional = {api for missing in OPTIONAL for api in missing.apis}
    assert not (MISSING | optional) & {ApiKey(api.key) for api in OURS}
