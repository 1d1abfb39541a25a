"""Every API checks exactly the permissions that the table of rules lists."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.broker.access.authorization_rules import RULES
from headrace.broker.access.authorizer import Authorizer
from headrace.broker.access.permissions import Permissions
from headrace.broker.handlers import REGISTRY
from headrace.broker.session import Session
from headrace.broker.topic_names import INTERNAL_TOPICS
from headrace.broker.waiting.steps import Work
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.security.acls import CLUSTER_NAME, Operation, ResourceType
from headrace.security.principal import Principal
from tests.fixtures.acl_cases import (
    CASES,
    OPEN,
    REFUSALS,
    Case,
    Right,
    codes,
    commit,
    consumer_heartbeat,
    resource_name,
)
from tests.fixtures.broker_harness import BrokerHarness

ALICE = Principal("alice")
every_case = pytest.mark.parametrize("case", CASES, ids=[case.label for case in CASES])


class Recorder:
    """An authorizer that records the checks, and that grants permissions without ACLs."""

    active = True

    def __init__(self, rights: frozenset[tuple[Operation, ResourceType, str]] | None) -> None:
        self._rights = rights
        self.asked: set[tuple[Operation, ResourceType, str]] = set()

    def allows(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        assert (principal, host) == (ALICE, "10.1.2.3")
        question = (operation, resource_type, name)
        self.asked.add(question)
        return self._rights is None or question in self._rights

    def allows_any(
        self, _principal: Principal, _host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        self.asked.add((operation, resource_type, ""))
        return self._rights is None or any(
            right[:2] == (operation, resource_type) for right in self._rights
        )

    def find(self, _wanted: object) -> list[object]:
        return []

    def finding(self, _wanted: object) -> Work[list[object]]:
        yield 1
        return []

    def __len__(self) -> int:
        return 0

    def creating(self, acls: list[object]) -> Work[list[None]]:
        yield 1
        return [None] * len(acls)

    def deleting(self, acls: Any) -> Work[dict[object, None]]:
        yield 1
        return dict.fromkeys(acls)


@pytest.fixture
def no_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the checks that only report the authorized operations to the client."""
    for module in (
        "metadata",
        "describe_groups",
        "consumer_group_describe",
        "describe_topic_partitions",
    ):
        monkeypatch.setattr(f"headrace.broker.handlers.{module}.authorized_operations", _none)
    monkeypatch.setattr("headrace.broker.access.authorized_operations.authorized_operations", _none)


def _none(*_arguments: object) -> int:
    return 0


def ask(case: Case, rights: tuple[Right, ...] | None) -> tuple[Any, Recorder]:
    harness = BrokerHarness(
        group_initial_rebalance_delay_ms=0,
        group_min_session_timeout_ms=1,
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
        durability="os",
    )
    harness.create_offsets_topic()
    request = case.request("x")
    if case.topic:
        topic_id = bytes(harness.create_topic("x").topic_id)
        assert not set(codes(harness.call(commit("x"))))
        begin_transaction(harness)
        if case.members:
            assert not set(codes(harness.call(consumer_heartbeat("x"))))
        if case.by_id is not None:
            request = case.by_id(topic_id)
    recorder = Recorder(
        None
        if rights is None
        else frozenset((*right, resource_name(right, "x")) for right in rights)
    )
    authorizer = cast("Authorizer", recorder)  # it has the parts that handlers use
    permissions = Permissions(authorizer, harness.broker.services.audit)
    harness.replace_services(authorizer=authorizer, permissions=permissions)
    session = Session(client_host="10.1.2.3", principal=ALICE)
    return harness.call(request, case.version, session=session), recorder


def begin_transaction(harness: BrokerHarness) -> None:
    request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    request.producer_id = request.producer_epoch = -1
    given = harness.call(request)
    adding = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=given.producer_id,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="x", partitions=[0])],
    )
    assert not set(codes(harness.call(adding, 3)))


def test_every_api_has_a_row():
    assert list(RULES) == [module.API_KEY for module in REGISTRY]


def test_only_apis_before_authentication_need_no_permission():
    assert {key for key, rules in RULES.items() if not rules} == OPEN


@pytest.mark.usefixtures("no_operations")
@pytest.mark.parametrize("key", [key for key in RULES if key not in OPEN], ids=lambda k: k.name)
def test_an_api_checks_exactly_the_permissions_of_its_row(key: ApiKey):
    asked: set[Right] = set()
    for case in CASES:
        if key == case.request("x").API_KEY or (
            case.by_id is not None and key == case.by_id(bytes(16)).API_KEY
        ):
            for _, rights in case.variants():
                _, recorder = ask(case, rights)
                asked |= {(operation, kind) for operation, kind, _ in recorder.asked}
    assert asked == {(rule.operation, rule.resource_type) for rule in RULES[key]}


@every_case
def test_an_api_checks_permissions_only_on_the_named_resources(case: Case):
    for _, rights in case.variants():
        _, recorder = ask(case, rights)
        listed = INTERNAL_TOPICS if case.label.endswith("of-all") else frozenset()
        assert {name for *_, name in recorder.asked} <= {"x", "", CLUSTER_NAME} | listed


@every_case
def test_without_a_right_it_is_refused(case: Case):
    response, recorder = ask(case, ())
    assert recorder.asked
    if not case.hides:
        assert set(codes(response)) & REFUSALS


@every_case
def test_with_its_rights_it_goes_through(case: Case):
    rights = [case.needs]
    if not any(right == (Operation.DESCRIBE, ResourceType.TOPIC) for right in case.needs):
        # The authorizer decides what an ACL includes.
        rights = [(*case.needs, (Operation.DESCRIBE, ResourceType.TOPIC))]
    for each in rights:
        response, _ = ask(case, each)
        if case.label == "produce-hidden-transaction":
            return  # refused to every client
        assert not set(codes(response)) & REFUSALS


@every_case
def test_each_permission_of_an_api_is_required(case: Case):
    if len(case.needs) == 1 or case.hides:
        return
    for gone in case.needs:
        rest = tuple(right for right in case.needs if right != gone)
        response, _ = ask(case, rest)
        assert set(codes(response)) & REFUSALS, f"without {gone}"


@every_case
def test_every_request_is_allowed_without_an_authorizer(case: Case):
    harness = BrokerHarness()
    assert isinstance(harness.broker.services.authorizer, Authorizer)
    assert not harness.broker.services.authorizer.active
    session = Session(client_host="10.1.2.3", principal=ALICE)
    pending = harness.send(case.request("x"), case.version, session=session)
    harness.sync()
    if pending.done and "transaction" not in case.label and "acls" not in case.label:
        assert not set(codes(pending.response)) & REFUSALS
