"""The producer against a broker with faults: every record is written once, in order, and reported once."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.clients.flows.metadata import refresh
from headrace.clients.producer.blocking import Producer
from headrace.clients.producer.blocking_delivery import DeliveryFuture
from headrace.errors import (
    ApiError,
    ClosedError,
    ErrorCode,
    TransportError,
    UnknownTopicOrPartitionError,
)
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.batch import BatchHeader
from headrace.types import TopicPartition
from tests.effort import examples
from tests.unit.clients.fake_broker import FakeCluster, Fault

T0 = TopicPartition("t", 0)


def producer(cluster: FakeCluster, **options) -> Producer:
    settings_ = {"retry_backoff_ms": 2, "retry_backoff_max_ms": 20, "linger_ms": 1000, **options}
    return Producer(cluster.bootstrap, **settings_)


def values(cluster: FakeCluster, where: TopicPartition = T0) -> list[bytes | None]:
    return [record.value for record in cluster.logs[where].records()]


def send_numbers(
    sender: Producer, count: int, reports: list[DeliveryFuture] | None = None, start: int = 0
) -> None:
    for number in range(start, start + count):
        on_delivery = None if reports is None else reports.append
        sender.send("t", b"%d" % number, partition=0, on_delivery=on_delivery)


def fill(sender: Producer, size: int = 100) -> None:
    for _ in itertools.repeat(None, 1000):
        sender.send("t", b"x" * size)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_arrive_whole_and_in_order(compression: str) -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        with producer(cluster, compression=compression) as sender:
            sender.send("t", b"v", key=b"k", headers=[("h", b"x"), ("n", None)], timestamp_ms=123)
            sender.send("t", key=b"k", timestamp_ms=122)
        [first, second] = cluster.logs[T0].records()
        assert first[1:] == (123, b"k", b"v", (("h", b"x"), ("n", None)))
        assert second[1:] == (122, b"k", None, ())


def test_deliveries_name_the_offset_of_each_record_once() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        reports: list[DeliveryFuture] = []
        with producer(cluster, batch_size=200) as sender:
            send_numbers(sender, 100, reports)
        assert [report.metadata().offset for report in reports] == list(range(100))
        assert all(report.exception() is None for report in reports)
        assert sender.delivered == 100
        assert len(cluster.logs[T0].batches) > 5


FAULTS = st.lists(
    st.sampled_from(
        [
            Fault(ApiKey.PRODUCE, "drop"),
            Fault(ApiKey.PRODUCE, "drop_after"),
            Fault(ApiKey.PRODUCE, "code", ErrorCode.NOT_LEADER_OR_FOLLOWER),
            Fault(ApiKey.PRODUCE, "code", ErrorCode.NOT_ENOUGH_REPLICAS),
            Fault(ApiKey.METADATA, "drop"),
            Fault(ApiKey.INIT_PRODUCER_ID, "code", ErrorCode.COORDINATOR_NOT_AVAILABLE),
            Fault(ApiKey.INIT_PRODUCER_ID, "drop_after"),
        ]
    ),
    max_size=6,
)


@settings(max_examples=examples(25))
@given(faults=FAULTS, in_flight=st.integers(1, 5))
def test_an_idempotent_producer_writes_every_record_once_in_order_despite_faults(
    faults, in_flight: int
) -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        cluster.faults.extend(Fault(fault.api, fault.kind, fault.code) for fault in faults)
        reports: list[DeliveryFuture] = []
        options = {"max_in_flight_requests_per_connection": in_flight, "batch_size": 150}
        with producer(cluster, **options) as sender:
            send_numbers(sender, 60, reports)
        assert values(cluster) == numbers(60)
        assert sorted(report.metadata().offset for report in reports) == list(range(60))


def test_a_producer_without_idempotence_sends_one_batch_at_a_time() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        cluster.faults.extend(
            Fault(ApiKey.PRODUCE, "code", ErrorCode.NOT_ENOUGH_REPLICAS) for _ in range(3)
        )
        with producer(cluster, idempotence=False, batch_size=150) as sender:
            send_numbers(sender, 60)
        assert values(cluster) == numbers(60)
        assert BatchHeader.parse(cluster.logs[T0].batches[0]).producer_id == -1
        assert cluster.count(InitProducerIdRequest) == 0


def test_a_batch_too_large_for_the_topic_is_divided_and_stays_in_order() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        cluster.max_batch_bytes = 200
        reports: list[DeliveryFuture] = []
        with producer(cluster, batch_size=2000) as sender:
            send_numbers(sender, 150, reports)
        assert values(cluster) == numbers(150)
        assert sorted(report.metadata().offset for report in reports) == list(range(150))
        assert max(map(len, cluster.logs[T0].batches)) <= 200


def test_a_record_too_large_for_the_topic_fails_alone_and_the_rest_goes_on() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        cluster.max_batch_bytes = 200
        reports: list[DeliveryFuture] = []
        with producer(cluster) as sender:
            send_numbers(sender, 3, reports)
            sender.send("t", b"x" * 300, partition=0, on_delivery=reports.append)
            send_numbers(sender, 3, reports, start=3)
        assert values(cluster) == numbers(6)
        [error] = [report.exception() for report in reports if report.exception()]
        assert isinstance(error, ApiError)
        assert error.code == ErrorCode.MESSAGE_TOO_LARGE
        assert (sender.delivered, sender.failed) == (6, 1)


def test_a_record_larger_than_a_request_is_refused_before_it_is_sent() -> None:
    with (
        FakeCluster(topics={"t": 1}) as cluster,
        producer(cluster, max_request_size=1000) as sender,
    ):
        with pytest.raises(ApiError, match="exceeds max") as raised:
            sender.send("t", b"x" * 2000)
        assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE
        sender.send("t", b"small")
        sender.flush()
        assert values(cluster) == [b"small"]


def test_flush_raises_an_unreported_failure_once() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, producer(cluster) as sender:
        cluster.faults.append(Fault(ApiKey.PRODUCE, "code", ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        send_numbers(sender, 2)
        with pytest.raises(ApiError, match="TOPIC_AUTHORIZATION_FAILED: t-0"):
            sender.flush()
        sender.flush()
        send_numbers(sender, 2)
        sender.flush()
        assert values(cluster) == numbers(2), "a new epoch follows the gap"
        header = BatchHeader.parse(cluster.logs[T0].batches[-1])
        # Same id: batches in flight under the old epoch are refused, whenever they arrive.
        assert (header.producer_id, header.producer_epoch) == (1, 1)
        assert cluster.count(InitProducerIdRequest) == 1


def test_records_that_are_not_delivered_in_time_fail_with_the_reason() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        reports: list[DeliveryFuture] = []
        with producer(cluster, delivery_timeout_ms=150) as sender:
            send_numbers(sender, 1, reports)
            sender.flush()
            cluster.brokers[1].close()
            send_numbers(sender, 1, reports, start=1)
            sender.flush(5)
        assert reports[0].exception() is None
        assert isinstance(reports[1].exception(), TransportError)
        assert "delivery.timeout.ms" in str(reports[1].exception())


def test_flush_gives_up_at_its_deadline() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        sender = producer(cluster)
        send_numbers(sender, 1)
        sender.flush()
        cluster.faults.append(Fault(ApiKey.PRODUCE, "silence"))
        send_numbers(sender, 1)
        with pytest.raises(TransportError, match="not delivered after 100 ms"):
            sender.flush(0.1)
        with pytest.raises(TransportError):
            sender.close(0)


def test_a_moved_leader_is_followed() -> None:
    with FakeCluster(nodes=2, topics={"t": 2}) as cluster, producer(cluster) as sender:
        send_numbers(sender, 5)
        sender.flush()
        cluster.leaders[T0] = 2
        send_numbers(sender, 5, start=5)
        sender.flush()
        assert values(cluster) == numbers(10)


def test_a_broker_that_forgot_the_producer_gets_a_new_epoch() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, producer(cluster) as sender:
        send_numbers(sender, 5)
        sender.flush()
        log = cluster.logs[T0]
        log.sequences = dict.fromkeys(log.sequences, (0, 99, 0))
        send_numbers(sender, 5, start=5)
        sender.flush()
        assert values(cluster) == numbers(10)
        assert BatchHeader.parse(log.batches[-1]).producer_epoch == 1


def test_a_producer_whose_id_another_client_has_used_gets_a_new_id() -> None:
    """A later epoch of the id is on record: the next epochs of the producer are all older than that one."""
    with FakeCluster(topics={"t": 2}) as cluster, producer(cluster) as sender:
        send_numbers(sender, 5)
        sender.flush()
        log = cluster.logs[T0]
        log.sequences = dict.fromkeys(log.sequences, (32767, 1, 0))
        send_numbers(sender, 5, start=5)
        sender.flush(5)
        assert values(cluster) == numbers(10)
        header = BatchHeader.parse(log.batches[-1])
        assert (header.producer_id, header.producer_epoch) == (2, 0)
        assert cluster.count(InitProducerIdRequest) == 2


def test_a_producer_passes_over_many_ids_that_another_client_has_used() -> None:
    slow = {"retry_backoff_ms": 400, "retry_backoff_max_ms": 60_000}
    with FakeCluster(topics={"t": 1}) as cluster, producer(cluster, **slow) as sender:
        log = cluster.logs[T0]
        log.sequences = dict.fromkeys(range(1, 16), (32767, 1, 0))
        send_numbers(sender, 5)
        sender.flush(10)
        assert values(cluster) == numbers(5)
        assert BatchHeader.parse(log.batches[-1]).producer_id == 16


def test_keys_decide_and_keyless_records_share_batches() -> None:
    with FakeCluster(topics={"t": 6}) as cluster:
        with producer(cluster, batch_size=1000) as sender:
            keyed = {
                sender.send("t", b"x", key=b"foobar").topic_partition.partition for _ in range(10)
            }
            for _ in range(600):
                sender.send("t", b"y" * 20)
        assert keyed == {(-790332482 & 0x7FFFFFFF) % 6}
        sizes = [
            BatchHeader.parse(batch).records_count
            for log in cluster.logs.values()
            for batch in log.batches
        ]
        assert sum(sizes) == 610
        assert len(sizes) < 40, "batches are full, not one record each"
        assert sum(1 for log in cluster.logs.values() if log.batches) > 3, (
            "all partitions get their turn"
        )


def test_unknown_topics_and_partitions_are_refused() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, producer(cluster, max_block_ms=200) as sender:
        with pytest.raises(ApiError, match="no topic 'missing'"):
            sender.send("missing", b"x")
        with pytest.raises(ApiError, match="no partition 3"):
            sender.send("t", b"x", partition=3)


@pytest.mark.parametrize("is_listening", [False, True])
def test_a_topic_that_may_have_been_meant_is_named(*, is_listening: bool) -> None:
    async def send(target: Any) -> None:
        async with headrace.aio.Producer(target, retry_backoff_ms=1) as sender:
            await (await sender.send("ordrs", b"x"))

    wanted = r"no topic 'ordrs'\. Did you mean 'orders'\?$"
    with headrace.Broker(configs={"auto.create.topics.enable": "false"}) as broker:
        for topic in ("orders", "payments"):
            broker.create_topic(topic)
        target = broker.listen() if is_listening else broker
        with headrace.Producer(target, retry_backoff_ms=1) as sender:
            with pytest.raises(UnknownTopicOrPartitionError, match=wanted):
                sender.send("ordrs", b"x")
            with pytest.raises(UnknownTopicOrPartitionError, match=r"no topic 'x'$"):
                sender.send("x", b"x")
            sender.send("orders", b"x").result(10)
        with pytest.raises(UnknownTopicOrPartitionError, match=wanted):
            asyncio.run(send(target))


def test_the_buffer_is_bounded() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        options = {
            "buffer_memory": 3000,
            "batch_size": 500,
            "max_block_ms": 200,
            "retry_backoff_max_ms": 20,
        }
        sender = producer(cluster, **options)
        sender.send("t", b"x")
        sender.flush()
        cluster.brokers[1].close()
        with pytest.raises(TransportError, match="wait for delivery"):
            fill(sender)
        with pytest.raises(TransportError):
            sender.close(0)


def test_records_with_acks_0_have_no_offsets_and_wait_for_no_response() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        reports: list[DeliveryFuture] = []
        with producer(cluster, acks=0) as sender:
            send_numbers(sender, 10, reports)
            sender.flush()
            assert [report.metadata().offset for report in reports] == [-1] * 10
            # Another request on the same connection is answered after the batch was read.
            sender._driver.run(refresh(sender._driver.engine.state, None))
        assert values(cluster) == numbers(10)


def test_lingering_batches_go_out_by_poll() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, producer(cluster, linger_ms=10) as sender:
        reports: list[DeliveryFuture] = []
        send_numbers(sender, 3, reports)
        for _ in range(200):
            if reports:
                break
            time.sleep(0.005)
        assert len(reports) == 3
        assert cluster.count(ProduceRequest) >= 1


def test_a_callback_may_send() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, producer(cluster) as sender:

        def again(delivery: DeliveryFuture) -> None:
            sender.send("t", b"answer to %d" % delivery.metadata().offset)

        sender.send("t", b"question", on_delivery=again)
        sender.flush()
        sender.flush()
        assert values(cluster) == [b"question", b"answer to 0"]


def test_a_closed_producer_raises_closed_error() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        sender = producer(cluster)
        sender.send("t", b"x")
        sender.close()
        assert values(cluster) == [b"x"]
        with pytest.raises(ClosedError):
            sender.send("t", b"y")


def test_acks_0_learns_of_a_moved_leader_by_the_closed_connection() -> None:
    with FakeCluster(nodes=2, topics={"t": 1}) as cluster, producer(cluster, acks=0) as sender:
        send_numbers(sender, 1)
        sender.flush()
        cluster.leaders[T0] = 2
        cluster.faults.append(Fault(ApiKey.PRODUCE, "drop"))
        send_numbers(sender, 1, start=1)
        sender.flush()
        deadline = time.monotonic() + 20
        while values(cluster)[-1:] != [b"9"]:  # lost, as acks=0 allows, until the close is seen
            assert time.monotonic() < deadline
            send_numbers(sender, 1, start=9)
            sender.flush()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(ApiKey.PRODUCE, "drop_after"),
        *(
            Fault(ApiKey.PRODUCE, "code_after", code)
            for code in (
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                ErrorCode.REQUEST_TIMED_OUT,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,  # of a leader that lost its role before the batch was committed
                ErrorCode.KAFKA_STORAGE_ERROR,  # of a leader whose disk failed before the batch was synced
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # of a leader whose replica is removed
            )
        ),
    ],
    ids=lambda fault: fault.code.name if fault.code else fault.kind,
)
def test_a_gap_in_one_partition_does_not_write_another_ones_batch_again(fault: Fault) -> None:
    """(1) t-1's answer is lost, (2) t-0's batch is refused for good, (3) the new epoch must wait for t-1's fate."""
    with (
        FakeCluster(nodes=2, topics={"t": 2}) as cluster,
        producer(cluster, retry_backoff_ms=500, retry_backoff_max_ms=500, linger_ms=0) as sender,
    ):
        for partition in (0, 1):
            sender.send("t", b"first", partition=partition)
        sender.flush()
        cluster.faults.append(fault)
        unknown = sender.send("t", b"once", partition=1)
        with pytest.raises(TransportError):
            sender.flush(0.05)
        cluster.faults.append(Fault(ApiKey.PRODUCE, "code", ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        refused = sender.send("t", b"refused", partition=0)
        assert not unknown.done()
        with pytest.raises(ApiError):
            refused.result(5)
        assert unknown.result(5).offset == 1
        sender.send("t", b"last", partition=0)
        sender.send("t", b"last", partition=1)
        sender.flush()
        assert values(cluster) == [b"first", b"last"]
        assert values(cluster, TopicPartition("t", 1)) == [b"first", b"once", b"last"]


def test_a_batch_given_up_does_not_have_the_one_after_it_written_again() -> None:
    """(1) Two batches are written, and their answers are lost. (2) The producer expires the first.

    (3) It retries the second.
    """
    with FakeCluster(topics={"t": 1}) as cluster:
        options = {
            "delivery_timeout_ms": 1200,
            "retry_backoff_ms": 1000,
            "retry_backoff_max_ms": 1000,
        }
        with producer(cluster, **options) as sender:
            sender.send("t", b"first")
            sender.flush()
            cluster.faults.append(Fault(ApiKey.PRODUCE, "silence"))
            late = sender.send("t", b"late")
            with pytest.raises(TransportError):
                sender.flush(0.6)
            cluster.faults.append(Fault(ApiKey.PRODUCE, "drop_after"))
            once = sender.send("t", b"once")
            with pytest.raises(TransportError):
                sender.flush(0.2)
            with pytest.raises(TransportError, match=r"delivery\.timeout\.ms"):
                late.result(5)
            once.result(5)
        assert values(cluster) == [b"first", b"late", b"once"]


def test_with_acks_0_only_records_that_were_sent_count_as_delivered() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        sender = producer(cluster, acks=0, linger_ms=0, buffer_memory=1 << 20, max_block_ms=200)
        sender.send("t", b"x").result(5)
        with cluster.lock, pytest.raises(TransportError, match="wait for delivery"):
            fill(sender, size=100_000)  # the broker does not read
        sender.close()
        assert sender.failed == 0
        deadline = time.monotonic() + 20
        while cluster.logs[T0].end_offset < sender.delivered:
            assert time.monotonic() < deadline
