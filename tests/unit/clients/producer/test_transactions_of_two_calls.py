"""Concurrent calls that begin, commit, abort or close: one of them acts, the others wait or fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import headrace
from headrace import TopicPartition
from headrace.clients.consumer.group_metadata import GroupMetadata
from headrace.clients.producer.transaction_states import State
from headrace.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    TransactionStateError,
)
from headrace.protocol.api_keys import ApiKey
from headrace.testing import Broker
from headrace.testing.faults import delay, error
from headrace.testing.interception import Exchange, Reply

ZERO = TopicPartition("t", 0)
NO_PRODUCER = GroupMetadata("g", -1, "", None)
SLOWLY = 0.1
"""The seconds that a response takes while another call begins."""


@pytest.fixture(params=["classic", "newest"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker of either protocol."""
    with Broker() as broker:
        if request.param == "classic":
            broker.faults.max_versions("3.9")
        broker.create_topic("t")
        yield broker


@asynccontextmanager
async def in_transaction(broker: Broker) -> AsyncIterator[headrace.aio.Producer]:
    """A producer with an open transaction that has one unsent record."""
    async with headrace.aio.Producer(broker, transactional_id="tx", linger_ms=5_000) as producer:
        await producer.begin_transaction()
        _ = await producer.send("t", b"1", partition=0)
        yield producer


def state(producer: headrace.aio.Producer) -> State:
    transactions = producer._core.transactions
    assert transactions is not None
    return transactions.state


async def slow(broker: Broker, api: ApiKey, call: Awaitable[Any]) -> asyncio.Task[Any]:
    """Begin a call whose response takes long; return when the broker has received its request."""
    fault = broker.faults.on(api, once=delay(SLOWLY))
    task = asyncio.ensure_future(call)
    await asyncio.to_thread(broker.wait_until, lambda: fault.hits)
    assert isinstance(task, asyncio.Task)
    return task


async def refused(call: Awaitable[Any], because: str) -> None:
    with pytest.raises(TransactionStateError, match=f"another call {because}"):
        await call


async def transact(producer: headrace.aio.Producer, value: bytes) -> None:
    async with producer.transaction():
        _ = await producer.send("t", value, partition=0)


def committed(broker: Broker) -> list[bytes | None]:
    with headrace.Consumer(
        broker, auto_offset_reset="earliest", isolation_level="read_committed", fetch_max_wait_ms=1
    ) as consumer:
        consumer.assign([ZERO])
        end, found = consumer.end_offsets([ZERO])[ZERO], []
        while (consumer.position(ZERO) or 0) < end:
            found += [record.value for record in consumer.poll(0.1)]
        return found


def test_calls_that_begin_at_once_do_not_share_a_transaction(broker: Broker) -> None:
    async def run() -> None:
        async with headrace.aio.Producer(broker.bootstrap, transactional_id="tx") as producer:
            begun = [producer.begin_transaction(), producer.begin_transaction()]
            outcomes = await asyncio.gather(*begun, return_exceptions=True)
            assert [type(each) for each in outcomes] == [type(None), TransactionStateError]
            assert "another call takes over" in str(outcomes[1])
            _ = await producer.send("t", b"1", partition=0)
            await producer.commit_transaction()

    asyncio.run(run())
    assert committed(broker) == [b"1"]


def test_calls_that_commit_at_once_commit_once(broker: Broker) -> None:
    async def run() -> None:
        async with in_transaction(broker) as producer:
            first = await slow(broker, ApiKey.END_TXN, producer.commit_transaction())
            await refused(producer.commit_transaction(), "commits")
            await first

    asyncio.run(run())
    assert committed(broker) == [b"1"]


def test_calls_that_abort_at_once_abort_once_and_the_producer_is_as_good_as_new(broker) -> None:
    async def run() -> None:
        async with in_transaction(broker) as producer:
            await producer.flush()
            first = await slow(broker, ApiKey.END_TXN, producer.abort_transaction())
            await refused(producer.abort_transaction(), "aborts")
            await refused(producer.commit_transaction(), "aborts")
            await refused(producer.begin_transaction(), "aborts")
            await first
            await transact(producer, b"2")

    asyncio.run(run())
    assert committed(broker) == [b"2"]


@pytest.mark.parametrize("api", [ApiKey.PRODUCE, ApiKey.END_TXN])
def test_a_running_commit_is_not_aborted(broker: Broker, api: ApiKey) -> None:
    """An abort fails also while the last records are in flight: otherwise it would overwrite the state of the
    commit."""

    async def run() -> None:
        async with in_transaction(broker) as producer:
            commit = await slow(broker, api, producer.commit_transaction())
            await refused(producer.abort_transaction(), "commits")
            await commit
            assert state(producer) is State.NONE
            await transact(producer, b"2")

    asyncio.run(run())
    assert committed(broker) == [b"1", b"2"]


@pytest.mark.parametrize("api", [ApiKey.PRODUCE, ApiKey.END_TXN])
def test_a_close_waits_for_the_commit_of_another_call(broker: Broker, api: ApiKey) -> None:
    async def run() -> None:
        async with in_transaction(broker) as producer:
            commit = await slow(broker, api, producer.commit_transaction())
            await producer.close()
            await commit

    asyncio.run(run())
    assert committed(broker) == [b"1"]


def test_a_commit_takes_offsets_with_it_that_another_call_is_sending(broker: Broker) -> None:
    seen: list[str] = []

    def note(exchange: Exchange) -> Reply:
        seen.append(exchange.api.name)
        return exchange.proceed()

    early = broker.faults.on(ApiKey.TXN_OFFSET_COMMIT, once=error("COORDINATOR_LOAD_IN_PROGRESS"))
    for api in (ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN):
        broker.faults.on(api, note)

    async def run() -> None:
        async with in_transaction(broker) as producer:
            offsets = producer.send_offsets_to_transaction({ZERO: 7}, NO_PRODUCER)
            sending = asyncio.ensure_future(offsets)
            await asyncio.to_thread(broker.wait_until, lambda: early.hits)
            await producer.commit_transaction()
            await sending

    asyncio.run(run())
    assert seen == ["TXN_OFFSET_COMMIT", "END_TXN"]
    assert broker.committed("g") == {ZERO: 7}


def test_a_producer_that_is_fenced_while_it_aborts_is_unusable(broker: Broker) -> None:
    """(1) A batch is in flight. (2) The program aborts. (3) The batch's answer is that another producer has taken
    over."""

    def shut_out(exchange: Exchange) -> Reply:
        return exchange.later(error("PRODUCER_FENCED")(exchange), SLOWLY)

    async def run() -> None:
        async with headrace.aio.Producer(broker, transactional_id="tx", linger_ms=0) as producer:
            await producer.begin_transaction()
            fault = broker.faults.on(ApiKey.PRODUCE, once=shut_out)
            _ = await producer.send("t", b"no", partition=0)
            await asyncio.to_thread(broker.wait_until, lambda: fault.hits)
            with pytest.raises(FatalTransactionError):
                await producer.abort_transaction()
            assert state(producer) is State.DEAD

    asyncio.run(run())
    assert committed(broker) == []


def test_offsets_that_are_refused_spoil_only_the_transaction_that_they_are_of(broker) -> None:
    def refuse_late(exchange: Exchange) -> Reply:
        return exchange.later(error("ILLEGAL_GENERATION")(exchange), SLOWLY)

    async def run() -> None:
        async with in_transaction(broker) as producer:
            fault = broker.faults.on(ApiKey.TXN_OFFSET_COMMIT, once=refuse_late)
            sending = asyncio.ensure_future(
                producer.send_offsets_to_transaction({ZERO: 7}, NO_PRODUCER)
            )
            await asyncio.to_thread(broker.wait_until, lambda: fault.hits)
            await producer.abort_transaction()
            await producer.begin_transaction()
            with pytest.raises(AbortableTransactionError):
                await sending
            _ = await producer.send("t", b"2", partition=0)
            await producer.commit_transaction()

    asyncio.run(run())
    assert committed(broker) == [b"2"]
