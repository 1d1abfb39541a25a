"""Define the scenarios of the Kinesis comparison; each returns its values by metric."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Final

from benchmarks.macro.kinesis_bench import MOST_AT_ONCE, Bench, Event
from benchmarks.macro.kinesis_programs import ASYNC_KINESIS
from benchmarks.macro.latency import percentiles

SHARDS: Final = 4
LEASE_S: Final = 10
TIMEOUT_S: Final = 60.0
"""The seconds after which an event counts as never happening."""
Figures = Mapping[str, float | None]
"""Values by metric; `None` means that the event never happened."""


def throughput(bench: Bench, records: int) -> Figures:
    """Read four full shards as fast as possible, without AWS's limits."""
    for key in range(SHARDS):
        bench.put(records // SHARDS, key, 200)
    process = bench.start(stop_after=records)
    output, _ = process.communicate(timeout=300)
    cost = json.loads(output)
    return {
        "records/s": cost["records"] / cost["wall_s"],
        "CPU of the consumer, us/record": cost["cpu_s"] / cost["records"] * 1e6,
    }


def calls(bench: Bench, seconds: float, rate: int = 0) -> Figures:
    """Count the calls of AWS per shard and second of a consumer without lag, with new records or without."""
    bench.start()
    bench.put(SHARDS * 5)
    bench.wait_for_all(TIMEOUT_S)
    time.sleep(5)  # the calls of the start are finished
    with bench.steady(rate) if rate else nullcontext():
        before, begun = bench.aws.calls(), time.monotonic()
        time.sleep(seconds)
        asked = bench.aws.calls() - before
    bench.wait_for_all(TIMEOUT_S)
    figures: dict[str, float | None] = {
        f"{service} calls a shard and second": sum(
            times
            for name, times in asked.items()
            if name.startswith(service) and name != "kinesis.PutRecords"
        )
        / SHARDS
        / seconds
        for service in ("kinesis", "dynamodb")
    }
    if rate:
        figures |= _latency(bench, begun)
    return figures


def join(bench: Bench) -> Figures:
    """Let a second consumer join while one reads four shards."""
    with bench.steady(100):
        bench.start(lease_s=LEASE_S)
        bench.wait(_shards_of(1, SHARDS), TIMEOUT_S)
        bench.start(lease_s=LEASE_S)
        balanced = bench.wait(_balanced(2, SHARDS), TIMEOUT_S)
    return {"s to balance": balanced, **_outcome(bench)}


def kill(bench: Bench) -> Figures:
    """Kill one of two consumers with SIGKILL; measure how long its shards are not read."""
    return _end_of_one(bench, signal.SIGKILL)


def leave(bench: Bench) -> Figures:
    """End one of two consumers with SIGTERM."""
    return _end_of_one(bench, signal.SIGTERM)


def _end_of_one(bench: Bench, number: signal.Signals) -> Figures:
    # An async-kinesis consumer gives up no shard when another one joins, so each gets a limit of shards.
    half = {"shards": SHARDS // 2} if bench.library == ASYNC_KINESIS else {}
    with bench.steady(100):
        first = bench.start(lease_s=LEASE_S, **half)
        second = bench.start(lease_s=LEASE_S, **half)
        if bench.wait(_balanced(2, SHARDS), TIMEOUT_S) is None:
            return {"s until its shards go on": None, **_outcome(bench)}
        if half:  # the one that stays may own all shards
            bench.start(lease_s=LEASE_S)
        theirs = _latest_owners(bench.events())
        orphans = {shard for shard, pid in theirs.items() if pid == second.pid}
        second.send_signal(number)
        ended = time.monotonic()
        gap = bench.wait(lambda events: _taken_over(events, orphans, second.pid, ended), TIMEOUT_S)
        assert first.poll() is None
    return {"s until its shards go on": gap, **_outcome(bench)}


def merge(bench: Bench) -> Figures:
    """Merge two shards, one with a few records, one with 25 MB; the child shard waits for both."""
    bench.put(20, 0)
    bench.put(500, 1, 50_000)
    parents = [shard["ShardId"] for shard in bench.shards()]
    bench.aws.kinesis.merge_shards(
        StreamName=bench.stream, ShardToMerge=parents[0], AdjacentShardToMerge=parents[1]
    )
    bench.aws.kinesis.get_waiter("stream_exists").wait(
        StreamName=bench.stream, WaiterConfig={"Delay": 1}
    )
    parents_records = len(bench.sent)
    bench.put(100, 0)
    bench.start()
    bench.wait_for_all(TIMEOUT_S)
    order = [int(event.text.split(":")[1].rstrip(".")) for event in bench.events()]
    early = 0
    if any(number >= parents_records for number in order):
        first = next(at for at, number in enumerate(order) if number >= parents_records)
        early = sum(number < parents_records for number in order[first:])
    return {"records of a parent behind its child's": early, **_outcome(bench)}


def ended_shard(bench: Bench) -> Figures:
    """Split a shard and start the consumer three times: finished records are not processed again."""
    bench.put(30, 0)
    shard = bench.shards()[0]
    bench.aws.kinesis.split_shard(
        StreamName=bench.stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=bench.keys[0]
    )
    bench.aws.kinesis.get_waiter("stream_exists").wait(
        StreamName=bench.stream, WaiterConfig={"Delay": 1}
    )
    for _ in range(3):
        process = bench.start(lease_s=LEASE_S)
        bench.wait_for_all(TIMEOUT_S)
        time.sleep(5)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    return _outcome(bench)


def pause(bench: Bench) -> Figures:
    """Let a handler pause for forty seconds while three hundred records wait."""
    bench.put(300, 0)
    bench.start(pause_at=20, pause_s=40.0, queue=50)
    time.sleep(40)
    bench.wait_for_all(TIMEOUT_S)
    return _outcome(bench)


def hot_shard(bench: Bench, shards: int) -> Figures:
    """Measure one shard of eight that has records, while the others have none."""
    records = 4 * MOST_AT_ONCE
    bench.start()
    bench.put(shards)  # one record in each shard, so that all are read
    bench.wait_for_all(TIMEOUT_S)
    time.sleep(5)
    begun = time.monotonic()
    with bench.steady(records // 10, keys=1):
        time.sleep(10)
    bench.wait_for_all(TIMEOUT_S)
    return {**_latency(bench, begun), **_outcome(bench)}


def failed_heartbeat(bench: Bench) -> Figures:
    """Let DynamoDB refuse writes for a moment, as it does when it throttles."""
    with bench.steady(20):
        process = bench.start(lease_s=LEASE_S)
        bench.wait(_shards_of(1, SHARDS), TIMEOUT_S)
        bench.aws.fail("dynamodb.UpdateItem", 12)
        time.sleep(2.5 * LEASE_S)
    bench.wait_for_all(TIMEOUT_S / 2)
    return {"consumers that ended": float(process.poll() is not None), **_outcome(bench)}


# Results


def _outcome(bench: Bench) -> dict[str, float]:
    """Wait for records in flight, and count lost and repeated records."""
    bench.wait_for_all(3 * LEASE_S)
    return {"records lost": bench.losses(), "records handled twice": bench.duplicates()}


def _latency(bench: Bench, since_s: float) -> dict[str, float]:
    """Return the latency from PutRecords to the handler, for records put since `since_s`."""
    late = sorted(
        int((event.at_s - bench.sent[event.text]) * 1e9)
        for event in bench.events()
        if bench.sent[event.text] > since_s
    )
    return {
        f"put to handler, {name}": ms
        for name, ms in percentiles(late).items()
        if name != "p99.9 ms"
    }


def _shard(event: Event) -> int:
    return int(event.text.split(":")[0])


def _latest_owners(events: Iterable[Event]) -> dict[int, int]:
    return {_shard(event): event.pid for event in events}


def _shards_of(consumers: int, shards: int) -> Callable[[list[Event]], bool]:
    def done(events: list[Event]) -> bool:
        owners = _latest_owners(events)
        return len(owners) == shards and len(set(owners.values())) == consumers

    return done


def _balanced(consumers: int, shards: int) -> Callable[[list[Event]], bool]:
    def done(events: list[Event]) -> bool:
        counts = Counter(_latest_owners(events).values())
        return len(counts) == consumers and set(counts.values()) == {shards // consumers}

    return done


def _taken_over(events: list[Event], orphans: set[int], pid: int, since_s: float) -> bool:
    return orphans <= {
        _shard(event) for event in events if event.pid != pid and event.at_s > since_s
    }
