"""Transactions of a producer with a broker that refuses requests, loses responses and forgets producers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import headrace
from headrace import TopicPartition
from headrace.clients.consumer.group_metadata import GroupMetadata
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.producer import core
from headrace.clients.producer.blocking_transaction import Transaction
from headrace.clients.producer.transaction_states import State
from headrace.errors import (
    AbortableTransactionError,
    ApiError,
    ClosedError,
    CommitInDoubtError,
    ConfigError,
    FatalTransactionError,
    HeadraceError,
    ProducerFencedError,
    TransactionStateError,
    TransportError,
)
from headrace.protocol.api_keys import ApiKey
from headrace.testing import Broker
from headrace.testing.faults import delay, drop_connection, error
from headrace.testing.interception import Exchange

NO_PRODUCER = GroupMetadata("g", -1, "", None)
"""The metadata of a consumer without a group membership."""
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
QUICK: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 5, "retry_backoff_max_ms": 20}


@pytest.fixture(params=["classic", "newest"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker of each transaction protocol."""
    with Broker() as broker:
        if request.param == "classic":
            broker.faults.max_versions("3.9")
        broker.create_topic("t", partitions=2)
        yield broker


@pytest.fixture
def producer(broker: Broker) -> Iterator[headrace.Producer]:
    with_id = make(broker)
    yield with_id
    with_id.close(0)


def make(broker: Broker, name: str = "tx", **options: Any) -> headrace.Producer:
    return headrace.Producer(broker, transactional_id=name, **{**QUICK, **options})


def committed(broker: Broker, partition: int | None = None) -> list[bytes | None]:
    consumer = headrace.Consumer(
        broker, auto_offset_reset="earliest", isolation_level="read_committed", fetch_max_wait_ms=1
    )
    with consumer:
        names = [ZERO, ONE] if partition is None else [TopicPartition("t", partition)]
        consumer.assign(names)
        ends = consumer.end_offsets(names)
        found = []
        while any((consumer.position(name) or 0) < ends[name] for name in names):
            found += [record.value for record in consumer.poll(0.1)]
        return found


def identity(producer: headrace.Producer | headrace.aio.Producer) -> tuple[int, int]:
    transactions = producer._core.transactions
    assert transactions is not None
    known = transactions._who.identity
    return known.producer_id, known.producer_epoch


def is_classic(producer: headrace.Producer) -> bool:
    transactions = producer._core.transactions
    assert transactions is not None
    return not transactions._who.per_transaction


def transact(producer: headrace.Producer, *values: bytes, partition: int = 0) -> None:
    with producer.transaction():
        for value in values:
            producer.send("t", value, partition=partition)


def abort(producer: headrace.Producer, *values: bytes) -> None:
    with suppress(KeyError), producer.transaction():
        for value in values:
            producer.send("t", value, partition=0)
        producer.flush()
        raise KeyError


def transact_with_offsets(producer: headrace.Producer, value: bytes, offset: int) -> None:
    with producer.transaction() as transaction:
        producer.send("t", value, partition=0)
        producer.send("t", value, partition=1)
        transaction.send_offsets({ZERO: offset}, NO_PRODUCER)


def commit_offset(producer: headrace.Producer, offsets: Any, who: Any = NO_PRODUCER) -> None:
    with producer.transaction() as transaction:
        transaction.send_offsets(offsets, who)


def test_committed_records_are_read_and_aborted_records_are_not(broker, producer) -> None:
    transact(producer, b"1", b"2")
    abort(producer, b"no")
    transact(producer, b"3")
    assert committed(broker, 0) == [b"1", b"2", b"3"]
    assert [record.value for record in broker.messages("t")] == [b"1", b"2", b"3"]
    everything = broker.messages("t", isolation_level="read_uncommitted")
    assert [record.value for record in everything] == [b"1", b"2", b"no", b"3"]


def test_an_empty_transaction_asks_for_nothing(broker, producer) -> None:
    producer.init_transactions()
    ends = broker.faults.on(ApiKey.END_TXN, error("UNKNOWN_SERVER_ERROR"))
    with producer.transaction():
        pass
    abort(producer)
    assert ends.hits == 0


def test_a_transaction_block_accepts_an_explicit_commit_or_abort(broker, producer) -> None:
    with producer.transaction():
        producer.send("t", b"no", partition=0)
        producer.abort_transaction()
    with producer.transaction():
        producer.send("t", b"yes", partition=0)
        producer.commit_transaction()
    assert committed(broker, 0) == [b"yes"]


def test_records_belong_to_transactions(producer) -> None:
    with pytest.raises(TransactionStateError, match=r"with producer\.transaction"):
        producer.send("t", b"x")
    with pytest.raises(TransactionStateError, match=r"with producer\.transaction"):
        producer.send_many("t", [b"x"])
    producer.begin_transaction()
    with pytest.raises(TransactionStateError, match="a transaction already"):
        producer.begin_transaction()
    producer.commit_transaction()
    with pytest.raises(TransactionStateError, match="no transaction to commit"):
        producer.commit_transaction()
    with pytest.raises(TransactionStateError, match="no transaction to abort"):
        producer.abort_transaction()
    with pytest.raises(TransactionStateError, match="begin_transaction"):
        producer.send_offsets_to_transaction({ZERO: 1}, NO_PRODUCER)


def test_contradicting_settings_are_refused_at_once(broker) -> None:
    with pytest.raises(ConfigError, match="acks=all"):
        make(broker, acks=1)
    with pytest.raises(ConfigError, match="idempotence"):
        make(broker, idempotence=False)
    with pytest.raises(ConfigError, match="empty text"):
        make(broker, "")
    with headrace.Producer(broker) as plain, pytest.raises(ConfigError, match="transactional_id"):
        plain.transaction()
    consumer = headrace.Consumer(broker, group="g")
    with make(broker) as producer, consumer, pytest.raises(ConfigError, match="by itself"):
        commit_offset(producer, {ZERO: 1}, consumer)


def test_a_second_producer_shuts_the_first_out(broker, producer) -> None:
    transact(producer, b"1")
    producer.begin_transaction()
    producer.send("t", b"zombie", partition=0)
    producer.flush()
    with make(broker, client_id="second") as second:
        transact(second, b"2")
    with pytest.raises(
        ProducerFencedError, match=r"^another producer .* Close this producer"
    ) as shut_out:
        producer.commit_transaction()
    assert not shut_out.value.timed_out
    with pytest.raises(ProducerFencedError):
        producer.begin_transaction()
    with pytest.raises(ProducerFencedError):
        producer.send("t", b"zombie")
    assert committed(broker, 0) == [b"1", b"2"]


def test_the_end_of_a_transaction_raises_that_the_producer_was_fenced(broker, producer) -> None:
    transact(producer, b"1")
    with make(broker) as second:
        second.init_transactions()

    def write() -> None:
        with producer.transaction():
            fate = producer.send("t", b"zombie", partition=0)
            with suppress(HeadraceError):
                fate.result(5)

    with pytest.raises(ProducerFencedError):
        write()
    assert committed(broker, 0) == [b"1"]


@pytest.mark.parametrize(
    ("api", "passing"),
    [
        (ApiKey.INIT_PRODUCER_ID, "CONCURRENT_TRANSACTIONS"),
        (ApiKey.END_TXN, "COORDINATOR_LOAD_IN_PROGRESS"),
        (ApiKey.TXN_OFFSET_COMMIT, "NOT_COORDINATOR"),
    ],
)
def test_retriable_errors_are_retried(broker, producer, api, passing) -> None:
    fault = broker.faults.on(api, error(passing), times=3)
    with producer.transaction() as transaction:
        producer.send("t", b"1", partition=0)
        transaction.send_offsets({ZERO: 7}, NO_PRODUCER)
    assert fault.hits == 3
    assert committed(broker, 0) == [b"1"]
    assert broker.committed("g") == {ZERO: 7}


def test_a_batch_that_comes_too_early_is_sent_again_soon(broker, producer) -> None:
    fault = broker.faults.on(ApiKey.PRODUCE, error("CONCURRENT_TRANSACTIONS"), times=3)
    transact(producer, b"1")
    assert fault.hits == 3
    assert committed(broker, 0) == [b"1"]


@pytest.mark.parametrize("passing", ["NOT_LEADER_OR_FOLLOWER", "CONCURRENT_TRANSACTIONS"])
def test_batches_behind_one_that_is_sent_again_are_too(broker: Broker, passing: str) -> None:
    """(1) Several batches are in flight. (2) The first must be sent again. (3) The next ones are out of order then."""
    options = {**QUICK, "batch_size": 1000}
    with headrace.Producer(broker.bootstrap, transactional_id="tx", **options) as producer:
        with producer.transaction():
            producer.send("t", b"0", partition=0).result(5)  # from then on several may be in flight
            fault = broker.faults.on(ApiKey.PRODUCE, once=error(passing))
            values = [b"%d" % n + bytes(600) for n in range(9)]
            producer.send_many("t", values, partition=0)
        assert fault.hits == 1
    assert committed(broker, 0) == [b"0", *values]


REFUSALS = [
    (ApiKey.PRODUCE, "TRANSACTION_ABORTABLE"),
    (ApiKey.PRODUCE, "TOPIC_AUTHORIZATION_FAILED"),
    (ApiKey.PRODUCE, "INVALID_PRODUCER_EPOCH"),
    (ApiKey.PRODUCE, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
    (ApiKey.PRODUCE, "UNKNOWN_PRODUCER_ID"),
    (ApiKey.TXN_OFFSET_COMMIT, "TRANSACTION_ABORTABLE"),
    (ApiKey.TXN_OFFSET_COMMIT, "ILLEGAL_GENERATION"),
    (ApiKey.TXN_OFFSET_COMMIT, "UNKNOWN_MEMBER_ID"),
    (ApiKey.TXN_OFFSET_COMMIT, "GROUP_AUTHORIZATION_FAILED"),
    (ApiKey.END_TXN, "TRANSACTION_ABORTABLE"),
]


@pytest.mark.parametrize(("api", "refusal"), REFUSALS)
def test_the_producer_works_after_an_abortable_error(broker, producer, api, refusal) -> None:
    transact(producer, b"1")
    before = identity(producer)
    broker.faults.on(api, once=error(refusal))
    with pytest.raises(AbortableTransactionError, match="do it again") as raised:
        transact_with_offsets(producer, b"no", 7)
    assert isinstance(raised.value.__cause__, ApiError)
    assert raised.value.__cause__.code.name == refusal
    transact_with_offsets(producer, b"2", 8)
    assert committed(broker) == [b"1", b"2", b"2"]
    assert broker.committed("g") == {ZERO: 8}
    if api is ApiKey.PRODUCE:
        assert identity(producer) > before, "what was sent and failed must not come later"


@pytest.mark.parametrize(
    ("api", "refusal"),
    [
        (ApiKey.INIT_PRODUCER_ID, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
        (ApiKey.TXN_OFFSET_COMMIT, "INVALID_PRODUCER_EPOCH"),
        (ApiKey.END_TXN, "PRODUCER_FENCED"),
    ],
)
def test_a_fatal_error_ends_the_producer(broker, producer, api, refusal) -> None:
    broker.faults.on(api, error(refusal))
    with pytest.raises(FatalTransactionError, match=r"Close (this producer|it)") as raised:
        transact_with_offsets(producer, b"no", 7)
    assert isinstance(raised.value, ProducerFencedError) == (api is not ApiKey.INIT_PRODUCER_ID)
    broker.faults.clear()
    with pytest.raises(FatalTransactionError):
        producer.begin_transaction()
    producer.close()


def test_a_doomed_transaction_takes_no_records_and_answers_for_those_it_has(
    broker, producer
) -> None:
    broker.faults.on(ApiKey.PRODUCE, once=error("TRANSACTION_ABORTABLE"))
    producer.begin_transaction()
    fate = producer.send("t", b"1", partition=0)
    with pytest.raises(ApiError, match="TRANSACTION_ABORTABLE"):
        fate.result(5)
    with pytest.raises(AbortableTransactionError):
        producer.send("t", b"2", partition=0)
    with pytest.raises(AbortableTransactionError):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.flush()  # the failure was reported
    transact(producer, b"3")
    assert committed(broker) == [b"3"]


def test_a_commit_with_a_lost_response_is_retried_and_raises_the_epoch(broker, producer) -> None:
    transact(producer, b"1")
    before = identity(producer)
    broker.faults.on(ApiKey.END_TXN, once=drop_connection(handled=True))
    transact(producer, b"2")
    transact(producer, b"3")
    assert committed(broker) == [b"1", b"2", b"3"]
    assert identity(producer) > before


def test_a_classic_producer_keeps_its_epoch_without_lost_responses(broker, producer) -> None:
    transact(producer, b"1")
    before = identity(producer)
    transact(producer, b"2")
    abort(producer)
    assert (identity(producer) == before) == is_classic(producer)


def test_a_late_end_of_a_transaction_does_not_end_the_next(broker, producer) -> None:
    transact(producer, b"1")
    late: list[Exchange] = []

    def hold(exchange: Exchange) -> Any:
        late.append(exchange)
        raise_lost = drop_connection()
        return raise_lost(exchange)

    broker.faults.on(ApiKey.END_TXN, once=hold)
    abort(producer, b"no")
    with producer.transaction():
        producer.send("t", b"2", partition=0)
        producer.flush()
        with broker._runtime.condition:
            late[0].proceed()  # an abort, where it finds a transaction of its own
            broker._runtime.pump()
    assert committed(broker) == [b"1", b"2"]


def test_an_unconfirmed_commit_is_in_doubt_until_it_is_repeated(broker, producer) -> None:
    transact(producer, b"1")
    lost = broker.faults.on(ApiKey.END_TXN, drop_connection(handled=True))
    producer.begin_transaction()
    producer.send("t", b"2", partition=0)
    with pytest.raises(CommitInDoubtError, match=r"Call commit_transaction\(\)"):
        producer.commit_transaction(0.2)
    with pytest.raises(TransactionStateError, match="cannot be taken back"):
        producer.abort_transaction()
    with pytest.raises(TransactionStateError, match="a transaction already"):
        producer.begin_transaction()
    lost.remove()
    producer.commit_transaction()
    assert committed(broker) == [b"1", b"2"]


def test_close_completes_a_commit_in_doubt_and_aborts_an_open_transaction(broker) -> None:
    first = make(broker)
    lost = broker.faults.on(ApiKey.END_TXN, drop_connection())
    first.begin_transaction()
    first.send("t", b"1", partition=0)
    with pytest.raises(CommitInDoubtError):
        first.commit_transaction(0.2)
    lost.remove()
    first.close()
    second = make(broker)
    second.begin_transaction()
    second.send("t", b"no", partition=0)
    second.flush()
    second.close()
    assert committed(broker) == [b"1"], "and the end is not held up by what is open"
    with pytest.raises(ClosedError):
        second.begin_transaction()


def test_close_with_a_commit_in_doubt_raises_an_error_with_a_remedy(broker, monkeypatch) -> None:
    monkeypatch.setattr(core, "LAST_ABORT_MS", 100)
    producer = make(broker)
    producer.begin_transaction()
    producer.send("t", b"1", partition=0)
    lost = broker.faults.on(ApiKey.END_TXN, drop_connection())
    with lost, pytest.raises(CommitInDoubtError, match="Call commit"):
        producer.commit_transaction(0.1)
    away = broker.faults.on(ApiKey.END_TXN, drop_connection())
    with away, pytest.raises(CommitInDoubtError, match=r"A new producer's init_transactions\(\)"):
        producer.close(0.1)


def test_an_interrupt_aborts_also_while_the_last_records_are_in_flight(
    broker, producer, monkeypatch
) -> None:
    def write() -> None:
        with producer.transaction():
            producer.send("t", b"no", partition=0)
            producer.flush()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    transactions = producer._core.transactions
    assert transactions is not None
    broker.faults.on(ApiKey.PRODUCE, once=delay(0.05))
    run = producer._driver.run
    interrupted: list[Any] = []

    def interrupt(flow: Any, timeout_ms: int | None = None) -> Any:
        if not interrupted and transactions.state is State.OPEN:
            interrupted.append(next(flow))  # it waits for its last records
            flow.close()
            raise KeyboardInterrupt
        return run(flow, timeout_ms)

    producer.begin_transaction()
    producer.send("t", b"no", partition=1)
    monkeypatch.setattr(producer._driver, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Transaction(producer).__exit__(None, None, None)
    monkeypatch.undo()
    assert interrupted
    assert transactions.state is State.NONE
    transact(producer, b"yes")
    assert committed(broker) == [b"yes"]


def test_a_coordinator_that_has_forgotten_the_producer_gives_it_a_new_identity(
    broker, producer
) -> None:
    transact(producer, b"1")
    for api in (ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN):
        broker.faults.on(api, once=error("INVALID_PRODUCER_ID_MAPPING"))
    with pytest.raises(AbortableTransactionError):
        commit_offset(producer, {ZERO: 7})
    before = identity(producer)
    transact(producer, b"2")
    assert identity(producer) > before
    assert committed(broker) == [b"1", b"2"]


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_reported(broker) -> None:
    with make(broker, transaction_timeout_ms=1000) as producer:
        producer.begin_transaction()
        producer.send("t", b"no", partition=0)
        producer.flush()
        broker.advance(30_000)
        with pytest.raises(ProducerFencedError, match=r"transaction\.timeout\.ms=1000") as late:
            producer.commit_transaction()
        assert late.value.timed_out
    with make(broker) as another:
        transact(another, b"yes")
    assert committed(broker) == [b"yes"]


def test_a_send_in_an_expired_transaction_raises_an_error_with_a_remedy(broker) -> None:
    def write(producer: headrace.Producer) -> None:
        with producer.transaction():
            producer.send("t", b"1", partition=0).result()
            broker.advance(30_000)
            producer.send("t", b"2", partition=0).result()

    with (
        make(broker, transaction_timeout_ms=1000) as producer,
        pytest.raises(ProducerFencedError, match="Close this producer"),
    ):
        write(producer)
    assert committed(broker) == []


def test_records_that_are_not_delivered_in_time_spoil_the_transaction(broker) -> None:
    with make(broker, delivery_timeout_ms=200, max_block_ms=30_000) as producer:
        transact(producer, b"1")
        away = broker.faults.on(ApiKey.PRODUCE, error("NOT_LEADER_OR_FOLLOWER"))
        with away, pytest.raises(AbortableTransactionError, match=r"delivery\.timeout\.ms"):
            transact(producer, b"no")
        transact(producer, b"2")
    assert committed(broker) == [b"1", b"2"]


def test_an_unreachable_broker_is_reported_as_such(broker, producer) -> None:
    away = broker.faults.on(ApiKey.INIT_PRODUCER_ID, drop_connection())
    with away, pytest.raises(TransportError):
        producer.init_transactions(0.1)
    producer.init_transactions()
    transact(producer, b"1")
    assert committed(broker) == [b"1"]


def test_batches_that_are_divided_stay_in_the_transaction(broker) -> None:
    producer = make(broker, linger_ms=1000)
    broker.faults.on(ApiKey.PRODUCE, once=error("MESSAGE_TOO_LARGE"))
    abort(producer, b"no", b"no", b"no", b"no")
    transact(producer, b"1")
    producer.close()
    assert committed(broker) == [b"1"]


def test_positions_of_a_consumer_are_committed_with_the_transaction(broker, producer) -> None:
    transact(producer, b"1", b"2")
    consumer = headrace.Consumer(
        broker, group="g", enable_auto_commit=False, auto_offset_reset="earliest"
    )
    with consumer:
        consumer.subscribe(["t"])
        while not consumer.poll(0.1):
            pass
        with producer.transaction() as transaction:
            transaction.send_offsets(consumer.positions(), consumer)
            producer.abort_transaction()
        assert consumer.committed([ZERO]) == {ZERO: None}
        commit_offset(producer, {ZERO: OffsetAndMetadata(2, "note")}, consumer)
        found = consumer.committed([ZERO])[ZERO]
        assert found is not None
        assert (found.offset, found.metadata) == (2, "note")
        broker.faults.expire_member("g")
        with pytest.raises(AbortableTransactionError):
            commit_offset(producer, {ZERO: 1}, consumer)
        assert consumer.committed([ZERO])[ZERO] == found


@pytest.mark.parametrize("given", ["consumer", "its place"])
def test_offsets_that_arrive_after_their_consumer_has_joined_again_are_not_committed(
    broker, given
) -> None:
    """A member that is removed and rejoins gets its former epoch, so the coordinator accepts the offsets."""

    async def run() -> None:
        consumer = headrace.aio.Consumer(
            broker,
            group="g",
            group_protocol="consumer",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        async with (
            headrace.aio.Producer(broker, transactional_id="aio", **QUICK) as producer,
            consumer,
        ):
            await consumer.subscribe(["t"])
            while not await consumer.poll(0.05):
                pass
            before = consumer.group_metadata()
            await producer.begin_transaction()
            loading = broker.faults.on(
                ApiKey.TXN_OFFSET_COMMIT, error("COORDINATOR_LOAD_IN_PROGRESS")
            )
            with loading:
                sending = asyncio.ensure_future(
                    producer.send_offsets_to_transaction(
                        {ZERO: 2}, consumer if given == "consumer" else before
                    )
                )
                while not loading.hits:
                    assert not await consumer.poll(0.01)
                member = consumer._core._group.member
                assert member is not None
                member.lose("a test")
                while not (again := await consumer.poll(0.05)):
                    pass
            assert [record.value for record in again] == [b"1", b"2"], "the offsets came too late"
            after = consumer.group_metadata()
            assert (after.generation_id, after.member_id) == (
                before.generation_id,
                before.member_id,
            )
            if given == "consumer":
                with pytest.raises(AbortableTransactionError, match="joined it again"):
                    await sending
                with pytest.raises(AbortableTransactionError):
                    await producer.commit_transaction()
            else:  # the producer cannot know
                await sending
            await producer.abort_transaction()
            assert await consumer.committed([ZERO]) == {ZERO: None}

    with headrace.Producer(broker, transactional_id="first", **QUICK) as first:
        transact(first, b"1", b"2")
    asyncio.run(run())


@pytest.mark.parametrize(
    ("offsets", "text"),
    [([ZERO], "a dictionary of"), ({ZERO: "1"}, "a whole number"), ({ZERO: -1}, "a number from 0")],
)
def test_offsets_that_are_none(producer, offsets, text) -> None:
    with pytest.raises(ConfigError, match=text):
        commit_offset(producer, offsets)


def test_the_asyncio_producer_commits_and_aborts_when_it_is_cancelled(broker) -> None:
    async def run() -> None:
        async with headrace.aio.Producer(broker, transactional_id="aio", **QUICK) as producer:
            async with producer.transaction() as transaction:
                _ = await producer.send("t", b"1", partition=0)
                await transaction.send_offsets({ZERO: 3}, NO_PRODUCER)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05), producer.transaction():
                    _ = await producer.send("t", b"no", partition=0)
                    await producer.flush()
                    await asyncio.Event().wait()
            assert not producer.in_transaction
            broker.faults.on(ApiKey.END_TXN, once=error("TRANSACTION_ABORTABLE"))
            with pytest.raises(AbortableTransactionError):
                async with producer.transaction():
                    _ = await producer.send("t", b"no", partition=0)
            async with producer.transaction():
                _ = await producer.send("t", b"2", partition=0)
                await producer.abort_transaction()
            async with producer.transaction():
                _ = await producer.send("t", b"3", partition=0)

    asyncio.run(run())
    assert committed(broker) == [b"1", b"3"]
    assert broker.committed("g") == {ZERO: 3}


def test_requests_of_a_cancelled_call_cannot_join_the_next_transaction(broker) -> None:
    async def run() -> None:
        async with headrace.aio.Producer(broker, transactional_id="aio", **QUICK) as producer:
            async with producer.transaction():
                _ = await producer.send("t", b"1", partition=0)
            before = identity(producer)
            await producer.begin_transaction()
            _ = await producer.send("t", b"2", partition=0)
            slow = broker.faults.on(ApiKey.END_TXN, once=delay(0.2))
            commit = asyncio.create_task(producer.commit_transaction())
            await asyncio.to_thread(broker.wait_until, lambda: slow.hits)
            commit.cancel()
            await asyncio.gather(commit, return_exceptions=True)
            await producer.commit_transaction()  # it was asked for, and is not taken back
            async with producer.transaction():
                _ = await producer.send("t", b"3", partition=0)
            assert identity(producer) > before

    asyncio.run(run())
    assert committed(broker) == [b"1", b"2", b"3"]
