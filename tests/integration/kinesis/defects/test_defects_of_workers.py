"""Handlers that fail, block or are cancelled: they end the published consumer, and not a worker of Headrace."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.errors import KinesisError, StreamNotFoundError
from headrace.kinesis.leases.memory import MemoryLeaseStore
from headrace.testing.kinesis import FakeAws, error
from tests.integration.kinesis.group.apps import WAIT_S, fake_aws, quick
from tests.integration.kinesis.group.team import Entry, Team, until


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    with fake_aws() as aws:
        aws.kinesis.create_stream("orders", 1)
        yield aws


def test_a_handler_that_fails_does_not_end_the_worker(aws: FakeAws) -> None:
    app = headrace.App(group="billing")
    handled: list[str] = []

    @app.worker(
        quick(aws, "orders"), retry=headrace.Retry(attempts=2, first=0.01), dead_letter=True
    )
    async def bill(order: str) -> None:
        if order == "1":
            raise ValueError("poison")
        handled.append(order)

    for number in range(3):
        aws.kinesis.put("orders", b"%d" % number)
    with app.test() as trial:
        trial.wait_idle(WAIT_S)
        assert [letter.value for letter in trial.messages("dlq.kinesis.orders")] == [b"1"]
    assert handled == ["0", "2"]


@pytest.mark.parametrize("kept", ["topic", "file"])
def test_another_member_recognises_records_that_are_delivered_again(
    aws: FakeAws, tmp_path: Path, kept: str
) -> None:
    seen = headrace.SeenTopic() if kept == "topic" else headrace.SeenFile(tmp_path / "seen.db")
    handled: list[str] = []

    def app_of(store: MemoryLeaseStore) -> headrace.App:
        app = headrace.App(group="billing")
        app.worker(quick(aws, "orders", leases=store), name="bill", dedupe=str, seen=seen)(take)
        return app

    def take(order: str) -> None:
        handled.append(order)

    aws.kinesis.put("orders", b"a")
    aws.kinesis.put("orders", b"b")
    with headrace.Broker() as broker:
        for number in range(2):  # the second member has leases without the checkpoints of the first
            app = app_of(MemoryLeaseStore())
            with app.test(broker) as trial:
                trial.wait_idle(WAIT_S)
            assert app.counters["bill"].duplicates == 2 * number
    assert handled == ["a", "b"]


def test_a_plain_function_that_blocks_does_not_hold_up_renewals(aws: FakeAws) -> None:
    app = headrace.App(group="billing")
    store = MemoryLeaseStore()
    handled: list[tuple[str, int]] = []

    @app.worker(quick(aws, "orders", leases=store, lease_duration_ms=1_000))
    def bill(order: str, context: headrace.Context) -> None:
        time.sleep(2.2)  # twice as long as a lease
        handled.append((order, threading.get_ident()))
        assert context.valid()

    aws.kinesis.put("orders", b"one")
    with app.test() as trial:
        trial.wait_idle(WAIT_S)
    [(order, thread)] = handled
    assert (order, thread != threading.get_ident()) == ("one", True)


def test_a_stopping_worker_transfers_its_shards_at_once(aws: FakeAws) -> None:
    async def scenario() -> None:
        store = MemoryLeaseStore()
        team = Team(quick(aws, "orders", leases=store, lease_duration_ms=30_000, scan_ms=300))
        running = asyncio.Event()

        async def slow(entry: Entry) -> None:
            running.set()
            await asyncio.sleep(0.3)

        team.before = slow
        aws.kinesis.put("orders", b"first")
        hand = team.join("a")
        await running.wait()
        await hand.leave()  # the handler runs
        assert team.values == ["first"]
        [key] = await store.streams()
        [lease] = await store.leases(*key)
        assert lease.owner is None
        aws.kinesis.put("orders", b"second")
        team.join("b")
        await team.wait_for_values(2)
        await team.leave()
        assert team.values == ["first", "second"]

    asyncio.run(scenario())


def test_records_finished_in_a_quiet_moment_are_not_repeated_after_a_kill(aws: FakeAws) -> None:
    async def scenario() -> None:
        store = MemoryLeaseStore()
        streams = quick(aws, "orders", leases=store, lease_duration_ms=30_000)
        app = headrace.App(group="billing", commit_interval_s=100)
        handled: list[str] = []

        @app.worker(streams)
        async def bill(order: str) -> None:
            handled.append(order)

        service = app.service()
        running = asyncio.create_task(service.run())
        for number in range(7):
            aws.kinesis.put("orders", b"%d" % number)
        async with asyncio.timeout(WAIT_S):
            while len(handled) < 7 or not await is_written(store):  # noqa: ASYNC110 - it notifies no future
                await asyncio.sleep(0.02)
        service.stop()
        await running

    async def is_written(store: MemoryLeaseStore) -> bool:
        last = aws.kinesis.records("orders")[-1].sequence_number
        leases = [lease for key in await store.streams() for lease in await store.leases(*key)]
        return [lease.checkpoint.position for lease in leases] == [last]

    asyncio.run(scenario())


def test_a_process_that_was_halted_longer_than_a_lease_stops_its_handlers(aws: FakeAws) -> None:
    """The event loop is blocked for longer than a lease. Then another member owns the next records."""

    async def scenario() -> None:
        store = MemoryLeaseStore()
        team = Team(quick(aws, "orders", leases=store, lease_duration_ms=1_000))
        taken: list[int] = []

        async def halt(entry: Entry) -> None:
            if entry.value != "0" or taken:
                return
            time.sleep(1.5)  # noqa: ASYNC251 - the process stands still
            [key] = await store.streams()
            [lease] = await store.leases(*key)
            other = await store.take(lease, "another-member")
            assert other is not None
            taken.append(other.epoch)

        for number in range(5):
            aws.kinesis.put("orders", b"%d" % number)
        team.before = halt
        team.join("a")
        await team.wait_for_values(5)
        await team.leave()
        # No record behind the one at which the process was halted was handled in the old epoch.
        assert all(entry.epoch > taken[0] for entry in team.handled if entry.value != "0")

    asyncio.run(scenario())


def test_the_error_for_a_missing_stream_names_a_remedy(aws: FakeAws) -> None:
    app = headrace.App(group="billing")

    @app.worker(quick(aws, "ordres"))
    async def bill(order: str) -> None: ...

    with pytest.raises(StreamNotFoundError, match="'ordres'"), app.test() as trial:
        trial.wait_idle(WAIT_S)


def test_revoked_access_ends_the_worker(aws: FakeAws) -> None:
    app = headrace.App(group="billing")

    @app.worker(quick(aws, "orders"))
    async def bill(order: str) -> None: ...

    aws.kinesis.faults.on("GetRecords", error("AccessDeniedException", "not for you"))
    with pytest.raises(KinesisError, match="permission"), app.test() as trial:
        trial.wait_idle(WAIT_S)


def test_an_app_with_streams_only_connects_to_no_broker(aws: FakeAws) -> None:
    async def scenario() -> None:
        connections: list[object] = []

        def accept(reader: object, writer: asyncio.StreamWriter) -> None:
            connections.append(reader)
            writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        app = headrace.App(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", group="billing")
        handled: list[bytes] = []

        @app.worker(quick(aws, "orders"))
        async def bill(order) -> None:
            handled.append(order)

        aws.kinesis.put("orders", b"one")
        running = asyncio.create_task(app.serve())
        await until(lambda: bool(handled))
        app.stop()
        await running
        server.close()
        assert handled == [b"one"]
        assert connections == []

    asyncio.run(scenario())


def test_at_most_once_commits_before_it_handles(aws: FakeAws) -> None:
    async def scenario() -> None:
        store = MemoryLeaseStore()
        team = Team(quick(aws, "orders", leases=store), delivery="at_most_once", concurrency=4)
        checkpoints: list[str] = []

        async def look(entry: Entry) -> None:
            [lease] = store._rows.leases.values()
            checkpoints.append(lease.checkpoint.position)

        sequence_numbers = [
            int(aws.kinesis.put("orders", b"%d" % number).sequence_number) for number in range(12)
        ]
        team.before = look
        team.join("a")
        await team.wait_for_values(12)
        await team.leave()
        assert team.values == [str(number) for number in range(12)]
        for checkpoint, number in zip(checkpoints, sequence_numbers, strict=True):
            assert int(checkpoint) >= number

    asyncio.run(scenario())


def test_bytes_that_cannot_be_decoded_become_dead_letters(aws: FakeAws) -> None:
    app = headrace.App(group="billing")

    @app.worker(quick(aws, "orders"), dead_letter="kinesis://letters")
    async def bill(order: dict) -> None:
        raise AssertionError("never called")

    aws.kinesis.create_stream("letters", 1)
    aws.kinesis.put("orders", b"no json", "alice")
    with app.test() as trial:
        trial.wait_idle(WAIT_S)
    [letter] = aws.kinesis.records("letters")
    assert letter.partition_key == "alice"
    assert b'"error-type":"SerializationError"' in letter.data
    assert b'"data":"bm8ganNvbg=="' in letter.data
