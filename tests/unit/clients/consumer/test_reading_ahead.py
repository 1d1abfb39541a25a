"""A consumer sends the next fetch before the program has taken all records of the last response."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clients.consumer import fetcher
from headrace.clients.consumer.blocking import Consumer
from headrace.clients.consumer.records import FetchedBatches
from headrace.clients.flows.fetch import fetch_call
from headrace.embedded.broker import Broker
from headrace.embedded.clock import ManualClock
from headrace.types import TopicPartition


@pytest.mark.parametrize("tail", [False, True], ids=["nothing", "a tail without records"])
def test_a_poll_that_took_the_last_record_does_not_delay_the_next(
    monkeypatch: pytest.MonkeyPatch, *, tail: bool
) -> None:
    if tail:  # as after compaction, or where a broker cuts the last batch off
        monkeypatch.setattr(FetchedBatches, "exhausted", False)
    with Broker(clock=ManualClock()) as broker:
        broker.create_topic("t", partitions=1)
        with Consumer(broker, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            consumer.poll(0)
            for value in (b"a", b"b", b"c"):
                began_ms = broker.now_ms()
                broker.publish("t", value)
                # As many as there are, so that nothing looks for more on the way.
                assert [record.value for record in consumer.poll(30, max_records=1)] == [value]
                assert broker.now_ms() - began_ms < 1000


def test_a_partition_without_news_does_not_hold_up_the_others_of_its_broker() -> None:
    with Broker(clock=ManualClock()) as broker:
        broker.create_topic("t", partitions=2)
        with Consumer(broker, auto_offset_reset="earliest", fetch_max_wait_ms=10_000) as consumer:
            consumer.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
            consumer.poll(0)
            broker.publish("t", b"last of its partition", partition=0)
            for value in (b"a", b"b", b"c"):
                broker.publish("t", value, partition=1)
            began_ms = broker.now_ms()
            for _ in range(4):  # the last record of one is handed out while the other has some
                assert len(consumer.poll(30, max_records=1)) == 1
            broker.publish("t", b"d", partition=1)
            assert [record.value for record in consumer.poll(30)] == [b"d"]
            assert broker.now_ms() - began_ms < 1000


def test_a_partition_without_news_is_asked_again_while_another_never_runs_dry() -> None:
    with Broker(clock=ManualClock()) as broker:
        broker.create_topic("t", partitions=2)
        with Consumer(broker, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
            consumer.poll(0)
            for _ in range(100):
                broker.publish("t", b"many", partition=1)
            consumer.poll(30, max_records=1)
            broker.publish("t", b"few", partition=0)
            taken = []
            for _ in range(20):
                broker.advance(5)
                taken += [record.value for record in consumer.poll(30, max_records=1)]
            assert b"few" in taken


def test_successive_fetches_begin_with_different_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A broker gathers in their order: the first one, had it always enough, would be the only one that is read.
    began_with = []

    def watched(
        cluster: object, node: int, positions: dict[TopicPartition, object], *rest: Any, **more: Any
    ) -> object:
        if len(positions) == 3:
            began_with.append(next(iter(positions)).partition)
        return fetch_call(cluster, node, positions, *rest, **more)  # type: ignore[arg-type] # what it was given

    monkeypatch.setattr(fetcher, "fetch_call", watched)
    with Broker(clock=ManualClock()) as broker:
        broker.create_topic("t", partitions=3)
        with Consumer(broker, auto_offset_reset="earliest", fetch_max_wait_ms=100) as consumer:
            consumer.assign([TopicPartition("t", index) for index in range(3)])
            for _ in range(4):
                consumer.poll(0.2)
    assert set(began_with) == {0, 1, 2}
