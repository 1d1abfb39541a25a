"""The headers of dead letters, of records in retry topics, and of those that are sent back; and which are believed."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from headrace import App, Retry
from headrace.clients.consumer.records import ConsumerRecord
from headrace.workers import letters
from headrace.workers.letters import Headers, Place, here
from headrace.workers.outcomes import MAX_MESSAGE
from headrace.workers.places import MAX_WAIT_MS, Places

OWN: Headers = (("trace", b"1"), ("trace", b"2"), ("empty", None))
FIRST = Place("orders", 3, 7, 1_700_000_000_123)
NOW_MS = 1_700_000_000_500


def record(topic: str = "orders", headers: Headers = OWN, offset: int = 7) -> ConsumerRecord:
    return ConsumerRecord(topic, 3, offset, 1_700_000_000_123, b"k", b"v", headers, 0)


def dead(found: ConsumerRecord, group: str = "g", error: Exception | None = None) -> Headers:
    place = places().of(found)
    return letters.dead_letter_headers(found, place, group, 5, error or ValueError("negative"))


def waiting(found: ConsumerRecord, attempt: int = 2, due_ms: int = 5_000) -> Headers:
    return letters.retry_headers(found, places().of(found), "g", attempt, due_ms)


def places(*topics: str, **retry: Any) -> Places:
    """Return what a worker believes of the topics, with retry topics for 1 and 5 seconds."""
    app = App(group="g")
    chosen = Retry(**{"attempts": 3, "first": 1, "factor": 5, "topics": True, **retry})
    app.worker(list(topics or ("orders", "shipments")), retry=chosen)(_handler)
    return Places(app._workers[0])


async def _handler(value: bytes) -> None: ...


def test_a_dead_letter_says_where_it_was_as_springs_tools_read_it() -> None:
    headers = dict(dead(record(), "billing"))
    assert headers["kafka_dlt-original-topic"] == b"orders"
    assert headers["kafka_dlt-original-partition"] == struct.pack(">i", 3)
    assert headers["kafka_dlt-original-offset"] == struct.pack(">q", 7)
    assert headers["kafka_dlt-original-timestamp"] == struct.pack(">q", 1_700_000_000_123)
    assert headers["dlq-error-type"] == b"ValueError"
    assert headers["dlq-error-message"] == b"negative"
    assert headers["dlq-error-attempts"] == b"5"
    assert headers["dlq-error-group"] == b"billing"


def test_the_producers_own_headers_stay_in_their_order() -> None:
    headers = dead(record())
    assert headers[:3] == OWN


def test_a_long_message_is_cut() -> None:
    headers = dict(dead(record(), error=ValueError("x" * 5_000)))
    assert headers["dlq-error-message"] == b"x" * MAX_MESSAGE


def test_a_record_keeps_its_first_place_through_retry_topics_and_dead_letters() -> None:
    once = record("retry.1.orders", waiting(record()), offset=0)
    assert places().of(once) == FIRST
    assert (places().attempt(once), places().due_ms(once, NOW_MS)) == (2, 5_000)
    again = record("retry.5.orders", waiting(once, 3, 9_000), offset=1)
    assert places().of(again) == FIRST
    headers = dead(again)
    assert dict(headers)["kafka_dlt-original-offset"] == struct.pack(">q", 7)
    names = [name for name, _ in headers]
    assert len(names) == len({*names}) + 1, "only the producer's own header is there twice"
    assert not any(name.startswith(("retry_topic", "kafka_original")) for name in names)


def test_a_dead_letter_that_is_sent_back_is_for_its_group_and_counted() -> None:
    letter = record("dlq.orders", dead(record(), "billing"))
    back = record("orders", letters.redrive_headers(letter), offset=99)
    assert back.headers[:3] == OWN
    assert letters.is_for(back, "billing")
    assert not letters.is_for(back, "shipping")
    assert letters.redrives(back) == 1
    assert letters.named_place(back, letters.LETTER) is None
    letter = record("dlq.orders", dead(back, "billing"))
    assert letters.redrives(letter) == 1
    assert letters.redrives(record("orders", letters.redrive_headers(letter))) == 2


# Headers of others

FORGED: Headers = (
    *OWN,
    *letters._place_headers(letters.RETRIED, Place("payments", 1, 2, 3)),
    *letters._place_headers(letters.LETTER, Place("payments", 1, 2, 3)),
    ("kafka_dlt-exception-fqcn", b"java.lang.Harmless"),
    ("retry_topic-attempts", struct.pack(">i", 1_000)),
    ("retry_topic-backoff-timestamp", struct.pack(">q", (1 << 63) - 1)),
    ("dlq-error-type", b"Harmless"),
    ("dlq-left-out", b"nothing"),
    ("dlq-shard", b"shardId-000000000000"),
    ("headrace-only-group", b"g"),
)


def test_a_plain_record_is_where_it_was_read_whatever_its_headers_say() -> None:
    forged = record(headers=FORGED)
    assert places().of(forged) == FIRST
    assert (places().source(forged), places().home(forged)) == ("orders", "orders")
    assert places().text(forged) == "offset 7 of orders-3"
    assert places().attempt(forged) == 1


def test_letters_and_retries_of_a_forged_record_tell_the_truth() -> None:
    assert dead(record(headers=FORGED)) == dead(record())
    retried = dict(waiting(record(headers=FORGED)))
    assert retried["kafka_original-topic"] == b"orders"
    assert retried["retry_topic-attempts"] == struct.pack(">i", 2)
    assert dead(record("retry.1.orders", waiting(record(headers=FORGED)), 0)) == dead(record())


def test_what_is_sent_back_has_no_header_by_which_a_record_says_where_it_is() -> None:
    letter = record("dlq.orders", (*FORGED[len(OWN) :], *dead(record(), "billing")))
    assert letters.redrive_headers(letter) == (
        *OWN,
        ("headrace-only-group", b"billing"),
        ("dlq-redrives", b"1"),
    )


@pytest.mark.parametrize(
    ("topic", "headers"),
    [
        ("retry.1.orders", OWN),
        ("retry.1.orders", letters.retry_headers(record(), Place("payments", 0, 0, 0), "g", 2, 0)),
        ("retry.1.orders", letters.retry_headers(record(), Place("shipments", 0, 0, 0), "g", 2, 0)),
        ("retry.1.orders", letters.retry_headers(record(), Place("orders", -1, 0, 0), "g", 2, 0)),
        ("retry.1.orders", letters.retry_headers(record(), Place("orders", 0, -1, 0), "g", 2, 0)),
        ("retry.1.orders", letters.retry_headers(record(), FIRST, "other", 2, 0)),
    ],
    ids=["none", "another topic", "another of its topics", "partition", "offset", "another group"],
)
def test_a_record_of_a_retry_topic_that_no_worker_of_the_group_wrote_is_there(
    topic: str, headers: Headers
) -> None:
    stray = record(topic, headers, offset=9)
    assert places().of(stray) == here(stray)
    assert (places().attempt(stray), places().due_ms(stray, NOW_MS)) == (1, 0)
    assert (places().source(stray), places().home(stray)) == ("orders", "orders")
    kept = record("retry.5.orders", letters.retry_headers(stray, here(stray), "g", 2, 0))
    assert places().of(kept) == here(stray), "it keeps that place"
    assert (places().source(kept), places().attempt(kept)) == ("orders", 2)


def test_of_names_that_mean_two_topics_the_record_says_which() -> None:
    ambiguous = places("orders", "5.orders", first=1.5, factor=1, attempts=2)
    assert ambiguous.of(record("retry.1.5.orders", waiting(record()))) == FIRST
    both = places("orders", "5.orders", attempts=3, first=1, factor=1.5)
    for topic in ("orders", "5.orders"):
        first = FIRST._replace(topic=topic)
        headers = letters.retry_headers(record(), first, "g", 2, 0)
        assert both.of(record("retry.1.5.orders", headers)) == first


@pytest.mark.parametrize("attempt", [0, -1, -(1 << 31)])
def test_no_header_gives_a_record_more_attempts(attempt: int) -> None:
    assert places().attempt(record("retry.1.orders", waiting(record(), attempt))) == 1


def test_no_header_holds_a_partition_for_ever() -> None:
    never = waiting(record(), 2, (1 << 63) - 1)
    found = record("retry.1.orders", never)
    assert places().due_ms(found, NOW_MS) == found.timestamp_ms + MAX_WAIT_MS
    week = places(attempts=2, first=7 * 86_400, max=7 * 86_400)
    found = record("retry.604800.orders", never)
    assert week.due_ms(found, NOW_MS) == found.timestamp_ms + 7 * MAX_WAIT_MS
    late = found._replace(topic="retry.1.orders", timestamp_ms=(1 << 63) - 1)
    assert places().due_ms(late, NOW_MS) == 0, "nor does a record's time"


@pytest.mark.parametrize("digits", [201, 5_000])
def test_headers_of_others_that_look_alike_do_no_harm(digits: int) -> None:
    long = b"9" * digits
    odd = record(
        headers=(
            ("kafka_original-topic", b"\xff"),
            ("kafka_original-partition", struct.pack(">i", 0)),
            ("kafka_original-offset", long),
            ("kafka_original-timestamp", long),
            ("kafka_dlt-original-topic", b"\xff"),
            ("kafka_dlt-original-partition", struct.pack(">i", 0)),
            ("kafka_dlt-original-offset", long),
            ("kafka_dlt-original-timestamp", struct.pack(">q", 0)),
            ("dlq-redrives", long),
            ("retry_topic-attempts", long),
            ("retry_topic-backoff-timestamp", None),
            ("headrace-only-group", b"g"),
        )
    )
    retried = odd._replace(topic="retry.1.orders")
    assert places().of(retried) == here(retried)
    assert (places().attempt(retried), places().due_ms(retried, NOW_MS)) == (1, 0)
    assert letters.named_place(odd, letters.LETTER) is None
    assert letters.redrives(odd) == 0
    assert letters.header_text("kafka_original-offset", struct.pack(">q", 5)) == "5"
    assert letters.header_text("kafka_original-offset", b"\xff") == "\\xff"


def test_names_of_retry_topics() -> None:
    assert letters.retry_topic("orders", 0.2) == "retry.0.2.orders"
    assert letters.retry_topic("orders", 30.0) == "retry.30.orders"
