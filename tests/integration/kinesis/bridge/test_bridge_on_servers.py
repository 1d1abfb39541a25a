"""`headrace bridge` between kinesis-local and a broker of its own process, leases on dynalite, processes killed -9."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, Consumer
from headrace.clients.consumer.records import ConsumerRecord
from headrace.core.lease.checkpoint import TRIM_HORIZON
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.reading.reader import ShardReader
from headrace.kinesis.reading.records import KinesisRecord
from headrace.kinesis.reading.settings import ReadSettings
from headrace.kinesis.reading.shards import StreamShards
from headrace.testing.process import BrokerProcess
from tests.integration.kinesis.servers import REGION, dummy_aws

pytestmark = pytest.mark.slow
WAIT_S = 60.0
KEYS = 7


class Scene:
    """A stream on kinesis-local, a broker on a port, and bridges in processes."""

    def __init__(self, kinesis_url: str, dynamodb_url: str, directory: Path) -> None:
        self.aws = dummy_aws(kinesis_url)
        self.stream = f"orders-{uuid.uuid4().hex[:8]}"
        table = f"leases-{uuid.uuid4().hex[:8]}"
        self.leases = f"dynamodb://{table}?endpoint_url={dynamodb_url}"
        self.broker = BrokerProcess(directory / "broker")
        self.log = directory / "bridges.log"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.sent = 0

    def place(self, stream: str) -> str:
        return f"kinesis://{stream}?region={REGION}&endpoint_url={self.aws.endpoint_url}"

    def bridge(self, *arguments: str) -> subprocess.Popen[bytes]:
        keys = {"AWS_ACCESS_KEY_ID": "dummy", "AWS_SECRET_ACCESS_KEY": "dummy"}
        command = [sys.executable, "-m", "headrace.cli", "bridge", *arguments, "--format", "json"]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*command, "--progress", "0.2", "--bootstrap", self.broker.bootstrap],
                env={**os.environ, **keys},
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self.processes.remove(process)
        process.kill()
        process.wait()

    def leave(self, process: subprocess.Popen[bytes]) -> None:
        self.processes.remove(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, self.log.read_text()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.broker.kill()

    # Kinesis

    def call(self, operation: str, stream: str, **arguments: Any) -> Any:
        async def once() -> Any:
            async with open_client(self.aws, "kinesis") as client:
                answer = await getattr(client, operation)(StreamName=stream, **arguments)
                while (await StreamShards(client, stream).describe()).status != "ACTIVE":
                    pass  # each poll is a request over the network
                return answer

        return asyncio.run(once())

    def put(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        records = [{"Data": b"%d" % n, "PartitionKey": f"key-{n % KEYS}"} for n in numbers]
        for first in range(0, count, KEYS):
            # One record of each key, because a request promises no order.
            self.call("put_records", self.stream, Records=records[first : first + KEYS])
        self.sent += count

    def split(self) -> None:
        first, last = self.call("list_shards", self.stream)["Shards"][0]["HashKeyRange"].values()
        self.call(
            "split_shard",
            self.stream,
            ShardToSplit="shardId-000000000000",
            NewStartingHashKey=str((int(first) + int(last)) // 2 + 1),
        )

    def records(self, stream: str) -> list[KinesisRecord]:
        async def read() -> list[KinesisRecord]:
            found: list[KinesisRecord] = []
            async with open_client(self.aws, "kinesis") as client:
                for shard in await StreamShards(client, stream).list_shards():
                    settings = ReadSettings(poll_ms=200)
                    reader = ShardReader(
                        client, stream, shard.shard, TRIM_HORIZON, settings=settings
                    )
                    while (fetched := await reader.fetch()).behind_ms or fetched.records:
                        found += fetched.records
            return found

        return asyncio.run(read())

    # Results

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + WAIT_S
        while not condition():
            ended = [process.returncode for process in self.processes if process.poll() is not None]
            assert not ended, f"a bridge ended with {ended}: {self.log.read_text()}"
            assert time.monotonic() < give_up, f"{what}, it was hoped for: {self.log.read_text()}"
            time.sleep(0.05)

    def progress_lines(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture
def scene(kinesis_url: str, dynamodb_url: str, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(kinesis_url, dynamodb_url, tmp_path)
    try:
        scene.broker.start()
        scene.call("create_stream", scene.stream, ShardCount=2)
        with Admin(scene.broker.bootstrap) as admin:
            admin.create_topic("orders", 2)
        yield scene
    finally:
        scene.end()


class Committed:
    """The committed records of a topic, read as they arrive."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            bootstrap, enable_auto_commit=False, isolation_level="read_committed"
        )
        self._consumer.assign(self._consumer.partitions_for("orders"))
        self._consumer.seek_to_beginning()
        self.records: list[ConsumerRecord] = []

    def has(self, count: int) -> bool:
        self.records += self._consumer.poll(0.2)
        return len(self.records) >= count

    def check_once(self, count: int) -> None:
        self.has(count + 1)
        self._consumer.close()
        for each in range(KEYS):
            values = [int(one.value) for one in self.records if one.key == b"key-%d" % each]
            assert values == [number for number in range(count) if number % KEYS == each]


def test_killed_processes_copy_a_stream_once_and_back(scene: Scene) -> None:
    shared = [scene.place(scene.stream), "orders", "--leases", scene.leases, "--lease", "3"]
    first, second = scene.bridge(*shared), scene.bridge(*shared)
    scene.put(3 * KEYS)
    committed = Committed(scene.broker.bootstrap)
    scene.wait(lambda: committed.has(scene.sent), "what is there is copied")

    def shared_out() -> bool:
        return [line["shards"] for line in scene.progress_lines()][-2:] == [1, 1]

    scene.wait(shared_out, "each process has a shard")
    scene.put(2 * KEYS)
    scene.kill(first)
    scene.split()
    scene.put(2 * KEYS)
    scene.broker.kill()
    scene.broker.start()
    scene.put(2 * KEYS)
    scene.wait(lambda: committed.has(scene.sent), "all is copied by the one that is left")

    def starts() -> int:
        return sum(line["records"] == 0 for line in scene.progress_lines())

    before = starts()
    third = scene.bridge(*shared)
    scene.wait(lambda: starts() > before, "the third process has started")
    scene.put(2 * KEYS)
    scene.wait(lambda: committed.has(scene.sent), "and what came later")
    scene.leave(second)
    scene.leave(third)
    committed.check_once(scene.sent)

    copies = f"copies-{uuid.uuid4().hex[:8]}"
    scene.call("create_stream", copies, ShardCount=2)
    back = ["orders", scene.place(copies), "--envelope"]
    first, second = scene.bridge(*back), scene.bridge(*back)
    scene.wait(lambda: bool(scene.records(copies)), "something is copied back")
    scene.kill(first)
    found: list[dict[str, Any]] = []

    def all_are_back() -> bool:
        found[:] = [json.loads(record.data) for record in scene.records(copies)]
        return len({(each["partition"], each["offset"]) for each in found}) == scene.sent

    scene.wait(all_are_back, "all is copied back")
    scene.leave(second)
    once = {(each["partition"], each["offset"]): each for each in found}.values()
    for key in {each["key"] for each in once}:
        values = [int(each["value"]) for each in once if each["key"] == key]
        assert values == sorted(values), "the order for each key holds"
