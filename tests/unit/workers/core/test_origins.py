"""The headers of dead letters, of records in retry topics and of redriven records, and which are trusted."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from headrace import App, Retry
from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters import letter_headers
from headrace.dead_letters.error_text import MAX_MESSAGE
from headrace.dead_letters.letter_headers import Headers, RecordOrigin, origin_of
from headrace.workers.core.origins import MAX_WAIT_MS, Origins

OWN: Headers = (("trace", b"1"), ("trace", b"2"), ("empty", None))
FIRST = RecordOrigin("orders", 3, 7, 1_700_000_000_123)
NOW_MS = 1_700_000_000_500


def record(topic: str = "orders", headers: Headers = OWN, offset: int = 7) -> ConsumerRecord:
    return ConsumerRecord(topic, 3, offset, 1_700_000_000_123, b"k", b"v", headers, 0)


def dead(found: ConsumerRecord, group: str = "g", error: Exception | None = None) -> Headers:
    place = origins().of(found)
    return letter_headers.dead_letter_headers(
        found, place, group, 5, error or ValueError("negative")
    )


def waiting(found: ConsumerRecord, attempt: int = 2, due_ms: int = 5_000) -> Headers:
    return letter_headers.retry_headers(found, origins().of(found), "g", attempt, due_ms)


def origins(*topics: str, **retry: Any) -> Origins:
    """Return the origins of a worker with some topics, and with retry topics for 1 and 5 seconds."""
    app = App(group="g")
    chosen = Retry(**{"attempts": 3, "first": 1, "factor": 5, "topics": True, **retry})
    app.worker(list(topics or ("orders", "shipments")), retry=chosen)(_handler)
    return app._workers[0].origins()


async def _handler(value: bytes) -> None: ...


def test_a_dead_letter_names_its_origin_in_the_headers_of_spring() -> None:
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
    assert origins().of(once) == FIRST
    assert (origins().attempt(once), origins().due_ms(once, NOW_MS)) == (2, 5_000)
    again = record("retry.5.orders", waiting(once, 3, 9_000), offset=1)
    assert origins().of(again) == FIRST
    headers = dead(again)
    assert dict(headers)["kafka_dlt-original-offset"] == struct.pack(">q", 7)
    names = [name for name, _ in headers]
    assert len(names) == len({*names}) + 1, "only the producer's own header is there twice"
    assert not any(name.startswith(("retry_topic", "kafka_original")) for name in names)


def test_a_dead_letter_that_is_sent_back_is_for_its_group_and_counted() -> None:
    letter = record("dlq.orders", dead(record(), "billing"))
    back = record("orders", letter_headers.redrive_headers(letter), offset=99)
    assert back.headers[:3] == OWN
    assert letter_headers.is_for(back, "billing")
    assert not letter_headers.is_for(back, "shipping")
    assert letter_headers.redrives(back) == 1
    assert letter_headers.named_origin(back, letter_headers.LETTER) is None
    letter = record("dlq.orders", dead(back, "billing"))
    assert letter_headers.redrives(letter) == 1
    assert letter_headers.redrives(record("orders", letter_headers.redrive_headers(letter))) == 2


# Headers of others

FORGED: Headers = (
    *OWN,
    *letter_headers._origin_headers(letter_headers.RETRIED, RecordOrigin("payments", 1, 2, 3)),
    *letter_headers._origin_headers(letter_headers.LETTER, RecordOrigin("payments", 1, 2, 3)),
    ("kafka_dlt-exception-fqcn", b"java.lang.Harmless"),
    ("retry_topic-attempts", struct.pack(">i", 1_000)),
    ("retry_topic-backoff-timestamp", struct.pack(">q", (1 << 63) - 1)),
    ("dlq-error-type", b"Harmless"),
    ("dlq-left-out", b"nothing"),
    ("dlq-shard", b"shardId-000000000000"),
    ("headrace-only-group", b"g"),
)


def test_the_origin_of_a_plain_record_is_where_it_was_read() -> None:
    forged = record(headers=FORGED)
    assert origins().of(forged) == FIRST
    assert (origins().source(forged), origins().home(forged)) == ("orders", "orders")
    assert origins().text(forged) == "offset 7 of orders-3"
    assert origins().attempt(forged) == 1


def test_dead_letters_and_retries_of_a_forged_record_have_the_true_origin() -> None:
    assert dead(record(headers=FORGED)) == dead(record())
    retried = dict(waiting(record(headers=FORGED)))
    assert retried["kafka_original-topic"] == b"orders"
    assert retried["retry_topic-attempts"] == struct.pack(">i", 2)
    assert dead(record("retry.1.orders", waiting(record(headers=FORGED)), 0)) == dead(record())


def test_a_redriven_record_has_no_headers_that_name_an_origin() -> None:
    letter = record("dlq.orders", (*FORGED[len(OWN) :], *dead(record(), "billing")))
    assert letter_headers.redrive_headers(letter) == (
        *OWN,
        ("headrace-only-group", b"billing"),
        ("dlq-redrives", b"1"),
    )


@pytest.mark.parametrize(
    ("topic", "headers"),
    [
        ("retry.1.orders", OWN),
        (
            "retry.1.orders",
            letter_headers.retry_headers(record(), RecordOrigin("payments", 0, 0, 0), "g", 2, 0),
        ),
        (
            "retry.1.orders",
            letter_headers.retry_headers(record(), RecordOrigin("shipments", 0, 0, 0), "g", 2, 0),
        ),
        (
            "retry.1.orders",
            letter_headers.retry_headers(record(), RecordOrigin("orders", -1, 0, 0), "g", 2, 0),
        ),
        (
            "retry.1.orders",
            letter_headers.retry_headers(record(), RecordOrigin("orders", 0, -1, 0), "g", 2, 0),
        ),
        ("retry.1.orders", letter_headers.retry_headers(record(), FIRST, "other", 2, 0)),
    ],
    ids=["none", "another topic", "another of its topics", "partition", "offset", "another group"],
)
def test_the_origin_of_a_foreign_record_is_its_retry_topic(topic: str, headers: Headers) -> None:
    stray = record(topic, headers, offset=9)
    assert origins().of(stray) == origin_of(stray)
    assert (origins().attempt(stray), origins().due_ms(stray, NOW_MS)) == (1, 0)
    assert (origins().source(stray), origins().home(stray)) == ("orders", "orders")
    kept = record(
        "retry.5.orders", letter_headers.retry_headers(stray, origin_of(stray), "g", 2, 0)
    )
    assert origins().of(kept) == origin_of(stray), "it keeps that place"
    assert (origins().source(kept), origins().attempt(kept)) == ("orders", 2)


def test_the_record_decides_between_two_topics_with_one_retry_topic() -> None:
    ambiguous = origins("orders", "5.orders", first=1.5, factor=1, attempts=2)
    assert ambiguous.of(record("retry.1.5.orders", waiting(record()))) == FIRST
    both = origins("orders", "5.orders", attempts=3, first=1, factor=1.5)
    for topic in ("orders", "5.orders"):
        first = FIRST._replace(topic=topic)
        headers = letter_headers.retry_headers(record(), first, "g", 2, 0)
        assert both.of(record("retry.1.5.orders", headers)) == first


@pytest.mark.parametrize("attempt", [0, -1, -(1 << 31)])
def test_no_header_gives_a_record_more_attempts(attempt: int) -> None:
    assert origins().attempt(record("retry.1.orders", waiting(record(), attempt))) == 1


def test_no_header_holds_a_partition_for_ever() -> None:
    never = waiting(record(), 2, (1 << 63) - 1)
    found = record("retry.1.orders", never)
    assert origins().due_ms(found, NOW_MS) == found.timestamp_ms + MAX_WAIT_MS
    week = origins(attempts=2, first=7 * 86_400, max=7 * 86_400)
    found = record("retry.604800.orders", never)
    assert week.due_ms(found, NOW_MS) == found.timestamp_ms + 7 * MAX_WAIT_MS
    late = found._replace(topic="retry.1.orders", timestamp_ms=(1 << 63) - 1)
    assert origins().due_ms(late, NOW_MS) == 0, "nor does a record's time"


@pytest.mark.parametrize("digits", [201, 5_000])
def test_similar_headers_of_other_programs_are_ignored(digits: int) -> None:
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
    assert origins().of(retried) == origin_of(retried)
    assert (origins().attempt(retried), origins().due_ms(retried, NOW_MS)) == (1, 0)
    assert letter_headers.named_origin(odd, letter_headers.LETTER) is None
    assert letter_headers.redrives(odd) == 0
    assert letter_headers.header_text("kafka_original-offset", struct.pack(">q", 5)) == "5"
    assert letter_headers.header_text("kafka_original-offset", b"\xff") == "\\xff"


def test_a_retry_topic_is_named_after_pause_and_topic() -> None:
    assert letter_headers.retry_topic("orders", 0.2) == "retry.0.2.orders"
    assert letter_headers.retry_topic("orders", 30.0) == "retry.30.orders"
