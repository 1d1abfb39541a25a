"""The audit log: the changes of administrators, with their principals and without secrets."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from headrace.broker.access.audit import HIDDEN, shown_settings
from headrace.broker.access.audit_rules import RULES
from headrace.broker.context import RequestContext
from headrace.broker.dispatch import APIS
from headrace.broker.session import Session
from headrace.config.options import Option, OptionType
from headrace.deferred import Deferred
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.frame import RequestHeader
from headrace.protocol.messages import alter_configs as replacing
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.leave_group import HeadraceStop, LeaveGroupRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.security.principal import Principal
from tests.fixtures.broker_harness import BrokerHarness
from tests.simulation.groups import requests

ADMIN = Session(
    listener="INTERNAL", client_host="10.0.0.7", principal=Principal("admin"), is_local=True
)

CHANGES_NOTHING = {
    ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.SYNC_GROUP, ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID,
    ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DESCRIBE_CONFIGS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.DESCRIBE_ACLS,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.LIST_CONFIG_RESOURCES, ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS,
    ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_QUORUM, ApiKey.UNREGISTER_BROKER,
    ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.SHARE_GROUP_HEARTBEAT,
}  # fmt: skip
"""The APIs whose requests are not logged as changes. An API that is neither here nor in the rules needs a decision."""


@pytest.fixture
def harness() -> BrokerHarness:
    return BrokerHarness(group_initial_rebalance_delay_ms=0)


def send(harness: BrokerHarness, request: Message, session: Session = ADMIN) -> Any:
    version = max(api.served.max for api in harness.broker.apis if api.key == request.API_KEY)
    context = RequestContext(
        now_ms=harness.now_ms,
        header=RequestHeader(request.API_KEY, version, 1, "some tool"),
        client_address="10.0.0.7:5000",
        listener_host="127.0.0.1",
        listener_port=9092,
        session=session,
    )
    reply = harness.broker.handle(context, request)
    while isinstance(reply, Deferred) and not reply.done and (harness.step() or harness.sync()):
        pass
    return reply.value if isinstance(reply, Deferred) else reply


def events(harness: BrokerHarness, event: str = "audit_changed") -> list[dict[str, object]]:
    return [fields for _, found, fields in harness.journal.lines if found == event]


def changes(harness: BrokerHarness) -> list[tuple[object, dict[str, object]]]:
    """Return the logged changes, after a check of their principal."""
    found = []
    for fields in events(harness):
        rest = dict(fields)
        assert rest.pop("principal") == "User:admin"
        assert rest.pop("host") == "10.0.0.7"
        assert rest.pop("listener") == "INTERNAL"
        assert rest.pop("client_id") == "some tool"
        rest.pop("api")
        found.append((rest.pop("what"), rest))
    return found


def create(harness: BrokerHarness, name: str, **options: Any) -> Any:
    topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1)
    topic.configs = [CreatableTopicConfig(name="retention.ms", value="5000")]
    return send(harness, CreateTopicsRequest(topics=[topic], **options))


def test_every_api_has_a_rule_or_changes_nothing() -> None:
    served = {api.key for api in APIS}
    assert not CHANGES_NOTHING & RULES.keys()
    assert served <= CHANGES_NOTHING | RULES.keys(), "decide what the audit log says of it"


def test_topic_changes_are_audited(harness: BrokerHarness) -> None:
    create(harness, "orders")
    create(harness, "orders")  # refused
    create(harness, "others", validate_only=True)
    grown = CreatePartitionsTopic(name="orders", count=5, assignments=None)
    send(harness, CreatePartitionsRequest(topics=[grown]))
    send(harness, CreatePartitionsRequest(topics=[grown]))  # refused
    created = harness.broker.services.topics.require("orders").topic_id.hex()
    states = [DeleteTopicState(name="orders"), DeleteTopicState(name="nowhere")]
    send(harness, DeleteTopicsRequest(topics=states))
    settings = {"retention.ms": "5000"}
    assert changes(harness) == [
        ("topic_created", {"topic": "orders", "partitions": 2, "settings": settings}),
        ("partitions_created", {"topic": "orders", "partitions": 5}),
        ("topic_deleted", {"topic": "orders", "topic_id": created}),
    ]


def test_the_automatic_creation_of_a_topic_is_audited(harness: BrokerHarness) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
    send(harness, request)
    send(harness, request)
    assert changes(harness) == [("topic_created", {"topic": "orders", "automatic": True})]


def test_configuration_changes_are_audited(harness: BrokerHarness) -> None:
    create(harness, "orders")
    harness.journal.lines.clear()
    single = [AlterableConfig(name="retention.ms", value="7", config_operation=0)]
    threshold = [AlterableConfig(name="num.partitions", value="3", config_operation=0)]
    backoff = [AlterableConfig(name="log.cleaner.backoff.ms", value="9", config_operation=0)]
    assignor = [AlterableConfig(name="headrace.assignor", value="range", config_operation=0)]
    resources = [
        AlterConfigsResource(resource_type=2, resource_name="orders", configs=single),
        AlterConfigsResource(resource_type=2, resource_name="nowhere", configs=single),
        AlterConfigsResource(resource_type=4, resource_name="1", configs=threshold),  # not dynamic
        AlterConfigsResource(resource_type=4, resource_name="", configs=backoff),
        AlterConfigsResource(resource_type=32, resource_name="readers", configs=assignor),
    ]
    send(harness, IncrementalAlterConfigsRequest(resources=resources, validate_only=True))
    assert changes(harness) == []
    send(harness, IncrementalAlterConfigsRequest(resources=resources))
    whole = replacing.AlterConfigsResource(
        resource_type=2,
        resource_name="orders",
        configs=[replacing.AlterableConfig(name="retention.bytes", value="8")],
    )
    send(harness, replacing.AlterConfigsRequest(resources=[whole]))
    assert changes(harness) == [
        ("topic_configured", {"topic": "orders", "settings": {"retention.ms": "7"}}),
        ("broker_configured", {"broker": "", "settings": {"log.cleaner.backoff.ms": "9"}}),
        ("group_configured", {"group": "readers", "settings": {"headrace.assignor": "range"}}),
        ("topic_configured", {"topic": "orders", "settings": {"retention.bytes": "8"}}),
    ]


def test_a_secret_setting_is_described_without_its_value() -> None:
    options = {
        "plain": Option(type=OptionType.STRING, documentation="x."),
        "secret": Option(type=OptionType.STRING, documentation="x.", sensitive=True),
    }
    shown = shown_settings({"plain": "1", "secret": "hunter2", "unknown": "hunter2"}, options)
    assert shown == {"plain": "1", "secret": HIDDEN, "unknown": HIDDEN}


def test_quota_changes_are_audited(harness: BrokerHarness) -> None:
    entry = AlterClientQuotasRequestEntryData(
        entity=[
            AlterClientQuotasRequestEntityData(entity_type="user", entity_name="alice"),
            AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=None),
        ],
        ops=[OpData(key="producer_byte_rate", value=1000.0)],
    )
    wrong = AlterClientQuotasRequestEntryData(
        entity=entry.entity, ops=[OpData(key="producer_byte_rate", value=math.nan)]
    )
    for request in (
        AlterClientQuotasRequest(entries=[wrong]),
        AlterClientQuotasRequest(entries=[entry], validate_only=True),
        AlterClientQuotasRequest(entries=[entry]),
    ):
        send(harness, request)
    assert changes(harness) == [
        (
            "quotas_altered",
            {
                "entity": {"user": "alice", "client-id": "<default>"},
                "quotas": {"producer_byte_rate": 1000.0},
            },
        )
    ]


def commit(group: str, topic: str, offset: int, **membership: Any) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
    topics = [OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    return OffsetCommitRequest(group_id=group, topics=topics, **membership)


def test_changes_of_offsets_and_groups_are_audited(harness: BrokerHarness) -> None:
    create(harness, "orders")
    harness.create_offsets_topic()
    harness.journal.lines.clear()
    send(harness, commit("readers", "orders", 17))
    send(harness, commit("readers", "nowhere", 1))
    member = {"member_id": "m", "generation_id_or_member_epoch": 3}
    send(harness, commit("readers", "orders", 18, **member))
    (fields,) = events(harness, "audit_offsets_set")
    assert (fields["group"], fields["offsets"]) == ("readers", {"orders-0": 17})
    assert fields["principal"] == "User:admin"

    parts = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9)]
    topics = [OffsetDeleteRequestTopic(name="orders", partitions=parts)]
    send(harness, OffsetDeleteRequest(group_id="readers", topics=topics))
    send(harness, OffsetDeleteRequest(group_id="nobody", topics=topics))
    send(harness, commit("readers", "orders", 17))
    send(harness, DeleteGroupsRequest(groups_names=["readers", "nobody"]))
    assert changes(harness) == [
        ("offsets_deleted", {"group": "readers", "partitions": ["orders-0"]}),
        ("group_deleted", {"group": "readers"}),
    ]


def test_the_stop_of_a_member_is_audited(harness: BrokerHarness) -> None:
    harness.create_offsets_topic()
    times = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
    joined = send(harness, requests.join("readers", "", "static", topics=["orders"], **times))
    harness.journal.lines.clear()
    wanted = HeadraceStop(group_instance_id="static", timeout_ms=1_000)
    again = HeadraceStop(member_id=joined.member_id, timeout_ms=1_000, again=True)
    stranger = HeadraceStop(member_id="stranger", timeout_ms=1_000)
    for stop in (wanted, again, stranger, None):
        send(harness, LeaveGroupRequest(group_id="readers", headrace_stop=stop))
    found = {"group": "readers", "member": joined.member_id}
    assert changes(harness) == [("member_stopped", found)]


def test_deleted_records_are_audited(harness: BrokerHarness) -> None:
    create(harness, "orders")
    harness.produce("orders", b"a", b"b")
    harness.journal.lines.clear()
    parts = [DeleteRecordsPartition(partition_index=index, offset=2) for index in (0, 9)]
    topics = [DeleteRecordsTopic(name="orders", partitions=parts)]
    send(harness, DeleteRecordsRequest(topics=topics, timeout_ms=1000))
    assert changes(harness) == [("records_deleted", {"topic": "orders", "before_offset": {"0": 2}})]


def test_every_change_of_a_large_request_is_audited_after_its_connection_has_closed(
    harness: BrokerHarness,
) -> None:
    """The entries of the log are written in several steps, and the work ends without the client."""
    names = [f"orders-{number}" for number in range(400)]
    for name in names:
        harness.create_topic(name)
    harness.journal.lines.clear()
    part = DeleteRecordsPartition(partition_index=0, offset=-1)
    topics = [DeleteRecordsTopic(name=name, partitions=[part]) for name in names]
    pending = harness.send(DeleteRecordsRequest(topics=topics, timeout_ms=1000))
    while not events(harness):
        assert harness.step()
    written = len(events(harness))
    assert written < len(names)
    pending.cancel()
    steps = 0
    while harness.step():
        steps += 1
    assert steps > 1
    assert [fields["topic"] for fields in events(harness)] == names


def test_acl_changes_are_audited(harness: BrokerHarness) -> None:
    harness.restart(authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer")
    entry: dict[str, Any] = {
        "resource_type": 2,
        "principal": "User:bob",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    creation = AclCreation(resource_name="orders", resource_pattern_type=3, **entry)
    wrong = AclCreation(resource_name="", resource_pattern_type=3, **entry)
    send(harness, CreateAclsRequest(creations=[creation, wrong]))
    wanted = DeleteAclsFilter(
        resource_type_filter=2,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    send(harness, DeleteAclsRequest(filters=[wanted]))
    shown = {
        "permission": "ALLOW",
        "acl_principal": "User:bob",
        "acl_host": "*",
        "operation": "READ",
        "resource": "TOPIC",
        "pattern": "LITERAL",
        "name": "orders",
    }
    assert changes(harness) == [("acl_created", shown), ("acl_deleted", shown)]


def test_changes_of_credentials_are_audited_without_passwords(harness: BrokerHarness) -> None:
    upsertion = ScramCredentialUpsertion(
        name="bob",
        mechanism=1,
        iterations=4096,
        salt=b"hunter2-salt-12345",
        salted_password=b"p" * 32,
    )
    send(harness, AlterUserScramCredentialsRequest(upsertions=[upsertion], deletions=[]))
    deletions = [
        ScramCredentialDeletion(name="bob", mechanism=1),
        ScramCredentialDeletion(name="nobody", mechanism=1),
    ]
    send(harness, AlterUserScramCredentialsRequest(upsertions=[], deletions=deletions))
    shown = {"user": "bob", "mechanism": "SCRAM-SHA-256"}
    assert changes(harness) == [("credential_set", shown), ("credential_deleted", shown)]
    everything = json.dumps(harness.journal.lines, default=repr)
    assert "hunter2" not in everything
    assert "pppp" not in everything
    assert "pppp" not in repr(upsertion)


def test_the_repr_of_a_sasl_request_contains_no_password() -> None:
    assert "hunter2" not in repr(SaslAuthenticateRequest(auth_bytes=b"\0alice\0hunter2"))
