from __future__ import annotations

import random
from collections.abc import Generator
from typing import TypeVar

import pytest

from headrace.errors import CorruptRecordError
from headrace.records.batch import BatchHeader
from headrace.records.builder import build_batch
from headrace.records.raw import records_of
from headrace.records.reader import decode_data
from headrace.records.times import RECORDS_AT_ONCE, first_since, newest_since

T = TypeVar("T")


def outcome(steps: Generator[int, None, T]) -> tuple[T, list[int]]:
    yielded: list[int] = []
    while True:
        try:
            yielded.append(next(steps))
        except StopIteration as end:
            return end.value, yielded


def batch_at(times: list[int], size: int = 3) -> tuple[BatchHeader, bytes]:
    batch = build_batch([(b"k" * (time % 5), b"v" * size, (), time) for time in times])
    return BatchHeader.parse(batch), records_of(BatchHeader.parse(batch), batch)


@pytest.mark.parametrize("seed", range(30))
def test_the_same_is_found_as_by_decoding_all_records(seed: int) -> None:
    choice = random.Random(seed)
    top = choice.choice([50, 10**6, 2**40])
    times = [choice.randrange(top) for _ in range(choice.randrange(1, 200))]
    size = choice.choice([0, 3, 60, 130, 9000])
    header, data = batch_at(times, size)
    for _ in range(20):
        wanted, start = choice.randrange(top + 2), choice.randrange(len(times) + 1)
        of_all = [(at, time) for at, time in enumerate(times) if at >= start]
        expected = next(((at, time) for at, time in of_all if time >= wanted), None)
        found, _ = outcome(first_since(header, data, wanted, range(start, len(times))))
        assert found == expected
        newest, _ = outcome(newest_since(header, data, start))
        assert newest == max((time for _, time in of_all), default=-1)


def test_offsets_beyond_the_batch_do_not_count() -> None:
    header, data = batch_at([5, 6, 7])
    assert outcome(first_since(header, data, 6, range(1)))[0] is None
    moved = header._replace(base_offset=100)
    assert outcome(first_since(moved, data, 6, range(100, 103)))[0] == (101, 6)


def test_records_stamped_by_the_broker_have_the_time_of_the_batch() -> None:
    header, data = batch_at([5, 6, 7])
    stamped = header._replace(attributes=8, max_timestamp=1000)
    assert outcome(first_since(stamped, data, 900, range(1, 3)))[0] == (1, 1000)
    assert outcome(first_since(stamped, data, 1001, range(3)))[0] is None


def test_a_long_walk_is_done_in_pieces() -> None:
    count = 3 * RECORDS_AT_ONCE + 1
    header, data = batch_at([7] * count, 0)
    found, yielded = outcome(first_since(header, data, 8, range(count)))
    assert found is None
    assert len(yielded) == 4
    assert len(outcome(newest_since(header, data, 0))[1]) == 4
    _, yielded = outcome(first_since(header, data, 7, range(count)))
    assert len(yielded) == 1  # it ends at the first record


def test_records_that_do_not_decode_are_an_error() -> None:
    header, data = batch_at([1, 2, 3])
    for damaged in (data[:-1], data + b"\0", b"\xff" * len(data), b"", data[:9] + b"\x01" * 30):
        with pytest.raises(CorruptRecordError):
            outcome(first_since(header, damaged, 9, range(3)))
        with pytest.raises(CorruptRecordError):
            outcome(newest_since(header, damaged, 0))
    for count in (2, 4, 10**6, -1):
        with pytest.raises(CorruptRecordError):
            outcome(first_since(header._replace(records_count=count), data, 9, range(9)))


@pytest.mark.parametrize("base", [2**63 - 2, -(2**63) + 1, 2**63 - 1])
def test_times_wrap_as_they_do_for_readers(base: int) -> None:
    batch = build_batch([(None, b"v", (), 10 + 3 * number) for number in range(9)])
    header = BatchHeader.parse(batch)._replace(base_timestamp=base)
    data = records_of(header, batch)

    times = [record.timestamp for record in decode_data(header, data)]
    for wanted in (0, *[time for time in times if time >= 0]):
        expected = next(((at, time) for at, time in enumerate(times) if time >= wanted), None)
        assert outcome(first_since(header, data, wanted, range(9)))[0] == expected
