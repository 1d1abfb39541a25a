"""Tests that share a broker: each leaves nothing behind for the next test, and wider fixtures continue to work.

Every scope of a fixture, whether pytest sets it up before the test or the test asks for it, with each kind of client,
and each kind of fault that a test may leave behind.
"""

from __future__ import annotations

import re

import pytest
from confluent_kafka.admin import AdminClient

from headrace.testing import KafkaContainer
from tests.conformance.testing.test_plugin import configured, outcomes

pytest_plugins = "pytester"
__all__ = ["configured"]

WIDE = ["class", "module", "package", "session"]
HOW = {
    "requested": ("{name}", "{name}"),
    "lazily": ("request", "request.getfixturevalue('{name}')"),
}
CLIENTS = {
    "headrace in process": """
    made = factories.client(scope="SCOPE")

    @pytest.fixture(scope="SCOPE")
    def wide(made, headrace_broker):
        headrace_broker.create_topic("wide")
        consumer = made.consumer("wide", group="wide")

        def read():
            end = time.monotonic() + 20
            while not (records := consumer.poll(0.5)):
                assert time.monotonic() < end
            consumer.commit()
            return [record.value for record in records]
        yield read
    """,
    "headrace over TCP": """
    @pytest.fixture(scope="SCOPE")
    def wide(headrace_bootstrap, headrace_broker):
        headrace_broker.create_topic("wide")
        with headrace.Consumer(headrace_bootstrap, group="wide", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["wide"])

            def read():
                end = time.monotonic() + 20
                while not (records := consumer.poll(0.5)):
                    assert time.monotonic() < end
                consumer.commit()
                return [record.value for record in records]
            yield read
    """,
    "confluent-kafka": """
    @pytest.fixture(scope="SCOPE")
    def wide(headrace_broker):
        headrace_broker.create_topic("wide")
        consumer = confluent_kafka.Consumer({"bootstrap.servers": headrace_broker.bootstrap, "group.id": "wide",
            "auto.offset.reset": "earliest", "enable.auto.commit": False})
        consumer.subscribe(["wide"])

        def read():
            end = time.monotonic() + 20
            while (record := consumer.poll(0.5)) is None:
                assert time.monotonic() < end
            assert record.error() is None, record.error()
            consumer.commit(asynchronous=False)
            return [record.value()]
        yield read
        consumer.close()
    """,
    "worker": """
    @pytest.fixture(scope="SCOPE")
    def wide(headrace_broker):
        got = []
        app = headrace.App("x")

        @app.worker("wide", group="wide", retry=1, dead_letter=True)
        def handle(value: bytes):
            got.append(value)
            raise ValueError("each record becomes a dead letter")

        headrace_broker.create_topic("wide")
        with app.test(headrace_broker) as running:
            def read():
                running.wait_idle(20)
                found = [each.value for each in running.messages("dlq.wide")]
                assert found[-len(got):] == got
                values = got[:]
                got.clear()
                return values
            yield read
    """,
}


PLACES = [(scope, how) for scope in WIDE for how in HOW]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_of_a_wider_fixture_lives_through_many_tests(
    pytester: pytest.Pytester, client: str
) -> None:
    source = "\n".join(line[4:] for line in CLIENTS[client].splitlines())
    fixtures = [
        re.sub(r"\b(wide|made)\b", rf"\1_{scope}_{how}", source.replace("SCOPE", scope))
        for scope, how in PLACES
    ]
    pytester.makeconftest(
        "import time, confluent_kafka, headrace, pytest\nfrom headrace.testing import factories\n"
        + "\n".join(fixtures)
    )
    for scope, how in PLACES:
        name = f"wide_{scope}_{how}"
        argument, value = (each.format(name=name) for each in HOW[how])
        pytester.makepyfile(
            **{
                f"test_{scope}_{how}": f"""
        import pytest

        class TestAll:
            @pytest.mark.parametrize("turn", range(3))
            def test_turn(self, headrace_broker, {argument}, turn):
                read = {value}
                headrace_broker.publish("{name}", b"%d" % turn)
                assert read() == [b"%d" % turn]
                assert "mine" not in headrace_broker.topics()
                headrace_broker.create_topic("mine")
        """
            }
        )
    # Scopes that have ended have left nothing; those that have not still have everything.
    lasting = {f"wide_{scope}_{how}" for scope, how in PLACES if scope in {"package", "session"}}
    pytester.makepyfile(
        test_zz=f"""
        def test_after(headrace_broker):
            topics = {{name.removeprefix("dlq.") for name in headrace_broker.topics()}}
            assert topics == {{*headrace_broker.groups()}} == {lasting}
        """,
    )
    assert outcomes(pytester) == {"passed": 3 * len(PLACES) + 1}


def test_a_fixture_with_parameters_leaves_nothing_to_its_next_one(pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="module", params=[1, 2])
        def topic(headrace_broker, request):
            headrace_broker.create_topic("parametrized", partitions=request.param)
            return request.param

        def test_first(headrace_broker, topic):
            assert headrace_broker.topics() == ["parametrized"]

        def test_second(headrace_broker, topic):
            assert headrace_broker._core.services.topics.require("parametrized").partitions_count == topic
        """
    )
    assert outcomes(pytester) == {"passed": 4}


def test_an_address_alone_keeps_nothing_of_a_test(pytester) -> None:
    pytester.makepyfile(
        """
        import headrace, pytest

        LEFT = []

        @pytest.fixture(scope="session")
        def settings(headrace_bootstrap):
            return {"kafka": {"servers": [headrace_bootstrap]}}

        def test_a_consumer_is_never_closed(headrace_broker, settings):
            headrace_broker.create_topic("t")
            LEFT.append(headrace.Consumer(headrace_broker, group="left", auto_offset_reset="earliest"))
            LEFT[0].subscribe(["t"])
            headrace_broker.publish("t", b"1")
            while not LEFT[0].poll(0.5):
                pass

        def test_it_is_gone(headrace_broker, settings):
            assert headrace_broker.topics() == headrace_broker.groups() == []
            LEFT[0].close()
        """
    )
    assert outcomes(pytester) == {"passed": 2}


FAULTS = {
    "a refused deletion": "faults.on(ApiKey.DELETE_TOPICS, error('TOPIC_AUTHORIZATION_FAILED'))",
    "lost connections": "faults.on(ApiKey.METADATA, drop_connection())",
    "refused metadata": "faults.on(ApiKey.METADATA, error('TOPIC_AUTHORIZATION_FAILED'))",
    "slow answers": "faults.on(None, delay(20))",
    "refused commits": "faults.on(ApiKey.OFFSET_COMMIT, error('COORDINATOR_NOT_AVAILABLE'))",
    "refused records": "faults.on(ApiKey.PRODUCE, error('NOT_LEADER_OR_FOLLOWER')); producer.send(TOPIC, b'x')",
    "an answer in flight": "faults.on(ApiKey.PRODUCE, delay(60)); producer.send(TOPIC, b'x')",
    "moved leaders": "faults.move_leader(headrace_topic)",
    "old versions": "faults.max_versions('2.8')",
    "a lost member": "faults.expire_member('g')",
    "no answer to anything": "faults.on(None, drop_connection())",
}
ALLOWED_S = 15
"""The seconds for one test with its fixtures. A fault that is active at their end costs 30 s, or fails the test."""


def test_a_fault_ends_before_the_fixtures_of_its_test_do(pytester) -> None:
    for number, fault in enumerate(FAULTS.values()):
        pytester.makepyfile(
            **{
                f"test_{number}": f"""
        from headrace.testing import ApiKey, delay, drop_connection, error

        def test_faulty(headrace_broker, headrace_topic, headrace_client, headrace_admin):
            consumer = headrace_client.consumer(headrace_topic, group="g")
            headrace_broker.publish(headrace_topic, b"x")
            while not consumer.poll(0.5):
                pass
            producer = headrace_client.producer(linger_ms=0)
            producer.send(headrace_topic, b"y").result()
            faults = headrace_broker.faults
            {fault.replace("TOPIC,", "headrace_topic,")}

        def test_next(headrace_broker, headrace_topic, headrace_client):
            assert headrace_broker.topics() == [headrace_topic]
            headrace_client.producer().send(headrace_topic, b"z").result()
        """
            }
        )
    assert outcomes(pytester, f"--timeout={ALLOWED_S}") == {"passed": 2 * len(FAULTS)}


def test_a_fault_of_a_wider_fixture_lasts_as_long_as_the_fixture(pytester) -> None:
    pytester.makepyfile(
        test_one="""
        import pytest
        from headrace.broker.dispatch import APIS
        from headrace.testing import ApiKey, error

        @pytest.fixture(scope="module")
        def old(headrace_broker):
            headrace_broker.faults.max_versions("2.8")
            return headrace_broker.faults.on(ApiKey.LIST_GROUPS, error("GROUP_AUTHORIZATION_FAILED"))

        @pytest.mark.parametrize("turn", [1, 2])
        def test_turn(old, headrace_broker, headrace_admin, turn):
            headrace_broker.faults.on(ApiKey.PRODUCE, error("NOT_LEADER_OR_FOLLOWER"))
            with pytest.raises(Exception, match="GROUP_AUTHORIZATION_FAILED"):
                headrace_admin.groups()
            assert old.hits == turn
            assert headrace_broker._core.apis is not APIS
        """,
        test_two="""
        from headrace.broker.dispatch import APIS

        def test_after(headrace_admin, headrace_broker):
            assert headrace_admin.groups() == []
            assert headrace_broker._core.apis is APIS
        """,
    )
    assert outcomes(pytester) == {"passed": 3}


def test_tests_stay_apart_in_workers_of_xdist(pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from headrace.testing import ApiKey, drop_connection, factories

        made = factories.client(scope="module")

        @pytest.fixture(scope="module")
        def wide(made, headrace_broker):
            headrace_broker.create_topic("wide")
            return made.consumer("wide", group="wide")

        @pytest.mark.parametrize("turn", range(12))
        def test_turn(headrace_broker, wide, turn):
            assert headrace_broker.topics() == ["wide"]
            headrace_broker.publish("wide", b"%d" % turn)
            while not (records := wide.poll(0.5)):
                pass
            wide.commit()
            assert [record.value for record in records] == [b"%d" % turn]
            headrace_broker.create_topic("mine")
            headrace_broker.faults.on(None, drop_connection())
        """
    )
    assert outcomes(pytester, "-n", "2") == {"passed": 12}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KAFKA_ADVERTISED_LISTENERS", "PLAINTEXT://localhost:9092"),
        ("KAFKA_LISTENERS", "PLAINTEXT://0.0.0.0:9092,BROKER://0.0.0.0:9093"),
        ("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT"),
        ("KAFKA_LOG_DIRS", "/var/lib/kafka/data"),
        ("KAFKA_BROKER_ID", "7"),
    ],
)
def test_settings_of_a_container_s_network_do_not_hide_the_stand_in(name: str, value: str) -> None:
    with KafkaContainer().with_env(name, value) as kafka:
        client = AdminClient({"bootstrap.servers": kafka.get_bootstrap_server()})
        [broker] = client.list_topics(timeout=10).brokers.values()
        assert f"{broker.host}:{broker.port}" == kafka.get_bootstrap_server()
