"""Every command that reads or changes a topic, for a topic with records."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.producer.blocking import Producer
from headrace.dead_letters.letter_headers import dead_letter_headers, origin_of
from tests.conformance.crossed.records import Sent
from tests.conformance.crossed.writers import Place


def _json(place: Place, *arguments: str) -> Any:
    return json.loads(place.run(*arguments, "--format", "json").out)


def describe(place: Place, stored: list[Sent]) -> None:
    [found] = _json(place, "topic", "describe", place.topic, "--configs")
    held = [each["end_offset"] - each["start_offset"] for each in found["partitions"]]
    assert sum(held) >= len(stored)
    assert found["configs"].items() >= configs(place).items()


def alter(place: Place, stored: list[Sent]) -> None:
    place.run("topic", "alter", place.topic, "-c", "retention.ms=1h", "-c", "segment.bytes=1MiB")
    [found] = _json(place, "topic", "describe", place.topic)
    wanted = {"retention.ms": "3600000", "segment.bytes": str(1 << 20)}
    assert found["configs"].items() >= {**configs(place), **wanted}.items()
    assert _values(place, place.topic) == sorted(each.value or b"" for each in stored)


def lag(place: Place, stored: list[Sent]) -> None:
    group = f"{place.topic}.lag"
    place.run("consume", place.topic, "-g", group, "-n", str(len(stored)))
    [found] = _json(place, "group", "lag", group)
    # The marker behind a transaction counts as a record of each partition, as everywhere in Kafka.
    markers = 2 if place.case["writer"] in {"transactional", "bridge"} else 0
    assert found["lag"] <= markers


def reset(place: Place, stored: list[Sent]) -> None:
    group = f"{place.topic}.reset"
    place.run("consume", place.topic, "-g", group, "-n", str(len(stored)))
    place.run("group", "reset", group, "--to", "earliest", "--topic", place.topic, "--yes")
    again = place.run("consume", place.topic, "-g", group, "-n", str(len(stored)), "-f", "%i ").out
    assert len(again.split()) == len(stored)


def truncate(place: Place, stored: list[Sent]) -> None:
    assert stored
    place.run("topic", "truncate", place.topic, "-o", "end", "--yes")
    assert place.run("consume", place.topic, "-e").out == b""


def add_partitions(place: Place, stored: list[Sent]) -> None:
    place.run("topic", "add-partitions", place.topic, "-n", "1")
    assert _values(place, place.topic) == sorted(each.value or b"" for each in stored)


def delete(place: Place, stored: list[Sent]) -> None:
    assert stored
    place.run("topic", "delete", place.topic, "--yes")
    assert place.topic not in place.broker.topics()


def dead_letters(place: Place, stored: list[Sent]) -> None:
    """Write dead letters into a topic with the same settings, list them, send them back, and delete them."""
    letters = f"dlq.{place.topic}"
    place.broker.create_topic(letters, configs=configs(place))
    with Producer(place.broker, serde="bytes", key_serde="bytes", partitioner="sticky") as producer:
        for number, each in enumerate(stored):
            record = ConsumerRecord(place.topic, 0, number, 1, each.key, each.value, (), 0)
            headers = dead_letter_headers(record, origin_of(record), "g", 1, ValueError("crossed"))
            producer.send(letters, each.value, key=each.key, headers=headers)
    listed = {each["topic"]: each for each in _json(place, "dlq", "list")}
    assert listed[letters]["waiting"] == len(stored)
    shown = _json(place, "dlq", "show", place.topic)
    assert {(each["error_type"], each["attempts"]) for each in shown} == {("ValueError", 1)}
    place.run("dlq", "show", place.topic)
    before = _values(place, place.topic)
    assert _json(place, "dlq", "redrive", place.topic, "--dry-run")["sent"] == len(stored)
    assert _values(place, place.topic) == before
    assert _json(place, "dlq", "redrive", place.topic)["sent"] == len(stored)
    assert _values(place, place.topic) == sorted(before * 2)
    assert _json(place, "dlq", "purge", place.topic, "--sent", "--yes")["deleted"] == len(stored)


def configs(place: Place) -> dict[str, str]:
    """Return the topic's configuration for the case."""
    case = place.case
    named = {
        "headrace.serde": case["serde"],
        "headrace.key.serde": case["key_serde"],
        "headrace.partitioner": case["partitioner"],
    }
    return {
        **{name: value for name, value in named.items() if value != "none"},
        "headrace.storage": case["storage"],
        "headrace.durability": case["durability"],
        "cleanup.policy": case["cleanup"],
        "compression.type": case["stored"],
        **({} if case["extra"] == "none" else {f"headrace.{case['extra']}.enable": "true"}),
    }


def _values(place: Place, topic: str) -> list[bytes]:
    out = place.run("consume", topic, "-e", "-f", "%V{big32}%v").out
    found = []
    while out:
        end = 4 + int.from_bytes(out[:4], "big")
        found.append(out[4:end])
        out = out[end:]
    return sorted(found)


COMMANDS: dict[str, Callable[[Place, list[Sent]], None]] = {
    "topic describe": describe,
    "topic alter": alter,
    "topic truncate": truncate,
    "topic add-partitions": add_partitions,
    "topic delete": delete,
    "group lag": lag,
    "group reset": reset,
    "dlq": dead_letters,
}
