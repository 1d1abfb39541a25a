"""Two brokers with one metadata store: each acts on what the other has committed, from its next tick."""

from __future__ import annotations

from collections.abc import Callable
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
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
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
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.security.acls import CLUSTER_NAME, Operation, ResourceType
from headrace.security.plain import PlainClient
from headrace.security.scram import ScramMechanism
from tests.fixtures.broker_harness import BrokerHarness, batch, produce_request
from tests.unit.broker.access.test_authentication import Connection, options_of, scram, upsertion
from tests.unit.broker.access.test_authorizer import (
    as_user,
    create,
    creation,
    delete,
    delete_filter,
)
from tests.unit.broker.quotas.test_quotas import Harness

TOPIC, BROKER, GROUP = 2, 4, 32


class Cluster:
    """Two brokers with one metadata store, each with files of its own."""

    def __init__(self, **options: Any) -> None:
        content = MemoryMetadata()
        self.store = MemoryMetadataStore(content)
        """A session of neither broker."""
        self.one, self.two = (
            Harness(**{**options, "metadata": MemoryMetadataStore(content), "broker_id": number})
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


def throttle_ms(harness: BrokerHarness) -> int:
    """Produce more than a low quota allows, and return for how long the client is throttled."""
    request = produce_request("t", 0, batch(bytes(10_000)))
    return int(harness.call(request).throttle_time_ms)


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


def test_a_quota_throttles_clients_of_the_other_broker_from_its_next_tick(
    cluster: Cluster,
) -> None:
    one, two = cluster.one, cluster.two
    two.create_topic("t")
    set_quota(one, 5.0)
    assert quotas_of(one) == [5.0], "in force on the own broker when the request is answered"
    assert throttle_ms(two) == 0
    assert two.broker.next_deadline_ms == 0
    cluster.tick()
    assert throttle_ms(two) > 0
    set_quota(two, None)
    cluster.tick()
    assert quotas_of(one) == []


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


SASL = options_of(
    {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", "connections.max.reauth.ms": "5000"}
)


def set_password(harness: BrokerHarness, password: str | None) -> None:
    """Set the password of alice, or delete it."""
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="alice", mechanism=ScramMechanism.SHA_256)]
        if password is None
        else [],
        upsertions=[upsertion("alice", password)] if password is not None else [],
    )
    assert [result.error_code for result in harness.call(request).results] == [0]


@pytest.mark.parametrize("client", [scram, lambda **known: PlainClient("alice", known["password"])])
def test_a_password_that_was_changed_on_one_broker_is_refused_by_the_other(
    client: Callable[..., Any],
) -> None:
    cluster = Cluster(**SASL)
    one, two = cluster.one, cluster.two

    def login(harness: BrokerHarness, password: str) -> int:
        return int(Connection(harness).run(client(password=password)).error_code)

    set_password(one, "first")
    cluster.tick()
    assert (login(one, "first"), login(two, "first")) == (0, 0)
    set_password(two, "second")
    assert login(two, "first") == ErrorCode.SASL_AUTHENTICATION_FAILED
    cluster.tick()
    assert login(one, "first") == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert (login(one, "second"), login(two, "second")) == (0, 0)
    set_password(one, None)
    cluster.tick()
    assert login(two, "second") == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_an_open_session_cannot_authenticate_again_with_the_old_password() -> None:
    cluster = Cluster(**SASL)
    set_password(cluster.one, "first")
    cluster.tick()
    connection = Connection(cluster.two)
    assert connection.run(scram(password="first")).error_code == 0
    set_password(cluster.one, "second")
    cluster.two.advance(5_000)
    again = connection.run(scram(password="first"))
    assert again.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_an_exchange_that_began_before_a_change_does_not_accept_the_old_password() -> None:
    cluster = Cluster(**SASL)
    set_password(cluster.one, "first")
    cluster.tick()
    connection, client = Connection(cluster.two), scram(password="first")
    assert connection.handshake(client.mechanism).error_code == 0
    first = connection.token(client.first())
    set_password(cluster.one, "second")
    cluster.tick()
    proof = client.step(bytes(first.auth_bytes))
    assert proof is not None
    assert connection.token(proof).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_check_of_a_password_in_a_thread_does_not_accept_an_old_password() -> None:
    """(1) A thread checks the old password. (2) The image receives the new one. (3) The thread returns."""
    cluster = Cluster(**SASL)
    set_password(cluster.one, "first")
    cluster.tick()
    checks: list[Callable[[], object]] = []

    def run_aside(work: Callable[[], Any], done: Callable[[Any], object]) -> Callable[[], None]:
        outcome = work()
        checks.append(lambda: done(outcome))
        return lambda: None

    cluster.two.broker.services.authenticator.run_aside = run_aside
    connection, client = Connection(cluster.two), PlainClient("alice", "first")
    assert connection.handshake(client.mechanism).error_code == 0
    pending = connection.send(SaslAuthenticateRequest(auth_bytes=client.first()), 2)
    set_password(cluster.one, "second")
    cluster.tick()
    for check in checks:
        check()
    cluster.two.advance(1_000)
    assert pending.response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_no_producer_id_is_given_to_two_clients(cluster: Cluster) -> None:
    given: list[int] = []
    for number in range(3_000):
        harness = cluster.one if number % 3 else cluster.two
        response = harness.call(InitProducerIdRequest(transactional_id=None))
        assert response.error_code == ErrorCode.NONE
        given.append(response.producer_id)
    assert len(set(given)) == len(given)


def test_both_brokers_make_up_the_same_credential_for_an_unknown_user() -> None:
    cluster = Cluster(**SASL)
    one, two = (harness.broker.services.credentials for harness in (cluster.one, cluster.two))
    made_up = one.find("nobody", ScramMechanism.SHA_256)
    cluster.tick()
    assert two.find("nobody", ScramMechanism.SHA_256) == made_up


def may_describe(harness: BrokerHarness) -> bool:
    request = DescribeClientQuotasRequest(components=[], strict=False)
    code = harness.call(request, session=as_user("alice")).error_code
    assert code in {ErrorCode.NONE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    return bool(code == ErrorCode.NONE)


def test_a_permission_is_in_force_on_the_other_broker_and_ends_there() -> None:
    cluster = Cluster(authorizer_class_name="headrace")
    one, two = cluster.one, cluster.two
    allow = creation(
        resource_type=ResourceType.CLUSTER,
        resource_name=CLUSTER_NAME,
        operation=Operation.DESCRIBE_CONFIGS,
    )
    assert not may_describe(two)
    assert create(one, allow) == [0]
    assert may_describe(one)
    cluster.tick()
    assert may_describe(two)
    assert delete(two, delete_filter())[0].error_code == 0
    assert not may_describe(two)
    cluster.tick()
    assert not may_describe(one)
    for harness in (one, two):
        assert events(harness, "acls_changed") == 2


def test_settings_of_all_brokers_are_in_force_on_the_other_broker(cluster: Cluster) -> None:
    one, two = cluster.one, cluster.two
    name = "message.max.bytes"
    configure(one, BROKER, "", name, "1500")
    assert described(one, BROKER, "1", name) == "1500"
    cluster.tick()
    assert described(two, BROKER, "2", name) == "1500"
    two.create_topic("u")
    too_large = two.produce("u", bytes(2000))
    assert too_large.error_code == ErrorCode.MESSAGE_TOO_LARGE
    configure(two, BROKER, "", name, None)
    cluster.tick()
    assert described(one, BROKER, "1", name) != "1500"
    assert [events(harness, "broker_settings_changed") for harness in (one, two)] == [2, 2]


def test_settings_of_one_broker_do_not_change_the_other(cluster: Cluster) -> None:
    name = "log.retention.bytes"
    before = described(cluster.two, BROKER, "2", name)
    configure(cluster.one, BROKER, "1", name, "77")
    cluster.tick()
    assert described(cluster.one, BROKER, "1", name) == "77"
    assert described(cluster.two, BROKER, "2", name) == before
    assert events(cluster.two, "broker_settings_changed") == 0


def test_settings_that_this_version_does_not_know_are_reported_and_not_applied(
    cluster: Cluster,
) -> None:
    configure(cluster.one, BROKER, "", "log.retention.bytes", "77")
    newer = Put("config/broker/default", b'{"settings":{"log.retention.bytes":"x"},"format":1}')
    cluster.store.commit([], [newer])
    cluster.tick()
    for number, harness in enumerate((cluster.one, cluster.two), 1):
        assert described(harness, BROKER, str(number), "log.retention.bytes") == "77"
        assert events(harness, "broker_settings_not_applied") == 1


def test_settings_that_did_not_fit_are_in_force_when_other_settings_make_them_fit(
    cluster: Cluster,
) -> None:
    name, two = "log.retention.bytes", cluster.two
    configure(two, BROKER, "2", "message.max.bytes", "1500")
    bad = b'{"settings":{"log.retention.bytes":"77","log.segment.bytes":"x"},"format":1}'
    cluster.store.commit([], [Put("config/broker/2", bad)])
    cluster.tick()
    assert described(two, BROKER, "2", "message.max.bytes") == "1500"
    configure(two, BROKER, "", "message.max.bytes", "2000")
    assert described(two, BROKER, "2", "message.max.bytes") == "1500", "the earlier settings"
    configure(two, BROKER, "2", "log.segment.bytes", None)
    assert described(two, BROKER, "2", name) == "77"
    assert described(two, BROKER, "2", "message.max.bytes") == "2000"


MAX_LAG = "log.cleaner.max.compaction.lag.ms"


def test_a_topic_that_does_not_fit_a_broker_is_reported_and_served_when_it_fits(
    cluster: Cluster,
) -> None:
    one, two = cluster.one, cluster.two
    configure(one, BROKER, "1", MAX_LAG, "50")
    two.create_topic("t", min_compaction_lag_ms="100")
    two.create_topic("u", min_compaction_lag_ms="100")
    for _ in range(3):
        cluster.tick()
    topics = one.broker.services.topics
    assert (topics.get("t"), events(one, "topic_not_applied")) == (None, 2)
    configure(two, TOPIC, "u", "min.compaction.lag.ms", "20")
    cluster.tick()
    assert topics.get("u") is not None
    assert topics.get("t") is None
    configure(one, BROKER, "1", MAX_LAG, "200")
    cluster.tick()
    assert topics.require("t").settings == {"min.compaction.lag.ms": "100"}
    assert events(one, "topic_not_applied") == 2


def test_a_stored_topic_that_does_not_fit_does_not_stop_the_start_of_a_broker() -> None:
    harness = Harness()
    harness.create_topic("fits")
    harness.create_topic("late", min_compaction_lag_ms="100")
    harness.produce("late", b"kept")
    harness.metadata.commit([], [Put("topics/unreadable", b"{")])
    harness.restart(log_cleaner_max_compaction_lag_ms=50)
    topics = harness.broker.services.topics
    assert [topic.name for topic in topics] == ["fits"]
    assert events(harness, "topic_not_applied") == 2
    harness.restart(log_cleaner_max_compaction_lag_ms=200)
    partition = harness.broker.services.partitions.require("late", 0)
    assert partition.log.log_end_offset == 1


@pytest.mark.parametrize("is_deleted", [False, True])
def test_settings_that_do_not_fit_a_topic_are_in_force_when_the_topic_has_changed(
    cluster: Cluster, *, is_deleted: bool
) -> None:
    one, two = cluster.one, cluster.two
    two.create_topic("t", min_compaction_lag_ms="100")
    cluster.tick()
    cluster.store.commit(
        [], [Put("config/broker/1", b'{"settings":{"%s":"50"},"format":1}' % MAX_LAG.encode())]
    )
    cluster.tick()
    assert events(one, "broker_settings_not_applied") == 1
    assert described(one, BROKER, "1", MAX_LAG) != "50"
    if is_deleted:
        two.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
    else:
        configure(two, TOPIC, "t", "min.compaction.lag.ms", "20")
    cluster.tick()
    assert described(one, BROKER, "1", MAX_LAG) == "50"


def test_a_broker_neither_describes_nor_changes_the_settings_of_another(cluster: Cluster) -> None:
    change = AlterableConfig(name="log.cleaner.backoff.ms", config_operation=0, value="7")
    row = AlterConfigsResource(resource_type=BROKER, resource_name="2", configs=[change])
    refused = cluster.one.call(IncrementalAlterConfigsRequest(resources=[row])).responses[0]
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    wanted = DescribeConfigsResource(resource_type=BROKER, resource_name="2")
    result = cluster.one.call(DescribeConfigsRequest(resources=[wanted])).results[0]
    assert result.error_code == ErrorCode.INVALID_REQUEST
    configure(cluster.two, BROKER, "2", "log.cleaner.backoff.ms", "7")
    cluster.tick()
    assert described(cluster.two, BROKER, "2", "log.cleaner.backoff.ms") == "7"
    assert described(cluster.one, BROKER, "1", "log.cleaner.backoff.ms") == "15000"
