"""A stream that is deleted while a worker reads it, or created again: the worker ends with an error that says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest

import headrace
from headrace.errors import StreamNotFoundError
from headrace.kinesis.leases.memory import MemoryLeaseStore
from headrace.testing.kinesis import FakeAws
from headrace.workers.trial import Trial
from tests.integration.kinesis.group.apps import WAIT_S, fake_aws, quick


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    with fake_aws() as aws:
        aws.kinesis.create_stream("orders", 1)
        yield aws


def until_it_ends(trial: Trial) -> NoReturn:
    while True:
        trial.wait_idle(WAIT_S)


@pytest.mark.parametrize("has_read", [False, True])
def test_a_stream_that_is_created_again_is_a_different_stream(
    aws: FakeAws, *, has_read: bool
) -> None:
    store = MemoryLeaseStore()
    handled: list[str] = []

    def app() -> headrace.App:
        app = headrace.App(group="billing")

        @app.worker(quick(aws, "orders", leases=store))
        async def bill(order: str) -> None:
            handled.append(order)

        return app

    if has_read:
        aws.kinesis.put("orders", b"old")
    again = r"orders was deleted and created again while it was read, .* Start again to read the new stream"
    with app().test() as trial:
        trial.wait_idle(WAIT_S)
        aws.kinesis.call("DeleteStream", StreamName="orders")
        aws.advance(2_000)  # creation times are reported in whole seconds
        aws.kinesis.create_stream("orders", 1)
        aws.kinesis.put("orders", b"new")
        with pytest.raises(StreamNotFoundError, match=again):
            until_it_ends(trial)
    with app().test() as trial:
        trial.wait_idle(WAIT_S)
    assert handled == (["old", "new"] if has_read else ["new"])


def test_a_deleted_stream_is_reported_as_deleted(aws: FakeAws) -> None:
    app = headrace.App(group="billing")

    @app.worker(quick(aws, "orders"))
    async def bill(order: str) -> None: ...

    gone = "stream orders was deleted while it was read, .* Create it and start again"
    with app.test() as trial:
        trial.wait_idle(WAIT_S)
        aws.kinesis.call("DeleteStream", StreamName="orders")
        aws.advance(2_000)
        with pytest.raises(StreamNotFoundError, match=gone):
            until_it_ends(trial)
