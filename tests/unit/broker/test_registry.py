"""The registry of APIs, and the ApiVersions response that is derived from it."""

from __future__ import annotations

from types import ModuleType
from typing import get_type_hints

import pytest

from headrace.broker.context import CloseConnection
from headrace.broker.dispatch import APIS
from headrace.broker.handlers import REGISTRY
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frame import (
    RequestHeader,
    decode_response,
    encode_unsupported_version,
    request_class,
    response_class,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.versions import VersionRange
from tests.fixtures.broker_harness import BrokerHarness

# The minimums that Kafka 4 settled on, and the first milestone's maximums.
ADVERTISED = {
    ApiKey.PRODUCE: (0, 13),
    ApiKey.FETCH: (4, 17),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.METADATA: (0, 13),
    ApiKey.OFFSET_COMMIT: (2, 9),
    ApiKey.OFFSET_FETCH: (1, 9),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 5),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2),
    ApiKey.ELECT_LEADERS: (0, 2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.UPDATE_FEATURES: (0, 2),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    ApiKey.SHARE_GROUP_HEARTBEAT: (1, 1),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
}

every_module = pytest.mark.parametrize(
    "module", REGISTRY, ids=[m.__name__.rpartition(".")[2] for m in REGISTRY]
)


def test_the_advertised_versions_are_the_listed_ones():
    assert {m.API_KEY: tuple(m.VERSIONS) for m in REGISTRY} == ADVERTISED


def test_the_registry_is_in_the_order_of_the_keys():
    keys = [module.API_KEY for module in REGISTRY]
    assert keys == sorted(set(keys))


@every_module
def test_a_module_is_named_after_its_api(module: ModuleType):
    assert module.__name__.rpartition(".")[2] == ApiKey(module.API_KEY).name.lower()


@every_module
def test_served_versions_exist_in_the_schema_and_are_advertised(module: ModuleType):
    served = getattr(module, "SERVED", module.VERSIONS)
    for cls in (request_class(module.API_KEY), response_class(module.API_KEY)):
        assert cls is not None
        assert cls.MIN_VERSION <= served.min <= served.max <= cls.MAX_VERSION
    assert module.VERSIONS.min <= served.min
    assert served.max == module.VERSIONS.max


@every_module
def test_the_docstring_of_a_handler_has_its_versions(module: ModuleType):
    name = "".join(part.capitalize() for part in ApiKey(module.API_KEY).name.split("_"))
    served = getattr(module, "SERVED", module.VERSIONS)
    title = (module.__doc__ or "").splitlines()[0]
    assert title.startswith(f"{name} (API key {int(module.API_KEY)}), version")
    assert str(served) in title
    assert "Behaviour:" in (module.__doc__ or "")


@every_module
def test_a_handler_takes_the_requests_of_its_api(module: ModuleType):
    assert get_type_hints(module.handle)["request"] is request_class(module.API_KEY)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_answers_the_registry(version: int):
    response = BrokerHarness().call(ApiVersionsRequest(), version)
    assert response.error_code == ErrorCode.NONE
    told = {a.api_key: VersionRange(a.min_version, a.max_version) for a in response.api_keys}
    assert told == {api.key: api.advertised for api in APIS}


@pytest.mark.parametrize("name", ["", "kafka python!", "x" * 500])
def test_api_versions_accepts_any_client_name(name: str):
    request = ApiVersionsRequest(client_software_name=name, client_software_version="")
    assert BrokerHarness().call(request, 3).error_code == ErrorCode.NONE


def test_an_unknown_version_of_api_versions_gets_the_served_range_in_version_0():
    broker = BrokerHarness().broker
    header = RequestHeader(ApiKey.API_VERSIONS, 99, 7, "from the future")
    wire = b"".join(
        bytes(p)  # type: ignore[arg-type]  # no file ranges in this response
        for p in encode_unsupported_version(header, broker.unsupported_version())
    )
    correlation_id, response = decode_response(memoryview(wire)[4:], ApiVersionsResponse, 0)
    assert correlation_id == 7
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    own = next(a for a in response.api_keys if a.api_key == ApiKey.API_VERSIONS)
    assert (own.min_version, own.max_version) == (0, 4)


@pytest.mark.parametrize(
    ("request_", "version"),
    [(FetchRequest(), 18), (OffsetCommitRequest(), 10), (OffsetFetchRequest(), 10)],
)
def test_a_version_that_is_not_served_closes_the_connection(request_, version):
    with pytest.raises(CloseConnection, match="not supported"):
        BrokerHarness().send(request_, version)
