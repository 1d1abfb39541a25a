"""The blocking producer: it blocks, it returns the result of each record, and it leaves no thread."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest

from headrace.errors import ClosedError, KinesisError, StreamNotFoundError, TransportError
from headrace.kinesis import AwsSettings
from headrace.kinesis.blocking import Producer
from headrace.testing.kinesis import FakeAws, Limits, delay, fail_records, throttle


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    with FakeAws(limits=Limits().unthrottled()) as aws:
        aws.kinesis.create_stream("orders", 2)
        yield aws
    assert not [each for each in threading.enumerate() if each.name == "headrace-kinesis"]


def place(aws: FakeAws) -> AwsSettings:
    return AwsSettings(
        endpoint_url=aws.endpoint_url,
        region=aws.region,
        access_key_id="fake",
        secret_access_key="fake",
    )


def test_a_blocking_producer_returns_shard_and_sequence_number(aws: FakeAws) -> None:
    aws.kinesis.faults.on("PutRecords", fail_records(0), times=2)
    with Producer(place(aws), linger_ms=1, backoff_ms=10) as producer:
        first = producer.send("orders", b"1", partition_key="k")
        sent = first.result()
        assert (sent.shard[:8], first.done(), first.exception()) == ("shardId-", True, None)
        for number in range(2, 50):
            producer.send("orders", b"%d" % number, partition_key="k", explicit_hash_key=0)
        producer.flush()
        assert len(aws.kinesis.records("orders")) == 49
        producer.send("orders", b"50", partition_key="k")
    assert [int(one.data) for one in aws.kinesis.records("orders")][-1] == 50
    with pytest.raises(ClosedError):
        producer.send("orders", b"", partition_key="k")
    producer.close()


def test_a_failure_is_raised_by_its_delivery_or_at_the_end(aws: FakeAws) -> None:
    with pytest.raises(StreamNotFoundError, match="no stream 'missing'"):  # noqa: SIM117 - at its end
        with Producer(place(aws), linger_ms=0) as producer:
            producer.send("missing", b"", partition_key="k")
    with Producer(place(aws), linger_ms=0) as producer:
        asked = producer.send("missing", b"", partition_key="k")
        assert isinstance(asked.exception(), StreamNotFoundError)
        with pytest.raises(StreamNotFoundError):
            asked.result()
        with pytest.raises(KinesisError, match="more than record_bytes"):
            producer.send("orders", bytes(1 << 20), partition_key="k")
        with pytest.raises(TypeError, match="data is of type"):
            producer.send("orders", "text", partition_key="k")  # type: ignore[arg-type]  # that is the test


def test_a_delivery_waits_no_longer_than_its_timeout(aws: FakeAws) -> None:
    slow = aws.kinesis.faults.on("PutRecords", delay(60))
    with Producer(place(aws), linger_ms=0) as producer:
        sent = producer.send("orders", b"1", partition_key="k")
        with pytest.raises(TransportError, match=r"neither delivered nor given up within 0\.05 s"):
            sent.result(0.05)
        slow.remove()
        producer.close(flush=False)
    assert isinstance(sent.exception(), ClosedError)


def test_the_timeout_of_a_delivery_contains_the_last_error(aws: FakeAws) -> None:
    aws.kinesis.faults.on("PutRecords", throttle())
    with Producer(place(aws), linger_ms=0, backoff_ms=1, backoff_max_ms=5) as producer:
        sent = producer.send("orders", b"1", partition_key="k")
        while not sent._delivery.reason:  # until the first attempt was refused
            time.sleep(0.01)
        with pytest.raises(TransportError, match=r"0\.05 s.*last error: .*Throughput"):
            sent.result(0.05)
        producer.close(flush=False)
    assert sent._delivery.record is None, "nothing is kept of it"


def test_a_failed_with_block_gives_up_its_records_and_keeps_its_error(aws: FakeAws) -> None:
    aws.kinesis.faults.on("PutRecords", throttle())

    def fail() -> None:
        with Producer(place(aws), linger_ms=0) as producer:
            producer.send("orders", b"1", partition_key="k")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not aws.kinesis.records("orders")


def test_many_threads_share_a_producer(aws: FakeAws) -> None:
    def write(producer: Producer, key: str) -> None:
        for number in range(50):
            producer.send("orders", b"%d" % number, partition_key=key)

    with Producer(place(aws), linger_ms=5, buffer_bytes=500) as producer:
        threads = [threading.Thread(target=write, args=(producer, f"k{n}")) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    by_key = defaultdict(list)
    for one in aws.kinesis.records("orders"):
        by_key[one.partition_key].append(int(one.data))
    assert by_key == {f"k{n}": list(range(50)) for n in range(4)}
