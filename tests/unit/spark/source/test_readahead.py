"""A thread produces items ahead of a consumer, in order and in bounds, raises errors, and ends with its consumer."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from headrace.spark.source.readahead import read_ahead


class Source:
    """A source of numbers from 0 on, and its state."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count = count
        self.error = error
        self.produced = 0
        self.closed = threading.Event()
        self.reached = threading.Condition()

    def numbers(self) -> Generator[int, None, None]:
        try:
            for number in range(self.count):
                with self.reached:
                    self.produced += 1
                    self.reached.notify_all()
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.closed.set()

    def wait_for(self, produced: int) -> None:
        with self.reached:
            assert self.reached.wait_for(lambda: self.produced >= produced, 10)


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "headrace-read-ahead"]


def test_items_are_returned_in_order_and_the_thread_ends() -> None:
    source = Source(1000)
    assert list(read_ahead(source.numbers(), lambda _: 1, 10)) == list(range(1000))
    assert source.closed.is_set()
    assert threads() == []


def test_the_thread_reads_ahead_up_to_its_limit() -> None:
    source = Source(100)
    items = read_ahead(source.numbers(), lambda _: 10, 45)
    assert source.produced == 0, "nothing happens before the first is asked for"

    assert next(items) == 0
    source.wait_for(6)  # four and a half fit, so the fifth that waits is the last
    assert next(items) == 1
    source.wait_for(7)
    assert source.produced == 7
    items.close()


def test_an_item_that_is_larger_than_the_bound_is_produced() -> None:
    assert list(read_ahead(Source(3).numbers(), lambda _: 10**9, 1)) == [0, 1, 2]


def test_an_error_is_raised_after_the_preceding_items() -> None:
    items = read_ahead(Source(2, ValueError("broken")).numbers(), lambda _: 0, 1)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="broken"):
        next(items)
    assert threads() == []


def test_a_consumer_that_ends_early_ends_the_thread_and_its_source() -> None:
    source = Source(10**9)
    items = read_ahead(source.numbers(), lambda _: 1, 5)
    assert next(items) == 0
    items.close()
    assert source.closed.is_set()
    assert threads() == []
