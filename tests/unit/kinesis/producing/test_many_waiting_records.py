"""A producer with very many records: what they cost, and what is kept of them."""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable

import pytest

from headrace.kinesis.producing.core import Request, StreamCore
from headrace.kinesis.producing.lanes import Result
from headrace.kinesis.producing.records import Outgoing, outgoing
from headrace.kinesis.producing.settings import ProducerSettings

WRITTEN = Result("shardId-000000000000", "1")
REFUSED = Result(error="InternalFailure")


class Ticket:
    pass


def record(key: str, now_ms: int = 0) -> Outgoing:
    return outgoing(b"", key, None, record_bytes=1 << 20, now_ms=now_ms)


def full(settings: ProducerSettings, count: int) -> StreamCore:
    core = StreamCore("orders", settings, random.random)
    for number in range(count):
        core.add(record(f"key-{number}", now_ms=number // 10))
    return core


def send_all(count: int) -> float:
    core = full(ProducerSettings(request_records=20), count)
    begun_s = time.process_time()
    while (request := core.next_request(count)) is not None:
        core.on_results(request, [WRITTEN] * len(request.parcels), count)
    assert core.idle
    return time.process_time() - begun_s


def give_up_one_by_one(count: int) -> float:
    core = full(ProducerSettings(), count)
    begun_s = time.process_time()
    gone = sum(len(core.expire(120_000 + now_ms)) for now_ms in range(count // 10 + 1))
    assert (gone, core.idle) == (count, True)
    return time.process_time() - begun_s


def give_up_at_once(count: int) -> float:
    core = full(ProducerSettings(aggregate_bytes=50_000), count)
    begun_s = time.process_time()
    assert len(core.expire(120_000 + count)) == count
    return time.process_time() - begun_s


@pytest.mark.parametrize("cost_s", [send_all, give_up_one_by_one, give_up_at_once])
def test_sixteen_times_the_records_do_not_cost_the_square(cost_s: Callable[[int], float]) -> None:
    """The square is 256 times; what lies between is left to machines that are busy."""
    few, many = (min(cost_s(count) for _ in range(2)) for count in (1_000, 16_000))
    assert many < 100 * few


def test_nothing_is_kept_of_written_records_while_one_is_refused_again_and_again() -> None:
    core = StreamCore("orders", ProducerSettings(linger_ms=0), random.random)
    core.add(record("refused"))
    kept: weakref.WeakSet[Ticket] = weakref.WeakSet()
    request: Request | None = None
    for now_ms in range(100):
        other = record(f"key-{now_ms}", now_ms)
        other.ticket = Ticket()
        kept.add(other.ticket)
        core.add(other)
        del other
        while (request := core.next_request(now_ms)) is not None:
            results = [
                REFUSED if parcel.partition_key == "refused" else WRITTEN
                for parcel in request.parcels
            ]
            core.on_results(request, results, now_ms)
        core.expire(now_ms)
    request = None
    assert len(kept) == 0
