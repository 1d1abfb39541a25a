"""The headers of dead letters, of records in retry topics, and of those that are sent back."""

from __future__ import annotations

import struct

from headrace.clients.consumer.records import ConsumerRecord
from headrace.workers import letters
from headrace.workers.letters import Place

OWN = (("trace", b"1"), ("trace", b"2"), ("empty", None))


def record(topic: str = "orders", headers=OWN, offset: int = 7) -> ConsumerRecord:
    return ConsumerRecord(topic, 3, offset, 1_700_000_000_123, b"k", b"v", headers, 0)


def test_a_dead_letter_says_where_it_was_as_springs_tools_read_it() -> None:
    headers = dict(letters.dead_letter_headers(record(), "billing", 5, ValueError("negative")))
    assert headers["kafka_dlt-original-topic"] == b"orders"
    assert headers["kafka_dlt-original-partition"] == struct.pack(">i", 3)
    assert headers["kafka_dlt-original-offset"] == struct.pack(">q", 7)
    assert headers["kafka_dlt-original-timestamp"] == struct.pack(">q", 1_700_000_000_123)
    assert headers["dlq-error-type"] == b"ValueError"
    assert headers["dlq-error-message"] == b"negative"
    assert headers["dlq-error-attempts"] == b"5"
    assert headers["dlq-error-group"] == b"billing"


def test_the_producers_own_headers_stay_in_their_order() -> None:
    headers = letters.dead_letter_headers(record(), "g", 1, ValueError())
    assert headers[:3] == OWN


def test_a_long_message_is_cut() -> None:
    headers = dict(letters.dead_letter_headers(record(), "g", 1, ValueError("x" * 5_000)))
    assert headers["dlq-error-message"] == b"x" * letters.MAX_MESSAGE


def test_a_record_keeps_its_first_place_through_retry_topics_and_dead_letters() -> None:
    waiting = record("retry.1.orders", letters.retry_headers(record(), "g", 2, 5_000), offset=0)
    assert letters.place_of(waiting) == Place("orders", 3, 7, 1_700_000_000_123)
    assert letters.retry_note(waiting) == (2, 5_000)
    again = record("retry.5.orders", letters.retry_headers(waiting, "g", 3, 9_000), offset=1)
    assert letters.place_of(again) == Place("orders", 3, 7, 1_700_000_000_123)
    dead = letters.dead_letter_headers(again, "g", 3, ValueError())
    assert dict(dead)["kafka_dlt-original-offset"] == struct.pack(">q", 7)
    names = [name for name, _ in dead]
    assert len(names) == len({*names}) + 1, "only the producer's own header is there twice"
    assert not any(name.startswith(("retry_topic", "kafka_original")) for name in names)


def test_a_dead_letter_that_is_sent_back_is_for_its_group_and_counted() -> None:
    dead = record("dlq.orders", letters.dead_letter_headers(record(), "billing", 2, ValueError()))
    back = record("orders", letters.redrive_headers(dead), offset=99)
    assert back.headers[:3] == OWN
    assert letters.is_for(back, "billing")
    assert not letters.is_for(back, "shipping")
    assert letters.redrives(back) == 1
    assert letters.place_of(back, letters.LETTER) == Place("orders", 3, 99, 1_700_000_000_123)
    dead = record("dlq.orders", letters.dead_letter_headers(back, "billing", 2, ValueError()))
    assert letters.redrives(dead) == 1
    assert letters.redrives(record("orders", letters.redrive_headers(dead))) == 2


def test_headers_of_others_that_look_alike_do_no_harm() -> None:
    odd = record(
        headers=(
            ("kafka_original-topic", b"x"),
            ("kafka_original-offset", b"?"),
            ("dlq-redrives", b"many"),
            ("retry_topic-backoff-timestamp", None),
        )
    )
    assert letters.place_of(odd).topic == "orders"
    assert letters.redrives(odd) == 0
    assert letters.retry_note(odd) == (1, 0)
    assert letters.header_text("kafka_original-offset", struct.pack(">q", 5)) == "5"
    assert letters.header_text("kafka_original-offset", b"\xff") == "\\xff"


def test_names_of_retry_topics() -> None:
    assert letters.retry_topic("orders", 0.2) == "retry.0.2.orders"
    assert letters.retry_topic("orders", 30.0) == "retry.30.orders"
