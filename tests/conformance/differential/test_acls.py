"""The ACL matrix: every API and resource, with and without each permission, is answered as Apache Kafka answers it.

Every case and variant of `tests.fixtures.acl_cases` has its own user, topic and group, so that all ACLs
exist before the first request. Kafka's users log in with PLAIN; ours are given to the broker by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.broker.session import Session
from headrace.errors import ErrorCode
from headrace.protocol.codec import ZERO_UUID, Message, Structure
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from headrace.protocol.messages.describe_acls import DescribeAclsRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from headrace.security.principal import Principal
from tests.conformance.differential.peer import Closed, Connection, advertised
from tests.fixtures.acl_cases import CASES, Case, Right, codes, commit, resource_name
from tests.fixtures.broker_harness import BrokerHarness, batch
from tests.fixtures.kafka import (
    SINGLE_NODE_SETTINGS,
    TEST_SETTINGS,
    KafkaServer,
    free_ports,
)

pytestmark = [pytest.mark.java, pytest.mark.slow]

PASSWORD = "matrix"
WAIT_S = 60
KEPT = frozenset(
    {
        "authorized_operations",
        "cluster_authorized_operations",
        "committed_offset",
        "entity_name",
        "entity_type",
        "generation_id",
        "group_id",
        "index",
        "key",
        "low_watermark",
        "name",
        "num_partitions",
        "partition",
        "partition_index",
        "pattern_type",
        "replication_factor",
        "resource_name",
        "resource_type",
        "topic",
        "topic_authorized_operations",
        "user",
    }
)
"""Fields that are compared besides error codes and topic ids: they show what a user may see."""

_AT_ONCE = "a topic that was created by asking for it is in the answer"
ON_PURPOSE: dict[str, str] = {
    "produce-hidden-transaction-with-nothing": "each partition is refused for itself",
    "describe-quorum-with-all": "the node has the listener by which the client came, there is none of controllers",
    "describe-user-scram-credentials-with-nothing": "no users without names in the answer",
    "find-coordinator-of-a-transaction-with-all": _AT_ONCE,
    "metadata-creates-with-all": _AT_ONCE,
    "metadata-creates-with-instead-0": _AT_ONCE,
    "share-group-heartbeat-with-all": "there are no share groups, so the request is not looked at",
}
"""Reasons why Headrace answers otherwise, by case and variant."""
NAMES_TOPICS = 12
"""The last version of Fetch and Produce in which a request names its topics."""
STARTING = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
"""The errors of a coordinator that has just started."""
SHORTENED = frozenset({"aborted_transactions", "configs"})
"""Lists that are compared only by whether they are empty; other scenarios compare the elements."""

Ask = Callable[[Message, int], Any]
VARIANTS = [
    (f"c{number}v{index}", case, variant, rights)
    for number, case in enumerate(CASES)
    for index, (variant, rights) in enumerate(case.variants())
]


RANDOM = Random(4)
RANDOM_USERS = [f"r{number}" for number in range(30)]
SUFFIXES = ("", "a", "ab", "abc", "b", "ba")
ASKED = [Operation.DESCRIBE, Operation.READ, Operation.WRITE]


def _random_acls() -> Iterator[AclCreation]:
    """Yield some ACLs of each user, for names that begin with the user's name, or for all names."""
    for user in RANDOM_USERS:
        for _ in range(RANDOM.randint(1, 6)):
            principal = RANDOM.choice([user, user, "*"])
            name = f"{user}-{RANDOM.choice(SUFFIXES)}"
            if principal == user:
                name = RANDOM.choice([name, name, "*"])
            yield AclCreation(
                resource_type=ResourceType.TOPIC,
                resource_name=name,
                resource_pattern_type=RANDOM.choice([PatternType.LITERAL, PatternType.PREFIXED]),
                principal=f"User:{principal}",
                host=RANDOM.choice(["*", "*", "127.0.0.1", "10.0.0.1"]),
                operation=RANDOM.choice([Operation.ALL, Operation.ALTER, *ASKED]),
                permission_type=RANDOM.choice([Permission.ALLOW] * 3 + [Permission.DENY]),
            )


RANDOM_ACLS = list(_random_acls())


class AclKafka(KafkaServer):
    """Kafka with its authorizer, a listener on which users log in, and one whose clients may do everything."""

    def __init__(self, directory: Path) -> None:
        (self.user_port,) = free_ports(1)
        users = " ".join(
            f'user_{user}="{PASSWORD}"'
            for user in [*RANDOM_USERS, *(user for user, *_ in VARIANTS)]
        )
        super().__init__(
            directory,
            settings={
                **TEST_SETTINGS,
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "listener.security.protocol.map": SINGLE_NODE_SETTINGS[
                    "listener.security.protocol.map"
                ]
                + ",USERS:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.users.plain.sasl.jaas.config": (
                    f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
                ),
                # There is one such broker for each scenario; a JVM of a test has little memory.
                "log.segment.bytes": "1048576",
                "log.index.size.max.bytes": "4096",
            },
        )
        self._settings["listeners"] = (
            f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port},"
            f"USERS://127.0.0.1:{self.user_port}"
        )


class Side:
    """One of the two brokers: `admin` may do everything, `user` has the permissions of its ACLs."""

    def __init__(
        self, admin: Ask, fresh: Ask, user: Callable[[str], Ask], served: dict[int, int]
    ) -> None:
        self.admin = admin
        self.fresh = fresh
        """A second user with the same permissions, on its own connection."""
        self.user = user
        self.served = served
        self.topic_ids: dict[str, bytes] = {}

    def prepare(self) -> None:
        names = [user for user, case, *_ in VARIANTS if case.topic]
        topics = [CreatableTopic(name=n, num_partitions=1, replication_factor=1) for n in names]
        created = self.admin(CreateTopicsRequest(topics=topics), 7)
        self.topic_ids = {topic.name: bytes(topic.topic_id) for topic in created.topics}
        assert not list(codes(created))
        acls = [
            _creation(user, right, resource_name(right, user))
            for user, _, _, rights in VARIANTS
            for right in rights
        ] + RANDOM_ACLS
        assert not list(codes(self.admin(CreateAclsRequest(creations=acls), 3)))
        distinct = {tuple(getattr(acl, field) for field in acl.__slots__) for acl in acls}
        _wait(lambda: self._has(len(distinct)))
        producer = InitProducerIdRequest(transactional_id=None)
        _wait(lambda: not list(codes(self.admin(producer, 4))))
        named = [MetadataRequestTopic(name=name) for name in names]
        _wait(lambda: not list(codes(self.admin(MetadataRequest(topics=named), 9))))
        for name in names:
            keys = FindCoordinatorRequest(coordinator_keys=[name])
            _wait(partial(self._goes_through, keys, 4))
            _wait(partial(self._goes_through, commit(name), 8))

    def _goes_through(self, request: Message, version: int) -> bool:
        return not list(codes(self.admin(request, version)))

    def _has(self, count: int) -> bool:
        everything = DescribeAclsRequest(
            resource_type_filter=ResourceType.ANY,
            resource_name_filter=None,
            pattern_type_filter=PatternType.ANY,
            principal_filter=None,
            host_filter=None,
            operation=Operation.ANY,
            permission_type=Permission.ANY,
        )
        found = self.admin(everything, 3)
        return sum(len(resource.acls) for resource in found.resources) >= count

    def ask(self, user: str, case: Case) -> Any:
        request = case.request(user)
        if case.by_id is not None:
            request = case.by_id(self.topic_ids[user])
        version = case.version
        if version is None:
            version = self.served[request.API_KEY]
        return self.user(user)(request, version)


def _creation(user: str, right: Right, name: str) -> AclCreation:
    operation, resource_type = right
    return AclCreation(
        resource_type=resource_type,
        resource_name=name,
        resource_pattern_type=PatternType.LITERAL,
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission_type=Permission.ALLOW,
    )


def _wait(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _logged_in(address: tuple[str, int], user: str) -> Connection:
    connection = Connection(address)
    connection.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert connection.receive().error_code == 0
    proof = f"\0{user}\0{PASSWORD}".encode()
    connection.send(SaslAuthenticateRequest(auth_bytes=proof), 2)
    assert connection.receive().error_code == 0
    return connection


def _kafka_side(kafka: AclKafka, admin: Connection, served: dict[int, int]) -> Side:
    def ask(connection: Connection, request: Message, version: int) -> Any:
        connection.send(request, version)
        return connection.receive()

    def user(name: str) -> Ask:
        def once(request: Message, version: int) -> Any:
            connection = _logged_in(("127.0.0.1", kafka.user_port), name)
            try:
                return ask(connection, request, version)
            finally:
                connection.close()

        return once

    def fresh(request: Message, version: int) -> Any:
        connection = Connection(("127.0.0.1", kafka.port))
        try:
            return ask(connection, request, version)
        finally:
            connection.close()

    return Side(lambda request, version: ask(admin, request, version), fresh, user, served)


def _our_side(served: dict[int, int]) -> Side:
    harness = BrokerHarness(
        authorizer_class_name="headrace",
        group_initial_rebalance_delay_ms=0,
        group_min_session_timeout_ms=1000,
        offsets_topic_num_partitions=4,
        durability="os",
    )

    def user(name: str) -> Ask:
        session = Session(client_host="127.0.0.1", principal=Principal(name))
        return lambda request, version: harness.call(request, version, session=session)

    return Side(harness.call, harness.call, user, served)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    kafka = AclKafka(tmp_path_factory.mktemp("acls") / "kafka")
    ours = {api.key: api.served.max for api in BrokerHarness().broker.apis}
    try:
        kafka.start()
        theirs = advertised(("127.0.0.1", kafka.port))
        served = {key: min(top, theirs[key][1]) for key, top in ours.items() if key in theirs}
        served |= dict.fromkeys((FetchRequest.API_KEY, ProduceRequest.API_KEY), NAMES_TOPICS)
        with closing(Connection(("127.0.0.1", kafka.port))) as admin:
            both = _kafka_side(kafka, admin, served), _our_side(served)
            for side in both:
                side.prepare()
            yield both
    finally:
        kafka.stop()


def reduced(value: Any, user: str) -> Any:
    """Return the fields of an answer that are compared, with one name for all users."""
    if isinstance(value, list):
        return sorted((reduced(item, user) for item in value), key=repr)
    if isinstance(value, str):
        return "<own>" if value == user else value
    if not isinstance(value, Structure | Message):
        return value
    found: dict[str, Any] = {}
    for field in value.__slots__:
        inner = getattr(value, field)
        if field in SHORTENED:
            found[field] = bool(inner)
        elif field.endswith("error_code") or field in KEPT or isinstance(inner, list):
            found[field] = reduced(inner, user)
        elif field == "topic_id":
            found[field] = "<none>" if bytes(inner) == ZERO_UUID else "<id>"
    return found


def _settled(side: Side, user: str, case: Case) -> Any:
    """Repeat a request until the coordinator, which has just started, has loaded its data; return the last answer."""
    deadline = time.monotonic() + 60
    while True:
        answer = side.ask(user, case)
        code = getattr(answer, "error_code", 0)
        if code not in STARTING or time.monotonic() > deadline:
            return answer
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("user", "case", "variant"),
    [(user, case, variant) for user, case, variant, _ in VARIANTS],
    ids=[f"{case.label}-with-{variant}" for _, case, variant, _ in VARIANTS],
)
def test_the_request_gets_the_response_of_kafka(
    sides: tuple[Side, Side], user: str, case: Case, variant: str
) -> None:
    theirs, ours = (reduced(_settled(side, user, case), user) for side in sides)
    if f"{case.label}-with-{variant}" in ON_PURPOSE:
        assert ours != theirs, "no difference any more: take it off the list"
    else:
        assert ours == theirs


def test_the_name_of_the_cluster_is_the_only_one(sides: tuple[Side, Side]) -> None:
    creations = [
        _creation("c0v0", (Operation.ALTER, ResourceType.CLUSTER), name)
        for name in ("other", CLUSTER_NAME)
    ]
    found = [side.admin(CreateAclsRequest(creations=creations), 3) for side in sides]
    assert [[result.error_code for result in each.results] for each in found] == [[42, 0]] * 2


@pytest.mark.parametrize(
    ("field", "value", "theirs"), [("resource_type", 0, None), ("operation", 1, -1)]
)
def test_headrace_answers_invalid_request_to_invalid_acl_numbers(
    sides: tuple[Side, Side], field: str, value: int, theirs: int | None
) -> None:
    creation = _creation("c0v0", (Operation.READ, ResourceType.TOPIC), "t")
    setattr(creation, field, value)
    request = CreateAclsRequest(creations=[creation])
    kafka, headrace = sides
    if theirs is None:
        with pytest.raises(Closed):
            kafka.fresh(request, 3)
    else:
        assert list(codes(kafka.fresh(request, 3))) == [theirs]
    assert list(codes(headrace.fresh(request, 3))) == [42]


@pytest.mark.parametrize("user", RANDOM_USERS)
def test_random_acls_decide_as_in_kafka(sides: tuple[Side, Side], user: str) -> None:
    names = [f"{user}-{suffix}" for suffix in SUFFIXES] + [f"x{user}", "*"]
    offsets = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=0)])
            for name in names
        ],
    )
    fetch = FetchRequest(
        topics=[FetchTopic(topic=name, partitions=[FetchPartition(partition=0)]) for name in names]
    )
    produce = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=name, partition_data=[PartitionProduceData(index=0, records=batch(b"x"))]
            )
            for name in names
        ],
    )
    for request in (offsets, fetch, produce):
        version = sides[0].served[request.API_KEY]
        theirs, ours = (reduced(side.user(user)(request, version), user) for side in sides)
        assert ours == theirs
    any_topic = InitProducerIdRequest(transactional_id=None)
    theirs, ours = (reduced(side.user(user)(any_topic, 4), user) for side in sides)
    assert ours == theirs


def _filter(random: Random) -> dict[str, Any]:
    user = random.choice(RANDOM_USERS)
    return {
        "resource_type_filter": random.choice([ResourceType.ANY, ResourceType.TOPIC]),
        "resource_name_filter": random.choice([None, f"{user}-{random.choice(SUFFIXES)}", "*"]),
        "pattern_type_filter": random.choice(
            [PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED]
        ),
        "principal_filter": random.choice([f"User:{user}", f"User:{user}", "User:*"]),
        "host_filter": random.choice([None, None, "*", "10.0.0.1"]),
        "operation": random.choice([Operation.ANY, Operation.ANY, Operation.READ]),
        "permission_type": random.choice([Permission.ANY, Permission.ANY, Permission.DENY]),
    }


def test_filters_mean_what_they_mean_in_kafka(sides: tuple[Side, Side]) -> None:
    random = Random(5)
    found = 0
    for _ in range(150):
        request = DescribeAclsRequest(**_filter(random))
        theirs, ours = (_described(side.admin(request, 3)) for side in sides)
        assert ours == theirs
        found += len(ours)
    assert found > 50


def test_the_same_acls_are_deleted_as_by_kafka(sides: tuple[Side, Side]) -> None:
    random = Random(6)
    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_filter(random)) for _ in range(20)])
    theirs, ours = (
        [_rows(result.matching_acls) for result in side.admin(request, 3).filter_results]
        for side in sides
    )
    assert ours == theirs
    assert sum(map(len, ours)) > 5


def _described(response: Any) -> list[Any]:
    assert response.error_code == 0
    return sorted(
        (resource.resource_type, resource.resource_name, resource.pattern_type, row)
        for resource in response.resources
        for row in _rows(resource.acls)
    )


def _rows(acls: list[Any]) -> list[tuple[Any, ...]]:
    # Their messages differ: null where there is no error, or empty.
    return sorted(
        tuple(getattr(acl, field) for field in acl.__slots__ if field != "error_message")
        for acl in acls
    )
