"""A failing metadata store: the broker returns an error that clients understand, and no change is incomplete.

Every change is tried with every fault. In the end the broker always knows exactly what is stored: a new process over
the same store finds the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.quotas.client_quotas import Entity
from headrace.errors import ErrorCode, StorageError
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.metadata_stores.sessions import Fault, SimulatedMetadataStore
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.metadata_stores import stored

NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT
NOT_STORED = ErrorCode.KAFKA_STORAGE_ERROR


class Harness(BrokerHarness):
    metadata: SimulatedMetadataStore  # type: ignore[mutable-override]  # only this class sets it


@pytest.fixture
def harness() -> Harness:
    made = Harness(metadata=SimulatedMetadataStore())
    made.create_topic("t", partitions=2, retention_ms="1000")
    made.produce("t", b"a")
    return made


def create(harness: Harness):
    topic = CreatableTopic(
        name="new",
        num_partitions=3,
        replication_factor=1,
        configs=[CreatableTopicConfig(name="retention.ms", value="5")],
    )
    return harness.call(CreateTopicsRequest(topics=[topic])).topics[0].error_code


def grow(harness: Harness):
    row = CreatePartitionsTopic(name="t", count=4, assignments=None)
    return harness.call(CreatePartitionsRequest(topics=[row])).results[0].error_code


def _configure(harness: Harness, kind: int, name: str, config: str):
    change = AlterableConfig(name=config, config_operation=0, value="77")
    row = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])
    request = IncrementalAlterConfigsRequest(resources=[row])
    return harness.call(request).responses[0].error_code


def configure_topic(harness: Harness):
    return _configure(harness, 2, "t", "retention.ms")


def configure_broker(harness: Harness):
    return _configure(harness, 4, "1", "log.retention.bytes")


def set_quota(harness: Harness):
    row = AlterClientQuotasRequestEntryData(
        entity=[AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name="c")],
        ops=[OpData(key="producer_byte_rate", value=9.0)],
    )
    return harness.call(AlterClientQuotasRequest(entries=[row])).entries[0].error_code


def delete(harness: Harness):
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
    return harness.call(request).responses[0].error_code


CHANGES = (create, grow, configure_topic, configure_broker, set_quota, delete)
Change = Callable[[Harness], int]
every_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


def known(harness: Harness) -> Any:
    """Return everything that the broker serves and that the changes change."""
    return (
        {
            topic.name: (topic.topic_id, topic.partitions_count, topic.settings, topic.config)
            for topic in harness.broker.services.topics
        },
        harness.broker.config,
        dict(harness.broker.services.settings.layers.broker),
        dict(harness.broker.services.quotas.get(Entity(None, "c"))),
        sorted(harness.files.list("")) if "t" not in names(harness) else None,
    )


def names(harness: Harness) -> list[str]:
    return [topic.name for topic in harness.broker.services.topics]


def assert_stored(harness: Harness) -> None:
    """Check that a new process finds the same."""
    here = known(harness)
    harness.restart()
    there = known(harness)
    assert there[:4] == here[:4]


@every_change
@pytest.mark.parametrize("fault", ["unavailable", "unknown and void", "unknown and late"])
def test_a_change_that_is_not_stored_is_an_error_and_has_no_effect(
    harness: Harness, change: Change, fault: Fault
) -> None:
    before = known(harness)
    harness.metadata.faults = [fault]
    assert change(harness) == NOT_STORED
    assert known(harness) == before
    assert harness.metadata.land() == 0, "what arrives late is void"
    assert change(harness) == NONE
    assert known(harness) != before
    assert_stored(harness)


@every_change
def test_a_change_that_is_stored_without_a_response_is_a_success(
    harness: Harness, change: Change
) -> None:
    before = known(harness)
    harness.metadata.faults = ["unknown and applied"]
    assert change(harness) == NONE
    assert known(harness) != before
    assert_stored(harness)


@every_change
@pytest.mark.parametrize(
    ("fault", "lands"),
    [("unknown and void", False), ("unknown and late", False), ("unknown and late", True)],
)
def test_a_commit_of_unknown_outcome_blocks_changes_until_it_is_settled(
    harness: Harness, change: Change, fault: Fault, *, lands: bool
) -> None:
    store, before = harness.metadata, known(harness)
    store.faults = [fault]
    answered = store.commit

    def and_then_down(checks, operations):
        store.commit = answered  # type: ignore[method-assign] # the first commit takes the store down
        try:
            return answered(checks, operations)
        finally:
            store.down = True
            if lands:
                store.land()

    store.commit = and_then_down  # type: ignore[method-assign] # the first commit takes the store down
    assert change(harness) == UNKNOWN
    for other in CHANGES:
        assert other(harness) == UNKNOWN
    harness.advance(5_000)
    assert known(harness) == before
    assert harness.produce("t", b"b").error_code == NONE, "what needs no metadata goes on"
    store.down = False
    harness.advance(1_000)
    assert (known(harness) != before) == lands
    assert store.land() == 0
    if not lands:
        assert change(harness) == NONE
    assert_stored(harness)


@every_change
def test_a_commit_that_arrives_before_it_is_checked_is_applied(
    harness: Harness, change: Change
) -> None:
    store, before = harness.metadata, known(harness)
    store.faults = ["unknown and late"]
    commit = store.commit

    def just_in_time(checks, operations):
        store.land()
        return commit(checks, operations)

    store.commit = just_in_time  # type: ignore[method-assign]  # the late commit arrives before the second one
    assert change(harness) == NONE
    assert known(harness) != before
    assert_stored(harness)


@every_change
def test_the_commit_that_makes_another_void_may_be_unknown_as_well(
    harness: Harness, change: Change
) -> None:
    for voiding in ("unknown and applied", "unknown and void", "unknown and late"):
        before = known(harness)
        harness.metadata.faults = ["unknown and late", voiding]
        assert change(harness) == UNKNOWN
        harness.advance(2_000)
        assert known(harness) == before
        assert harness.metadata.land() == 0
    assert change(harness) == NONE
    assert_stored(harness)


@every_change
def test_a_lost_session_is_renewed(harness: Harness, change: Change) -> None:
    before = known(harness)
    harness.metadata.lose_session()
    assert change(harness) == NOT_STORED
    assert known(harness) == before
    assert harness.metadata.session.number == 2
    assert change(harness) == NONE
    assert_stored(harness)


@pytest.mark.parametrize(
    "fault", ["unavailable", "unknown and void", "unknown and late", "unknown and applied"]
)
def test_a_producer_id_is_allocated_once_despite_store_faults(
    harness: Harness, fault: Fault
) -> None:
    def next_id() -> tuple[int, int]:
        answer = harness.call(InitProducerIdRequest(transactional_id=None))
        return answer.error_code, answer.producer_id

    given = []
    for _ in range(3):
        harness.metadata.faults = [fault]
        code, number = next_id()
        if code != NONE:
            assert code == NOT_STORED
            harness.metadata.land()
            code, number = next_id()
        assert code == NONE
        given.append(number)
        harness.restart()
    assert len(set(given)) == 3
    harness.metadata.down = True
    harness.broker.services.producer_ids._end = harness.broker.services.producer_ids._next
    assert next_id()[0] == NOT_STORED


@every_change
def test_only_the_latest_process_of_a_broker_changes_anything(
    harness: Harness, change: Change
) -> None:
    old = harness.broker
    harness.crash()
    new, before = harness.broker, known(harness)
    harness.broker = old
    assert change(harness) not in {NONE, UNKNOWN}
    harness.broker = new
    assert known(harness) == before
    assert change(harness) == NONE
    assert_stored(harness)


def test_a_start_without_the_store_raises_an_error() -> None:
    store = SimulatedMetadataStore()
    store.down = True
    with pytest.raises(StorageError, match="down"):
        BrokerHarness(metadata=store)


def test_a_start_whose_first_commit_is_unknown_can_be_repeated() -> None:
    store = SimulatedMetadataStore()
    store.faults = ["unknown and applied"]
    with pytest.raises(StorageError):
        BrokerHarness(metadata=store)
    assert BrokerHarness(metadata=store).create_topic("t").error_code == NONE


@pytest.mark.parametrize("fault", ["unknown and applied", "unknown and void", "unknown and late"])
def test_a_start_finds_out_the_outcome_of_its_later_commits(fault: Fault) -> None:
    for number in range(1, 3):
        store = SimulatedMetadataStore()
        before: list[Fault] = ["none"] * number
        store.faults = [*before, fault]
        if fault == "unknown and applied":
            assert BrokerHarness(metadata=store).create_topic("t").error_code == NONE
            continue
        with pytest.raises(StorageError, match="did not take the change"):
            BrokerHarness(metadata=store)
        assert store.land() == 0
        assert BrokerHarness(metadata=store).create_topic("t").error_code == NONE


def test_a_store_that_never_fails_is_never_asked_twice() -> None:
    harness = BrokerHarness(metadata=MemoryMetadataStore())
    harness.create_topic("first")
    before = stored(harness.metadata).get("brokers/commit/1")
    harness.create_topic("t")
    after = stored(harness.metadata).get("brokers/commit/1")
    assert before is not None
    assert after is not None
    assert after.version == before.version + 1
    assert harness.broker.next_deadline_ms is None or harness.broker.next_deadline_ms > 0
