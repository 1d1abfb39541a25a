"""Rows without a delivery future for each row, and transactions that another process ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from headrace.clients.blocking import BlockingClient
from headrace.clients.producer.many import Row, Rows
from headrace.errors import ApiError, FatalTransactionError, HeadraceError, TransactionStateError
from headrace.protocol.api_keys import ApiKey
from headrace.spark.options.reader import ClientOptions
from headrace.spark.options.sink import SinkOptions
from headrace.spark.sink.cluster import open_cluster
from headrace.spark.sink.producer import RowProducer, TaskTransaction, end_transactions
from headrace.testing import Broker
from headrace.testing.faults import error


@pytest.fixture(params=["classic", "newest"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker() as broker:
        if request.param == "classic":
            broker.faults.max_versions("3.9")
        broker.create_topic("t", partitions=3)
        yield broker


def producer(broker: Broker, **options: Any) -> RowProducer:
    return RowProducer(broker, **{"linger_ms": 0, "serde": "bytes", **options})


def row(value: bytes, key: bytes | None = None, partition: int | None = None) -> Row:
    return (key, value, (("h", b"x"),), 7, partition)


def values(broker: Broker, partition: int) -> list[bytes | None]:
    return [record.value for record in broker.read("t", partition, 0, 10_000)]


def test_send_rows_and_send_choose_the_same_partitions(broker: Broker) -> None:
    keys = [b"key-%d" % number for number in range(50)]
    with producer(broker, batch_size=200) as rows:
        rows.send_rows(
            Rows("t", [row(key, key) for key in keys] + [row(b"there", partition=2)], {2})
        )
        rows.flush()
        assert (rows.delivered, rows.failed) == (51, 0)
    broker.create_topic("other", partitions=3)
    with headrace.Producer(broker) as single:
        places = {key: single.send("other", key, key=key).result().partition for key in keys}

    for partition in range(3):
        expected = [key for key in keys if places[key] == partition]
        assert values(broker, partition) == expected + [b"there"] * (partition == 2)


def test_rows_without_key_share_batches_and_wait_for_buffer_space(broker: Broker) -> None:
    with producer(broker, batch_size=1000, buffer_memory=2000) as rows:
        rows.send_rows(Rows("t", (row(b"x" * 100) for _ in range(500))))
        rows.flush()
        assert rows.delivered == 500


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_missing_partition_is_reported_before_anything_is_sent(
    broker: Broker, partition: int
) -> None:
    with producer(broker) as rows:
        rows.send_rows(Rows("t", [row(b"a")]))
        with pytest.raises(ApiError, match=f"no partition {partition}"):
            rows.send_rows(Rows("t", [row(b"b", partition=partition)], {partition}))


def test_flush_reports_rows_that_do_not_arrive(broker: Broker) -> None:
    broker.faults.on(ApiKey.PRODUCE, error("INVALID_RECORD"))
    with producer(broker, retries=0) as rows:
        rows.send_rows(Rows("t", [row(b"a"), row(b"b")]))
        with pytest.raises(ApiError, match="INVALID_RECORD"):
            rows.flush()
        assert rows.failed == 2


def opened(broker: Broker, value: bytes = b"v") -> TaskTransaction:
    with producer(broker, transactional_id="tx") as rows:
        rows.begin_transaction()
        rows.send_rows(Rows("t", [row(value, partition=0)], {0}))
        return rows.hand_over()


def committed(broker: Broker) -> list[bytes | None]:
    place = headrace.TopicPartition("t", 0)
    with headrace.Consumer(
        broker, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([place])
        found = []
        while (consumer.position(place) or 0) < consumer.end_offsets([place])[place]:
            found += [record.value for record in consumer.poll(0.01)]
        return found


def test_a_handed_over_transaction_can_be_ended_several_times(broker: Broker) -> None:
    with BlockingClient(broker) as client:
        assert end_transactions(client, [opened(broker, b"no")], committed=False) == {}
        transaction = opened(broker)
        assert committed(broker) == []
        for _ in range(2):
            assert end_transactions(client, [transaction], committed=True) == {}
        assert committed(broker) == [b"v"]
        assert list(end_transactions(client, [transaction], committed=False)) == [transaction]
    assert committed(broker) == [b"v"]


def test_a_producer_that_takes_over_the_id_has_aborted_the_transaction(broker: Broker) -> None:
    transaction = opened(broker)
    with producer(broker, transactional_id="tx") as heir, BlockingClient(broker) as client:
        heir.init_transactions()
        failures = end_transactions(client, [transaction], committed=True)

    assert isinstance(failures[transaction], HeadraceError)
    assert committed(broker) == []


def test_a_producer_refuses_every_call_after_it_handed_over_its_transaction(broker: Broker) -> None:
    with producer(broker, transactional_id="tx") as rows:
        with pytest.raises(TransactionStateError, match="no transaction to hand over"):
            rows.hand_over()
        rows.begin_transaction()
        rows.send_rows(Rows("t", [row(b"v")]))
        rows.hand_over()
        for call in (
            rows.begin_transaction,
            rows.abort_transaction,
            rows.commit_transaction,
            rows.hand_over,
        ):
            with pytest.raises(FatalTransactionError, match="was handed over: use a new producer"):
                call()


def test_a_topic_that_is_deleted_while_rows_are_written_is_not_created_again(
    broker: Broker,
) -> None:
    soon = (("linger.ms", "0"), ("request.timeout.ms", "500"), ("delivery.timeout.ms", "600"))
    cluster = open_cluster(SinkOptions(ClientOptions("unused:1", soon), topic="t"), broker)
    rows = cluster.new_producer(None)
    rows.send_rows(Rows("t", [row(b"before")]))
    rows.flush()
    broker.delete_topic("t")
    rows.send_rows(Rows("t", [row(b"behind")]))
    with pytest.raises(
        HeadraceError, match=r"there is no topic 't'|t-[0-9]: the topic was deleted"
    ):
        rows.close(30)
    cluster.client.close()
    assert "t" not in broker.topics()
