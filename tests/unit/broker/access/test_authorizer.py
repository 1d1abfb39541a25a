"""ACLs as clients create and delete them: which are refused, which are stored, and when they apply."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from headrace.broker.access import authorizer
from headrace.broker.session import Session
from headrace.config.broker import parse_broker_config
from headrace.core.cluster.records import ACLS
from headrace.errors import ConfigError, ErrorCode, StorageError
from headrace.metadata_stores.sessions import Fault, SimulatedMetadataStore
from headrace.ports import Put
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from headrace.protocol.messages.describe_acls import DescribeAclsRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.leave_group import HeadraceStop, LeaveGroupRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headrace.security.principal import Principal
from tests.fixtures.acl_cases import codes, transactional_batch
from tests.fixtures.broker_harness import BrokerHarness, fetch_request, produce_request

ON: dict[str, Any] = {"authorizer_class_name": "headrace", "durability": "os"}
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def as_user(name: str, host: str = "10.0.0.1") -> Session:
    return Session(client_host=host, principal=Principal(name))


def creation(**fields: Any) -> AclCreation:
    defaults = {
        "resource_type": ResourceType.TOPIC,
        "resource_name": "t",
        "principal": "User:alice",
        "host": "*",
        "operation": Operation.READ,
        "permission_type": Permission.ALLOW,
    }
    return AclCreation(**{**defaults, **fields})


def create(harness: BrokerHarness, *creations: AclCreation, **options: Any) -> list[int]:
    response = harness.call(CreateAclsRequest(creations=list(creations)), **options)
    return [result.error_code for result in response.results]


def delete_filter(**fields: Any) -> DeleteAclsFilter:
    defaults = {
        "resource_type_filter": ResourceType.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": Operation.ANY,
        "permission_type": Permission.ANY,
    }
    return DeleteAclsFilter(**{**defaults, **fields})


def delete(harness: BrokerHarness, *filters: DeleteAclsFilter) -> Any:
    return harness.call(DeleteAclsRequest(filters=list(filters))).filter_results


def describe(harness: BrokerHarness, **fields: Any) -> Any:
    wanted = delete_filter(**fields)
    names = DescribeAclsRequest.__slots__
    return harness.call(DescribeAclsRequest(**{name: getattr(wanted, name) for name in names}))


def fetched(harness: BrokerHarness, session: Session, topic: str = "t", **fields: Any) -> int:
    request = fetch_request((topic, 0, 0), max_wait_ms=0, **fields)
    answer = harness.call(request, session=session)
    return int(answer.responses[0].partitions[0].error_code)


@pytest.fixture
def harness() -> BrokerHarness:
    harness = BrokerHarness(**ON)
    harness.create_topic("t")
    return harness


def test_acl_requests_without_an_authorizer_are_refused():
    harness = BrokerHarness()
    assert create(harness, creation()) == [ErrorCode.SECURITY_DISABLED]
    assert describe(harness).error_code == ErrorCode.SECURITY_DISABLED
    assert "authorizer.class.name" in describe(harness).error_message
    assert delete(harness, delete_filter())[0].error_code == ErrorCode.SECURITY_DISABLED


def test_stopping_a_member_needs_the_right_to_read_its_group(harness: BrokerHarness):
    harness.create_offsets_topic()
    stop = HeadraceStop(member_id="m", timeout_ms=0)
    request = LeaveGroupRequest(group_id="g", headrace_stop=stop)
    refused = harness.call(request, session=as_user("alice"))
    assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert refused.headrace_stop is None
    create(harness, creation(resource_type=ResourceType.GROUP, resource_name="g"))
    allowed = harness.call(request, session=as_user("alice"))
    assert allowed.headrace_stop.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_operations_without_a_permission_are_denied(harness: BrokerHarness):
    assert fetched(harness, as_user("alice")) == DENIED
    assert create(harness, creation()) == [0]
    assert fetched(harness, as_user("alice")) == 0
    assert fetched(harness, as_user("bob")) == DENIED


def test_a_denial_wins(harness: BrokerHarness):
    allow = creation(principal="User:*", resource_name="*")
    deny = creation(permission_type=Permission.DENY, host="10.0.0.1")
    assert create(harness, allow, deny) == [0, 0]
    assert fetched(harness, as_user("alice", "10.0.0.1")) == DENIED
    assert fetched(harness, as_user("alice", "10.0.0.2")) == 0
    assert fetched(harness, as_user("bob", "10.0.0.1")) == 0


@pytest.mark.parametrize("host", ["::1", "0:0:0:0:0:0:0:1", "0:0:0:0:0:0:0:01"])
def test_an_address_of_ipv6_is_the_same_in_every_spelling(harness: BrokerHarness, host: str):
    allow = creation(principal="User:*")
    assert create(harness, allow, creation(permission_type=Permission.DENY, host=host)) == [0, 0]
    assert fetched(harness, as_user("alice", "::1")) == DENIED
    assert fetched(harness, as_user("alice", "::2")) == 0
    assert fetched(harness, as_user("alice", "10.0.0.1")) == 0


def test_super_users_may_do_everything():
    harness = BrokerHarness(**ON, super_users="User:root; User:CN=a,O=b")
    harness.create_topic("t")
    create(harness, creation(principal="User:root", permission_type=Permission.DENY))
    assert fetched(harness, as_user("root")) == 0
    assert fetched(harness, as_user("CN=a,O=b")) == 0


def warnings(harness: BrokerHarness) -> set[str]:
    return {"authorizer_off", "nobody_may_do_anything"} & set(harness.journal.events("warning"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"super_users": "User:root"}, "authorizer_off"),
        (ON, "nobody_may_do_anything"),
        ({**ON, "super_users": "User:root"}, None),
        ({**ON, "allow_everyone_if_no_acl_found": True}, None),
        ({}, None),
    ],
)
def test_unlikely_configurations_log_a_warning(settings, said):
    harness = BrokerHarness(**settings)
    harness.broker.services.authorizer.warn()
    assert warnings(harness) == {said} - {None}


def test_an_acl_authorizes_a_user_without_super_users():
    harness = BrokerHarness(**ON)
    create(harness, creation())
    harness.broker.services.authorizer.warn()
    assert not warnings(harness)


def test_resources_without_acls_can_be_allowed_to_every_user():
    harness = BrokerHarness(**ON, allow_everyone_if_no_acl_found=True)
    harness.create_topic("t")
    harness.create_topic("other")
    create(harness, creation(principal="User:bob"))
    assert fetched(harness, as_user("alice")) == DENIED
    assert fetched(harness, as_user("alice"), "other") == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type": 0},
        {"resource_type": 1},
        {"resource_type": 99},
        {"resource_pattern_type": PatternType.MATCH},
        {"resource_pattern_type": 9},
        {"operation": Operation.ANY},
        {"operation": 77},
        {"permission_type": Permission.ANY},
        {"resource_name": ""},
        {"principal": "alice"},
        {"resource_type": ResourceType.CLUSTER, "resource_name": "t"},
        {"resource_name": "x" * 5000},
    ],
    ids=str,
)
def test_an_invalid_acl_is_refused_by_itself(harness: BrokerHarness, fields: dict[str, Any]):
    good = creation(principal="User:good")
    assert create(harness, good, creation(**fields), good) == [0, ErrorCode.INVALID_REQUEST, 0]
    assert len(describe(harness).resources) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type_filter": 0},
        {"pattern_type_filter": 8},
        {"operation": 99},
        {"permission_type": 0},
    ],
    ids=str,
)
def test_an_invalid_acl_filter_is_refused(harness: BrokerHarness, fields: dict[str, Any]):
    create(harness, creation())
    assert describe(harness, **fields).error_code == ErrorCode.INVALID_REQUEST
    results = delete(harness, delete_filter(**fields), delete_filter(resource_name_filter="t"))
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST, 0]
    assert len(results[1].matching_acls) == 1


def test_acls_are_described_by_resource(harness: BrokerHarness):
    prefix = creation(resource_name="", resource_pattern_type=PatternType.PREFIXED)
    prefix.resource_name = "te"
    create(harness, creation(), creation(operation=Operation.WRITE), prefix)
    resources = describe(harness).resources
    assert [(r.resource_name, r.pattern_type, len(r.acls)) for r in resources] == [
        ("t", PatternType.LITERAL, 2),
        ("te", PatternType.PREFIXED, 1),
    ]
    match = describe(harness, resource_name_filter="test", pattern_type_filter=PatternType.MATCH)
    assert [r.resource_name for r in match.resources] == ["te"]


def test_an_acl_that_two_filters_match_is_listed_for_both(harness: BrokerHarness):
    create(harness, creation(), creation(principal="User:bob"))
    one = delete_filter(principal_filter="User:alice")
    results = delete(harness, one, delete_filter())
    assert [len(result.matching_acls) for result in results] == [1, 2]
    assert not describe(harness).resources


def test_a_revoked_permission_applies_to_the_next_request_of_a_session(
    harness: BrokerHarness,
):
    create(harness, creation())
    alice = as_user("alice")
    first = harness.call(
        fetch_request(("t", 0, 0), max_wait_ms=0, session_id=0, session_epoch=0), session=alice
    )
    assert first.session_id
    delete(harness, delete_filter())
    second = harness.call(
        fetch_request(max_wait_ms=0, session_id=first.session_id, session_epoch=1), session=alice
    )
    assert list(codes(second)) == [DENIED]


def test_rights_that_are_taken_away_count_for_a_fetch_that_waits(harness: BrokerHarness):
    create(harness, creation())
    waiting = harness.send(fetch_request(("t", 0, 0), max_wait_ms=5000), session=as_user("alice"))
    assert not waiting.done
    delete(harness, delete_filter())
    harness.produce("t", b"secret")
    assert list(codes(waiting.response)) == [DENIED]


def test_a_transactional_batch_needs_more_than_the_request_says(harness: BrokerHarness):
    create(harness, creation(operation=Operation.WRITE))
    # The batch decides, not the request (CVE-2018-17196).
    request = produce_request("t", 0, transactional_batch())
    response = harness.call(request, session=as_user("alice"))
    assert list(codes(response)) == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]


@pytest.mark.parametrize("name", ["t", "missing"])
def test_no_answer_shows_whether_a_hidden_topic_exists(harness: BrokerHarness, name: str):
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    topic = harness.call(asked, session=as_user("alice")).topics[0]
    assert (topic.error_code, topic.topic_id, topic.partitions) == (DENIED, bytes(16), [])
    assert name == "t" or harness.broker.services.topics.get(name) is None


def test_operations_are_those_of_the_client(harness: BrokerHarness):
    create(
        harness,
        creation(operation=Operation.READ),
        creation(operation=Operation.ALTER_CONFIGS, permission_type=Permission.DENY),
        creation(operation=Operation.DESCRIBE_CONFIGS),
    )
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name="t")],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    answer = harness.call(asked, 10, session=as_user("alice"))
    expected = {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
    assert answer.topics[0].topic_authorized_operations == sum(1 << op for op in expected)
    assert answer.cluster_authorized_operations == 0


# Durability


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_acls_and_denials_survive(harness: BrokerHarness, how: str):
    create(
        harness,
        creation(principal="User:*"),
        creation(permission_type=Permission.DENY),
        creation(resource_name='ö"\\/', resource_pattern_type=PatternType.PREFIXED),
    )
    before = describe(harness).resources
    getattr(harness, how)()
    assert [str(r) for r in describe(harness).resources] == [str(r) for r in before]
    # The stored ACLs are in force (CVE-2024-27309).
    assert fetched(harness, as_user("alice")) == DENIED
    assert fetched(harness, as_user("bob")) == 0


def test_denials_survive_a_time_without_an_authorizer(harness: BrokerHarness):
    create(harness, creation(principal="User:*"), creation(permission_type=Permission.DENY))
    harness.restart(durability="os")
    assert fetched(harness, as_user("alice")) == 0
    harness.restart(**ON)
    assert fetched(harness, as_user("alice")) == DENIED


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("0" * 64, b"{}"),
        ("0" * 64, b'{"format":2}'),
        (
            "0" * 64,
            (
                b'{"resource_type":"TOPIC","resource_name":"t","pattern_type":"LITERAL",'
                b'"principal":"User:a","host":"*","operation":"READ","permission":"DENY","format":1}'
            ),
        ),
        (
            "0" * 64,
            (
                b'{"resource_type":"TOPIC","resource_name":"t","pattern_type":"LITERAL",'
                b'"principal":"User:a","host":"*","operation":"FLY","permission":"DENY","format":1}'
            ),
        ),
    ],
)
def test_no_start_with_an_acl_that_cannot_be_read(harness: BrokerHarness, key: str, value: bytes):
    harness.metadata.commit([], [Put(ACLS + key, value)])
    with pytest.raises(StorageError, match=f"acl/{key}|FLY"):
        harness.restart()


def test_many_acls_are_created_denials_first_and_deleted_permissions_first():
    harness = BrokerHarness(metadata=SimulatedMetadataStore(), **ON)
    harness.create_topic("t")
    store = harness.metadata
    assert isinstance(store, SimulatedMetadataStore)
    many = [creation(principal=f"User:u{number}") for number in range(150)]
    deny = creation(permission_type=Permission.DENY)
    store.faults = ["none", "unavailable"]
    results = create(harness, *many, deny)
    assert results[-1] == 0, "the denial was in the first commit"
    assert results.count(ErrorCode.KAFKA_STORAGE_ERROR) == 151 - authorizer.CHANGES_PER_COMMIT
    harness.crash()
    assert sum(len(r.acls) for r in describe(harness).resources) == authorizer.CHANGES_PER_COMMIT
    assert create(harness, *many, deny) == [0] * 151
    store.faults = ["none", "unavailable"]
    (result,) = delete(harness, delete_filter())
    assert [a.error_code for a in result.matching_acls if a.permission_type == Permission.DENY] == [
        ErrorCode.KAFKA_STORAGE_ERROR
    ]
    assert fetched(harness, as_user("alice")) == DENIED


@pytest.mark.parametrize("fault", ["unknown and void", "unknown and applied"])
def test_an_outcome_that_is_not_known_is_settled(fault: Fault):
    store = SimulatedMetadataStore()
    harness = BrokerHarness(metadata=store, **ON)
    harness.create_topic("t")
    store.faults = [fault]
    (code,) = create(harness, creation())
    counts = fetched(harness, as_user("alice")) == 0
    assert counts == (code == 0)
    harness.crash()
    assert (fetched(harness, as_user("alice")) == 0) == counts


def test_the_number_of_acls_is_bounded(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(authorizer, "ACLS_LIMIT", 2)
    three = [creation(principal=f"User:{number}") for number in range(3)]
    assert create(harness, *three) == [0, 0, ErrorCode.POLICY_VIOLATION]
    assert create(harness, three[0]) == [0], "it is there already"


def test_a_change_of_acls_discards_remembered_decisions(harness: BrokerHarness):
    alice = as_user("alice")
    fetched(harness, alice)
    create(harness, creation())
    assert fetched(harness, alice) == 0
    delete(harness, delete_filter())
    assert fetched(harness, alice) == DENIED


def test_the_memory_of_decisions_is_bounded(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(authorizer, "DECISIONS_LIMIT", 3)
    decisions = harness.broker.services.authorizer._decisions
    for number in range(10):
        fetched(harness, as_user("alice"), f"topic-{number}")
        assert len(decisions) <= 3
    fetched(harness, as_user("alice"), "x" * 249)
    decisions.clear()
    allowed = harness.broker.services.authorizer.allows(
        Principal("alice"), "h", Operation.READ, ResourceType.GROUP, "g" * 1000
    )
    assert not allowed
    assert not decisions


def test_a_denial_is_audited_if_the_client_requested_the_operation(harness: BrokerHarness):
    harness.journal.lines.clear()
    fetched(harness, as_user("alice"))
    harness.call(MetadataRequest(topics=None), session=as_user("alice"))
    denials = [f for _, event, f in harness.journal.lines if event == "audit_authorization_denied"]
    assert [(f["principal"], f["operation"], f["name"]) for f in denials] == [
        ("User:alice", "READ", "t")
    ]


def test_creating_acls_needs_permission_to_alter_the_cluster(harness: BrokerHarness):
    alice = as_user("alice")
    assert create(harness, creation(), session=alice) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    create(
        harness,
        creation(
            resource_type=ResourceType.CLUSTER,
            resource_name=CLUSTER_NAME,
            operation=Operation.ALTER,
        ),
    )
    assert create(harness, creation(), session=alice) == [0]


def test_quotas_are_those_of_the_principal():
    harness = BrokerHarness(durability="os")
    harness.create_topic("t")
    entity = AlterClientQuotasRequestEntityData(entity_type="user", entity_name="alice")
    change = OpData(key="consumer_byte_rate", value=100.0)
    entry = AlterClientQuotasRequestEntryData(entity=[entity], ops=[change])
    harness.call(AlterClientQuotasRequest(entries=[entry]))
    harness.produce("t", b"x" * 3000)

    def throttled(user: str) -> int:
        request = fetch_request(("t", 0, 0), max_wait_ms=0)
        return int(harness.call(request, session=as_user(user)).throttle_time_ms)

    assert throttled("alice") > 0
    assert throttled("bob") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"authorizer.class.name": "com.example.Mine"}, "authorizer.class.name"),
        ({"super.users": "alice"}, "write User:alice"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, str | None], message: str):
    with pytest.raises(ConfigError, match=message):
        parse_broker_config(options)


def test_topic_ids_are_no_secret_and_their_names_are(harness: BrokerHarness):
    topic = harness.broker.services.topics.get("t")
    assert topic is not None
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=None, topic_id=topic.topic_id)],
    )
    answer = harness.call(asked, session=as_user("alice")).topics[0]
    assert (answer.error_code, answer.name) == (DENIED, None), base64.b64encode(topic.topic_id)


def test_a_denied_init_producer_id_is_audited(
    harness: BrokerHarness,
):
    harness.journal.lines.clear()
    refused = harness.call(InitProducerIdRequest(transactional_id=None), session=as_user("alice"))
    assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    denials = [f for _, event, f in harness.journal.lines if event == "audit_authorization_denied"]
    assert [(f["api"], f["operation"], f["resource"], f["name"]) for f in denials] == [
        ("INIT_PRODUCER_ID", "WRITE", "TOPIC", "*")
    ]


def test_a_decision_does_not_examine_the_acls_of_other_users(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
):
    # A request may name 10,000 topics, and each user may have an entry for all topics.
    create(harness, *(creation(resource_name="*", principal=f"User:u{n}") for n in range(50)))
    looked_at = []
    speaks_of = AclBinding.speaks_of

    def counted(acl: AclBinding, principal: str, host: str) -> bool:
        looked_at.append(acl.principal)
        return speaks_of(acl, principal, host)

    monkeypatch.setattr(AclBinding, "speaks_of", counted)
    assert fetched(harness, as_user("u7")) == 0
    assert fetched(harness, as_user("alice")) == DENIED
    assert looked_at == ["User:u7"]


def test_the_decision_about_any_topic_is_remembered_until_acls_change(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
):
    # The decision examines all ACLs, and every new producer needs it.
    write = {"principal": "User:alice", "operation": Operation.WRITE}
    create(harness, creation(**write, permission_type=Permission.DENY), creation(**write))
    looked = []
    speaks_of = AclBinding.speaks_of

    def counted(acl: AclBinding, principal: str, host: str) -> bool:
        looked.append(acl)
        return speaks_of(acl, principal, host)

    monkeypatch.setattr(AclBinding, "speaks_of", counted)

    def begins() -> int:
        request = InitProducerIdRequest(transactional_id=None)
        return int(harness.call(request, session=as_user("alice")).error_code)

    assert begins() == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    first = len(looked)
    assert begins() == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert len(looked) == first > 0
    delete(harness, delete_filter(permission_type=Permission.DENY))
    assert begins() == ErrorCode.NONE
