import pytest
from shop import place, total  # type: ignore[import-not-found]  # it lies beside this file

import headrace
from headrace.testing import ApiKey, KafkaContainer, drop_connection, error

app = headrace.App("localhost:9092")


@app.worker(
    "payments", group="payments", retry=headrace.Retry(attempts=2, first=30), dead_letter=True
)
async def pay(payment: dict) -> None:
    raise ConnectionError("the bank does not answer")


def test_orders_are_added_up(headrace_bootstrap: str, headrace_topic: str) -> None:
    place(headrace_bootstrap, headrace_topic, *({"id": n, "total": n} for n in range(5)))
    assert total(headrace_bootstrap, headrace_topic, 5) == 10


@pytest.mark.headrace_topic(partitions=3)
def test_committed_records_do_not_come_again(headrace_broker, headrace_topic) -> None:
    place(headrace_broker.bootstrap, headrace_topic, {"id": 1, "total": 1}, {"id": 2, "total": 2})
    assert total(headrace_broker.bootstrap, headrace_topic, 2) == 3
    headrace_broker.wait_caught_up("shop")
    place(headrace_broker.bootstrap, headrace_topic, {"id": 3, "total": 4})
    assert total(headrace_broker.bootstrap, headrace_topic, 1) == 4


def test_the_producer_survives_faults(headrace_broker, headrace_topic) -> None:
    refused = headrace_broker.faults.on(ApiKey.PRODUCE, once=error("NOT_LEADER_OR_FOLLOWER"))
    unheard = headrace_broker.faults.on(ApiKey.PRODUCE, once=drop_connection(handled=True))
    place(headrace_broker.bootstrap, headrace_topic, {"id": 1, "total": 1})
    place(headrace_broker.bootstrap, headrace_topic, {"id": 2, "total": 2})
    assert (refused.hits, unheard.hits) == (1, 1)
    assert total(headrace_broker.bootstrap, headrace_topic, 2, group="after") == 3


def test_thirty_seconds_of_pause_pass_at_once(timeless_broker) -> None:
    before_ms = timeless_broker.now_ms()
    with app.test(timeless_broker) as t:
        t.produce("payments", {"id": 1})
        t.wait_idle()
        [letter] = t.messages("dlq.payments")
    assert letter.header("dlq-error-type") == "ConnectionError"
    assert timeless_broker.now_ms() - before_ms >= 30_000


def test_the_program_runs_with_a_kafka_container() -> None:
    with KafkaContainer("confluentinc/cp-kafka:7.6.0").with_env(
        "KAFKA_NUM_PARTITIONS", "4"
    ) as kafka:
        bootstrap = kafka.get_bootstrap_server()
        place(bootstrap, "orders", {"id": 1, "total": 7})
        assert total(bootstrap, "orders", 1) == 7
        with headrace.Admin(bootstrap) as admin:
            assert len(admin.describe_topic("orders").partitions) == 4


def test_a_new_test_begins_without_topics(headrace_broker) -> None:
    assert headrace_broker.topics() == []
