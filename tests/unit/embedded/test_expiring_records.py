"""Times to live and tags in an embedded broker, with a manual clock."""

from __future__ import annotations

import asyncio

import pytest

import headrace
from headrace.core.log import SelectiveReading
from headrace.embedded.broker import Broker
from headrace.embedded.clock import ManualClock
from headrace.errors import ApiError, ConfigError, ErrorCode
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.records.batch import iterate_headers
from headrace.records.directives import directives

EXPIRING = {"headrace.ttl.enable": "true", "retention.ms": "-1"}
FILTERED = {"headrace.filter.enable": "true"}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def broker(clock):
    with Broker(clock=clock) as opened:
        yield opened


def values(records) -> list[bytes]:
    return [record.value for record in records]


def test_records_expire_and_are_deleted_though_retention_keeps_everything(broker, clock) -> None:
    broker.create_topic("t", configs=EXPIRING)
    with headrace.Producer(broker, linger_ms=0) as producer:
        producer.send("t", b"short", ttl_ms=1000)
        producer.send("t", b"for ever")
        producer.send_many("t", [b"long"] * 2, ttl_ms=60_000)
    assert values(broker.read("t", 0, 0)) == [b"short", b"for ever", b"long", b"long"]
    clock.advance_to(clock.now_ms() + 999)
    assert b"short" in values(broker.read("t", 0, 0))
    clock.advance_to(clock.now_ms() + 1)
    assert values(broker.read("t", 0, 0)) == [b"for ever", b"long", b"long"]
    clock.advance_to(clock.now_ms() + 59_000)
    assert values(broker.read("t", 0, 0)) == [b"for ever"]
    broker.create_topic("all", configs=EXPIRING)
    with headrace.Producer(broker, linger_ms=0) as producer:
        producer.send_many("all", [b"x"] * 10, ttl_ms=1000).pop().result()
    with headrace.Consumer(broker) as consumer:
        place = headrace.TopicPartition("all", 0)
        clock.advance_to(clock.now_ms() + 1000)
        assert consumer.begin_offsets([place]) == {place: 0}
        consumer.assign({place: 0})
        assert consumer.poll(0.1) == []
        assert consumer.positions() == {place: 10}
        clock.advance_to(clock.now_ms() + 600_000)  # the interval of retention
        assert broker.read("all", 0, 10) == []
        assert consumer.begin_offsets([place]) == consumer.end_offsets([place]) == {place: 10}


def test_a_waiting_consumer_does_not_get_expired_records(broker, clock) -> None:
    broker.create_topic("t", configs=EXPIRING)
    with headrace.Producer(broker, linger_ms=0) as producer, headrace.Consumer(broker) as consumer:
        consumer.assign({headrace.TopicPartition("t", 0): 0})
        producer.send("t", b"gone", ttl_ms=0).result()
        producer.send("t", b"here", ttl_ms=10).result()
        assert values(consumer.poll(1)) == [b"here"]


def test_a_topic_cannot_have_time_to_live_and_compaction(broker) -> None:
    with pytest.raises(ApiError, match=r"headrace\.ttl\.enable needs cleanup\.policy=delete"):
        broker.create_topic("t", configs={**EXPIRING, "cleanup.policy": "compact,delete"})
    broker.create_topic("t", configs=EXPIRING)
    with pytest.raises(ApiError, match=r"needs cleanup\.policy=delete"):
        broker.alter_configs("t", {"cleanup.policy": "compact"})


def test_bad_directives_are_refused(broker) -> None:
    broker.create_topic("t", configs=EXPIRING)
    with headrace.Producer(broker, linger_ms=0) as producer:
        for wrong in ({"ttl_ms": -1}, {"tags": [""]}, {"tags": "urgent"}):
            with pytest.raises(ConfigError):
                producer.send("t", b"x", **wrong)
            with pytest.raises(ConfigError):
                producer.send_many("t", [b"x"], **wrong)
        refused = producer.send("t", b"x", headers=[("headrace.ttl-ms", b"soon")])
        with pytest.raises(ApiError, match="decimal number") as caught:
            refused.result()
        assert caught.value.code == ErrorCode.INVALID_RECORD
    with pytest.raises(ConfigError, match="for one"):
        headrace.Consumer(broker, tags="urgent")


@pytest.mark.parametrize("configs", [FILTERED, {}], ids=["broker filters", "client filters"])
def test_a_consumer_gets_the_records_with_its_tags_from_every_kind_of_broker(
    broker, configs
) -> None:
    broker.create_topic("t", configs=configs)
    with headrace.Producer(broker, linger_ms=0) as producer:
        for number in range(20):
            tags = ["even" if number % 2 == 0 else "odd", *(["five"] if number % 5 == 0 else [])]
            producer.send("t", b"%d" % number, tags=tags)
    with headrace.Consumer(broker, tags={"five", "none"}) as consumer:
        consumer.assign({headrace.TopicPartition("t", 0): 0})
        seen = values(consumer.poll(1))
        assert seen == [b"0", b"5", b"10", b"15"]
        consumer.poll(0.01)
        assert consumer.positions() == {headrace.TopicPartition("t", 0): 20}


def test_the_broker_filters_by_tags_and_refuses_invalid_filters(broker, monkeypatch) -> None:
    broker.create_topic("t", configs=FILTERED)
    for number in range(10):
        broker.publish("t", b"v" * 1000, headers=directives((), tags=["a" if number else "b"]))
    with headrace.Consumer(broker, tags=["b"]) as consumer:
        asked: list[int] = []
        consumer.assign({headrace.TopicPartition("t", 0): 0})
        take = consumer._core._fetcher._take_answer

        def note(cursor, offset, data, node) -> None:
            asked.append(len(data.records))
            take(cursor, offset, data, node)

        monkeypatch.setattr(consumer._core._fetcher, "_take_answer", note)
        assert len(consumer.poll(1)) == 1
        assert 1000 < asked[0] < 1500
    for epoch, content in ((0, b"\x01\x01a"), (-1, b"\x02\x01a"), (-1, b"\x01")):
        request = FetchRequest(session_epoch=epoch, headrace_filter=content, max_wait_ms=0)
        answer = broker._run(_ask(request))
        assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("idle", [0, 3])
def test_a_partition_without_matching_records_leaves_effort_for_the_others(
    broker, monkeypatch, idle
) -> None:
    monkeypatch.setattr(SelectiveReading.__init__, "__defaults__", (None, 20_000))
    broker.create_topic("t", partitions=2 + idle, configs=FILTERED)
    for number in range(100):
        broker.publish("t", b"." * 1000, partition=0, headers=directives((), tags=["a"]))
        broker.publish("t", b"%d" % number, partition=1, headers=directives((), tags=["b"]))
    partitions = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(2 + idle)
    ]
    answer = broker._run(
        _ask(
            FetchRequest(
                session_epoch=-1,
                max_bytes=1 << 20,
                headrace_filter=b"\x01\x01b",
                topics=[FetchTopic(topic="t", partitions=partitions)],
            )
        )
    )
    full, wanted, *others = (
        [header.next_offset for _, header in iterate_headers(bytes(part.records))]
        for part in answer.responses[0].partitions
    )
    assert 8 <= full[-1] < 12, "half of the effort, also if the others have nothing to read"
    assert wanted[-1] == 100
    assert not any(others)


def _ask(request):
    from headrace.clients.flows.effects import Call

    (answer,) = yield (Call(max_version=12, request=request, node=1),)
    return answer


def test_workers_select_records_by_tags(broker) -> None:
    broker.create_topic("t", configs=FILTERED)
    app = headrace.App(broker, group="g")
    handled: list[bytes] = []

    @app.worker("t", tags=["mine"])
    def work(value: bytes) -> None:
        handled.append(value)
        app.stop()

    with headrace.Producer(broker, linger_ms=0) as producer:
        producer.send("t", b"not mine", tags=["other"])
        producer.send("t", b"mine", tags=["mine"]).result()
    asyncio.run(asyncio.wait_for(app.serve(), 20))
    assert handled == [b"mine"]


def test_a_published_record_may_have_a_time_to_live_and_tags(broker, clock) -> None:
    broker.create_topic("t", configs=EXPIRING)
    broker.create_topic("out", configs=EXPIRING)
    app = headrace.App(broker, group="g")

    @app.worker("t")
    async def work(value: bytes, context: headrace.Context) -> None:
        await context.publish("out", value, ttl_ms=10, tags=["x"])
        app.stop()

    broker.publish("t", b"v", ttl_ms=5, tags=["x", "y"])
    asyncio.run(asyncio.wait_for(app.serve(), 20))
    [record] = broker.read("t", 0, 0)
    assert record.headers == (
        ("headrace.ttl-ms", b"5"),
        ("headrace.tag", b"x"),
        ("headrace.tag", b"y"),
    )
    assert len(broker.read("out", 0, 0)) == 1
    clock.advance_to(clock.now_ms() + 10)
    assert broker.read("out", 0, 0) == broker.read("t", 0, 0) == []


def test_the_time_to_live_of_a_scheduled_record_begins_when_it_is_due(broker, clock) -> None:
    broker.create_topic("t", configs={**EXPIRING, "headrace.delay.enable": "true"})
    broker.publish("t", b"v", delay_ms=1000, ttl_ms=10)
    clock.advance_to(clock.now_ms() + 1000)
    broker.read("t", 0, 0)
    assert values(broker.read("t", 0, 0)) == [b"v"]
    clock.advance_to(clock.now_ms() + 10)
    assert broker.read("t", 0, 0) == []
