"""A producer with very many records: its cost, and its memory."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable
from dataclasses import fields
from types import FrameType
from typing import Any, Self

import pytest

from headrace.kinesis.producing.core import PutRequest, StreamCore
from headrace.kinesis.producing.lanes import PutResult
from headrace.kinesis.producing.records import Outgoing, outgoing
from headrace.kinesis.producing.settings import ProducerSettings

WRITTEN = PutResult("shardId-000000000000", "1")
REFUSED = PutResult(error="InternalFailure")


class Ticket:
    pass


class Comparable(Outgoing):
    """A record whose comparisons run Python code, so that scans of containers are counted."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


class Operations:
    """Counts the interpreter's instructions: the cost of a call, equal on every machine."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _note(self, frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes = True
        self.count += event == "opcode"
        return self._note


def record(key: str, now_ms: int = 0) -> Outgoing:
    plain = outgoing(b"", key, None, record_bytes=1 << 20, now_ms=now_ms)
    return Comparable(**{field.name: getattr(plain, field.name) for field in fields(plain)})


def full(settings: ProducerSettings, count: int) -> StreamCore:
    core = StreamCore("orders", settings, random.random)
    for number in range(count):
        core.add(record(f"key-{number}", now_ms=number // 10))
    return core


def send_all(count: int) -> int:
    core = full(ProducerSettings(request_records=20), count)
    with Operations() as operations:
        while (request := core.next_request(count)) is not None:
            core.on_results(request, [WRITTEN] * len(request.parcels), count)
    assert core.idle
    return operations.count


def give_up_one_by_one(count: int) -> int:
    core = full(ProducerSettings(), count)
    with Operations() as operations:
        gone = sum(len(core.expire(120_000 + now_ms)) for now_ms in range(count // 10 + 1))
    assert (gone, core.idle) == (count, True)
    return operations.count


def give_up_at_once(count: int) -> int:
    core = full(ProducerSettings(aggregate_bytes=50_000), count)
    with Operations() as operations:
        assert len(core.expire(120_000 + count)) == count
    return operations.count


@pytest.mark.parametrize("operations_of", [send_all, give_up_one_by_one, give_up_at_once])
def test_the_cost_of_records_grows_linearly(
    operations_of: Callable[[int], int],
) -> None:
    """The factor is 8.0. A small quadratic part would raise it above 9."""
    assert operations_of(800) < 9 * operations_of(100)


@pytest.mark.parametrize(
    "scan", [lambda it: it.remove(it[-1]), lambda it: [one.size for one in it]]
)
def test_counted_operations_include_scans(scan: Callable[[list[Outgoing]], object]) -> None:
    counts = []
    for length in (100, 800):
        records = [record(str(number)) for number in range(length)]
        with Operations() as operations:
            scan(records)
        counts.append(operations.count)
    assert 6 * counts[0] < counts[1]


def test_written_records_are_freed_while_another_is_retried() -> None:
    core = StreamCore("orders", ProducerSettings(linger_ms=0), random.random)
    core.add(record("refused"))
    kept: weakref.WeakSet[Ticket] = weakref.WeakSet()
    request: PutRequest | None = None
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
