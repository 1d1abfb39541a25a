"""The lag of shards in `App.status()`: the time for which the oldest unfinished record has waited."""

from __future__ import annotations

import threading
from collections.abc import Callable

import headrace
from headrace.workers.monitoring.status import WorkerStatus
from tests.integration.kinesis.group.apps import WAIT_S, fake_aws, quick


def until(condition: Callable[[], bool]) -> None:
    wait = threading.Event().wait
    assert any(condition() or wait(0.02) for _ in range(int(WAIT_S / 0.02)))


def test_the_lag_of_a_shard_grows_until_its_oldest_record_is_finished() -> None:
    app = headrace.App(group="billing")
    begun, go_on = threading.Event(), threading.Event()

    with fake_aws() as aws:
        aws.kinesis.create_stream("orders", 2)

        @app.worker(quick(aws, "orders"))
        def bill(order: bytes) -> None:
            begun.set()
            go_on.wait(WAIT_S)

        def status() -> WorkerStatus:
            return app.status()["bill"]

        with app.test() as trial:
            trial.wait_idle(WAIT_S)
            assert status().healthy
            assert [each.lag_ms for each in status().partitions] == [0, 0]
            for number in range(2):
                aws.kinesis.put("orders", b"%d" % number, explicit_hash_key=0)
            begun.wait(WAIT_S)
            until(lambda: (status().lag_ms or 0) > 300)
            lags = {each.shard: each.lag_ms or 0 for each in status().partitions}
            assert lags["shardId-000000000000"] > 300
            assert lags["shardId-000000000001"] == 0
            go_on.set()
            trial.wait_idle(WAIT_S)
            until(lambda: status().lag_ms == 0)
            assert status().lag_records is None
