"""C7: at most once, at least once, exactly once: one program, and a setting."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from headrace.errors import ProducerFencedError
from tests.acceptance.place import QUICK_CONSUMER, read_all

HALVES = {
    "at_most_once": [b"a1", b"b1", b"a2", b"a3", b"b3"],
    "at_least_once": [b"a1", b"b1", b"a2", b"a2", b"b2", b"a3", b"b3"],
    "exactly_once": [b"a1", b"b1", b"a2", b"b2", b"a3", b"b3"],
}
"""The results that remain after a failure. The handler writes two results per record, and fails between them."""


@pytest.mark.parametrize("delivery", HALVES)
def test_c7_delivery_is_a_setting(place, name, delivery: Any) -> None:
    name = name.translate(str.maketrans("", "", "[] ,"))
    topic, results = place.topic(name), place.topic(f"{name}-results")
    place.fill(topic, [1, 2, 3])
    app = headrace.App(place.target, commit_interval_s=0.05)
    failed: list[bytes] = []

    @app.worker(topic, group=name, delivery=delivery, on_failure="skip", **QUICK_CONSUMER)
    async def handle(value: bytes, context: headrace.Context) -> None:
        await context.publish(results, b"a" + value)
        if value == b"2" and not failed:
            failed.append(value)
            raise RuntimeError("between the two")
        await context.publish(results, b"b" + value)

    with app.test(place.target) as running:
        running.wait_idle(30)
        found = [message.value for message in running.messages(results)]
    assert found == HALVES[delivery]


def test_c7_consumers_read_all_records_of_a_transaction_or_none(place, name) -> None:
    topic, other = place.topic(name, 2), place.topic(f"{name}-2")
    producer = place.producer(transactional_id=name)
    for number in range(6):
        with producer.transaction():
            for target, partition in ((topic, 0), (topic, 1), (other, 0)):
                producer.send(target, b"%d" % number, partition=partition)
            producer.flush()
            if number % 2:
                producer.abort_transaction()
    for level, wanted in (("read_committed", [0, 2, 4]), ("read_uncommitted", list(range(6)))):
        consumer = place.consumer(isolation_level=level)
        consumer.assign([(topic, 0), (topic, 1), (other, 0)])
        records = read_all(consumer, 3 * len(wanted))
        for where in ((topic, 0), (topic, 1), (other, 0)):
            here = [int(each.value) for each in records if (each.topic, each.partition) == where]
            assert here == wanted


def test_c7_a_transaction_contains_offsets_and_a_replaced_member_cannot_commit_it(
    place, name
) -> None:
    topic, results = place.topic(name), place.topic(f"{name}-results")
    place.fill(topic, range(5))
    consumer = place.consumer(name, enable_auto_commit=False)
    consumer.subscribe([topic])
    first = place.producer(transactional_id=name)
    first.begin_transaction()
    for record in read_all(consumer, 5):
        first.send(results, record.value)
    first.send_offsets_to_transaction(consumer.positions(), consumer)
    first.flush()
    second = place.producer(transactional_id=name)
    second.init_transactions()
    with pytest.raises(ProducerFencedError):
        first.commit_transaction()
    [where] = consumer.positions()
    assert consumer.committed([where]) == {where: None}
    consumer.seek(where, 0)
    with second.transaction() as transaction:
        for record in read_all(consumer, 5):
            second.send(results, record.value)
        transaction.send_offsets(consumer.positions(), consumer)
    committed = consumer.committed([where])[where]
    assert committed is not None
    assert committed.offset == 5
    reader = place.consumer(isolation_level="read_committed")
    reader.assign([(results, 0)])
    assert [int(record.value) for record in read_all(reader, 5)] == list(range(5))
