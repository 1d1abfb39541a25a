"""A broker in a process of its own is killed and started again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import headrace
from headrace.errors import HeadraceError
from headrace.testing import BrokerProcess


def test_acknowledged_records_survive_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        first = broker.bootstrap, broker.pid
        with headrace.Producer(broker.bootstrap) as producer:
            producer.send("orders", b"kept").result(20)
        assert broker.kill() == -9
        broker.start()
        assert broker.bootstrap == first[0]
        assert broker.pid != first[1]
        with headrace.Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([headrace.TopicPartition("orders", 0)])
            assert [record.value for record in consumer.poll(20)] == [b"kept"]
        assert broker.stop() == 0
        assert broker.restart().running
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(broker.bootstrap.split(":")[1])), 5)


def test_a_broker_that_does_not_start_raises_an_error_with_its_log(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, configs={"num.partitions": "many"})
    with pytest.raises(HeadraceError, match=r"did not start(.|\n)*num\.partitions"):
        broker.start()
    assert not broker.running
