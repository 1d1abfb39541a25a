"""What happens to consumers of a Kinesis stream, and what they make of it: each scenario notes its figures."""

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
PATIENCE_S: Final = 60.0
"""After so long something counts as never happening."""
Figures = Mapping[str, float | None]
"""Values by metric; None: it never happened."""


def throughput(bench: Bench, records: int) -> Figures:
    """As fast as it goes from four full shards, no limits of AWS in force."""
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
    """What it asks of AWS, a shard and second, when it has caught up: with records coming, or none."""
    bench.start()
    bench.put(SHARDS * 5)
    bench.wait_for_all(PATIENCE_S)
    time.sleep(5)  # whatever a start asks is over
    with bench.steady(rate) if rate else nullcontext():
        before, begun = bench.aws.calls(), time.monotonic()
        time.sleep(seconds)
        asked = bench.aws.calls() - before
    bench.wait_for_all(PATIENCE_S)
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
    """A second consumer comes while four shards are read by one."""
    with bench.steady(100):
        bench.start(lease_s=LEASE_S)
        bench.wait(_shards_of(1, SHARDS), PATIENCE_S)
        bench.start(lease_s=LEASE_S)
        balanced = bench.wait(_balanced(2, SHARDS), PATIENCE_S)
    return {"s to balance": balanced, **_outcome(bench)}


def kill(bench: Bench) -> Figures:
    """One of two consumers is killed with kill -9; how long its shards are read by nobody."""
    return _end_of_one(bench, signal.SIGKILL)


def leave(bench: Bench) -> Figures:
    """One of two consumers is asked to end (SIGTERM)."""
    return _end_of_one(bench, signal.SIGTERM)


def _end_of_one(bench: Bench, number: signal.Signals) -> Figures:
    # async-kinesis gives no shard up to one that joins: it is told how many each may have, so that both have some.
    half = {"shards": SHARDS // 2} if bench.library == ASYNC_KINESIS else {}
    with bench.steady(100):
        first = bench.start(lease_s=LEASE_S, **half)
        second = bench.start(lease_s=LEASE_S, **half)
        if bench.wait(_balanced(2, SHARDS), PATIENCE_S) is None:
            return {"s until its shards go on": None, **_outcome(bench)}
        if half:  # the one that stays may have all of them
            bench.start(lease_s=LEASE_S)
        theirs = _latest_owners(bench.events())
        orphans = {shard for shard, pid in theirs.items() if pid == second.pid}
        second.send_signal(number)
        ended = time.monotonic()
        gap = bench.wait(lambda events: _taken_over(events, orphans, second.pid, ended), PATIENCE_S)
        assert first.poll() is None
    return {"s until its shards go on": gap, **_outcome(bench)}


def merge(bench: Bench) -> Figures:
    """Two shards are merged, one with a few records, one with 25 MB of them: their child waits for both."""
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
    bench.wait_for_all(PATIENCE_S)
    order = [int(event.text.split(":")[1].rstrip(".")) for event in bench.events()]
    early = 0
    if any(number >= parents_records for number in order):
        first = next(at for at, number in enumerate(order) if number >= parents_records)
        early = sum(number < parents_records for number in order[first:])
    return {"records of a parent behind its child's": early, **_outcome(bench)}


def ended_shard(bench: Bench) -> Figures:
    """A shard is split; the consumer is started three times: what was finished does not come again."""
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
        bench.wait_for_all(PATIENCE_S)
        time.sleep(5)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    return _outcome(bench)


def pause(bench: Bench) -> Figures:
    """A handler stands still for forty seconds while three hundred records wait."""
    bench.put(300, 0)
    bench.start(pause_at=20, pause_s=40.0, queue=50)
    time.sleep(40)
    bench.wait_for_all(PATIENCE_S)
    return _outcome(bench)


def hot_shard(bench: Bench, shards: int) -> Figures:
    """One shard of eight has records, the others none."""
    records = 4 * MOST_AT_ONCE
    bench.start()
    bench.put(shards)  # one each, so that all of them are being read
    bench.wait_for_all(PATIENCE_S)
    time.sleep(5)
    begun = time.monotonic()
    with bench.steady(records // 10, keys=1):
        time.sleep(10)
    bench.wait_for_all(PATIENCE_S)
    return {**_latency(bench, begun), **_outcome(bench)}


def failed_heartbeat(bench: Bench) -> Figures:
    """DynamoDB refuses writes for a moment, as it does when it is throttled."""
    with bench.steady(20):
        process = bench.start(lease_s=LEASE_S)
        bench.wait(_shards_of(1, SHARDS), PATIENCE_S)
        bench.aws.fail("dynamodb.UpdateItem", 12)
        time.sleep(2.5 * LEASE_S)
    bench.wait_for_all(PATIENCE_S / 2)
    return {"consumers that ended": float(process.poll() is not None), **_outcome(bench)}


# What is looked for


def _outcome(bench: Bench) -> dict[str, float]:
    """Wait for what is on its way, and count."""
    bench.wait_for_all(3 * LEASE_S)
    return {"records lost": bench.losses(), "records handled twice": bench.duplicates()}


def _latency(bench: Bench, since_s: float) -> dict[str, float]:
    """From a record's PutRecords to its handler, for those put since then."""
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
