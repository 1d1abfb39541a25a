"""`__consumer_offsets` as the coordinator reads it."""

from __future__ import annotations

import pytest

from headrace.broker.coordinators.internal_log import InternalLog
from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.errors import StorageError
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.storage.os_files import OsFileSystem
from tests.fixtures.broker_harness import BrokerHarness, batch, values


@pytest.fixture
def log(tmp_path) -> InternalLog:
    harness = BrokerHarness(files=OsFileSystem(tmp_path), offsets_topic_num_partitions=1)
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    services = harness.broker.services
    return InternalLog(OFFSETS_TOPIC, services.topics, services.partitions, services.replicas)


def test_an_internal_log_is_read_up_to_the_log_end_offset(log, tmp_path):
    assert log.append(0, batch(b"a"), 0) == 1
    assert log.append(0, batch(b"b"), 0) == 2
    assert log.high_watermark(0) == 0, "nothing was synced"
    assert [value for data in log.read_from_start(0) for value in values(data)] == [b"a", b"b"]


def test_an_end_that_cannot_be_read_is_an_error(log, monkeypatch):
    log.append(0, batch(b"a"), 0)
    partition = log._partition(0)
    monkeypatch.setattr(type(partition), "read", lambda *_args, **_options: None)
    with pytest.raises(StorageError, match="from offset 0 on"):
        list(log.read_from_start(0))
