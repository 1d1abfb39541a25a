"""Durations and sizes in settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.cli.arguments.settings_files import read_properties, resolved
from headrace.config.units import duration_ms, is_duration, plain_number, plain_numbers
from headrace.server.log import LoggingJournal

GIVEN = {
    "retention.ms": "1h30m",
    "segment.bytes": "64MiB",
    "max.message.bytes": "2m",
    "offsets.retention.minutes": "7d",
    "log.retention.hours": "2d",
    "some.seconds": "90s",
}
PLAIN = {
    "retention.ms": "5400000",
    "segment.bytes": str(64 << 20),
    "max.message.bytes": str(2 << 20),
    "offsets.retention.minutes": "10080",
    "log.retention.hours": "48",
    "some.seconds": "90",
}
AS_THEY_ARE = {
    "retention.bytes": "-1",
    "segment.ms": "500",
    "delete.retention.ms": "-5m",
    "cleanup.policy": "1h",
    "log.retention.hours": "90m",
    "min.insync.replicas": "1k",
    "flush.ms": "\u0661h",
}


def test_durations_and_sizes_are_numbers_for_a_broker() -> None:
    assert plain_numbers(GIVEN) == PLAIN
    assert plain_numbers(AS_THEY_ARE) == AS_THEY_ARE


@given(parts=st.lists(st.tuples(st.integers(0, 10**9), st.sampled_from("smhd")), min_size=1))
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{count}{unit}" for count, unit in parts)
    units = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    assert is_duration(text)
    assert duration_ms(text) == sum(count * units[unit] for count, unit in parts)


@given(name=st.text(), text=st.text())
def test_no_text_is_an_error(name: str, text: str) -> None:
    assert isinstance(plain_number(name, text), str)


def test_topics_and_brokers_of_a_program() -> None:
    with headrace.Broker(configs={"log.segment.bytes": "2MiB"}) as broker:
        broker.create_topic("t", configs={"retention.ms": "1h"})
        with headrace.Admin(broker) as admin:
            admin.alter_configs("t", {"max.message.bytes": "1MiB"})
        found = broker.configs("t")
    values = {
        name: found[name].value for name in ("retention.ms", "max.message.bytes", "segment.bytes")
    }
    assert values == {
        "retention.ms": "3600000",
        "max.message.bytes": "1048576",
        "segment.bytes": "2097152",
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("broker.properties", "log.retention.ms=7d\nlog.segment.bytes = 64MiB\n"),
        ("broker.toml", '[log]\nretention.ms = "7d"\nsegment.bytes = "64MiB"\n'),
    ],
)
def test_files_of_a_broker(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    journal = LoggingJournal()
    found = resolved(read_properties(tmp_path / name, journal), journal)
    assert found == {"log.retention.ms": "604800000", "log.segment.bytes": str(64 << 20)}
