"""The committed offsets of all partitions that a consumer reads or has read, and going back to them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.errors import (
    ConfigError,
    NoOffsetError,
    NoSubscriptionError,
    NotAssignedError,
    TransportError,
)

ZERO, ONE = (headrace.TopicPartition("t", number) for number in range(2))
OPTIONS: dict[str, Any] = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}


@pytest.fixture(params=["in process", "tcp"])
def target(request: pytest.FixtureRequest) -> Iterator[Any]:
    configs = {"group.initial.rebalance.delay.ms": "0"}
    with headrace.Broker(configs=configs) as broker, headrace.Producer(broker) as producer:
        broker.create_topic("t", 2)
        for number in range(5):
            for partition in range(2):
                producer.send("t", str(number), partition=partition)
        producer.flush()
        yield broker if request.param == "in process" else broker.listen()


def offsets(found: dict[headrace.TopicPartition, OffsetAndMetadata | None]) -> dict[Any, Any]:
    return {name: at and at.offset for name, at in found.items()}


def values(consumer: headrace.Consumer, count: int) -> list[int]:
    found: list[headrace.ConsumerRecord] = []
    while len(found) < count:
        found += consumer.poll(10)
    return sorted(int(record.value) for record in found)


# Committed offsets


def test_committed_without_arguments_covers_all_partitions_that_are_read(target: Any) -> None:
    with headrace.Consumer(target, group="g", **OPTIONS) as consumer:
        with pytest.raises(NoSubscriptionError):
            consumer.committed()
        consumer.assign([ZERO, ONE])
        assert consumer.committed() == {ZERO: None, ONE: None}
        consumer.commit({ZERO: 3})
        assert offsets(consumer.committed()) == {ZERO: 3, ONE: None}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_committed_waits_for_the_assignment_of_the_group(target: Any, protocol: str) -> None:
    with headrace.Consumer(target, group="g", group_protocol=protocol, **OPTIONS) as consumer:
        consumer.subscribe(["t"])
        assert consumer.committed() == {ZERO: None, ONE: None}


def test_committed_covers_partitions_that_were_read_before(target: Any) -> None:
    with headrace.Consumer(target, group="g", **OPTIONS) as consumer:
        consumer.assign([ZERO])
        values(consumer, 5)
        consumer.commit()
        consumer.assign([ONE])
        assert offsets(consumer.committed()) == {ZERO: 5, ONE: None}
        consumer.unsubscribe()
        with pytest.raises(NoSubscriptionError):
            consumer.committed()
        consumer.assign([ONE])
        assert offsets(consumer.committed()) == {ONE: None}


def test_committed_does_not_cover_partitions_of_other_members(target: Any) -> None:
    with (
        headrace.Consumer(target, group="g", **OPTIONS) as first,
        headrace.Consumer(target, group="g", **OPTIONS) as second,
    ):
        first.assign([ZERO])
        second.assign([ONE])
        second.commit({ONE: 2})
        assert offsets(first.committed()) == {ZERO: None}
        assert offsets(first.committed([ONE])) == {ONE: 2}


def test_a_topic_that_was_deleted_meanwhile_is_no_error(target: Any) -> None:
    with (
        headrace.Consumer(target, group="g", **OPTIONS) as consumer,
        headrace.Admin(target) as admin,
    ):
        admin.create_topic("u", 1)
        consumer.assign([ZERO])
        values(consumer, 5)
        consumer.assign([headrace.TopicPartition("u", 0)])
        admin.delete_topic("t")
        assert offsets(consumer.committed())[ZERO] is None


@pytest.mark.parametrize("ask", ["assignment", "committed"])
def test_committed_fails_if_no_broker_answers_in_time(ask: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with headrace.Consumer(address, group="g", group_protocol="classic") as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(TransportError, match="not known within 300 ms"):
                getattr(consumer, ask)(timeout_s=0.3)
            with pytest.raises(TransportError):
                consumer.committed([ZERO], timeout_s=0.3)
            consumer.close(commit=False, timeout_s=0)


# Seeking to committed offsets


@pytest.mark.parametrize("protocol", ["by hand", "classic", "consumer"])
def test_seek_to_committed_reads_uncommitted_records_again(target: Any, protocol: str) -> None:
    chosen: dict[str, Any] = {} if protocol == "by hand" else {"group_protocol": protocol}
    with headrace.Consumer(target, group="g", **OPTIONS, **chosen) as consumer:
        if protocol == "by hand":
            consumer.assign([ZERO, ONE])
        else:
            consumer.subscribe(["t"])
        assert values(consumer, 10) == sorted([*range(5), *range(5)])
        consumer.commit({ZERO: 3})
        consumer.seek_to_committed()
        assert consumer.position(ZERO) == 3
        assert consumer.position(ONE) == 0, "auto.offset.reset is earliest"
        assert values(consumer, 7) == sorted([3, 4, *range(5)])
        consumer.commit()
        consumer.seek_to_committed()
        assert offsets(consumer.committed()) == consumer.positions() == {ZERO: 5, ONE: 5}


def test_going_back_in_some_partitions_leaves_the_others(target: Any) -> None:
    with headrace.Consumer(target, group="g", **OPTIONS) as consumer:
        consumer.assign([ZERO, ONE])
        values(consumer, 10)
        consumer.seek_to_committed([ONE])
        assert consumer.position(ZERO) == 5
        assert values(consumer, 5) == list(range(5))
        with pytest.raises(NotAssignedError):
            consumer.seek_to_committed([headrace.TopicPartition("t", 7)])


def test_seek_to_committed_uses_auto_offset_reset_without_a_committed_offset(target: Any) -> None:
    later = {**OPTIONS, "auto_offset_reset": "latest"}
    with headrace.Consumer(target, group="g", **later) as consumer:
        consumer.assign({ZERO: 0})
        values(consumer, 5)
        consumer.seek(ZERO, 1)
        consumer.seek_to_committed()
        assert consumer.position(ZERO) == 5
    with headrace.Consumer(target, group="g", **{**OPTIONS, "auto_offset_reset": "none"}) as none:
        none.assign({ZERO: 0})
        values(none, 5)
        none.seek_to_committed()
        with pytest.raises(NoOffsetError):
            none.poll(10)


def test_seek_to_committed_without_an_assignment_or_a_group_is_refused(target: Any) -> None:
    with headrace.Consumer(target, group="g", **OPTIONS) as consumer:
        with pytest.raises(NoSubscriptionError):
            consumer.seek_to_committed()
        with pytest.raises(NoSubscriptionError):
            consumer.seek_to_committed([ZERO])
    with headrace.Consumer(target) as groupless:
        groupless.assign([ZERO])
        with pytest.raises(ConfigError, match="group=NAME"):
            groupless.seek_to_committed()


def test_seek_to_committed_repeats_the_records_of_an_aborted_transaction(target: Any) -> None:
    options = {**OPTIONS, "isolation_level": "read_committed"}
    with (
        headrace.Producer(target, transactional_id="tx") as producer,
        headrace.Consumer(target, group="g", **options) as consumer,
    ):
        producer.init_transactions()
        consumer.assign([ZERO])
        for attempt in range(2):
            assert values(consumer, 5) == list(range(5))
            try:
                with producer.transaction() as transaction:
                    producer.send("t", "out", partition=1)
                    transaction.send_offsets(consumer.positions(), consumer)
                    if attempt == 0:
                        raise RuntimeError("not yet")  # noqa: TRY301 - what aborts it
            except RuntimeError:
                consumer.seek_to_committed()
        assert offsets(consumer.committed()) == {ZERO: 5}


def test_the_same_with_asyncio(target: Any) -> None:
    async def scenario() -> None:
        async with headrace.aio.Consumer(target, group="g", **OPTIONS) as consumer:
            await consumer.subscribe(["t"])
            found: list[headrace.ConsumerRecord] = []
            while len(found) < 10:
                found += await consumer.poll(10)
            await consumer.commit({ZERO: 4})
            assert offsets(await consumer.committed()) == {ZERO: 4, ONE: None}
            await consumer.seek_to_committed()
            assert [await consumer.position(each) for each in (ZERO, ONE)] == [4, 0]

    asyncio.run(asyncio.wait_for(scenario(), 60))
