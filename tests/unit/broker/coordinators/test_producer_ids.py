"""Producer ids come from blocks, which brokers reserve ahead, and which no other broker has."""

from __future__ import annotations

import pytest

from headrace.broker.coordinators import producer_ids as module
from headrace.broker.coordinators.producer_ids import BLOCK_SIZE, KEY, ProducerIds
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.errors import ApiError, ErrorCode
from headrace.metadata_stores.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata_stores.sessions import SimulatedMetadataStore, Timeline
from headrace.ports import Put
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.fixtures.broker_harness import BrokerHarness, RecordingJournal
from tests.fixtures.metadata_stores import Clock


class Cluster:
    """Brokers on one content of metadata, whose messages take time."""

    def __init__(self, delay_ms: int = 10) -> None:
        self.clock = Clock()
        self.timeline = Timeline(self.clock)
        self.content = MemoryMetadata()
        self.delay_ms = delay_ms
        self.stores: list[SimulatedMetadataStore] = []
        self.writers: list[MetadataWriter] = []

    def add(self) -> ProducerIds:
        store = SimulatedMetadataStore(
            self.content, self.timeline, delay_ms=lambda: self.delay_ms, timeout_ms=None
        )
        writer = MetadataWriter(store, len(self.stores), bytes(16), RecordingJournal())
        writer.begin()
        self.stores.append(store)
        self.writers.append(writer)
        return ProducerIds(writer)

    def run(self, ms: int = 1_000) -> None:
        for _ in range(ms):
            self.clock.run(self.timeline, self.clock.now_ms + 1)
            for writer in self.writers:
                writer.tick(self.clock.now_ms)


def test_the_next_block_is_reserved_before_the_last_id_is_allocated():
    cluster = Cluster()
    ids = cluster.add()
    ready = ids.wait()
    assert ready is not None
    assert not ready.done
    with pytest.raises(ApiError) as error:
        ids.allocate()
    assert error.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    cluster.run()
    assert ready.value is None
    found = [ids.allocate() for _ in range(BLOCK_SIZE // 2)]
    cluster.run()
    found += [ids.allocate() for _ in range(BLOCK_SIZE // 2 + 1)]
    assert found == list(range(BLOCK_SIZE + 1))
    entry = cluster.content.get(KEY)
    assert entry is not None
    assert entry.value == b'{"next_id":2000,"format":1}'


def test_two_brokers_that_reserve_at_the_same_time_get_two_blocks():
    cluster = Cluster()
    first, second = cluster.add(), cluster.add()
    waiting = [first.wait(), second.wait(), second.wait()]
    cluster.run()
    assert [ready.value for ready in waiting if ready is not None] == [None] * 3
    assert {first.allocate(), second.allocate()} == {0, BLOCK_SIZE}


def test_a_broker_without_the_store_reports_the_error_to_every_waiting_request():
    cluster = Cluster()
    ids = cluster.add()
    cluster.stores[0].down = True
    errors = [ready.value for ready in (ids.wait(), ids.wait()) if ready is not None]
    assert [error.code for error in errors if error is not None] == [
        ErrorCode.KAFKA_STORAGE_ERROR
    ] * 2
    cluster.stores[0].down = False
    ready = ids.wait()
    assert ready is not None
    cluster.run()
    assert ready.value is None
    assert ids.allocate() == 0


def test_used_up_ids_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LAST_ID", BLOCK_SIZE)
    cluster = Cluster(delay_ms=0)
    ids = cluster.add()
    assert [ids.allocate() for _ in range(BLOCK_SIZE)] == list(range(BLOCK_SIZE))
    ready = ids.wait()
    assert ready is not None
    assert ready.value is not None
    assert "used up" in str(ready.value.message)


def test_init_producer_id_waits_for_a_block():
    clock = Clock()
    delays = [0]
    store = SimulatedMetadataStore(timeline=Timeline(clock), delay_ms=lambda: delays[0])
    harness = BrokerHarness(metadata=store)
    delays[0] = 10
    pending = harness.send(InitProducerIdRequest(transactional_id=None))
    assert not pending.done
    harness.advance(10)
    assert not pending.done
    clock.run(store.timeline, 1_000)
    harness.advance(10)
    assert pending.response.producer_id == 0


def test_a_request_does_not_wait_if_the_store_is_in_the_process():
    harness = BrokerHarness(metadata=MemoryMetadataStore())
    assert harness.send(InitProducerIdRequest(transactional_id=None)).done
    harness.metadata.commit([], [Put(KEY, b'{"next_id":5000,"format":1}')])
    harness.restart()
    assert harness.call(InitProducerIdRequest(transactional_id=None)).producer_id == 5000
