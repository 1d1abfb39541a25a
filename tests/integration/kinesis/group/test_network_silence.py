"""Two workers of one stream, one of them on a silent network: no shard has two owners at one time.

As `tests/chaos/test_network_silence.py`, for members that hold leases in place of partitions.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

import headrace
from headrace.kinesis import AwsSettings, kinesis
from headrace.testing.kinesis import FakeAws
from tests.chaos.silence import HANDLING_S, Notes
from tests.fixtures.proxy import Proxy
from tests.integration.kinesis.group.apps import fake_aws

SHARDS: Final = 2
BACKLOG: Final = 500
"""The number of records of each shard, more than a member handles during a lease."""
LEASE_MS: Final = 6_000
"""The default of 30 s would make every silence last a minute; the simulation of leases has the default."""
PATIENCE_S: Final = 60
SILENCES: Final = ["cut", "freeze", "half-open", "late"]


def make_app(address: str, member: str, notes: Notes, delivery: Any) -> headrace.App:
    app = headrace.App(group="billing")
    aws = AwsSettings(
        region="us-east-1",
        endpoint_url=f"http://{address}",
        access_key_id="fake",
        secret_access_key="fake",
    )

    @app.worker(kinesis("orders", aws=aws, lease_duration_ms=LEASE_MS), delivery=delivery)
    async def bill(order: bytes, context: headrace.Context) -> None:
        with notes.handling("stream", context.partition, member, context.epoch, [order]):
            await asyncio.sleep(HANDLING_S)

    return app


@contextmanager
def running(*apps: headrace.App) -> Iterator[None]:
    threads = [
        threading.Thread(target=lambda app=app: asyncio.run(app.serve()), daemon=True)
        for app in apps
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for app in apps:
            app.stop()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.05)


def put(aws: FakeAws, number: int) -> None:
    for shard in range(SHARDS):
        key = (2**128 // SHARDS) * shard
        aws.kinesis.put("orders", b"%d-%d" % (shard, number), explicit_hash_key=key)


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("silence", SILENCES)
def test_a_silent_network_causes_no_second_owner_of_a_shard(
    caplog: Any, silence: Any, delivery: str
) -> None:
    caplog.set_level(logging.WARNING)
    notes = Notes()
    with fake_aws() as aws, Proxy() as proxy:
        aws.kinesis.create_stream("orders", SHARDS)
        address = aws.endpoint_url.removeprefix("http://")
        host, port = address.rsplit(":", 1)
        proxy.target = host, int(port)
        silenced = make_app(proxy.address, "silenced", notes, delivery)
        other = make_app(address, "other", notes, delivery)
        for number in range(BACKLOG):
            put(aws, number)
        with running(silenced, other):
            until(
                "both members handle records",
                lambda: all(notes.of("stream", each) for each in ("silenced", "other")),
            )
            proxy.silence = silence
            began_s = time.monotonic()
            until(
                "the silenced member is not healthy",
                lambda: not silenced.status()["bill"].healthy,
            )
            assert time.monotonic() - began_s < LEASE_MS / 1000
            until(
                "the other member has all shards",
                lambda: notes.of("stream", "other", began_s + 0.8 * LEASE_MS / 1000) == SHARDS,
            )
            proxy.silence = None
            if delivery == "at_least_once":
                until(
                    "everything is handled",
                    lambda: len(notes.values("stream")) == SHARDS * BACKLOG,
                )
            until(
                "all are well",
                lambda: all(each.status()["bill"].healthy for each in (silenced, other)),
            )
    notes.check()
    if delivery == "at_most_once":
        assert max(notes.values("stream").values()) == 1
    assert any("not answered" in line or "failures" in line for line in caplog.messages)
