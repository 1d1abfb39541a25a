"""A power failure loses the marker of a transaction in a partition that is synced after the acknowledgement."""

from __future__ import annotations

import pytest

from headrace.broker.coordinators import loading
from headrace.broker.waiting.steps import STEP_COST
from headrace.errors import ErrorCode
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.crash_files import CrashFileSystem
from tests.fixtures.transactional_producer import (
    OPTIONS,
    Producer,
    committed_values,
    settle,
)


def broker(durability: str) -> BrokerHarness:
    harness = BrokerHarness(files=CrashFileSystem(), metadata=MemoryMetadataStore(), **OPTIONS)
    harness.create_topic("t", partitions=2, headrace_durability=durability)
    for kind, key in ((0, "g"), (1, "id")):
        harness.call(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]))
    return harness


def sync_records(harness: BrokerHarness) -> None:
    """Write the content of the partitions to the disk, as the operating system may do at any time."""
    for index in (0, 1):
        log = harness.broker.services.partitions.require("t", index).log
        task = log.start_sync()
        if task is not None:
            task.run()
            log.finish_sync(task)


def power_cut(harness: BrokerHarness, seed: int) -> None:
    assert isinstance(harness.files, CrashFileSystem)
    harness.files = harness.files.after_power_cut(seed)
    harness.crash()


@pytest.mark.parametrize("durability", ["fsync", "os", "interval:60000"])
@pytest.mark.parametrize("committed", [True, False])
def test_readers_of_committed_records_do_not_wait_for_a_marker_that_is_lost(
    durability: str, *, committed: bool
) -> None:
    lost = 0
    for seed in range(20):
        harness = broker(durability)
        producer = Producer(harness)
        producer.add(0)
        producer.send(b"before", 0)
        sync_records(harness)
        producer.end(committed=committed)
        settle(harness)
        power_cut(harness, seed)
        settle(harness)
        log = harness.broker.services.partitions.require("t", 0).log
        assert not log.producers.transactions.open
        assert log.last_stable_offset == log.log_end_offset
        found = committed_values(harness, 0)
        if "transaction_without_outcome" in harness.journal.events("warning"):
            assert durability != "fsync"
            assert found == []
            lost += 1
        else:
            assert found == ([b"before"] if committed else [])
        # The producer and its readers continue.
        again = Producer(harness)
        again.add(0)
        assert again.send(b"after", 0) == 0
        assert again.end() == 0
        settle(harness)
        assert committed_values(harness, 0)[-1] == b"after"
    assert (lost > 0) is (durability != "fsync")


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_transaction_that_is_open_stays_open_over_a_start(durability: str) -> None:
    harness = broker(durability)
    producer = Producer(harness)
    producer.add(0, 1)
    producer.send(b"a", 0)
    producer.send(b"b", 1)
    settle(harness)
    harness.crash()
    settle(harness)
    for index in (0, 1):
        assert harness.broker.services.partitions.require(
            "t", index
        ).log.producers.transactions.open
    assert producer.end() == 0
    settle(harness)
    assert (committed_values(harness, 0), committed_values(harness, 1)) == ([b"a"], [b"b"])
    assert "transaction_without_outcome" not in harness.journal.events("warning")


def test_no_transaction_begins_until_the_lost_markers_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker would abort the new transaction of a producer with the old one, whose marker is lost."""
    monkeypatch.setattr(loading, "LOADED_AT_START", 0)
    monkeypatch.setattr(loading, "PAUSE_COST", STEP_COST)
    lost = refused = 0
    for seed in range(20):
        harness = broker("os")
        producer = Producer(harness)
        producer.add(0)
        producer.send(b"before", 0)
        sync_records(harness)
        producer.end()
        settle(harness)
        power_cut(harness, seed)
        log = harness.broker.services.partitions.require("t", 0).log
        lost += bool(log.producers.transactions.open)
        while True:
            is_open = bool(log.producers.transactions.open)
            if producer.add(0) != [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]:
                break
            refused += 1
            harness.step()
        assert not is_open
        producer.sequences[0] = int(bool(log.producers.get(producer.id)))
        assert producer.send(b"after", 0) == 0
        assert producer.end() == 0
        settle(harness)
        assert committed_values(harness, 0)[-1] == b"after"
    assert lost > 0
    assert refused > 0
