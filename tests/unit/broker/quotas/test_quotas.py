"""Client quotas: stored quotas, the quota that applies, and requests above it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.quotas import client_quotas
from headrace.broker.quotas.client_quotas import DEFAULT, ClientQuotas, Entity
from headrace.broker.session import Session
from headrace.broker.waiting.steps import finished
from headrace.errors import ErrorCode
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from headrace.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.fixtures.broker_harness import BrokerHarness, batch, fetch_request, produce_request

CONNECTIONS = "connection_creation_rate"
PRODUCER, CONSUMER, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
EXACT, DEFAULT_NAME, ANY = 0, 1, 2
Parts = Mapping[str, str | None]


class Shell:
    """A broker with the work of the server around `handle`: it measures requests, and records the pauses."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.request_bytes = 1000
        self.used_us = 100
        self.pause_ms = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.broker, name)

    def handle(self, context: Any, request: Any) -> Any:
        reply = self.broker.handle(context, request)
        self.pause_ms = 0
        if self.broker.services.quotas.active:
            reply, self.pause_ms = self.broker.throttle(
                context, request, reply, request_bytes=self.request_bytes, used_us=self.used_us
            )
        return reply


class Harness(BrokerHarness):
    broker: Any  # a `Shell`

    def _open(self) -> Any:
        return Shell(super()._open())

    def alter(
        self,
        entity: Parts,
        quotas: Mapping[str, float | None],
        *,
        validate_only: bool = False,
        version: int | None = None,
    ) -> tuple[int, str | None]:
        request = AlterClientQuotasRequest(
            entries=[
                AlterClientQuotasRequestEntryData(
                    entity=[
                        AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name)
                        for kind, name in entity.items()
                    ],
                    ops=[
                        OpData(key=key, value=value or 0, remove=value is None)
                        for key, value in quotas.items()
                    ],
                )
            ],
            validate_only=validate_only,
        )
        [entry] = self.call(request, version, client_id="admin").entries
        assert {part.entity_type: part.entity_name for part in entry.entity} == entity
        return entry.error_code, entry.error_message

    def set(self, entity: Parts, **quotas: float | None) -> None:
        assert self.alter(entity, quotas) == (0, None)

    def describe(
        self, *components: tuple[str, int, str | None], strict: bool = False
    ) -> list[tuple[dict[str, str | None], dict[str, float]]]:
        response = self.filtered(*components, strict=strict)
        assert response.error_code == 0, response.error_message
        return [
            (
                {part.entity_type: part.entity_name for part in entry.entity},
                {value.key: value.value for value in entry.values},
            )
            for entry in response.entries
        ]

    def filtered(self, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
        request = DescribeClientQuotasRequest(
            components=[
                ComponentData(entity_type=kind, match_type=match_type, match=match)
                for kind, match_type, match in components
            ],
            strict=strict,
        )
        return self.call(request, client_id="admin")


@pytest.fixture
def harness() -> Harness:
    harness = Harness()
    harness.create_topic("flights")
    return harness


class TestWhatIsStored:
    @pytest.mark.parametrize("version", [0, 1])
    def test_quotas_are_set_changed_and_removed(self, harness: Harness, version: int) -> None:
        spark = {"client-id": "spark"}
        assert harness.alter(spark, {PRODUCER: 1000, REQUEST: 12.5}, version=version) == (0, None)
        harness.alter(spark, {PRODUCER: 2000, CONSUMER: 5}, version=version)
        assert harness.describe() == [(spark, {PRODUCER: 2000, CONSUMER: 5, REQUEST: 12.5})]
        harness.alter(spark, {PRODUCER: None, CONSUMER: None, "never.set": None}, version=version)
        assert harness.describe() == [(spark, {REQUEST: 12.5})]
        harness.alter(spark, {REQUEST: None}, version=version)
        assert harness.describe() == []
        assert not harness.broker.services.quotas.active

    def test_quotas_survive_a_restart(self, harness: Harness) -> None:
        entities: list[Parts] = [
            {"client-id": "a/b&c=d\n\u20ac"},
            {"client-id": "<default>"},
            {"client-id": None},
            {"user": None},
            {"user": "ANONYMOUS", "client-id": None},
            {"user": None, "client-id": None},
            {"user": "u" * 450, "client-id": "c" * 450},
        ]
        for number, entity in enumerate(entities):
            harness.set(entity, **{PRODUCER: 1000 + number})
        found = harness.describe()
        assert [dict(entity) for entity in entities] == [entity for entity, _ in found]
        harness.set(entities[0], **{PRODUCER: None})
        harness.crash()
        assert harness.broker.services.quotas.active
        # The store lists by key.
        assert sorted(map(str, harness.describe())) == sorted(map(str, found[1:]))

    def test_addresses_have_rates_of_connections(self, harness: Harness) -> None:
        quotas = harness.broker.services.quotas
        assert quotas.connection_rate("192.0.2.1") is None
        for address, rate in (("192.0.2.1", 5), ("2001:DB8::0001", 6), (None, 7)):
            harness.set({"ip": address}, connection_creation_rate=rate)
        for _ in range(2):
            quotas = harness.broker.services.quotas
            assert quotas.connection_rate("192.0.2.1") == 5
            assert quotas.connection_rate("::ffff:192.0.2.1") == 5
            assert quotas.connection_rate("2001:db8::1") == 6
            assert quotas.connection_rate("127.0.0.1") == 7
            assert not quotas.active, "requests are not measured for the sake of connections"
            found = harness.describe(("ip", ANY, None))
            assert sorted(str(entity["ip"]) for entity, _ in found) == [
                "192.0.2.1",
                "2001:DB8::0001",
                "None",
            ]
            assert harness.describe(("user", ANY, None)) == []
            harness.crash()
        assert harness.alter({"ip": None}, {CONNECTIONS: None}) == (0, None)
        assert harness.broker.services.quotas.connection_rate("127.0.0.1") is None

    def test_a_change_parses_no_other_address_again(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A change with thousands of addresses would take longer than a step."""
        for number in range(5):
            harness.set({"ip": f"198.51.100.{number}"}, connection_creation_rate=5)
        parsed: list[str] = []
        parse = ipaddress.ip_address

        def noted(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
            parsed.append(text)
            return parse(text)

        monkeypatch.setattr(ipaddress, "ip_address", noted)
        harness.set({"ip": "198.51.100.99"}, connection_creation_rate=5)
        assert parsed == ["198.51.100.99"]

    def test_a_check_changes_nothing(self, harness: Harness) -> None:
        assert harness.alter({"user": "u"}, {PRODUCER: 1}, validate_only=True) == (0, None)
        code, _ = harness.alter({"user": "u"}, {PRODUCER: -1}, validate_only=True)
        assert code == ErrorCode.INVALID_REQUEST
        assert harness.describe() == []

    @pytest.mark.parametrize(
        ("entity", "quotas", "reason"),
        [
            ({}, {PRODUCER: 1}, "no parts"),
            ({"topic": "t"}, {PRODUCER: 1}, "type"),
            ({"client-id": ""}, {PRODUCER: 1}, "empty"),
            ({"client-id": "c" * 451}, {PRODUCER: 1}, "too long"),
            ({"client-id": "\u20ac" * 51}, {PRODUCER: 1}, "too long"),
            ({"ip": "127.0.0.1"}, {"controller_mutation_rate": 1}, "not implemented"),
            ({"ip": "127.0.0.1"}, {PRODUCER: 1}, "no quota"),
            ({"ip": "127.0.0.1", "user": "u"}, {CONNECTIONS: 1}, "has no user"),
            ({"ip": "localhost"}, {CONNECTIONS: 1}, "not an IP address"),
            ({"ip": "192.0.2.999"}, {CONNECTIONS: 1}, "not an IP address"),
            ({"ip": ""}, {CONNECTIONS: 1}, "empty"),
            ({"ip": None}, {CONNECTIONS: 0}, "greater than 0"),
            ({"ip": None}, {CONNECTIONS: 1.5}, "whole number"),
            ({"ip": None}, {CONNECTIONS: 2.0**31}, "whole number"),
            ({"user": "u"}, {CONNECTIONS: 1}, "no quota"),
            ({"user": "u"}, {"controller_mutation_rate": 1}, "not implemented"),
            ({"user": "u"}, {"producer_rate": 1}, "no quota 'producer_rate' of clients"),
            ({"user": "u"}, {PRODUCER: 0}, "greater than 0"),
            ({"user": "u"}, {PRODUCER: float("nan")}, "greater than 0"),
            ({"user": "u"}, {REQUEST: float("inf")}, "greater than 0"),
            ({"user": "u"}, {CONSUMER: 1.5}, "whole number"),
            ({"user": "u"}, {CONSUMER: 1e19}, "whole number"),
            ({"user": "u"}, {REQUEST: 5, CONSUMER: -1}, "greater than 0"),
        ],
    )
    def test_an_invalid_request_is_refused_with_a_reason(
        self, harness: Harness, entity: Parts, quotas: Mapping[str, float], reason: str
    ) -> None:
        code, message = harness.alter(entity, quotas)
        assert code == ErrorCode.INVALID_REQUEST
        assert reason in str(message)
        assert harness.describe() == []

    def test_an_entity_or_a_quota_that_occurs_twice_is_refused(self, harness: Harness) -> None:
        part = AlterClientQuotasRequestEntityData(entity_type="user", entity_name="u")
        op = OpData(key=PRODUCER, value=1)
        request = AlterClientQuotasRequest(
            entries=[
                AlterClientQuotasRequestEntryData(entity=[part, part], ops=[op]),
                AlterClientQuotasRequestEntryData(entity=[part], ops=[op, op]),
                AlterClientQuotasRequestEntryData(entity=[part], ops=[op]),
            ]
        )
        codes = [entry.error_code for entry in harness.call(request).entries]
        assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, ErrorCode.NONE]

    def test_entities_are_bounded(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client_quotas, "ENTITIES_LIMIT", 2)
        for name in ("a", "b"):
            harness.set({"user": name}, **{PRODUCER: 1})
        code, _ = harness.alter({"user": "c"}, {PRODUCER: 1})
        assert code == ErrorCode.POLICY_VIOLATION
        harness.set({"user": "b"}, **{PRODUCER: 2})
        harness.set({"user": "a"}, **{PRODUCER: None})
        harness.set({"user": "c"}, **{PRODUCER: 1})


class TestDescribe:
    @pytest.fixture
    def described(self, harness: Harness) -> Harness:
        for user in ("u", None, "-"):
            for client_id in ("c", None, "-"):
                entity = {"user": user, "client-id": client_id}
                entity = {kind: name for kind, name in entity.items() if name != "-"}
                if entity:
                    harness.set(entity, **{PRODUCER: 1})
        return harness

    @pytest.mark.parametrize(
        ("components", "strict", "expected"),
        [
            ([], False, 8),
            ([], True, 0),
            ([("user", ANY, None)], False, 6),
            ([("user", ANY, None)], True, 2),
            ([("user", EXACT, "u")], False, 3),
            ([("user", EXACT, "u")], True, 1),
            ([("user", DEFAULT_NAME, None)], True, 1),
            ([("client-id", EXACT, "other")], False, 0),
            ([("client-id", DEFAULT_NAME, None), ("user", ANY, None)], True, 2),
            ([("client-id", EXACT, "c"), ("user", EXACT, "u")], False, 1),
            ([("ip", ANY, None)], False, 0),
        ],
    )
    def test_a_filter_selects_the_described_quotas(
        self,
        described: Harness,
        components: list[tuple[str, int, str | None]],
        strict: bool,  # noqa: FBT001 - a parameter of the table
        expected: int,
    ) -> None:
        found = described.describe(*components, strict=strict)
        assert len(found) == expected
        for kind, match_type, match in components:
            for entity, quotas in found:
                assert match_type == ANY or entity[kind] == match
                assert quotas == {PRODUCER: 1}

    @pytest.mark.parametrize(
        ("components", "code"),
        [
            ([("", ANY, None)], ErrorCode.INVALID_REQUEST),
            ([("topic", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
            ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
            ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
            ([("user", DEFAULT_NAME, "u")], ErrorCode.INVALID_REQUEST),
            ([("user", ANY, None), ("user", EXACT, "u")], ErrorCode.INVALID_REQUEST),
            ([("user", ANY, None), ("ip", ANY, None)], ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_an_invalid_request_is_refused_with_a_reason(
        self, harness: Harness, components: list[tuple[str, int, str | None]], code: ErrorCode
    ) -> None:
        response = harness.filtered(*components)
        assert response.error_code == code
        assert response.error_message
        assert response.entries is None


def set_quotas(quotas: ClientQuotas, entity: Entity, values: dict[str, float]) -> None:
    finished(quotas.change(entity, lambda _: values))


class TestPrecedence:
    ORDER = (
        Entity("ANONYMOUS", "c"),
        Entity("ANONYMOUS", DEFAULT),
        Entity("ANONYMOUS"),
        Entity(DEFAULT, "c"),
        Entity(DEFAULT, DEFAULT),
        Entity(DEFAULT),
        Entity(None, "c"),
        Entity(None, DEFAULT),
    )

    def test_the_nearest_counts(self, harness: Harness) -> None:
        quotas = harness.broker.services.quotas
        for number, entity in enumerate(reversed(self.ORDER), 1):
            set_quotas(quotas, entity, {PRODUCER: number})
            found = quotas.find(PRODUCER, "ANONYMOUS", "c")
            assert found.limit == number
            assert found.user == (None if entity.user is None else "ANONYMOUS")
            assert found.client_id == (None if entity.client_id is None else "c")
        for number, entity in enumerate(self.ORDER[1:]):
            set_quotas(quotas, self.ORDER[number], {})
            assert quotas.find(PRODUCER, "ANONYMOUS", "c").limit == 7 - number, entity
        set_quotas(quotas, self.ORDER[-1], {})
        assert quotas.find(PRODUCER, "ANONYMOUS", "c") is None

    def test_each_kind_of_quota_is_looked_up_by_itself(self, harness: Harness) -> None:
        quotas = harness.broker.services.quotas
        set_quotas(quotas, self.ORDER[0], {PRODUCER: 1})
        set_quotas(quotas, self.ORDER[-1], {PRODUCER: 2, CONSUMER: 3})
        assert quotas.find(PRODUCER, "ANONYMOUS", "c").limit == 1
        assert quotas.find(CONSUMER, "ANONYMOUS", "c").limit == 3
        assert quotas.find(REQUEST, "ANONYMOUS", "c") is None

    def test_others_are_not_meant(self, harness: Harness) -> None:
        quotas = harness.broker.services.quotas
        set_quotas(quotas, Entity("somebody"), {PRODUCER: 1})
        set_quotas(quotas, Entity(None, "other"), {PRODUCER: 1})
        assert quotas.find(PRODUCER, "ANONYMOUS", "c") is None


def put(harness: Harness, size: int, client_id: str | None = "test", **options: Any) -> Any:
    harness.broker.request_bytes = size
    request = produce_request("flights", 0, batch(b"x"), **options)
    return harness.call(request, client_id=client_id)


class TestProduce:
    def test_clients_without_quotas_are_not_paused(self, harness: Harness) -> None:
        assert put(harness, 10**9).throttle_time_ms == 0
        harness.set({"client-id": "other"}, **{PRODUCER: 1})
        assert put(harness, 10**9).throttle_time_ms == 0
        assert harness.broker.pause_ms == 0

    def test_records_above_the_quota_are_appended_and_the_client_is_paused(
        self, harness: Harness
    ) -> None:
        harness.set({"client-id": "test"}, **{PRODUCER: 1000})
        assert put(harness, 10_000).throttle_time_ms == 0
        response = put(harness, 5_000)
        assert response.throttle_time_ms == 5_000
        assert response.responses[0].partition_responses[0].base_offset == 1
        assert harness.broker.pause_ms == 5_000
        # Other clients continue. So do other requests of the same client: the shell pauses its connections.
        assert put(harness, 5_000, "other").throttle_time_ms == 0
        assert harness.call(MetadataRequest(topics=None)).throttle_time_ms == 0

    def test_a_client_without_a_name_has_the_default(self, harness: Harness) -> None:
        harness.set({"client-id": None}, **{PRODUCER: 1000})
        assert put(harness, 11_000, None).throttle_time_ms == 1_000
        assert put(harness, 12_000, "").throttle_time_ms == 13_000

    def test_defaults_are_for_each_and_users_for_all(self, harness: Harness) -> None:
        harness.set({"client-id": None}, **{PRODUCER: 1000})
        assert put(harness, 10_000, "a").throttle_time_ms == 0
        assert put(harness, 10_000, "b").throttle_time_ms == 0
        harness.set({"user": None}, **{PRODUCER: 1000})
        assert put(harness, 10_000, "a").throttle_time_ms == 0
        assert put(harness, 10_000, "b").throttle_time_ms == 10_000

    def test_a_client_that_obeys_its_throttle_time_reaches_its_quota(
        self, harness: Harness
    ) -> None:
        harness.set({"client-id": "test"}, **{PRODUCER: 50_000})
        sent, began_ms = 0, harness.now_ms
        while harness.now_ms < began_ms + 100_000:
            pause_ms = put(harness, 7_000).throttle_time_ms
            sent += 7_000
            harness.advance(1 + pause_ms)
        assert sent / (harness.now_ms - began_ms) * 1000 == pytest.approx(50_000, rel=0.15)

    def test_without_an_answer_the_connection_is_paused(self, harness: Harness) -> None:
        harness.set({"client-id": "test"}, **{PRODUCER: 1000})
        harness.broker.request_bytes = 20_000
        pending = harness.send(produce_request("flights", 0, batch(b"x"), acks=0))
        assert pending.silent
        assert harness.broker.pause_ms == 10_000

    def test_a_removed_quota_pauses_no_client(self, harness: Harness) -> None:
        harness.set({"client-id": "test"}, **{PRODUCER: 1000})
        assert put(harness, 20_000).throttle_time_ms == 10_000
        harness.set({"client-id": "test"}, **{PRODUCER: 100_000})
        assert put(harness, 20_000).throttle_time_ms == 0
        harness.set({"client-id": "test"}, **{PRODUCER: None})
        assert put(harness, 10**9).throttle_time_ms == 0


class TestFetch:
    @pytest.fixture
    def limited(self, harness: Harness) -> Harness:
        for _ in range(4):
            harness.produce("flights", b"x" * 10_000)
        harness.set({"client-id": "test"}, **{CONSUMER: 2_000})
        return harness

    def test_above_the_quota_a_fetch_gets_no_records_until_the_pause_ends(
        self, limited: Harness
    ) -> None:
        first = limited.call(fetch_request(("flights", 0, 0)))
        assert len(first.responses[0].partitions[0].records) > 10_000
        assert first.throttle_time_ms == 0
        second = limited.call(fetch_request(("flights", 0, 1)))
        assert (second.error_code, second.responses) == (0, [])
        assert second.throttle_time_ms > 0
        assert limited.broker.pause_ms == second.throttle_time_ms
        limited.advance(11_000)
        third = limited.call(fetch_request(("flights", 0, 1)))
        assert third.responses[0].partitions[0].records

    def test_a_fetch_session_returns_the_records_after_the_pause(self, limited: Harness) -> None:
        def fetch(session_id: int, epoch: int, *wanted: tuple[str, int, int]) -> Any:
            return limited.call(
                fetch_request(
                    *wanted, session_id=session_id, session_epoch=epoch, max_wait_ms=0, min_bytes=0
                )
            )

        limited.call(fetch_request(("flights", 0, 0)))
        refused = fetch(0, 0, ("flights", 0, 0))
        assert refused.throttle_time_ms > 0
        assert refused.session_id == 0
        assert not len(limited.broker.services.fetch_sessions)
        limited.advance(11_000)
        session_id = fetch(0, 0, ("flights", 0, 0)).session_id
        assert session_id
        put_off = fetch(session_id, 1, ("flights", 0, 1))
        assert (put_off.session_id, put_off.responses) == (session_id, [])
        assert put_off.throttle_time_ms > 0
        limited.advance(11_000)
        answered = fetch(session_id, 2)
        assert answered.responses[0].partitions[0].records

    def test_a_fetch_that_waited_is_charged_when_it_is_answered(self, limited: Harness) -> None:
        assert limited.call(fetch_request(("flights", 0, 0))).throttle_time_ms == 0
        waiting = limited.send(fetch_request(("flights", 0, 4), max_wait_ms=60_000))
        limited.advance(5_000)
        limited.broker.request_bytes = 1
        limited.call(produce_request("flights", 0, batch(b"x" * 15_000)), client_id="other")
        assert waiting.done
        assert waiting.response.throttle_time_ms > 0
        assert waiting.response.responses == []

    def test_no_more_is_read_than_the_quota_allows_at_once(self, limited: Harness) -> None:
        limited.set({"client-id": "test"}, **{CONSUMER: 2_100})
        response = limited.call(fetch_request(("flights", 0, 0), min_bytes=30_000, max_wait_ms=0))
        records = response.responses[0].partitions[0].records
        assert 20_000 < len(records) < 21_000

    def test_a_client_that_obeys_its_throttle_time_reaches_its_quota(
        self, limited: Harness
    ) -> None:
        limited.set({"client-id": "test"}, **{CONSUMER: 5_000})
        got, began_ms = 0, limited.now_ms
        while limited.now_ms < began_ms + 100_000:
            response = limited.call(
                fetch_request(("flights", 0, 0), max_wait_ms=0, partition_max_bytes=1)
            )
            got += sum(
                len(part.records) for topic in response.responses for part in topic.partitions
            )
            limited.advance(1 + response.throttle_time_ms)
        assert got / (limited.now_ms - began_ms) * 1000 == pytest.approx(5_000, rel=0.15)


class TestRequestTime:
    def test_a_client_that_takes_too_much_time_is_paused_for_a_window_at_most(
        self, harness: Harness
    ) -> None:
        harness.set({"client-id": "test"}, **{REQUEST: 10})
        harness.broker.used_us = 500_000  # half a second: 50 percent-seconds, spread over 10 s
        assert harness.call(MetadataRequest(topics=None)).throttle_time_ms == 0
        harness.broker.used_us = 550_000
        assert harness.call(MetadataRequest(topics=None)).throttle_time_ms == 500
        assert harness.call(MetadataRequest(topics=None)).throttle_time_ms == 1000
        assert harness.call(MetadataRequest(topics=None), client_id="other").throttle_time_ms == 0

    def test_a_version_without_the_field_is_paused_all_the_same(self, harness: Harness) -> None:
        harness.set({"client-id": "test"}, **{REQUEST: 1})
        harness.broker.used_us = 200_000
        response = harness.call(MetadataRequest(topics=None), 1)
        assert harness.broker.pause_ms == 1000
        assert response.topics

    def test_a_request_without_an_answer_is_charged_too(self, harness: Harness) -> None:
        harness.create_topic("t")
        harness.alter({"client-id": "test"}, {REQUEST: 5})
        harness.broker.used_us = 600_000
        harness.send(produce_request("t", 0, batch(b"a"), acks=0))
        assert harness.broker.pause_ms == 1000

    def test_the_next_request_is_charged_for_unpaid_time(self, harness: Harness) -> None:
        harness.alter({"client-id": "test"}, {REQUEST: 5})
        harness.broker.used_us = 0
        session = Session()
        harness.call(MetadataRequest(topics=[]), session=session)
        assert harness.broker.pause_ms == 0
        session.unpaid_us = 600_000
        harness.call(MetadataRequest(topics=[]), session=session)
        assert (harness.broker.pause_ms, session.unpaid_us) == (1000, 0)

    def test_further_steps_are_charged_with_the_next_request(self, harness: Harness) -> None:
        names = [MetadataRequestTopic(name=f"unknown{number}") for number in range(4_000)]
        request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
        session = Session()
        harness.call(request, session=session)
        assert session.unpaid_us == 0  # there are no quotas
        harness.alter({"client-id": "test"}, {REQUEST: 5})
        harness.broker.used_us = 0
        harness.call(request, session=session)
        assert session.unpaid_us >= 30_000  # three steps of the four
        unpaid = session.unpaid_us
        harness.call(MetadataRequest(topics=[]), session=session)
        assert unpaid <= 80_000
        assert session.unpaid_us == 0

    def test_the_read_at_the_end_of_a_wait_is_charged_with_the_next_request(
        self, harness: Harness
    ) -> None:
        harness.create_topic("t", partitions=3)
        harness.alter({"client-id": "test"}, {REQUEST: 5})
        session = Session()
        wanted = [("t", index, 0) for index in range(3)]
        pending = harness.send(fetch_request(*wanted, max_wait_ms=1_000), session=session)
        assert session.unpaid_us == 0
        harness.produce("t", b"a")
        assert pending.done
        once = session.unpaid_us
        assert once > 0
        harness.call(MetadataRequest(topics=[]), session=session)
        assert session.unpaid_us == 0

    def test_long_names_are_not_kept(self, harness: Harness) -> None:
        harness.alter({"client-id": None}, {REQUEST: 5})
        kept = harness.broker.services.throttling._rates
        for number in range(3):
            harness.call(MetadataRequest(topics=[]), client_id=f"{number}" + "x" * 30_000)
        before = len(kept)
        assert before >= 3
        assert max(len(each) for key in kept._rates for each in key if each) <= 64
        harness.broker.used_us = 600_000
        harness.call(MetadataRequest(topics=[]), client_id="0" + "x" * 30_000)
        assert harness.broker.pause_ms == 1000
        assert len(kept) == before

    def test_the_longer_pause_counts(self, harness: Harness) -> None:
        harness.set({"client-id": "test"}, **{REQUEST: 1, PRODUCER: 10_000})
        harness.broker.used_us = 200_000
        assert put(harness, 100).throttle_time_ms == 1000
        assert put(harness, 150_000).throttle_time_ms == 5010
