"""One shard, read from the fake over HTTP: its pace, its end, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.core.lease.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint, at_timestamp
from headrace.core.lease.lease import HashRange
from headrace.errors import ConfigError, KinesisError, StreamNotFoundError
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.reading.records import KinesisRecord
from headrace.testing.kinesis import Limits, drop_connection, empty, error, throttle
from tests.integration.kinesis.reading.harness import FIRST, lab, read_to_end, read_until, values


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_records_are_returned_in_order_with_all_fields() -> None:
    async def scenario() -> None:
        async with lab() as it:
            sequence_numbers = it.put(*numbered(5))
            reader = it.reader()
            records = await read_until(reader, lambda all_: len(all_) == 5)
            assert values(records) == numbered(5)
            assert [record.sequence_number for record in records] == sequence_numbers
            assert [record.checkpoint for record in records] == [
                Checkpoint(each) for each in sequence_numbers
            ]
            first = records[0]
            assert (first.stream, first.shard, first.partition_key) == ("orders", FIRST, "key")
            assert (first.sub_sequence, first.is_last_sub) == (None, True)
            assert first.timestamp_ms == it.timing.now_ms()
            await reader.aclose()

    asyncio.run(scenario())


def test_a_stream_is_found_by_its_arn() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(b"a")
            reader = it.reader(stream=it.aws.kinesis.account.arn("orders"))
            records = await read_until(reader, bool)
            assert [(each.stream, each.data) for each in records] == [("orders", b"a")]

    asyncio.run(scenario())


def test_a_reader_starts_at_every_kind_of_position() -> None:
    async def scenario() -> None:
        async with lab() as it:
            old = it.put(*numbered(3))
            it.aws.advance(5_000)
            since_ms = it.timing.now_ms()
            it.put(*numbered(3, first=3))

            async def first(start: Checkpoint) -> bytes:
                return (await read_until(it.reader(start), bool))[0].data

            assert await first(TRIM_HORIZON) == b"0"
            assert await first(Checkpoint(old[0])) == b"1"
            assert await first(at_timestamp(since_ms)) == b"3"
            assert await first(at_timestamp(since_ms - 5_000)) == b"0"
            assert (await it.reader(SHARD_END).fetch()).ended

    asyncio.run(scenario())


def test_a_reader_waits_for_a_start_time_that_is_in_the_future_for_kinesis() -> None:
    """The clock of the machine that pinned LATEST may be ahead."""

    async def scenario() -> None:
        async with lab() as it:
            it.put(b"old")
            start_ms = it.timing.now_ms() + 3_000
            reader = it.reader(at_timestamp(start_ms))
            await reader.fetch()
            assert it.timing.now_ms() >= start_ms
            it.put(b"new")
            assert values(await read_until(reader, bool)) == [b"new"]

    asyncio.run(scenario())


def test_an_idle_shard_is_read_once_a_second_and_a_busy_one_at_the_limit() -> None:
    async def scenario() -> None:
        async with lab() as it:
            reader = it.reader()
            begin_ms = it.timing.now_ms()
            while it.timing.now_ms() < begin_ms + 60_000:
                await reader.fetch()
            assert 58 <= it.count("GetRecords") <= 62
            assert it.count("GetShardIterator") == 1

            it.put(*numbered(300))
            it.aws.advance(1_000)
            behind = it.reader(max_records=10)
            begin_ms = it.timing.now_ms()
            assert len(await read_until(behind, lambda all_: len(all_) == 300)) == 300
            assert it.timing.now_ms() - begin_ms < 30 * 230
            assert it.throttled() == 0

    asyncio.run(scenario())


def test_a_large_shard_is_read_as_fast_as_kinesis_allows() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(*[bytes(250_000)] * 40)  # ten megabytes; the limit is two per second
            begin_ms = it.timing.now_ms()
            assert len(await read_until(it.reader(), lambda all_: len(all_) == 40)) == 40
            assert it.throttled() == 0
            assert it.timing.now_ms() - begin_ms < 5_500

    asyncio.run(scenario())


def test_a_full_reply_is_followed_by_the_required_pause() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(*[bytes(1_000_000)] * 22)
            reader = it.reader()  # a new reader, which does not know the size of records yet
            fetched = await reader.fetch()
            assert fetched.size_bytes > 9_000_000
            replied_ms = it.timing.now_ms()
            assert (await reader.fetch()).records
            assert it.timing.now_ms() - replied_ms >= 4_700
            assert it.throttled() == 0
            # From then on it requests the records of one second.
            assert len((await reader.fetch()).records) <= 2

    asyncio.run(scenario())


def test_a_read_requests_about_as_many_bytes_as_there_is_space_for() -> None:
    async def scenario() -> None:
        async with lab(limits=Limits().unthrottled()) as it:
            it.put(*[bytes(10_000)] * 200)
            reader = it.reader()
            await reader.fetch(lambda: 100_000)
            sizes = [(await reader.fetch(lambda: 100_000)).size_bytes for _ in range(8)]
            assert max(sizes[4:]) <= 100_000
            assert min(sizes) > 0

    asyncio.run(scenario())


def test_an_expired_iterator_is_renewed_behind_the_last_record() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(*numbered(6))
            reader = it.reader(max_records=2)
            records = (await reader.fetch()).records
            it.aws.kinesis.expire_iterators()
            records += await read_until(reader, lambda all_: len(all_) == 4)
            assert values(records) == numbered(6)
            assert it.count("GetRecords", error="ExpiredIteratorException") == 1

            forever = it.aws.kinesis.faults.on(
                "GetRecords", error("ExpiredIteratorException"), times=20
            )
            it.put(b"6")
            assert values(await read_until(reader, bool)) == [b"6"]
            assert forever.hits == 20

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["ExpiredIteratorException", "InvalidArgumentException"])
def test_an_iterator_that_expires_while_calls_fail_is_renewed_at_once(kind: str) -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(*numbered(4))
            reader = it.reader(max_records=2)
            records = (await reader.fetch()).records
            it.aws.kinesis.faults.on("GetRecords", error("InternalFailure"), times=1)
            it.aws.kinesis.faults.on("GetRecords", error(kind), times=1)
            records += (await reader.fetch()).records
            assert values(records) == numbered(4)
            assert it.count("GetRecords") == 4
            assert it.count("GetShardIterator") == 2

    asyncio.run(scenario())


def test_an_invalid_new_iterator_is_an_error() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.aws.kinesis.faults.on("GetRecords", error("InvalidArgumentException"))
            with pytest.raises(KinesisError, match="InvalidArgumentException"):
                await it.reader().fetch()
            assert it.count("GetRecords") == 2

    asyncio.run(scenario())


def test_an_old_iterator_is_not_used_after_a_long_pause() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(*numbered(4))
            reader = it.reader(max_records=2)
            records = (await reader.fetch()).records
            it.aws.advance(250_000)  # back-pressure: no fetch for a while
            records += (await reader.fetch()).records
            assert values(records) == numbered(4)
            assert it.count("GetShardIterator") == 2
            assert it.count("GetRecords", error="ExpiredIteratorException") == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "kind",
    [
        "ProvisionedThroughputExceededException",
        "LimitExceededException",
        "KMSThrottlingException",
        "InternalFailure",
        "ServiceUnavailable",
    ],
)
def test_a_reader_retries_transient_errors(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(*numbered(4))
            reader = it.reader(max_records=2)
            records = (await reader.fetch()).records
            it.timing.slept_ms.clear()
            fault = it.aws.kinesis.faults.on("GetRecords", error(kind), times=8)
            iterators = it.aws.kinesis.faults.on("GetShardIterator", error(kind), times=1)
            records += (await reader.fetch()).records
            assert fault.hits == 8
            assert values(records) == numbered(4)
            pauses = it.timing.slept_ms
            assert max(pauses) == 5_000  # half of ten seconds: the test's random number is 0.5
            assert len(pauses) >= 9
            logged = [
                each.getMessage() for each in caplog.records if each.name == "headrace.kinesis"
            ]
            assert len(logged) == 3  # after two failures, four and eight
            assert (
                f"stream orders: 8 failures in a row; last error: An error occurred ({kind})"
                in logged[-1]
            )
            if kind.startswith("Provisioned"):
                assert iterators.hits == 0  # the iterator is still used

    asyncio.run(scenario())


def test_lost_requests_and_lost_answers_neither_lose_nor_repeat_a_record() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(*numbered(40))
            reader = it.reader(max_records=4)
            faults = it.aws.kinesis.faults
            faults.on("GetShardIterator", drop_connection(), times=1)
            records = (await reader.fetch()).records
            for action in (drop_connection(), drop_connection(handled=True), empty(), throttle()):
                faults.on("GetRecords", action, times=2)
                records += await read_until(reader, lambda all_: len(all_) == 4)
            records += await read_until(reader, lambda all_: len(all_) == 20)
            assert values(records) == numbered(40)
            assert reader.counts.throttled == 2
            assert reader.counts.failures == 5

    asyncio.run(scenario())


@pytest.mark.parametrize("shard_end", ["with_data", "extra_call"])
@pytest.mark.parametrize("has_data", [True, False])
def test_a_closed_shard_ends_with_its_children(shard_end: str, *, has_data: bool) -> None:
    async def scenario() -> None:
        async with lab(2, shard_end=shard_end) as it:
            if has_data:
                it.put(*numbered(3))
            it.aws.kinesis.split("orders", FIRST)
            reader = it.reader()
            records, last = await read_to_end(reader)
            assert values(records) == (numbered(3) if has_data else [])
            assert not last.data_expired
            whole = it.aws.kinesis.shards("orders")[0].hash_range
            assert [child.shard for child in last.children] == [
                "shardId-000000000002",
                "shardId-000000000003",
            ]
            assert all(child.parents == {FIRST} and not child.closed for child in last.children)
            assert last.children[0].hash_range.first == whole[0]
            assert last.children[1].hash_range.last == whole[1]
            calls = it.count("GetRecords")
            assert (await reader.fetch()).ended
            assert it.count("GetRecords") == calls

    asyncio.run(scenario())


def test_both_parents_of_a_merge_name_their_child() -> None:
    async def scenario() -> None:
        async with lab(2) as it:
            it.aws.kinesis.merge("orders", FIRST, "shardId-000000000001")
            for shard in (FIRST, "shardId-000000000001"):
                _, last = await read_to_end(it.reader(shard=shard))
                assert [(each.shard, each.parents) for each in last.children] == [
                    ("shardId-000000000002", frozenset({FIRST, "shardId-000000000001"}))
                ]
                assert last.children[0].hash_range == HashRange(0, (1 << 128) - 1)

    asyncio.run(scenario())


def test_an_expired_shard_ends_with_data_expired(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with lab() as it:
            sequence_number = it.put(b"a")[0]
            gone = error(
                "ResourceNotFoundException", "Shard {shard} in stream {stream} does not exist"
            )
            it.aws.kinesis.faults.on("GetShardIterator", gone)
            fetched = await it.reader(Checkpoint(sequence_number)).fetch()
            assert (fetched.ended, fetched.data_expired) == (True, True)
            assert "its records have expired" in caplog.text

    asyncio.run(scenario())


def test_a_deleted_stream_is_an_error_and_not_the_end_of_a_shard() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(b"a")
            reader = it.reader()
            await reader.fetch()
            it.aws.kinesis.call("DeleteStream", StreamName="orders")
            with pytest.raises(StreamNotFoundError, match=r"no stream 'orders' in us-east-1"):
                await reader.fetch()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("kind", "expected", "message"),
    [
        (
            "AccessDeniedException",
            KinesisError,
            "reading shardId-000000000000 of stream orders: .*permission",
        ),
        ("KMSAccessDeniedException", KinesisError, "key that encrypts the stream"),
        ("UnrecognizedClientException", ConfigError, "does not know these credentials"),
        ("ExpiredTokenException", ConfigError, "expired: get new ones"),
        ("InvalidSignatureException", ConfigError, "clock is wrong"),
    ],
)
def test_permanent_errors_are_raised(kind: str, expected: type[Exception], message: str) -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.aws.kinesis.faults.on("GetRecords", error(kind))
            with pytest.raises(expected, match=message):
                await it.reader().fetch()
            assert it.count("GetRecords") == 1

    asyncio.run(scenario())


def test_a_sequence_number_of_another_stream_is_refused() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(b"a")
            with pytest.raises(KinesisError, match="InvalidArgumentException"):
                await it.reader(Checkpoint("17")).fetch()
            assert it.count("GetShardIterator") == 1

    asyncio.run(scenario())


class Interrupting:
    """A client that cancels the caller at every third call, before the call or before its return."""

    def __init__(self, client: AwsClient) -> None:
        self.client = client
        self.meta = client.meta
        self.steps = 0

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        async def call(**arguments: Any) -> Any:
            await self.step()
            answer = await getattr(self.client, operation)(**arguments)
            await self.step()
            return answer

        return call

    async def step(self) -> None:
        self.steps += 1
        if not self.steps % 3:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)


def test_a_fetch_cancelled_at_any_point_neither_loses_nor_repeats_a_record() -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.put(*numbered(24))
            it.client = Interrupting(it.client)
            reader = it.reader(max_records=3)
            records: list[KinesisRecord] = []
            cancelled = 0
            while len(records) < 24:
                task = asyncio.ensure_future(reader.fetch())
                await asyncio.wait({task})
                cancelled += task.cancelled()
                if not task.cancelled():
                    records += task.result().records
                if cancelled % 3 == 2:
                    reader.restart()
            assert values(records) == numbered(24)
            assert cancelled >= 6

    asyncio.run(scenario())


def test_a_bug_is_not_reported_as_an_error_of_kinesis() -> None:
    class Broken:
        async def get_shard_iterator(self, **_arguments: object) -> dict[str, str]:
            raise ZeroDivisionError

    async def scenario() -> None:
        async with lab() as it:
            it.client = Broken()  # type: ignore[assignment] # it has the one operation that is called
            with pytest.raises(ZeroDivisionError):
                await it.reader().fetch()

    asyncio.run(scenario())
