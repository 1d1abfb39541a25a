"""Transactions, log directories and features: asyncio and blocking client, with an embedded broker and scripted
answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import headrace
from headrace.clients.admin.aio import Admin as AsyncAdmin
from headrace.clients.admin.blocking import Admin
from headrace.clients.flows.cluster_admin import describe_log_dirs
from headrace.clients.flows.transaction_admin import (
    ProducerState,
    describe_transaction,
    find_hanging,
    list_transactions,
)
from headrace.embedded.clock import ManualClock
from headrace.errors import ApiError, ErrorCode, ProducerFencedError, ProtocolError
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from headrace.protocol.messages.describe_producers import DescribeProducersResponse
from headrace.protocol.messages.describe_producers import (
    PartitionResponse as ProducersOfPartition,
)
from headrace.protocol.messages.describe_producers import ProducerState as WireProducer
from headrace.protocol.messages.describe_producers import TopicResponse as ProducersOfTopic
from headrace.protocol.messages.describe_transactions import (
    DescribeTransactionsResponse,
    TopicData,
)
from headrace.protocol.messages.describe_transactions import TransactionState as Described
from headrace.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from headrace.protocol.messages.list_transactions import ListTransactionsResponse
from headrace.protocol.messages.list_transactions import TransactionState as Listed
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.types import TopicPartition
from tests.unit.clients.scripted import ScriptedDriver, known_state, metadata_response

LAYOUT = {"t": {0: 1, 1: 2}}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def scripted(**answers: Any) -> ScriptedDriver:
    """Answers by the name of the request's class: one for all brokers, by node id, or one after the other."""

    def answer(call: Any) -> Any:
        if isinstance(call.request, MetadataRequest):
            return metadata_response(LAYOUT)
        if isinstance(call.request, FindCoordinatorRequest):
            key = call.request.key
            assert call.request.key_type == 1
            found = [Coordinator(key=key, node_id=2, host="b2", port=9002)]
            return FindCoordinatorResponse(coordinators=found)
        found = answers[type(call.request).__name__]
        if isinstance(found, dict):
            return found[call.node]
        return found.pop(0) if isinstance(found, list) else found

    return ScriptedDriver(answer)


def of_producers(*producers: WireProducer, partition: int = 0) -> DescribeProducersResponse:
    described = ProducersOfPartition(partition_index=partition, active_producers=list(producers))
    return DescribeProducersResponse(topics=[ProducersOfTopic(name="t", partitions=[described])])


def test_the_asyncio_and_the_blocking_client_with_a_broker() -> None:
    with headrace.Broker() as broker, Admin(broker) as admin:
        broker.create_topic("t", partitions=1)
        producer = headrace.Producer(broker, transactional_id="x", serde="bytes")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"half").result(10)

        [listed] = admin.transactions(states=["Ongoing"])
        assert admin.transactions(producer_ids=[listed.producer_id + 1]) == []
        assert admin.transactions(longer_than_ms=3_600_000) == []
        described = admin.describe_transaction("x")
        assert (described.state, described.partitions) == ("Ongoing", (T0,))
        assert described.start_time_ms is not None
        [state] = admin.producers(T0)
        assert (state.producer_id, state.transaction_start_offset) == (listed.producer_id, 0)
        assert admin.hanging_transactions("t", idle_ms=0) == []

        async def with_the_asyncio_client() -> None:
            async with AsyncAdmin(broker) as asyncio_admin:
                assert await asyncio_admin.transactions() == [listed]
                assert await asyncio_admin.describe_transaction("x") == described
                assert await asyncio_admin.producers(T0) == [state]
                assert await asyncio_admin.hanging_transactions(idle_ms=0) == []
                assert await asyncio_admin.features() == admin.features()
                assert await asyncio_admin.log_dirs() == admin.log_dirs()
                with pytest.raises(ApiError) as failure:
                    await asyncio_admin.abort_hanging_transaction(T0, 9)
                assert failure.value.code == ErrorCode.INVALID_TXN_STATE
                await asyncio_admin.fence_producer("x")

        asyncio.run(with_the_asyncio_client())
        with pytest.raises(ProducerFencedError):
            producer.commit_transaction()
        producer.close()
        assert admin.describe_transaction("x").start_time_ms is None

        assert admin.features().is_headrace
        levels = {each.name: each.level for each in admin.features().features}
        assert levels == {"group.version": 1, "transaction.version": 2}
        [directory] = admin.log_dirs()
        assert directory.sizes[T0] > 0
        assert directory.total_bytes is None


def test_transactions_that_have_ended_are_not_open_for_long() -> None:
    """Brokers continue to count the duration of an ended transaction, as Kafka does, and idle ids have any duration."""
    clock = ManualClock()
    with headrace.Broker(clock=clock) as broker, Admin(broker) as admin:
        broker.create_topic("t", partitions=1)
        producers = {
            name: headrace.Producer(broker, transactional_id=name, transaction_timeout_ms=600_000)
            for name in ("idle", "ended", "open")
        }
        for name, producer in producers.items():
            producer.init_transactions()
            if name != "idle":
                producer.begin_transaction()
                producer.send("t", b"v").result(10)
        producers["ended"].commit_transaction()
        clock.advance_to(clock.now_ms() + 60_000)
        long = admin.transactions(longer_than_ms=30_000)
        assert [(each.transactional_id, each.state) for each in long] == [("open", "Ongoing")]
        assert admin.transactions(longer_than_ms=90_000) == []
        assert len(admin.transactions()) == 3
        producers["open"].abort_transaction()
        for producer in producers.values():
            producer.close()


def test_an_unknown_transactional_id_is_refused_and_not_created() -> None:
    with headrace.Broker() as broker, Admin(broker) as admin:
        for call in (admin.fence_producer, admin.describe_transaction):
            with pytest.raises(ApiError) as failure:
                call("missing")
            assert failure.value.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert admin.transactions() == []
        with pytest.raises(ApiError, match="no state of transactions is called Open"):
            admin.transactions(states=["Open"])


def test_every_broker_is_asked_for_its_transactions() -> None:
    def listing(name: str) -> ListTransactionsResponse:
        state = Listed(transactional_id=name, producer_id=7, transaction_state="Ongoing")
        return ListTransactionsResponse(transaction_states=[state])

    driver = scripted(ListTransactionsRequest={1: listing("b"), 2: listing("a")})
    found = driver.run(list_transactions(known_state(LAYOUT)))
    assert [(each.transactional_id, each.coordinator) for each in found] == [("a", 2), ("b", 1)]
    refusal = ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    driver = scripted(ListTransactionsRequest={1: listing("b"), 2: refusal})
    with pytest.raises(ApiError, match="broker 2"):
        driver.run(list_transactions(known_state(LAYOUT)))


def test_a_coordinator_that_moved_is_looked_for() -> None:
    def described(error: ErrorCode) -> DescribeTransactionsResponse:
        state = Described(error_code=error, transactional_id="x", transaction_state="Empty")
        return DescribeTransactionsResponse(transaction_states=[state])

    answers = [described(ErrorCode.NOT_COORDINATOR), described(ErrorCode.NONE)]
    driver = scripted(DescribeTransactionsRequest=answers)
    assert driver.run(describe_transaction(known_state(LAYOUT), "x")).state == "Empty"
    assert len(driver.requests(FindCoordinatorRequest)) == 2
    driver = scripted(DescribeTransactionsRequest=DescribeTransactionsResponse())
    with pytest.raises(ProtocolError, match="no result for transactional id 'x'"):
        driver.run(describe_transaction(known_state(LAYOUT), "x"))


def test_hanging_transactions_are_found() -> None:
    def wire(producer_id: int, start: int, last_ms: int) -> WireProducer:
        return WireProducer(
            producer_id=producer_id, last_timestamp=last_ms, current_txn_start_offset=start
        )

    producers = [
        wire(1, 10, 500),  # no coordinator knows it
        wire(2, 20, 500),  # its coordinator knows of the partition
        wire(3, 30, 500),  # its coordinator does not
        wire(4, -1, 500),  # nothing is open
        wire(5, 50, 1_000),  # its last record is too new
    ]
    listed = [
        Listed(transactional_id=f"x{number}", producer_id=number, transaction_state="Ongoing")
        for number in (2, 3)
    ]
    described = [
        DescribeTransactionsResponse(
            transaction_states=[
                Described(
                    transactional_id=f"x{number}",
                    producer_id=number,
                    topics=[TopicData(topic="t", partitions=[partition])],
                )
            ]
        )
        for number, partition in ((2, 0), (3, 1))
    ]
    driver = scripted(
        DescribeProducersRequest=of_producers(*producers),
        ListTransactionsRequest=ListTransactionsResponse(transaction_states=listed),
        DescribeTransactionsRequest=described,
    )
    found = driver.run(find_hanging(known_state(LAYOUT), [T0], idle_since_ms=1_000))
    assert [(each.producer.producer_id, each.transactional_id) for each in found] == [
        (1, None),
        (3, "x3"),
    ]
    assert found[0].producer == ProducerState(1, 0, -1, 500, 0, 10)
    quiet = scripted(DescribeProducersRequest=of_producers(wire(4, -1, 5)))
    assert quiet.run(find_hanging(known_state(LAYOUT), [T0], idle_since_ms=9)) == []
    assert scripted().run(find_hanging(known_state(LAYOUT), [], idle_since_ms=9)) == []


def test_a_transaction_that_does_not_hang_is_not_ended_in_one_of_its_partitions() -> None:
    """The marker would abort its records in this partition, while its other records could be committed."""
    with headrace.Broker() as broker, Admin(broker) as admin:
        broker.create_topic("t", partitions=2)
        with headrace.Producer(broker, transactional_id="x", serde="bytes") as producer:
            producer.begin_transaction()
            for partition in (0, 1):
                producer.send("t", b"half", partition=partition).result(10)
            with pytest.raises(ApiError, match="'x' has it open") as failure:
                admin.abort_hanging_transaction(T0, 0)
            assert failure.value.code == ErrorCode.INVALID_TXN_STATE
            producer.commit_transaction()
        assert [len(broker.read("t", partition, 0)) for partition in (0, 1)] == [1, 1]


def test_log_directories_of_every_broker() -> None:
    def answer(path: str, **fields: Any) -> DescribeLogDirsResponse:
        sizes = [
            DescribeLogDirsPartition(partition_index=0, partition_size=5),
            DescribeLogDirsPartition(partition_index=1, partition_size=9, is_future_key=True),
        ]
        topic = DescribeLogDirsTopic(name="t", partitions=sizes)
        return DescribeLogDirsResponse(
            results=[DescribeLogDirsResult(log_dir=path, topics=[topic], **fields)]
        )

    failed = answer("b", error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    driver = scripted(DescribeLogDirsRequest={1: answer("a", total_bytes=100), 2: failed})
    first, second = driver.run(describe_log_dirs(known_state(LAYOUT)))
    assert (first.broker, first.path, first.total_bytes, first.usable_bytes) == (1, "a", 100, None)
    assert first.sizes == {T0: 5}
    assert (second.broker, second.error) == (2, ErrorCode.KAFKA_STORAGE_ERROR)
    refusal = DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(ApiError, match="log directories of 1"):
        scripted(DescribeLogDirsRequest=refusal).run(describe_log_dirs(known_state(LAYOUT)))
