"""Only the user of the broker can read its files: records, indexes, offsets, checkpoints, metadata."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import pytest

import headrace
from headrace.kinesis.leases.sqlite import SqliteLeaseStore
from headrace.pipelines.status.state import StateDirectory

EARLIEST: dict[str, Any] = {"auto.offset.reset": "earliest"}


@pytest.fixture(autouse=True)
def _no_umask():
    """Set the umask to 0, so that the files have the permissions that the broker requests."""
    before = os.umask(0)
    yield
    os.umask(before)


def wide(directory):
    return [
        f"{path} {path.stat().st_mode & 0o7777:o}"
        for path in directory.rglob("*")
        if path.stat().st_mode & 0o077
    ]


def use(broker):
    broker.create_topic("t", configs={"segment.bytes": 200, "headrace.delay.enable": "true"})
    broker.create_topic("keyed", configs={"cleanup.policy": "compact"})
    with (
        headrace.Producer(broker, transactional_id="x", serde="bytes") as producer,
        producer.transaction(),
    ):
        for number in range(10):
            producer.send("t", b"x" * 100, key=b"k")
            producer.send("keyed", b"%d" % number, key=b"k")
    broker.publish("t", b"later", delay_ms=3_600_000)
    with headrace.Consumer(broker, group="g", serde="bytes", **EARLIEST) as consumer:
        consumer.subscribe(["t"])
        assert consumer.poll(10)
        consumer.commit()


def test_files_of_an_embedded_broker_are_private(tmp_path):
    for start in range(2):  # the second start writes further files
        with headrace.Broker(tmp_path / "data") as broker:
            if not start:
                use(broker)
            assert wide(tmp_path) == []
    assert wide(tmp_path) == []
    kinds = {path.suffix for path in (tmp_path / "data").rglob("*") if path.is_file()}
    assert {".log", ".index", ".snapshot", ".sqlite"} <= kinds


def test_a_directory_that_others_can_read_is_warned_of(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.WARNING, "headrace")
    data = tmp_path / "data"
    data.mkdir(0o755)
    # The directories above are those of pytest, and closed, which would do: let the owner's bit count.
    monkeypatch.setattr("headrace.storage.permissions._OTHERS_PASS", 0o100)
    with headrace.Broker(data):
        pass
    (line,) = [each for each in caplog.records if each.message == "data_directory_exposed"]
    assert line.headrace_fields["directory"] == str(data)
    assert line.headrace_fields["remedy"].startswith(f"chmod 700 {data}")
    data.chmod(0o700)
    caplog.clear()
    with headrace.Broker(data):
        pass
    assert caplog.records == []


def test_files_of_leases_and_pipelines_are_private(tmp_path):
    async def leases():
        store = SqliteLeaseStore(tmp_path / "new" / "leases.db")
        await store.open()
        assert wide(tmp_path) == []
        await store.close()

    asyncio.run(leases())
    state = StateDirectory(tmp_path / "state" / "pipelines")
    state.log_path("orders")
    state.claim("orders").release()
    assert not [each for each in wide(tmp_path) if "." not in each]  # the directory closes them
    assert (tmp_path / "state" / "pipelines").stat().st_mode & 0o777 == 0o700
