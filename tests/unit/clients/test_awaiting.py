"""In `headrace.aio` every method may be awaited. Methods that do not wait have acted when they return."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any, assert_type

import pytest

import headrace
from headrace.clients.consumer.group_metadata import GroupMetadata

ZERO = headrace.TopicPartition("t", 0)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "commit_async": ({ZERO: 1},),
    "group_metadata": (),
    "pause": ([ZERO],),
    "paused": (),
    "positions": (),
    "resume": ([ZERO],),
    "seek": (ZERO, 1),
    "subscription": (),
}
"""The methods that are no coroutines."""
ANSWERS: dict[str, Any] = {
    "paused": [],
    "positions": {ZERO: 3},
    "subscription": frozenset(),
    "group_metadata": GroupMetadata("g", -1, "", None),
}
EXCEPT = {"owns", "transaction"}


def plain_methods() -> set[str]:
    classes = (headrace.aio.Consumer, headrace.aio.Producer, headrace.aio.Admin)
    return {
        name
        for cls in classes
        for name, member in vars(cls).items()
        if name[0] != "_" and inspect.isfunction(member) and not inspect.iscoroutinefunction(member)
    }


def test_these_are_the_methods_that_are_no_coroutines() -> None:
    assert plain_methods() - EXCEPT == ARGUMENTS.keys()


@pytest.mark.parametrize("method", ARGUMENTS)
@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_method_acts_awaited_and_not(method: str, *, is_awaited: bool) -> None:
    async def scenario() -> None:
        with headrace.Broker() as broker:
            broker.create_topic("t", 1)
            async with headrace.aio.Consumer(broker, group="g") as consumer:
                await consumer.assign({ZERO: 3})
                found = getattr(consumer, method)(*ARGUMENTS[method])
                assert isinstance(found, Awaitable)
                if is_awaited:
                    found = await found
                    assert not isinstance(found, Awaitable) or method == "group_metadata"
                if is_awaited or method in ANSWERS:
                    assert found == ANSWERS.get(method)
                if method == "seek":
                    assert await consumer.position(ZERO) == 1
                if method == "pause":
                    assert await consumer.paused() == [ZERO]

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_awaited_calls_have_their_declared_types() -> None:
    async def scenario() -> None:
        with headrace.Broker() as broker:
            broker.create_topic("t", 1)
            async with headrace.aio.Consumer(broker, group="g") as consumer:
                await consumer.assign([ZERO])
                assert_type(await consumer.positions(), dict[headrace.TopicPartition, int | None])
                assert_type(await consumer.paused(), list[headrace.TopicPartition])
                assert_type(await consumer.subscription(), frozenset[str])
                member: GroupMetadata = await consumer.group_metadata()
                assert member.group_id == "g"
                known: dict[headrace.TopicPartition, int | None] = consumer.positions()
                assert known.keys() == {ZERO}

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_transaction_takes_positions_awaited_and_not() -> None:
    async def scenario() -> None:
        with headrace.Broker() as broker:
            broker.create_topic("t", 1)
            async with (
                headrace.aio.Producer(broker, transactional_id="x") as producer,
                headrace.aio.Consumer(broker, group="g", enable_auto_commit=False) as consumer,
            ):
                await consumer.assign({ZERO: 0})
                for positions in (consumer.positions(), await consumer.positions()):
                    async with producer.transaction() as transaction:
                        await transaction.send_offsets(positions, consumer)
                assert [at and at.offset for at in (await consumer.committed()).values()] == [0]

    asyncio.run(asyncio.wait_for(scenario(), 30))
