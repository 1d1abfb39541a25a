"""The clients that the tasks of one process share."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.spark.client.cache import MAX_CLIENTS, ClientCache
from headrace.spark.options.reader import ClientOptions


class FakeClient:
    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def options(number: int) -> ClientOptions:
    return ClientOptions(f"localhost:{number}")


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(id=1)
    monkeypatch.setattr(os, "getpid", lambda: found.id)
    return found


def test_equal_options_share_one_client() -> None:
    cache = ClientCache(FakeClient)
    assert cache.get(options(1)) is cache.get(options(1))
    assert cache.get(options(1)) is not cache.get(options(2))


def test_a_forked_process_opens_its_own_client_and_closes_only_that(process: Any) -> None:
    cache = ClientCache(FakeClient)
    parents = cache.get(options(1))
    process.id = 2
    childs = cache.get(options(1))
    assert childs is not parents
    cache._close_at_exit()
    assert (parents.closed, childs.closed) == (0, 1)


def test_the_cache_closes_its_oldest_client_above_the_limit() -> None:
    cache = ClientCache(FakeClient)
    opened = [cache.get(options(number)) for number in range(MAX_CLIENTS + 1)]
    assert [client.closed for client in opened] == [1] + [0] * MAX_CLIENTS


def test_clearing_closes_all_clients() -> None:
    cache = ClientCache(FakeClient)
    first = cache.get(options(1))
    cache.clear()
    assert first.closed == 1
    assert cache.get(options(1)) is not first
