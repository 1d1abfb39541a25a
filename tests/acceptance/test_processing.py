"""A8, A13, A14 and A16: handlers for many partitions, retries, duplicates, and programs with a remote broker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import headrace
from headrace import TopicPartition
from headrace.errors import TransportError, WorkerFailedError
from tests.acceptance.place import QUICK_CONSUMER, read_all, until

PROGRAM = Path(__file__).resolve().parents[2] / "tests" / "acceptance" / "programs" / "sum_up.py"


class Gauge:
    """The number of handlers that run at once."""

    def __init__(self) -> None:
        self.now: defaultdict[int, int] = defaultdict(int)
        self.most = 0
        self.most_of_one = 0
        self.together = asyncio.Event()

    async def enter(self, partition: int, wanted: int) -> None:
        self.now[partition] += 1
        self.most = max(self.most, sum(self.now.values()))
        self.most_of_one = max(self.most_of_one, self.now[partition])
        if sum(self.now.values()) == wanted:
            self.together.set()
        # All wait for the one that makes it `wanted` at once: they are only ever so many if they work in parallel.
        await asyncio.wait_for(self.together.wait(), 20)
        self.now[partition] -= 1


def test_a8_partitions_are_worked_on_in_parallel_up_to_a_bound(place, name) -> None:
    topic = place.topic(name, 6)
    place.fill(topic, range(60), partitions=6)
    app, gauge = headrace.App(place.target, commit_interval_s=0.05), Gauge()
    seen: list[int] = []

    @app.worker(topic, group=name, ordering="partition", concurrency=3, **QUICK_CONSUMER)
    async def handle(value: bytes, context: headrace.Context) -> None:
        await gauge.enter(context.partition, 3)
        seen.append(int(value))

    with app.test(place.target) as running:
        until(lambda: len(seen) == 60)
        running.wait_idle(20)
    assert (gauge.most, gauge.most_of_one) == (3, 1)
    assert sorted(seen) == list(range(60))


def test_a8_batches_have_a_bound_and_one_partition_each(place, name) -> None:
    topic = place.topic(name, 2)
    place.fill(topic, range(40), partitions=2)
    app = headrace.App(place.target, commit_interval_s=0.05)
    batches: list[list[int]] = []

    @app.worker(topic, group=name, batch=7, **QUICK_CONSUMER)
    async def handle(values: list[bytes]) -> None:
        batches.append([int(value) for value in values])

    with app.test(place.target) as running:
        until(lambda: sum(map(len, batches)) == 40)
        running.wait_idle(20)
    assert max(map(len, batches)) <= 7
    assert all(len({number % 2 for number in batch}) == 1 for batch in batches)


def test_a8_a_range_of_a_partition_is_read_without_a_group(place, name) -> None:
    topic = place.topic(name, 2)
    place.fill(topic, range(40), partitions=2)
    if place.name == "in process":
        records = place.target.read(topic, 1, 5, limit=4)
    else:
        consumer = place.consumer(max_poll_records=4)
        consumer.assign({TopicPartition(topic, 1): 5})
        records = read_all(consumer, 4)
    assert [record.offset for record in records] == [5, 6, 7, 8]


def test_a14_failed_records_are_retried_in_order(place, name) -> None:
    topic = place.topic(name, 2)
    place.fill(topic, range(20), partitions=2)
    app = headrace.App(place.target, commit_interval_s=0.05)
    done: dict[int, list[int]] = {
        0: [],
        1: [],
    }  # all keys exist, because two threads use the dictionary
    failures: defaultdict[int, int] = defaultdict(int)

    @app.worker(
        topic, group=name, retry=headrace.Retry(attempts=5, first=0.01, max=0.02), **QUICK_CONSUMER
    )
    async def handle(value: bytes, context: headrace.Context) -> None:
        number = int(value)
        if number % 5 == 0 and failures[number] < 3:
            failures[number] += 1
            raise RuntimeError("not yet")
        done[context.partition].append(number)

    with app.test(place.target) as running:
        until(lambda: sum(map(len, done.values())) == 20)
        running.wait_idle(20)
    assert done == {0: list(range(0, 20, 2)), 1: list(range(1, 20, 2))}
    assert failures == dict.fromkeys([0, 5, 10, 15], 3)


def test_a14_a_key_keeps_a_repeated_record_from_being_handled_twice(place, name) -> None:
    topic = place.topic(name)
    place.fill(topic, [1, 2, 1, 3, 2, 1])
    app = headrace.App(place.target, commit_interval_s=0.05)
    seen: list[int] = []

    @app.worker(topic, group=name, dedupe=lambda value: value, **QUICK_CONSUMER)
    async def handle(value: bytes) -> None:
        seen.append(int(value))

    with app.test(place.target) as running:
        until(lambda: len(seen) >= 3)
        running.wait_idle(20)
    assert seen == [1, 2, 3]


def test_a13_an_owner_that_cannot_commit_stops_and_its_partitions_move(
    place, name, monkeypatch
) -> None:
    topic = place.topic(name, 4)
    place.fill(topic, range(40), partitions=4)
    handled: defaultdict[str, set[int]] = defaultdict(set)
    commit, fenced = headrace.aio.Consumer.commit, {"first"}

    async def out_of_reach(consumer, offsets) -> None:
        if consumer.config.client_id in fenced:
            raise TransportError("the coordinator did not answer in time")
        await commit(consumer, offsets)

    monkeypatch.setattr(headrace.aio.Consumer, "commit", out_of_reach)

    def make(label: str) -> headrace.App:
        app = headrace.App(place.target, client_id=label, commit_interval_s=60)

        @app.worker(topic, group=name, **QUICK_CONSUMER)
        async def handle(value: bytes) -> None:
            handled[label].add(int(value))

        return app

    def go_on_without_the_first() -> None:
        with make("first").test(place.target) as first:
            until(lambda: len(handled["first"]) == 40)
            with make("second").test(place.target) as second:
                until(lambda: len(handled["second"]) == 40)
                second.wait_idle(20)
                first.wait_idle(20)

    with pytest.raises(WorkerFailedError, match="could not be committed: the coordinator did not"):
        go_on_without_the_first()
    assert {at.offset for at in place.admin().offsets(name).values()} == {10}


def run_programs(target: str, topic: str, count: int, members: int) -> list[dict[str, int]]:
    """Run consumers of one group in processes of their own, until all records are read."""
    command = [sys.executable, str(PROGRAM), target, topic, topic, str(count)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        for _ in range(members)
    ]
    try:
        return [json.loads(process.communicate("", timeout=60)[0]) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.parametrize("members", [1, 3])
def test_a16_consumers_in_other_processes_differ_only_in_the_address(place, name, members) -> None:
    topic = place.topic(name, 6)
    place.topic(f"{topic}-done")
    place.fill(topic, range(120), partitions=6)
    address = place.target.listen() if place.name == "in process" else place.target
    answers = run_programs(address, topic, 120, members)
    assert sum(answer["records"] for answer in answers) == 120
    assert sum(answer["sum"] for answer in answers) == sum(range(120))


def test_a16_members_in_this_process_and_in_others_share_a_group(name) -> None:
    with headrace.Broker() as broker:
        broker.create_topic(name, 6)
        broker.create_topic(f"{name}-done")
        for number in range(60):
            broker.publish(name, b"%d" % number, partition=number % 6)
        here = headrace.Consumer(broker, group=name, **QUICK_CONSUMER)
        here.subscribe([name])
        assert len(here.assignment()) == 6
        here.close()
        (answer,) = run_programs(broker.listen(), name, 60, 1)
        assert answer == {"records": 60, "sum": sum(range(60))}
