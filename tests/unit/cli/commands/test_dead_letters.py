"""`headrace dlq`: dead letters go where the operator decides, whatever their headers contain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from headrace.cli.commands.dlq_redrive import MAX_LEFT, Redrive, Targets
from headrace.dead_letters.letter_headers import (
    Headers,
    RecordOrigin,
    dead_letter_headers,
    ever_smaller,
)
from headrace.errors import HeadraceError
from headrace.records.decoding import MAX_HEADERS
from headrace.testing import Broker
from tests.fixtures.command_line import Done, run_command

DLQ = "dlq.orders"


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(running: Broker) -> Iterator[Broker]:
    for topic in ("orders", "payments", DLQ, "graveyard"):
        running.create_topic(topic)
    yield running
    running.reset()


def run(broker: Broker, *arguments: str) -> Done:
    return run_command("dlq", *arguments, environment={"HEADRACE_BOOTSTRAP": broker.bootstrap})


def redrive(broker: Broker, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run a redrive, and return what it says as JSON."""
    done = run(broker, "redrive", *arguments, "--format", "json")
    assert done.code == code, done
    said: dict[str, Any] = json.loads(done.out)
    return said


def letter_of(topic: str, value: bytes = b"v", *, error: Exception | None = None) -> Headers:
    record = headrace.ConsumerRecord(topic, 0, 7, 1, b"k", value, (("own", b"1"),), 0)
    place = RecordOrigin(topic, 0, 7, 1)
    return dead_letter_headers(record, place, "billing", 2, error or ValueError("no"))


def write(broker: Broker, topic: str, *letters: tuple[bytes | None, Headers]) -> None:
    with headrace.Producer(broker, serde="bytes") as producer:
        for value, headers in letters:
            producer.send(topic, value, key=b"k", headers=headers, partition=0).result(10)


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [message.value for message in broker.messages(topic)]


def test_redriven_dead_letters_are_for_their_group_and_keep_their_headers(broker: Broker) -> None:
    write(broker, DLQ, (b"1", letter_of("orders")), (b"2", letter_of("orders")))
    expected = {"topic": DLQ, "sent": 2, "passed_over": 0, "homeless": 0, "left": []}
    assert redrive(broker, "orders", "--dry-run") == {**expected, "dry_run": True}
    assert values(broker, "orders") == []
    assert redrive(broker, "orders") == {**expected, "dry_run": False}
    first, _ = broker.messages("orders")
    assert first.headers == (
        ("own", b"1"),
        ("headrace-only-group", b"billing"),
        ("dlq-redrives", b"1"),
    )
    assert redrive(broker, "orders")["sent"] == 0
    assert redrive(broker, "orders", "--all")["sent"] == 2


def test_a_dead_letter_that_names_another_topic_is_left_and_reported(broker: Broker) -> None:
    write(
        broker,
        DLQ,
        (b"pay mallory", letter_of("payments")),
        (b"plain", ()),
        (b"good", letter_of("orders")),
        (b"again", letter_of("payments")),
    )
    result = redrive(broker, "orders", "--dry-run", code=1)
    done = run(broker, "redrive", "orders")
    assert done.code == 1
    assert "1 sent, 0 skipped" in done.err
    assert "3 skipped" in done.err
    assert "dlq.orders-0@0 names 'payments'" in done.err
    assert "dlq.orders-0@1 names no topic" in done.err
    assert (result["sent"], result["homeless"]) == (1, 3)
    assert result["left"] == [
        {"partition": 0, "offset": 0, "names": "payments"},
        {"partition": 0, "offset": 1, "names": None},
        {"partition": 0, "offset": 3, "names": "payments"},
    ]
    assert values(broker, "orders") == [b"good"]
    assert values(broker, "payments") == []
    result = redrive(broker, "orders", code=1)
    assert [one["offset"] for one in result["left"]] == [3], "nothing behind it was sent"
    assert len(values(broker, DLQ)) == 4


def test_a_dead_letter_with_the_most_headers_does_not_block_others(
    broker: Broker,
) -> None:
    full = (*letter_of("orders"), *[("", None)] * MAX_HEADERS)[:MAX_HEADERS]
    write(broker, DLQ, (b"1", full), (b"2", letter_of("orders")))
    result = redrive(broker, "orders", "--to", "graveyard")
    assert (result["sent"], result["passed_over"]) == (1, 1)
    assert values(broker, "graveyard") == [b"2"]


def test_a_message_lists_some_of_many_skipped_dead_letters(broker: Broker) -> None:
    with headrace.Producer(broker, serde="bytes") as producer:
        producer.send_many(DLQ, [b"x"] * (MAX_LEFT + 3), headers=letter_of("x" * 400))
        producer.flush()
    result = redrive(broker, "orders", code=1)
    assert (result["homeless"], len(result["left"])) == (MAX_LEFT + 3, MAX_LEFT)
    assert result["left"][0]["names"] == "x" * 249
    told = run(broker, "redrive", "orders").err
    assert (told.count("names"), f"and {MAX_LEFT - 2} more" in told) == (5, True)


def test_options_allow_topics_to_which_dead_letters_are_sent(broker: Broker) -> None:
    write(
        broker,
        "graveyard",
        (b"1", letter_of("orders")),
        (b"2", letter_of("payments")),
        (b"3", letter_of("secrets")),
    )
    assert redrive(broker, "graveyard", "--named", code=1)["homeless"] == 3
    result = redrive(broker, "graveyard", "--named", "--from", "orders", "--from", "payments")
    assert (result["sent"], result["passed_over"]) == (2, 1)
    assert (values(broker, "orders"), values(broker, "payments")) == ([b"1"], [b"2"])
    result = redrive(broker, "graveyard", "--named", "--all", "--any-topic", code=1)
    assert (result["sent"], result["left"]) == (
        2,
        [{"partition": 0, "offset": 2, "names": "secrets"}],
    )
    assert "secrets" not in broker.topics(), "no dead letter makes the command create a topic"
    assert redrive(broker, "graveyard", "--named", "--all", "--to", "payments")["sent"] == 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--any-topic", "--to", "orders"), "--any-topic cannot be used with --to or --from"),
        (("--any-topic", "--from", "orders"), "--any-topic cannot be used"),
        (("--to", DLQ), "--to names dlq.orders"),
        (("--from", DLQ), "--to names dlq.orders"),
    ],
)
def test_incompatible_options_are_wrong_usage(arguments: tuple[str, ...], told: str) -> None:
    done = run_command("dlq", "redrive", "orders", *arguments, environment={})
    assert (done.code, told in done.err) == (2, True)


def test_skipped_dead_letters_are_counted(broker: Broker) -> None:
    record = headrace.ConsumerRecord("orders", 0, 7, 1, b"k", b"v", (), 0)
    *_, small = ever_smaller(record, letter_of("orders"))
    write(
        broker,
        DLQ,
        (small.value, small.headers),  # a dead letter without its value
        (b"2", (*letter_of("orders"), ("dlq-redrives", b"3"))),
        (b"3", letter_of("orders", error=KeyError("x"))),
        (b"4", letter_of("orders")),
    )
    result = redrive(broker, "orders", "--error-type", "ValueError")
    assert (result["sent"], result["passed_over"]) == (1, 3)
    assert values(broker, "orders") == [b"4"]
    result = redrive(broker, "orders", "--all", "--error-type", "KeyError", "--limit", "1")
    assert (result["sent"], result["passed_over"]) == (1, 2)
    result = redrive(broker, "orders", "--all", "--max-redrives", "4")
    assert (result["sent"], result["passed_over"]) == (3, 1)


def purge_sent(broker: Broker, *arguments: str) -> tuple[int, int]:
    done = run(broker, "purge", "orders", "--sent", "--yes", "--format", "json", *arguments)
    said = json.loads(done.out)
    return said["deleted"], said["kept"]


def test_dead_letters_skipped_by_a_redrive_are_not_purged_as_sent(broker: Broker) -> None:
    keys = [letter_of("orders", error=KeyError("x")) for _ in range(2)]
    values_ = letter_of("orders")
    write(broker, DLQ, (b"0", keys[0]), (b"1", values_), (b"2", keys[1]), (b"3", values_))
    assert purge_sent(broker) == (0, 4)
    redrive(broker, "orders", "--error-type", "KeyError")
    assert values(broker, "orders") == [b"0", b"2"]
    assert purge_sent(broker, "--dry-run") == (1, 3)
    assert purge_sent(broker) == (1, 3)
    assert values(broker, DLQ) == [b"1", b"2", b"3"]

    redrive(broker, "orders", "--all", "--limit", "1")
    assert values(broker, "orders")[2:] == [b"1"]
    assert purge_sent(broker) == (1, 2)
    write(broker, DLQ, (b"4", keys[0]), (b"5", values_))
    redrive(broker, "orders", "--error-type", "ValueError")
    assert values(broker, "orders")[3:] == [b"3", b"5"]
    assert purge_sent(broker) == (0, 4)
    redrive(broker, "orders", "--all")
    assert purge_sent(broker) == (4, 0)
    assert values(broker, DLQ) == []


def test_a_dead_letter_without_a_permitted_topic_is_not_purged_as_sent(broker: Broker) -> None:
    write(broker, DLQ, (b"0", letter_of("payments")), (b"1", letter_of("orders")))
    redrive(broker, "orders", code=1)
    assert values(broker, "orders") == [b"1"]
    assert purge_sent(broker) == (0, 2)
    redrive(broker, "orders", "--all", "--from", "payments")
    redrive(broker, "orders", "--all", "--to", "orders")
    assert purge_sent(broker) == (2, 0)


def test_a_topic_deleted_during_a_redrive_is_not_created_again(broker: Broker) -> None:
    letter = headrace.ConsumerRecord(DLQ, 0, 0, 1, b"k", b"v", letter_of("orders"), 0)

    def letters() -> Iterator[headrace.ConsumerRecord]:
        yield letter
        orders = broker._core.services.partitions.require("orders", 0)
        broker.wait_until(lambda: orders.high_watermark)
        broker.delete_topic("orders")
        yield letter._replace(offset=1)

    again = Redrive(
        broker.bootstrap,
        Targets(DLQ),
        {"dry_run": False, "error_type": None, "limit": None, "max_redrives": 3, "quiet": True},
        client={"request_timeout_ms": 500, "delivery_timeout_ms": 600},
        positions=headrace.Consumer(broker, group="g"),
    )
    with pytest.raises(HeadraceError):
        again.run(letters())
    assert "orders" not in broker.topics()


HOSTILE: Headers = (
    *((f"kafka_dlt-original-{what}", b"9" * 5_000) for what in ("partition", "offset")),
    ("kafka_dlt-original-topic", b"\xff\x1b[2J"),
    ("kafka_dlt-original-topic", None),
    ("kafka_dlt-original-partition", b"\xff\xff\xff\xff"),
    ("kafka_dlt-original-timestamp", b"\x7f" + b"\xff" * 7),
    ("dlq-error-type", b"\x1b[2J\xff"),
    ("dlq-error-message", "\u202e\n".encode()),
    ("dlq-error-attempts", b"9" * 5_000),
    ("dlq-redrives", b"9" * 5_000),
    ("dlq-error-group", None),
    *(("same", b"x"),) * 2_000,
)


def test_headers_of_any_kind_are_shown_and_do_no_harm(broker: Broker) -> None:
    write(broker, DLQ, (b"\x1b[2J\xff", HOSTILE), (b"good", letter_of("orders")))
    for arguments in (("list",), ("show", "orders")):
        for form in ("table", "json"):
            done = run(broker, *arguments, "--format", form)
            assert done.code == 0, done
            assert b"\x1b" not in done.out
    [first, _] = json.loads(run(broker, "show", "orders", "--format", "json").out)
    assert (first["from"], first["redrives"], first["group"]) == (None, 0, "")
    assert first["attempts"] == "9" * 5_000
    result = redrive(broker, "orders", code=1)
    assert (result["sent"], result["homeless"]) == (1, 1)
    assert json.loads(run(broker, "purge", "orders", "-y", "--format", "json").out)["deleted"] == 2
