"""Secret options of the broker appear neither in described configurations nor in the log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.config.broker import parse_broker_config
from headrace.config.security import LISTENER_PREFIX
from headrace.errors import ConfigError
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from tests.fixtures.broker_harness import BrokerHarness

SECRET = "hunter2-and-more"


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_secret_is_described_as_null(version: int) -> None:
    given = (
        "ssl.key.password",
        "ssl.keystore.key",
        "zookeeper.ssl.keystore.password",
        "headrace.zookeeper.digest.password",
    )
    options: dict[str, Any] = {name.replace(".", "_"): SECRET for name in given}
    harness = BrokerHarness(**options)
    resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    pending = harness.send(request, version)
    assert pending.wire is not None
    assert SECRET.encode() not in pending.wire
    configs = {config.name: config for config in pending.response.results[0].configs}
    secret = {name for name, config in configs.items() if config.is_sensitive}
    mechanisms = ("plain", "scram-sha-256", "scram-sha-512")
    assert secret == set(given) | {f"{each}.sasl.jaas.config" for each in mechanisms}
    for name in given:
        assert configs[name].value is None
        assert [synonym.value for synonym in configs[name].synonyms] == [None, None]
    assert configs["num.partitions"].value == "1"
    assert SECRET not in json.dumps(harness.journal.lines, default=repr)
    assert SECRET not in repr(harness.config)


def test_neither_is_that_of_one_listener() -> None:
    name = f"{LISTENER_PREFIX}external.ssl.key.password"
    config = parse_broker_config({name: SECRET})
    assert config.for_listener("EXTERNAL").ssl_key_password == SECRET
    assert SECRET not in repr(config)
    assert SECRET not in repr(config.for_listener("EXTERNAL"))
    harness = BrokerHarness(listener_overrides=config.listener_overrides)
    resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    pending = harness.send(DescribeConfigsRequest(resources=[resource]))
    assert pending.wire is not None
    assert SECRET.encode() not in pending.wire


def test_errors_do_not_contain_the_secret() -> None:
    for name in ("ssl.key.password", f"{LISTENER_PREFIX}external.ssl.key.password"):
        with pytest.raises(ConfigError) as raised:
            parse_broker_config({name: SECRET * 2000})
        assert SECRET not in str(raised.value)
