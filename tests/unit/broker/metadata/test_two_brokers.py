"""Two brokers with one metadata store: each acts on what the other has committed, from its next tick."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ErrorCode
from headrace.metadata_stores.memory import MemoryMetadata, MemoryMetadataStore
from headrace.ports import Put
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from headrace.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.fixtures.broker_harness import BrokerHarness

GROUP = 32


class Cluster:
    """Two brokers with one metadata store, each with files of its own."""

    def __init__(self, **options: Any) -> None:
        content = MemoryMetadata()
        self.store = MemoryMetadataStore(content)
        """A session of neither broker."""
        self.one, self.two = (
            BrokerHarness(metadata=MemoryMetadataStore(content), broker_id=number, **options)
            for number in (1, 2)
        )
        self.tick()

    def tick(self) -> None:
        """Let both brokers apply what the other one has committed."""
        for harness in (self.one, self.two):
            harness.advance(0)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def set_quota(harness: BrokerHarness, rate: float | None) -> None:
    row = AlterClientQuotasRequestEntryData(
        entity=[AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name="test")],
        ops=[OpData(key="producer_byte_rate", value=rate or 0.0, remove=rate is None)],
    )
    response = harness.call(AlterClientQuotasRequest(entries=[row]))
    assert response.entries[0].error_code == ErrorCode.NONE


def quotas_of(harness: BrokerHarness) -> list[float]:
    request = DescribeClientQuotasRequest(components=[], strict=False)
    return [v.value for row in harness.call(request).entries or () for v in row.values]


def configure(
    harness: BrokerHarness, kind: int, resource: str, name: str, value: str | None
) -> None:
    change = AlterableConfig(name=name, config_operation=int(value is None), value=value)
    row = AlterConfigsResource(resource_type=kind, resource_name=resource, configs=[change])
    response = harness.call(IncrementalAlterConfigsRequest(resources=[row])).responses[0]
    assert response.error_code == ErrorCode.NONE, response.error_message


def described(harness: BrokerHarness, kind: int, resource: str, name: str) -> str | None:
    row = DescribeConfigsResource(resource_type=kind, resource_name=resource)
    result = harness.call(DescribeConfigsRequest(resources=[row])).results[0]
    assert result.error_code == ErrorCode.NONE, result.error_message
    value: str | None = next(row.value for row in result.configs if row.name == name)
    return value


def events(harness: BrokerHarness, event: str) -> int:
    return sum(found == event for _, found, _ in harness.journal.lines)


def test_a_quota_is_in_force_on_the_other_broker_from_its_next_tick(cluster: Cluster) -> None:
    one, two = cluster.one, cluster.two
    set_quota(one, 5.0)
    assert quotas_of(one) == [5.0], "in force on the own broker when the request is answered"
    assert quotas_of(two) == []
    assert two.broker.next_deadline_ms == 0
    cluster.tick()
    assert quotas_of(two) == [5.0]
    assert two.broker.quotas.active
    set_quota(two, None)
    cluster.tick()
    assert quotas_of(one) == []
    assert not one.broker.quotas.active


def test_each_broker_logs_a_change_once(cluster: Cluster) -> None:
    set_quota(cluster.one, 5.0)
    configure(cluster.one, GROUP, "g", "consumer.session.timeout.ms", "50000")
    for _ in range(2):
        cluster.tick()
    for harness in (cluster.one, cluster.two):
        assert events(harness, "client_quotas_changed") == 1
        assert events(harness, "group_settings_changed") == 1


def test_the_configuration_of_a_group_is_in_force_on_the_other_broker(cluster: Cluster) -> None:
    name = "consumer.session.timeout.ms"
    default = described(cluster.two, GROUP, "g", name)
    configure(cluster.one, GROUP, "g", name, "50000")
    assert described(cluster.one, GROUP, "g", name) == "50000"
    cluster.tick()
    assert described(cluster.two, GROUP, "g", name) == "50000"
    configure(cluster.two, GROUP, "g", name, None)
    cluster.tick()
    assert described(cluster.one, GROUP, "g", name) == default


def test_an_entry_of_a_newer_version_is_reported_and_hides_no_other_change(
    cluster: Cluster,
) -> None:
    set_quota(cluster.one, 5.0)
    newer = b'{"entity":{"client-id":"test"},"quotas":{"producer_byte_rate":1},"format":99}'
    other = newer.replace(b"test", b"other").replace(b"99", b"1")
    cluster.store.commit(
        [], [Put("quota/client-id=test", newer), Put("quota/client-id=other", other)]
    )
    cluster.tick()
    for harness in (cluster.one, cluster.two):
        assert sorted(quotas_of(harness)) == [1.0, 5.0], "the last value that can be read stays"
        assert events(harness, "metadata_entry_not_applied") == 1
