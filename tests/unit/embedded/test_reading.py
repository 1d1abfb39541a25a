"""The records that `Broker.read` returns for transactions and for damaged data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import ConfigError, CorruptRecordError


@pytest.fixture
def broker() -> headrace.Broker:
    return headrace.Broker()


def values(broker: headrace.Broker, offset: int = 0, **options: Any) -> list[bytes]:
    return [record.value for record in broker.read("t", 0, offset, **options)]


def test_aborted_records_are_read_only_on_request(
    broker: headrace.Broker,
) -> None:
    with broker, headrace.Producer(broker, transactional_id="x") as producer:
        broker.create_topic("t")
        broker.publish("t", b"plain")
        for value, commits in ((b"aborted", False), (b"committed", True)):
            producer.begin_transaction()
            producer.send("t", value).result()
            producer.commit_transaction() if commits else producer.abort_transaction()
        assert values(broker) == [b"plain", b"committed"]
        assert values(broker, 1) == [b"committed"]
        everything = values(broker, isolation_level="read_uncommitted")
        assert everything == [b"plain", b"aborted", b"committed"]
        producer.begin_transaction()
        producer.send("t", b"open").result()
        broker.publish("t", b"behind it")
        assert values(broker) == [b"plain", b"committed"]
        everything += [b"open", b"behind it"]
        assert values(broker, isolation_level="read_uncommitted") == everything
        producer.commit_transaction()
        assert values(broker) == [b"plain", b"committed", b"open", b"behind it"]


def test_an_unknown_isolation_level_is_refused(broker: headrace.Broker) -> None:
    with broker:
        broker.create_topic("t")
        with pytest.raises(ConfigError, match="read_committed, read_uncommitted"):
            broker.read("t", 0, 0, isolation_level="committed")


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_a_damaged_batch_is_an_error_and_no_record(tmp_path: Path, isolation_level: str) -> None:
    with headrace.Broker(tmp_path) as broker:
        broker.create_topic("t")
        broker.publish("t", b"hello")
        (segment,) = (tmp_path / "t-0").glob("*.log")
        content = bytearray(segment.read_bytes())
        content[content.index(b"hello")] ^= 1
        segment.write_bytes(content)
        with pytest.raises(CorruptRecordError, match="t-0 at offset 0"):
            broker.read("t", 0, 0, isolation_level=isolation_level)
